#include "pool.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace esclusa {
namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

thread_local bool inside = false;  // this thread runs an item of a job

struct Pool {
  std::atomic<uint64_t> published{0};  // number of the newest job
  std::atomic<uint64_t> open{0};       // the job that may be joined, 0 when none
  std::atomic<int> active{0};          // workers inside a job
  std::atomic<int> sleepers{0};
  std::atomic<int64_t> next{0};
  ItemFunction function = nullptr;
  void* context = nullptr;
  int64_t count = 0;
  std::atomic<int> allowed{0};  // workers that may join, so that the thread count can shrink
  std::mutex mutex;
  std::condition_variable wake;
  int workers = 0;
  pid_t owner = 0;

  void work(int index) {
    uint64_t seen = 0;
    for (;;) {
      wait_for_job(seen);
      seen = published.load(std::memory_order_acquire);
      // Join before checking that the job is still open: the caller closes it before it counts who is inside.
      active.fetch_add(1);
      if (open.load() == seen && index < allowed.load(std::memory_order_relaxed)) claim();
      active.fetch_sub(1);
    }
  }
  void claim() {
    inside = true;
    for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < count;) function(context, item);
    inside = false;
  }
  void wait_for_job(uint64_t seen) {
    using clock = std::chrono::steady_clock;
    const auto limit = clock::now() + std::chrono::microseconds(60);
    for (int spin = 0;; spin++) {
      if (published.load(std::memory_order_acquire) != seen) return;
      pause_briefly();
      if (spin % 64 == 63 && clock::now() > limit) break;
    }
    std::unique_lock<std::mutex> lock(mutex);
    sleepers.fetch_add(1);
    wake.wait(lock, [&] { return published.load() != seen; });
    sleepers.fetch_sub(1);
  }
};

Pool* pool = nullptr;
std::atomic<int> wanted{1};

Pool* current_pool() {
  const int needed = wanted.load(std::memory_order_relaxed) - 1;
  if (pool == nullptr || pool->owner != getpid()) {
    pool = new Pool;  // never freed: workers live as long as the process; a forked child starts its own
    pool->owner = getpid();
  }
  while (pool->workers < needed) {
    Pool* self = pool;
    const int index = pool->workers++;
    std::thread([self, index] { self->work(index); }).detach();
  }
  pool->allowed.store(needed, std::memory_order_relaxed);
  return pool;
}

std::atomic_flag in_use = ATOMIC_FLAG_INIT;

}  // namespace

void set_threads(int count) { wanted.store(count < 1 ? 1 : count, std::memory_order_relaxed); }
int threads() { return inside ? 1 : wanted.load(std::memory_order_relaxed); }

void run_items(ItemFunction function, void* context, int64_t count) {
  // One job at a time: a second caller (another model's thread) runs its items itself rather than wait.
  if (in_use.test_and_set(std::memory_order_acquire)) {
    for (int64_t item = 0; item < count; item++) function(context, item);
    return;
  }
  Pool& p = *current_pool();
  p.function = function;
  p.context = context;
  p.count = count;
  p.next.store(0, std::memory_order_relaxed);
  const uint64_t job = p.published.load(std::memory_order_relaxed) + 1;
  p.open.store(job);
  p.published.store(job);
  if (p.sleepers.load() > 0) {
    std::lock_guard<std::mutex> lock(p.mutex);
    p.wake.notify_all();
  }
  p.claim();
  p.open.store(0);
  for (int spin = 0; p.active.load() != 0; spin++) {
    pause_briefly();
    if (spin > 20000) std::this_thread::yield();
  }
  in_use.clear(std::memory_order_release);
}

}  // namespace esclusa
