#include "linear.h"

#include <algorithm>
#include <atomic>

#include "layout.h"
#include "pool.h"
#include "simd.h"
#include "tiles.h"

namespace esclusa {
namespace {

#if defined(__AVX512BF16__)
// Intel's dot runs once in two cycles: widening to float32 is twice as fast there, and exact. AMD's runs at full rate.
std::atomic<bool> bf16_dot{__builtin_cpu_is("amd") != 0};
#endif

// Few rows leave accumulators free, so several panels go at once to hide latency.
constexpr int panels_at_once(int32_t kind, int rows) {
#if defined(__AVX512F__)
  if (kind == HALF) return rows <= 6 ? 4 : 2;
  if (kind >= INT8) return rows <= 1 ? 4 : rows <= 3 ? 2 : 1;
  return rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
#else
  return kind >= 0 && rows > 0 ? 1 : 1;
#endif
}

typedef void (*TileFunction)(const Linear&, const void*, const float*, const float*, const char*, int64_t, int64_t,
                             int64_t, float*);

template <int KIND>
TileFunction tile_for(int rows, int panels) {
  switch (rows * 8 + panels) {
#define CASE(R, P) case R * 8 + P: return Tile<KIND, R, PER_PANEL * P>::run;
    CASE(1, 1) CASE(2, 1) CASE(3, 1)
#if defined(__AVX512F__)
    CASE(1, 4) CASE(2, 4) CASE(3, 4) CASE(2, 2) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2) CASE(4, 1) CASE(5, 1) CASE(6, 1) CASE(7, 1)
    CASE(8, 1) CASE(9, 1) CASE(10, 1) CASE(11, 1) CASE(12, 1)
#if defined(__AVX512FP16__)
    CASE(4, 4) CASE(5, 4) CASE(6, 4) CASE(7, 2) CASE(8, 2) CASE(9, 2) CASE(10, 2) CASE(11, 2) CASE(12, 2)
#endif
#endif
#undef CASE
  }
  return nullptr;
}

TileFunction find_tile(int32_t kind, int rows, int panels) {
  switch (kind) {
    case F32: return tile_for<F32>(rows, panels);
    case BF16: return tile_for<BF16>(rows, panels);
    case INT8: return tile_for<INT8>(rows, panels);
    case GROUP4: return tile_for<GROUP4>(rows, panels);
    case HALF: return tile_for<HALF>(rows, panels);
    default: return tile_for<GROUP8>(rows, panels);
  }
}

template <class Y>
INLINE void write_tile(const float* tile, int rows, int width, const Linear& l, int64_t column, Y* y, int64_t ldy) {
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < width; v += LANES) {
      const int64_t at = column + v;
      const int n = (int)std::min<int64_t>(LANES, l.n - at);
      if (n <= 0) break;
      vf x = load(tile + r * width + v);
      if (n == LANES) {
        if (l.bias) x += load(l.bias + at);
        store(y + r * ldy + at, x);
      } else {
        if (l.bias) x += load_tail(l.bias + at, n);
        store_tail(y + r * ldy + at, x, n);
      }
    }
}

}  // namespace

#if defined(__AVX512BF16__)
bool use_bf16_dot() { return bf16_dot.load(std::memory_order_relaxed); }
void prefer_bf16_dot(bool on) { bf16_dot.store(on); }
#else
bool use_bf16_dot() { return false; }
void prefer_bf16_dot(bool) {}
#endif

void multiply(const Linear& l, const RowBlocks& blocks, const PackedRows& rows, void* y, int64_t ldy, bool y_bf16) {
  if (blocks.rows == 0) return;
  const int64_t panels = (l.n + PANEL - 1) / PANEL, stride = panel_bytes(l);
  const int64_t k_padded = padded_k(l), bytes = element_bytes(l), groups = scaled(l) ? groups_of(l) : 0;
  // As many row blocks at a time as half of a small L2 holds, so that activations stay there while panels stream by.
  const int64_t tall = std::max<int64_t>(1, (384 << 10) / (k_padded * bytes * MAX_TILE_ROWS));
  const int64_t bands = (blocks.count + tall - 1) / tall;
  const int64_t step = panels_at_once(l.kind, (int)blocks.base);
  int64_t share = (panels + 8 * threads() - 1) / (8 * threads());
  share = std::max<int64_t>(1, std::min<int64_t>(share, 32));
  share = (share + step - 1) / step * step;
  const int64_t shares = (panels + share - 1) / share;
  parallel_items(bands * shares, [&](int64_t item) {
    alignas(64) float tile[MAX_TILE_ROWS * 2 * PANEL > 12 * PANEL ? MAX_TILE_ROWS * 2 * PANEL : 12 * PANEL];
    const int64_t first_block = item / shares * tall, last_block = std::min(blocks.count, first_block + tall);
    const int64_t begin = item % shares * share, end = std::min(panels, begin + share);
    for (int64_t panel = begin; panel < end; panel += step)
      for (int64_t block = first_block; block < last_block; block++) {
        const int height = blocks.height(block);
        const int64_t start = blocks.start(block);
        for (int64_t at = panel; at < std::min(end, panel + step);) {
          int at_once = panels_at_once(l.kind, height);
          if (at + at_once > std::min(end, panel + step)) at_once = 1;
          find_tile(l.kind, height, at_once)(l, (const char*)rows.codes + start * k_padded * bytes,
                                             rows.scale + start * groups, rows.offset + start * groups,
                                             (const char*)l.weight + at * stride, stride, at * PANEL,
                                             block == first_block ? at_once * stride : 0, tile);
          const int width = at_once * PANEL;
          if (y_bf16)
            write_tile(tile, height, width, l, at * PANEL, (uint16_t*)y + start * ldy, ldy);
          else
            write_tile(tile, height, width, l, at * PANEL, (float*)y + start * ldy, ldy);
          at += at_once;
        }
      }
  });
}

}  // namespace esclusa
