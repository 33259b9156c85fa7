// The inner kernels of `linear.cpp`: sums of R rows by a few panels, held in registers over all inputs. One
// specialisation per kind; rows and panels are template arguments so that loops unroll into straight code.
#pragma once
#include <algorithm>

#include "layout.h"
#include "simd.h"

namespace esclusa {

template <int KIND, int R, int V>
struct Tile;  // sums of R rows by V registers of outputs (PER_PANEL in a panel), into out[R][V * NATIVE]

constexpr int PER_PANEL = PANEL / NATIVE;

INLINE const char* panel_at(const char* weight, int64_t stride, int v) {
  return weight + (v / PER_PANEL) * stride + (v % PER_PANEL) * NATIVE * 4;
}

// Weights that will be read next, up to two runs of them. Whoever multiplies calls `step` once per few inputs, so that
// they travel to the L2 cache at an even pace all the while rather than in one burst that the memory cannot follow.
struct Ahead {
  const char* at = nullptr;
  const char* end = nullptr;
  const char* second = nullptr;  // as long as the first
  int64_t bytes = 0;             // of a run
  int64_t lines = 0;             // of 64 bytes, per step
  INLINE void step() {
#if defined(__x86_64__)
    for (int64_t i = 0; i < lines; i++, at += 64) {
      if (at >= end) {
        if (second == nullptr) return;
        at = second, end = second + bytes, second = nullptr;
      }
      __builtin_prefetch(at, 0, 2);
    }
#endif
  }
};
constexpr int64_t AHEAD_INPUTS = 16;
constexpr int64_t RUN = 32;  // inputs of a group that are multiplied between two calls
inline bool in_runs(const Linear& l) { return (l.kind == GROUP4 || l.kind == GROUP8) && l.group % RUN == 0; }
constexpr int64_t NEAR = 1024;  // bytes between what is multiplied and what moves from the L2 to the L1 cache
// How often one tile calls `step`.
inline int64_t ahead_steps(const Linear& l) {
  if (l.kind == HALF) return padded_k(l) / 4;
  if (in_runs(l)) return l.k / RUN;
  return quantised(l) ? groups_of(l) : (padded_k(l) + AHEAD_INPUTS - 1) / AHEAD_INPUTS;
}

// First output of register v, where panels of a tile lie `apart` outputs from each other.
INLINE int64_t column_at(int64_t column, int64_t apart, int v) {
  return column + v / PER_PANEL * apart + v % PER_PANEL * NATIVE;
}

template <int R, int V>
INLINE void spill(float* out, nf (&sum)[R][V]) {
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) native_store(out + (r * V + v) * NATIVE, sum[r][v]);
}

template <int R, int V>
struct Tile<F32, R, V> {
  static void run(const Linear& l, const void* codes, const float*, const float*, const char* w, int64_t stride,
                  int64_t, int64_t, Ahead& ahead, float* out) {
    const float* a = (const float*)codes;
    nf sum[R][V] = {};
    for (int64_t k = 0; k < l.k; k++, a += R) {
      const char* row = w + k * PANEL * 4;
      if (k % AHEAD_INPUTS == 0) ahead.step();
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
  static void run(const Linear& l, const void* codes, const float*, const float*, const char* w, int64_t stride,
                  int64_t, int64_t, Ahead& ahead, float* out) {
    const int64_t pairs = (l.k + 1) / 2;
    nf sum[R][V] = {};
#if defined(__AVX512BF16__)
    if (use_bf16_dot()) {
      const int32_t* a = (const int32_t*)codes;
      for (int64_t k = 0; k < pairs; k++, a += R) {
        nu b[V];
        if (k % (AHEAD_INPUTS / 2) == 0) ahead.step();
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
      if (k % (AHEAD_INPUTS / 2) == 0) ahead.step();
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
  static INLINE void step_quad(const int32_t* a, const char* w, int64_t stride, ni (&dots)[R][V]) {
    nu b[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) b[v] = native_load<nu>(panel_at(w, stride, v));
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) dots[r][v] = dot4(dots[r][v], b[v], a[r]);
  }
  static void run(const Linear& l, const void* codes, const float* scale, const float* offset, const char* w,
                  int64_t stride, int64_t column, int64_t apart, Ahead& ahead, float* out) {
    const int32_t* a = (const int32_t*)codes;
    const int64_t quads = padded_k(l) / 4, groups = groups_of(l);
    nf sum[R][V] = {};
    float excess[R] = {};  // codes are stored + 128: the same surplus for all outputs of a row
    int64_t k = 0;
    for (int64_t g = 0; g < groups; g++, scale += R, offset += R) {
      ni dots[R][V] = {};
      ahead.step();
      const int64_t end = g + 1 == groups ? quads : k + l.group / 4;
      if (end - k == 8) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) step_quad(a + i * R, w + (k + i) * PANEL * 4, stride, dots);
        a += 8 * R;
        k = end;
      }
      for (; k < end; k++, a += R) step_quad(a, w + k * PANEL * 4, stride, dots);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) {
        excess[r] += offset[r];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sum[r][v] += __builtin_convertvector(dots[r][v], nf) * scale[r];
      }
    }
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++)
        sum[r][v] = (sum[r][v] - 128.0f * excess[r]) * native_load<nf>(l.scale + column_at(column, apart, v));
    spill<R, V>(out, sum);
  }
};

template <int R, int V>
struct Tile<GROUP4, R, V> {
  static INLINE void step_eight(const int32_t* a, const char* w, int64_t stride, ni (&dots)[R][V]) {
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      const nu packed = native_load<nu>(panel_at(w, stride, v));
      const nu low = packed & 0x0f0f0f0fu, high = (packed >> 4) & 0x0f0f0f0fu;
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) dots[r][v] = dot4(dot4(dots[r][v], low, a[r]), high, a[R + r]);
    }
  }
  static void run(const Linear& l, const void* codes, const float* scale, const float* offset, const char* w,
                  int64_t stride, int64_t column, int64_t apart, Ahead& ahead, float* out) {
    const int32_t* a = (const int32_t*)codes;
    const int64_t groups = groups_of(l), eights = l.group / 8, runs = in_runs(l) ? l.group / RUN : 0;
    nf sum[R][V] = {};
    for (int64_t g = 0; g < groups; g++, scale += R, offset += R) {
      ni dots[R][V] = {};
      if (runs) {
        for (int64_t run = 0; run < runs; run++) {
          ahead.step();
#pragma GCC unroll 4
          for (int i = 0; i < 4; i++) step_eight(a + 2 * i * R, w + i * PANEL * 4, stride, dots);
          a += 8 * R, w += 4 * PANEL * 4;
        }
      } else {
        ahead.step();
        for (int64_t k = 0; k < eights; k++, a += 2 * R, w += PANEL * 4) step_eight(a, w, stride, dots);
      }
      add_group<R, V>(l, g, groups, column, apart, scale, offset, dots, sum);
    }
    spill<R, V>(out, sum);
  }
  template <int R2, int V2>
  static INLINE void add_group(const Linear& l, int64_t g, int64_t groups, int64_t column, int64_t apart,
                               const float* scale, const float* offset, ni (&dots)[R2][V2], nf (&sum)[R2][V2]) {
#pragma GCC unroll 8
    for (int v = 0; v < V2; v++) {
      const int64_t at = (column_at(column, apart, v) / PANEL * groups + g) * PANEL + (v % PER_PANEL) * NATIVE;
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
                  int64_t stride, int64_t column, int64_t apart, Ahead& ahead, float* out) {
    const int32_t* a = (const int32_t*)codes;
    const int64_t groups = groups_of(l), quads = l.group / 4, every = in_runs(l) ? RUN / 4 : quads;
    nf sum[R][V] = {};
    for (int64_t g = 0; g < groups; g++, scale += R, offset += R) {
      ni dots[R][V] = {};
      for (int64_t k = 0; k < quads; k++, a += R, w += PANEL * 4) {
        if (k % every == 0) ahead.step();
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
          const nu b = native_load<nu>(panel_at(w, stride, v));
#pragma GCC unroll 12
          for (int r = 0; r < R; r++) dots[r][v] = dot4(dots[r][v], b, a[r]);
        }
      }
      Tile<GROUP4, R, V>::template add_group<R, V>(l, g, groups, column, apart, scale, offset, dots, sum);
    }
    spill<R, V>(out, sum);
  }
};

// Byte J of each lane as a float that is smaller by 2^120.
template <int J>
INLINE nf float8_at(nu w) {
  const nu magnitude = (J == 3 ? w >> 4 : w << (20 - 8 * J)) & 0x07f00000u;
  return (nf)(magnitude | ((w << (24 - 8 * J)) & 0x80000000u));
}

template <int R, int V>
struct Tile<FLOAT8, R, V> {
  template <int J>
  static INLINE void step_input(const float* a, const nu (&b)[V], nf (&part)[R][V]) {
    nf wide[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) wide[v] = float8_at<J>(b[v]);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) part[r][v] += a[J * R + r] * wide[v];
  }
  static void run(const Linear& l, const void* codes, const float*, const float*, const char* w, int64_t stride,
                  int64_t column, int64_t apart, Ahead& ahead, float* out) {
    const float* a = (const float*)codes;
    const int64_t quads = padded_k(l) / 4, groups = groups_of(l);
    nf sum[R][V] = {};
    int64_t k = 0;
    for (int64_t g = 0; g < groups; g++) {
      nf part[R][V] = {};
      for (const int64_t end = g + 1 == groups ? quads : k + l.group / 4; k < end; k++, a += 4 * R) {
        if (k % (AHEAD_INPUTS / 4) == 0) ahead.step();
        nu b[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) b[v] = native_load<nu>(panel_at(w + k * PANEL * 4, stride, v));
        step_input<0>(a, b, part);
        step_input<1>(a, b, part);
        step_input<2>(a, b, part);
        step_input<3>(a, b, part);
      }
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) {
        const int64_t at = (column_at(column, apart, v) / PANEL * groups + g) * PANEL + (v % PER_PANEL) * NATIVE;
        const nf s = native_load<nf>(l.scale + at) * FLOAT8_FACTOR;
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) sum[r][v] += part[r][v] * s;
      }
    }
    spill<R, V>(out, sum);
  }
};

#if defined(__AVX512FP16__)
template <int R, int V>
struct Tile<HALF, R, V> {
  static constexpr int PANELS = V / 2;
  // out = or += the float16 sums, widened; the last chunk applies the scales of row and column.
  template <bool FIRST, bool LAST>
  static INLINE void flush(const __m512h (&sum)[R][PANELS], const float* row_scale, const float* column_scale,
                           int64_t apart, float* out) {
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) {
        const __m512i bits = (__m512i)sum[r][p];
        const vf halves[2] = {(vf)_mm512_cvtxph_ps((__m256h)_mm512_castsi512_si256(bits)),
                              (vf)_mm512_cvtxph_ps((__m256h)_mm512_extracti64x4_epi64(bits, 1))};
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
          const int at = p * PANEL + h * LANES;
          vf x = halves[h];
          if (!FIRST) x += load(out + r * V * LANES + at);
          if (LAST) x *= load(column_scale + p * apart + h * LANES) * splat(row_scale[r]);
          store(out + r * V * LANES + at, x);
        }
      }
  }
  static void run(const Linear& l, const void* codes, const float* scale, const float*, const char* w, int64_t stride,
                  int64_t column, int64_t apart, Ahead& ahead, float* out) {
    // Each activation twice, so that a 32-bit broadcast fills all lanes: [k/16][R][16].
    const int32_t* a = (const int32_t*)codes;
    const int64_t groups = padded_k(l) / HALF_STEP;
    __m512h sum[R][PANELS], subtotal[R][PANELS];
    for (int64_t begin = 0; begin < groups; begin += HALF_TOTAL / HALF_STEP) {
      const int64_t end = std::min<int64_t>(groups, begin + HALF_TOTAL / HALF_STEP);
      for (int64_t g = begin; g < end;) {
        const int64_t stop = std::min<int64_t>(end, g + HALF_CHUNK / HALF_STEP);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
          for (int p = 0; p < PANELS; p++) sum[r][p] = _mm512_setzero_ph();
        const bool first = g == begin;
        for (; g < stop; g++, a += (R - 1) * HALF_STEP)
          for (int k = 0; k < HALF_STEP; k++, a++, w += PANEL * 2) {
            if (k % 4 == 0) ahead.step();
            __m512h b[PANELS];
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++) {
              b[p] = _mm512_loadu_ph(w + p * stride);
              __builtin_prefetch(w + p * stride + NEAR, 0, 3);
            }
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
              const __m512h x = (__m512h)_mm512_set1_epi32(a[r * HALF_STEP]);
#pragma GCC unroll 4
              for (int p = 0; p < PANELS; p++) sum[r][p] = _mm512_fmadd_ph(x, b[p], sum[r][p]);
            }
          }
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
          for (int p = 0; p < PANELS; p++)
            subtotal[r][p] = first ? sum[r][p] : _mm512_add_ph(sum[r][p], subtotal[r][p]);
      }
      const float* column_scale = l.scale + column;
      if (begin == 0 && end == groups)
        flush<true, true>(subtotal, scale, column_scale, apart, out);
      else if (begin == 0)
        flush<true, false>(subtotal, scale, column_scale, apart, out);
      else if (end == groups)
        flush<false, true>(subtotal, scale, column_scale, apart, out);
      else
        flush<false, false>(subtotal, scale, column_scale, apart, out);
    }
  }
};
#else
template <int R, int V>
struct Tile<HALF, R, V> {
  static void run(const Linear&, const void*, const float*, const float*, const char*, int64_t, int64_t, int64_t,
                  Ahead&, float*) {}
};
#endif

}  // namespace esclusa
