#include "linear.h"

#include <algorithm>
#include <atomic>

#include "layout.h"
#include "pool.h"
#include "rows.h"
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
                             int64_t, Ahead&, float*);

template <int KIND>
TileFunction tile_for(int rows, int panels) {
  switch (rows * 8 + panels) {
    // clang-format off
#define CASE(R, P) case R * 8 + P: return Tile<KIND, R, PER_PANEL * P>::run;
    CASE(1, 1) CASE(2, 1) CASE(3, 1)
#if defined(__AVX512F__)
    CASE(1, 4) CASE(2, 4) CASE(3, 4) CASE(1, 2) CASE(2, 2) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2)
    CASE(4, 1) CASE(5, 1) CASE(6, 1) CASE(7, 1) CASE(8, 1) CASE(9, 1) CASE(10, 1) CASE(11, 1) CASE(12, 1)
#if defined(__AVX512FP16__)
    CASE(4, 4) CASE(5, 4) CASE(6, 4) CASE(7, 2) CASE(8, 2) CASE(9, 2) CASE(10, 2) CASE(11, 2) CASE(12, 2)
#endif
#endif
    // clang-format on
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
    case FLOAT8: return tile_for<FLOAT8>(rows, panels);
    default: return tile_for<GROUP8>(rows, panels);
  }
}

// What `count` panels from `panel` on (of each half, where paired) need, spread over so many calls of `step`.
Ahead ahead_of(const Linear& l, bool paired, int64_t panel, int64_t count, int64_t calls) {
  Ahead ahead;
  ahead.bytes = count * panel_bytes(l);
  ahead.at = (const char*)l.weight + panel * panel_bytes(l);
  ahead.end = ahead.at + ahead.bytes;
  if (paired) ahead.second = ahead.at + l.n / 2 / PANEL * panel_bytes(l);
  ahead.lines = (ahead.bytes / 64 * (paired ? 2 : 1) + calls - 1) / calls;
  return ahead;
}

// What this lane will read first of the product that comes next.
Ahead first_of(const Following& following, int64_t lane, int64_t calls) {
  const Linear& l = *following.linear;
  const int64_t panels = following.gated ? l.n / 2 / PANEL : (l.n + PANEL - 1) / PANEL;
  const int64_t lanes = std::min<int64_t>(threads(), panels), first = panels * std::min(lane, lanes - 1) / lanes;
  return ahead_of(l, following.gated, first, following.gated ? 1 : std::min<int64_t>(2, panels - first), calls);
}

// Calls write(tile, height, panels, panel, first row) for all sums, tile being float [height][panels * 32]. PAIRED takes
// each panel of the first half with its like in the second and calls write(tile, height, side by side, panel, first row),
// tile being [height][2 * 32] where side by side and [2][height][32] otherwise.
template <bool PAIRED, class Write>
void sweep(const Linear& l, const RowBlocks& blocks, const PackedRows& rows, const Following& following,
           const Write& write) {
  if (blocks.rows == 0) return;
  const int64_t panels = (l.n + PANEL - 1) / PANEL / (PAIRED ? 2 : 1), stride = panel_bytes(l);
  const int64_t k_padded = padded_k(l), bytes = element_bytes(l), groups = scaled(l) ? groups_of(l) : 0;
  // As many row blocks at a time as half of a small L2 holds, so that activations stay there while panels stream by.
  const int64_t tall = std::max<int64_t>(1, (384 << 10) / (k_padded * bytes * MAX_TILE_ROWS));
  const int64_t bands = (blocks.count + tall - 1) / tall, steps = ahead_steps(l);
  const int64_t most = PAIRED ? 1 : panels_at_once(l.kind, (int)blocks.base);
  // Items are panels, band after band.
  parallel_spans(bands * panels, most, [&](int64_t begin, int64_t end, int64_t next, int64_t lane) {
    alignas(64) float tile[MAX_TILE_ROWS * 2 * PANEL > 12 * PANEL ? MAX_TILE_ROWS * 2 * PANEL : 12 * PANEL];
    for (int64_t item = begin, last; item < end; item = last) {
      const int64_t first_block = item / panels * tall, last_block = std::min(blocks.count, first_block + tall);
      const int64_t panel = item % panels, width = std::min(end - item, panels - panel);
      last = item + width;
      const int64_t calls = steps * (last_block - first_block), soon = last < end ? last : next;
      Ahead ahead;
      if (soon >= 0)
        ahead = ahead_of(l, PAIRED, soon % panels, std::min(most, panels - soon % panels), calls);
      else if (lane >= 0 && following.linear)
        ahead = first_of(following, lane, calls);
      for (int64_t block = first_block; block < last_block; block++) {
        const int height = blocks.height(block);
        const int64_t start = blocks.start(block);
        const auto sum = [&](int64_t at, int at_once, int64_t apart, float* out) {
          find_tile(l.kind, height, at_once)(l, (const char*)rows.codes + start * k_padded * bytes,
                                             rows.scale + start * groups, rows.offset + start * groups,
                                             (const char*)l.weight + at * stride, apart * stride, at * PANEL,
                                             apart * PANEL, ahead, out);
        };
        const int fit = panels_at_once(l.kind, height);
        if (PAIRED) {
          if (fit >= 2) {
            sum(panel, 2, panels, tile);
          } else {
            sum(panel, 1, 1, tile);
            sum(panel + panels, 1, 1, tile + height * PANEL);
          }
          write(tile, height, fit >= 2, panel, start);
          continue;
        }
        for (int64_t at = panel, at_once; at < panel + width; at += at_once) {
          at_once = at + fit > panel + width ? 1 : fit;
          sum(at, (int)at_once, 1, tile);
          write(tile, height, at_once, at, start);
        }
      }
    }
  });
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

void multiply(const Linear& l, const RowBlocks& blocks, const PackedRows& rows, void* y, int64_t ldy, bool y_bf16,
              const Following& following) {
  sweep<false>(l, blocks, rows, following,
               [&](const float* tile, int height, int64_t at_once, int64_t panel, int64_t start) {
    if (y_bf16)
      write_tile(tile, height, (int)at_once * PANEL, l, panel * PANEL, (uint16_t*)y + start * ldy, ldy);
    else
      write_tile(tile, height, (int)at_once * PANEL, l, panel * PANEL, (float*)y + start * ldy, ldy);
  });
}

bool can_gate(const Linear& l) { return l.n % (2 * PANEL) == 0; }

void multiply_gated(const Linear& l, const RowBlocks& blocks, const PackedRows& rows, float* y, bool gelu,
                    const Following& following) {
  const int64_t half = l.n / 2;
  sweep<true>(l, blocks, rows, following,
              [&](const float* tile, int height, bool side_by_side, int64_t panel, int64_t start) {
    const int64_t pitch = side_by_side ? 2 * PANEL : PANEL, up = side_by_side ? PANEL : height * PANEL;
    for (int r = 0; r < height; r++)
      for (int v = 0; v < PANEL; v += LANES) {
        const int64_t column = panel * PANEL + v;
        vf gate = load(tile + r * pitch + v), value = load(tile + r * pitch + up + v);
        if (l.bias) {
          gate += load(l.bias + column);
          value += load(l.bias + half + column);
        }
        store(y + (start + r) * half + column, activate(gate, gelu) * value);
      }
  });
}

}  // namespace esclusa
