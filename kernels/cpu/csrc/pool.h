// A small pool of worker threads. Items are claimed one by one from a counter, so a worker that the system delays
// delays nobody but the item in its hands. It exists because an OpenMP barrier stalls for a whole time slice when
// another process holds a core, and because a second OpenMP runtime in one process oversubscribes.
// Owns threads; must not know what runs on them. Results must not depend on which thread runs an item.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace esclusa {

typedef void (*ItemFunction)(void* context, int64_t item);

void set_threads(int count);
int threads();  // 1 inside an item: jobs do not nest
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

// A run of items that one thread takes from the front while others, done with their own, take from the back.
class alignas(64) Span {
 public:
  void set(int64_t begin, int64_t end) { range_.store(pack(begin, end), std::memory_order_relaxed); }
  int64_t left() const {
    const uint64_t range = range_.load(std::memory_order_relaxed);
    return (int64_t)(range & LOW) - (int64_t)(range >> 32);
  }
  // Up to `most` items into [begin, end); false when none are left.
  bool take(int64_t most, bool front, int64_t& begin, int64_t& end) {
    uint64_t range = range_.load(std::memory_order_relaxed);
    for (;;) {
      const int64_t first = (int64_t)(range >> 32), last = (int64_t)(range & LOW);
      if (first >= last) return false;
      const int64_t count = most < last - first ? most : last - first;
      begin = front ? first : last - count;
      end = begin + count;
      const uint64_t rest = front ? pack(end, last) : pack(first, begin);
      if (range_.compare_exchange_weak(range, rest, std::memory_order_relaxed)) return true;
    }
  }

 private:
  static constexpr uint64_t LOW = 0xffffffffu;
  static uint64_t pack(int64_t begin, int64_t end) { return (uint64_t)begin << 32 | (uint64_t)end; }
  std::atomic<uint64_t> range_{0};
};

// Like `parallel_items`, but each thread walks a run of neighbours, at most `most` at a time, and knows what it will
// probably do next: body(begin, end, next, lane) with next -1 where the run ends. Whoever is done helps the others, with
// lane -1.
template <class F>
inline void parallel_spans(int64_t count, int64_t most, const F& body) {
  const int64_t lanes = threads() < count ? threads() : count;
  std::vector<Span> spans(lanes);
  for (int64_t lane = 0; lane < lanes; lane++) spans[lane].set(count * lane / lanes, count * (lane + 1) / lanes);
  parallel_items(lanes, [&](int64_t lane) {
    int64_t begin, end;
    while (spans[lane].take(most, true, begin, end)) body(begin, end, spans[lane].left() > 0 ? end : -1, lane);
    for (int64_t other = 1; other < lanes; other++)
      while (spans[(lane + other) % lanes].take(most, false, begin, end)) body(begin, end, -1, -1);
  });
}

}  // namespace esclusa
