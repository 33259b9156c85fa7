#include "linear.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "pool.h"
#include "rows.h"
#include "simd.h"

namespace esclusa {
namespace {

bool use_bf16_dot() {
#if defined(__AVX512BF16__)
  // Intel's dot runs once in two cycles: widening to float32 is twice as fast there, and exact. AMD's runs at full rate.
  static const bool fast = __builtin_cpu_is("amd");
  return fast;
#else
  return false;
#endif
}

bool quantised(const Linear& l) { return l.kind == INT8 || l.kind == GROUP4 || l.kind == GROUP8; }
bool scaled(const Linear& l) { return l.kind >= INT8; }  // activations carry scales
int64_t groups_of(const Linear& l) { return l.kind == HALF ? 1 : (l.k + l.group - 1) / l.group; }
int64_t padded_k(const Linear& l) { return quantised(l) ? (l.k + 7) / 8 * 8 : l.kind == HALF ? l.k : (l.k + 1) / 2 * 2; }
int64_t element_bytes(const Linear& l) { return quantised(l) ? 1 : (l.kind == BF16 && use_bf16_dot() ? 2 : 4); }

int64_t panel_bytes(const Linear& l) {
  const int64_t k = padded_k(l);
  switch (l.kind) {
    case F32: return l.k * PANEL * 4;
    case HALF:
    case BF16: return k * PANEL * 2;
    case GROUP4: return k * PANEL / 2;
    default: return k * PANEL;
  }
}

template <int KIND, int R, int V>
struct Tile;  // sums of R rows by V registers of outputs (PER_PANEL in a panel), into out[R][V * NATIVE]

constexpr int PER_PANEL = PANEL / NATIVE;

INLINE const char* panel_at(const char* weight, int64_t stride, int v) {
  return weight + (v / PER_PANEL) * stride + (v % PER_PANEL) * NATIVE * 4;
}

// The panels after these, `ahead` bytes on, travel to the L2 cache while these are used.
template <int V>
INLINE void fetch(const char* row, int64_t stride, int64_t ahead) {
#if defined(__x86_64__)
  if (ahead)
#pragma GCC unroll 8
    for (int v = 0; v < V; v += 64 / (NATIVE * 4)) __builtin_prefetch(panel_at(row, stride, v) + ahead, 0, 2);
#endif
}

template <int R, int V>
INLINE void spill(float* out, nf (&sum)[R][V]) {
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) native_store(out + (r * V + v) * NATIVE, sum[r][v]);
}

template <int R, int V>
struct Tile<F32, R, V> {
  static void run(const Linear& l, const void* codes, const float*, const float*, const char* w, int64_t stride, int64_t,
                  int64_t ahead, float* out) {
    const float* a = (const float*)codes;
    nf sum[R][V] = {};
    for (int64_t k = 0; k < l.k; k++, a += R) {
      const char* row = w + k * PANEL * 4;
      fetch<V>(row, stride, ahead);
      nf b[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) b[v] = native_load<nf>(panel_at(row, stride, v));
#pragma GCC unroll 12
      for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sum[r][v] += a[r] * b[v];
    }
    spill<R, V>(out, sum);
  }
};

template <int R, int V>
struct Tile<BF16, R, V> {
  static void run(const Linear& l, const void* codes, const float*, const float*, const char* w, int64_t stride, int64_t,
                  int64_t ahead, float* out) {
    const int64_t pairs = (l.k + 1) / 2;
    nf sum[R][V] = {};
#if defined(__AVX512BF16__)
    if (use_bf16_dot()) {
      const int32_t* a = (const int32_t*)codes;
      for (int64_t k = 0; k < pairs; k++, a += R) {
        nu b[V];
        fetch<V>(w + k * PANEL * 4, stride, ahead);
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) b[v] = native_load<nu>(panel_at(w + k * PANEL * 4, stride, v));
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
          for (int v = 0; v < V; v++)
            sum[r][v] = (nf)_mm512_dpbf16_ps((__m512)sum[r][v], (__m512bh)_mm512_set1_epi32(a[r]), (__m512bh)b[v]);
      }
      spill<R, V>(out, sum);
      return;
    }
#endif
    const float* a = (const float*)codes;
    for (int64_t k = 0; k < pairs; k++, a += 2 * R) {
      nu b[V];
      fetch<V>(w + k * PANEL * 4, stride, ahead);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) b[v] = native_load<nu>(panel_at(w + k * PANEL * 4, stride, v));
      nf wide[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) wide[v] = native_first(b[v]);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sum[r][v] += a[r] * wide[v];
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) wide[v] = native_second(b[v]);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sum[r][v] += a[R + r] * wide[v];
    }
    spill<R, V>(out, sum);
  }
};

#if !defined(__AVX512VNNI__)
// Per 32-bit lane: the two 16-bit halves of w (at most 255) times those of x, added.
INLINE ni pair_products(nu w, int32_t x) {
#if defined(__AVX512BW__)
  return (ni)_mm512_madd_epi16((__m512i)w, _mm512_set1_epi32(x));
#elif defined(__AVX2__)
  return (ni)_mm256_madd_epi16((__m256i)w, _mm256_set1_epi32(x));
#elif defined(__x86_64__)
  return (ni)_mm_madd_epi16((__m128i)w, _mm_set1_epi32(x));
#else
  return (ni)(w & 0xffffu) * (int32_t)(int16_t)x + (ni)(w >> 16) * (x >> 16);
#endif
}
#endif

// sum += unsigned bytes of `w` times the four signed bytes of `x`, per 32-bit lane.
INLINE ni dot4(ni sum, nu w, int32_t x) {
#if defined(__AVX512VNNI__)
  return (ni)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, _mm512_set1_epi32(x));
#else
  // As 16-bit products: even and odd bytes apart, since 255 * 127 * 2 would saturate an 8-bit multiply-add.
  const nu even = w & 0x00ff00ffu, odd = (w >> 8) & 0x00ff00ffu;
  const int32_t x_even = ((int8_t)x & 0xffff) | (int32_t)((uint32_t)(int8_t)(x >> 16) << 16);
  const int32_t x_odd = ((int8_t)(x >> 8) & 0xffff) | (int32_t)((uint32_t)(int8_t)(x >> 24) << 16);
  return sum + pair_products(even, x_even) + pair_products(odd, x_odd);
#endif
}

template <int R, int V>
struct Tile<INT8, R, V> {
  static INLINE void step_quad(const int32_t* a, const char* w, int64_t stride, int64_t ahead, ni (&dots)[R][V]) {
    nu b[V];
    fetch<V>(w, stride, ahead);
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) b[v] = native_load<nu>(panel_at(w, stride, v));
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) dots[r][v] = dot4(dots[r][v], b[v], a[r]);
  }
  static void run(const Linear& l, const void* codes, const float* scale, const float* offset, const char* w,
                  int64_t stride, int64_t column, int64_t ahead, float* out) {
    const int32_t* a = (const int32_t*)codes;
    const int64_t quads = padded_k(l) / 4, groups = groups_of(l);
    nf sum[R][V] = {};
    float excess[R] = {};  // codes are stored + 128: the same surplus for all outputs of a row
    int64_t k = 0;
    for (int64_t g = 0; g < groups; g++, scale += R, offset += R) {
      ni dots[R][V] = {};
      const int64_t end = g + 1 == groups ? quads : k + l.group / 4;
      if (end - k == 8) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) step_quad(a + i * R, w + (k + i) * PANEL * 4, stride, ahead, dots);
        a += 8 * R;
        k = end;
      }
      for (; k < end; k++, a += R) step_quad(a, w + k * PANEL * 4, stride, ahead, dots);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) {
        excess[r] += offset[r];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sum[r][v] += __builtin_convertvector(dots[r][v], nf) * scale[r];
      }
    }
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++)
        sum[r][v] = (sum[r][v] - 128.0f * excess[r]) * native_load<nf>(l.scale + column + v * NATIVE);
    spill<R, V>(out, sum);
  }
};

template <int R, int V>
struct Tile<GROUP4, R, V> {
  static INLINE void step_eight(const int32_t* a, const char* w, int64_t stride, int64_t ahead, ni (&dots)[R][V]) {
    fetch<V>(w, stride, ahead);
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      const nu packed = native_load<nu>(panel_at(w, stride, v));
      const nu low = packed & 0x0f0f0f0fu, high = (packed >> 4) & 0x0f0f0f0fu;
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) dots[r][v] = dot4(dot4(dots[r][v], low, a[r]), high, a[R + r]);
    }
  }
  static void run(const Linear& l, const void* codes, const float* scale, const float* offset, const char* w,
                  int64_t stride, int64_t column, int64_t ahead, float* out) {
    const int32_t* a = (const int32_t*)codes;
    const int64_t groups = groups_of(l), eights = l.group / 8;
    nf sum[R][V] = {};
    for (int64_t g = 0; g < groups; g++, scale += R, offset += R) {
      ni dots[R][V] = {};
      if (eights == 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) step_eight(a + 2 * i * R, w + i * PANEL * 4, stride, ahead, dots);
        a += 8 * R, w += 4 * PANEL * 4;
      } else {
        for (int64_t k = 0; k < eights; k++, a += 2 * R, w += PANEL * 4) step_eight(a, w, stride, ahead, dots);
      }
      add_group<R, V>(l, g, groups, column, scale, offset, dots, sum);
    }
    spill<R, V>(out, sum);
  }
  template <int R2, int V2>
  static INLINE void add_group(const Linear& l, int64_t g, int64_t groups, int64_t column, const float* scale,
                               const float* offset, ni (&dots)[R2][V2], nf (&sum)[R2][V2]) {
#pragma GCC unroll 8
    for (int v = 0; v < V2; v++) {
      const int64_t at = ((column / PANEL + v / PER_PANEL) * groups + g) * PANEL + (v % PER_PANEL) * NATIVE;
      const nf s = load_half(l.group_scale + at), m = load_half(l.group_min + at);
#pragma GCC unroll 12
      for (int r = 0; r < R2; r++)
        sum[r][v] = sum[r][v] + __builtin_convertvector(dots[r][v], nf) * (s * scale[r]) + m * offset[r];
    }
  }
};

template <int R, int V>
struct Tile<GROUP8, R, V> {
  static void run(const Linear& l, const void* codes, const float* scale, const float* offset, const char* w,
                  int64_t stride, int64_t column, int64_t ahead, float* out) {
    const int32_t* a = (const int32_t*)codes;
    const int64_t groups = groups_of(l), quads = l.group / 4;
    nf sum[R][V] = {};
    for (int64_t g = 0; g < groups; g++, scale += R, offset += R) {
      ni dots[R][V] = {};
      for (int64_t k = 0; k < quads; k++, a += R, w += PANEL * 4) {
        fetch<V>(w, stride, ahead);
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
          const nu b = native_load<nu>(panel_at(w, stride, v));
#pragma GCC unroll 12
          for (int r = 0; r < R; r++) dots[r][v] = dot4(dots[r][v], b, a[r]);
        }
      }
      Tile<GROUP4, R, V>::template add_group<R, V>(l, g, groups, column, scale, offset, dots, sum);
    }
    spill<R, V>(out, sum);
  }
};

#if defined(__AVX512FP16__)
template <int R, int V>
struct Tile<HALF, R, V> {
  static void run(const Linear& l, const void* codes, const float* scale, const float*, const char* w, int64_t stride,
                  int64_t column, int64_t ahead, float* out) {
    constexpr int PANELS = V / 2;
    const int32_t* a = (const int32_t*)codes;  // each activation twice, so that a 32-bit broadcast fills all lanes
    for (int i = 0; i < R * V; i++) store(out + i * LANES, vf{});
    for (int64_t begin = 0; begin < l.k; begin += HALF_CHUNK) {
      const int64_t end = std::min<int64_t>(l.k, begin + HALF_CHUNK);
      __m512h sum[R][PANELS];
#pragma GCC unroll 12
      for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) sum[r][p] = _mm512_setzero_ph();
      for (int64_t k = begin; k < end; k++, a += R) {
        __m512h b[PANELS];
        if (ahead)
#pragma GCC unroll 4
          for (int p = 0; p < PANELS; p++) __builtin_prefetch(w + p * stride + k * 64 + ahead, 0, 2);
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) b[p] = _mm512_loadu_ph(w + p * stride + k * 64);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
          const __m512h x = (__m512h)_mm512_set1_epi32(a[r]);
#pragma GCC unroll 4
          for (int p = 0; p < PANELS; p++) sum[r][p] = _mm512_fmadd_ph(x, b[p], sum[r][p]);
        }
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
          float* at = out + r * V * LANES + p * PANEL;
          const __m512i bits = (__m512i)sum[r][p];
          store(at, load(at) + (vf)_mm512_cvtxph_ps((__m256h)_mm512_castsi512_si256(bits)));
          store(at + 16, load(at + 16) + (vf)_mm512_cvtxph_ps((__m256h)_mm512_extracti64x4_epi64(bits, 1)));
        }
    }
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++) {
        float* at = out + (r * V + v) * LANES;
        store(at, load(at) * (load(l.scale + column + v * LANES) * splat(scale[r])));
      }
  }
};
#else
template <int R, int V>
struct Tile<HALF, R, V> {
  static void run(const Linear&, const void*, const float*, const float*, const char*, int64_t, int64_t, int64_t,
                  float*) {}
};
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

// Codes of one row per group of inputs: symmetric, largest magnitude to 127.
void quantise_row(const Linear& l, const float* x, int8_t* codes, float* scale, float* offset, int height) {
  const int64_t groups = groups_of(l), k_padded = padded_k(l);
  for (int64_t g = 0; g < groups; g++) {
    const int64_t begin = g * l.group, end = std::min<int64_t>(begin + l.group, l.k);
    vf largest = {};
    int64_t i = begin;
    for (; i + LANES <= end; i += LANES) largest = vmax(vabs(load(x + i)), largest);
    if (i < end) largest = vmax(vabs(load_tail(x + i, (int)(end - i))), largest);
    const float peak = reduce_max(largest);
    const float step = peak / 127.0f, inverse = peak > 0 ? 127.0f / peak : 0.0f;
    vi total = {};
    for (i = begin; i < end; i += LANES) {
      const int n = (int)std::min<int64_t>(LANES, end - i);
      const vf value = n == LANES ? load(x + i) : load_tail(x + i, n);
      const vi code = round_to_int(value * splat(inverse));
      total += code;
      store_bytes(codes + i, code);  // the row has room for 16 more; what lies past `n` is overwritten below
    }
    // Codes of a group sum far below 2^24: exact in float.
    const float sum = reduce_add(to_float(total));
    scale[g * height] = step;
    offset[g * height] = step * sum;
  }
  for (int64_t i = l.k; i < k_padded; i++) codes[i] = 0;
}

}  // namespace

int64_t packed_rows_bytes(const Linear& l, int64_t rows) {
  int64_t bytes = rows * padded_k(l) * element_bytes(l) + 64;
  if (scaled(l)) bytes += 2 * (rows * groups_of(l) * 4 + 64);
  return (bytes + 63) / 64 * 64;
}

PackedRows place_packed_rows(const Linear& l, int64_t rows, void* memory) {
  PackedRows p{memory, nullptr, nullptr};
  if (scaled(l)) {
    char* after = (char*)memory + (rows * padded_k(l) * element_bytes(l) + 63) / 64 * 64;
    p.scale = (float*)after;
    p.offset = (float*)(after + (rows * groups_of(l) * 4 + 63) / 64 * 64);
  }
  return p;
}

void pack_block(const Linear& l, const RowBlocks& blocks, int64_t block, const float* x, int64_t stride,
                const PackedRows& into) {
  const int height = blocks.height(block);
  const int64_t first = blocks.start(block), k_padded = padded_k(l);
#if defined(__AVX512FP16__)
  if (l.kind == HALF) {
    uint32_t* a = (uint32_t*)into.codes + first * l.k;
    for (int r = 0; r < height; r++) {
      const float* row = x + r * stride;
      vf largest = {};
      for_lanes(l.k, [&](int64_t i, int n) { largest = vmax(vabs(load_n(row + i, n)), largest); });
      int exponent;
      std::frexp(reduce_max(largest), &exponent);  // below 2^exponent
      const vf factor = splat(std::ldexp(1.0f, std::min(120, 4 - exponent)));
      into.scale[first + r] = std::ldexp(1.0f, std::max(-120, exponent - 4));
      for_lanes(l.k, [&](int64_t i, int n) {
        alignas(32) uint16_t half[LANES];
        _mm256_store_si256((__m256i*)half, (__m256i)_mm512_cvtxps_ph((__m512)(load_n(row + i, n) * factor)));
        for (int j = 0; j < n; j++) a[(i + j) * height + r] = half[j] * 0x10001u;
      });
    }
    return;
  }
#endif
  if (!quantised(l)) {
    if (l.kind == BF16 && use_bf16_dot()) {
      uint16_t* a = (uint16_t*)into.codes + first * k_padded;
      for (int64_t k = 0; k < k_padded; k += 2)
        for (int r = 0; r < height; r++, a += 2) {
          a[0] = narrow(x[r * stride + k]);
          a[1] = k + 1 < l.k ? narrow(x[r * stride + k + 1]) : 0;
        }
      return;
    }
    float* a = (float*)into.codes + first * k_padded;
    for (int64_t k = 0; k < l.k; k++)
      for (int r = 0; r < height; r++) *a++ = x[r * stride + k];
    if (k_padded > l.k)
      for (int r = 0; r < height; r++) *a++ = 0;
    return;
  }
  const int64_t groups = groups_of(l);
  thread_local std::vector<int8_t> row_codes;
  row_codes.resize(k_padded + LANES);
  int8_t* codes = row_codes.data();
  int32_t* a = (int32_t*)((int8_t*)into.codes + first * k_padded);
  for (int r = 0; r < height; r++) {
    quantise_row(l, x + r * stride, codes, into.scale + first * groups + r, into.offset + first * groups + r, height);
    for (int64_t k = 0; k < k_padded / 4; k++) memcpy(a + k * height + r, codes + 4 * k, 4);
  }
}

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
