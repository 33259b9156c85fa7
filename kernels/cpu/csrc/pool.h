// A small pool of worker threads. Items are claimed one by one from a counter, so a worker that the system delays
// delays nobody but the item in its hands. It exists because an OpenMP barrier stalls for a whole time slice when
// another process holds a core, and because a second OpenMP runtime in one process oversubscribes.
// Owns threads; must not know what runs on them. Results must not depend on which thread runs an item.
#pragma once
#include <cstdint>

namespace esclusa {

typedef void (*ItemFunction)(void* context, int64_t item);

void set_threads(int count);
int threads();
// Runs items 0..count-1 and returns when all are done. A pool that is busy with another caller runs them here.
void run_items(ItemFunction function, void* context, int64_t count);

template <class F>
inline void parallel_items(int64_t count, const F& body) {
  if (count <= 0) return;
  if (count == 1 || threads() == 1) {
    for (int64_t item = 0; item < count; item++) body(item);
    return;
  }
  run_items([](void* context, int64_t item) { (*static_cast<const F*>(context))(item); }, const_cast<F*>(&body), count);
}

}  // namespace esclusa
