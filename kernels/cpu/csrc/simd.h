// 16-lane vectors on GCC vector extensions: one source for every instruction set; the compiler lowers 64-byte vectors
// to what it has. Owns conversions, exp and reductions. Numerical choices: round to nearest even, exp by a degree-6
// polynomial on [-ln2/2, ln2/2] (relative error below 2e-7), reductions in one fixed tree.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace esclusa {

constexpr int LANES = 16;
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));
typedef int8_t vb __attribute__((vector_size(16)));
typedef float vf_u __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t vu_u __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint16_t vh_u __attribute__((vector_size(32), aligned(2), may_alias));
typedef int8_t vb_u __attribute__((vector_size(16), aligned(1), may_alias));

INLINE vf splat(float x) { return x - vf{}; }
INLINE vi splat_i(int32_t x) { return x - vi{}; }
INLINE vf as_float(vu x) { return (vf)x; }
INLINE vu as_bits(vf x) { return (vu)x; }
INLINE vf load(const float* p) { return *(const vf_u*)p; }
INLINE void store(float* p, vf x) { *(vf_u*)p = x; }
INLINE vu load_bits(const void* p) { return *(const vu_u*)p; }

INLINE vf select(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
INLINE vf vmax(vf a, vf b) { return select(a > b, a, b); }
INLINE vf vmin(vf a, vf b) { return select(a < b, a, b); }
INLINE vf vabs(vf a) { return (vf)((vi)a & 0x7fffffff); }

// bfloat16 ------------------------------------------------------------------------------------------------------
INLINE float widen(uint16_t h) {
  uint32_t bits = (uint32_t)h << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
INLINE uint16_t narrow(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
INLINE vf load(const uint16_t* p) {
  vh h = *(const vh_u*)p;
  return as_float(__builtin_convertvector(h, vu) << 16);
}
INLINE void store(uint16_t* p, vf x) {
#ifdef __AVX512BF16__
  *(__m256i_u*)p = (__m256i)_mm512_cvtneps_pbh((__m512)x);
#else
  vu bits = as_bits(x);
  vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  vi is_nan = (vi)((bits & 0x7fffffff) > 0x7f800000);
  rounded = (rounded & ~(vu)is_nan) | (0x7fc0 & (vu)is_nan);
  *(vh_u*)p = __builtin_convertvector(rounded, vh);
#endif
}
// The two halves of a pair-interleaved word: element 0 in the low 16 bits.
INLINE vf pair_first(vu w) { return as_float(w << 16); }
INLINE vf pair_second(vu w) { return as_float(w & 0xffff0000u); }

INLINE float get(const float* p) { return *p; }
INLINE float get(const uint16_t* p) { return widen(*p); }
INLINE void put(float* p, float x) { *p = x; }
INLINE void put(uint16_t* p, float x) { *p = narrow(x); }

// float16 (scales of quantised weights) ---------------------------------------------------------------------------
INLINE vf load_half(const uint16_t* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(*(const __m256i_u*)p);
#else
  // Exponents are re-biased by a multiplication, so subnormals come out right; scales are finite.
  vu h = __builtin_convertvector(*(const vh_u*)p, vu);
  vf magnitude = as_float((h & 0x7fff) << 13) * splat(5.192296858534828e33f);
  return as_float(as_bits(magnitude) | ((h & 0x8000) << 16));
#endif
}

// Reductions: always the same tree, so the same lanes give the same bits ------------------------------------------
template <class F>
INLINE float reduce(vf x, const F& join) {
  x = join(x, __builtin_shuffle(x, (vi){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
  x = join(x, __builtin_shuffle(x, (vi){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11}));
  x = join(x, __builtin_shuffle(x, (vi){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13}));
  x = join(x, __builtin_shuffle(x, (vi){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14}));
  return x[0];
}
INLINE float reduce_add(vf x) {
  return reduce(x, [](vf a, vf b) __attribute__((always_inline)) { return a + b; });
}
INLINE float reduce_max(vf x) {
  return reduce(x, [](vf a, vf b) __attribute__((always_inline)) { return vmax(a, b); });
}

INLINE vf round_even(vf x) {
  // Adding 1.5 * 2^23 drops the fraction for |x| < 2^22.
  const vf magic = splat(12582912.0f);
  vf shifted = x + magic;
  asm("" : "+m"(shifted));
  return shifted - magic;
}

// exp(x) for x <= 88; below -87.3 the result is 0 (-inf included), NaN stays NaN.
INLINE vf vexp(vf x) {
  vi tiny = x < splat(-87.3f);
  vf clamped = vmin(x, splat(88.0f));
  clamped = select(tiny, splat(0.0f), clamped);
#if defined(__AVX512F__)
  vf n = (vf)_mm512_roundscale_ps((__m512)(clamped * splat(1.44269504088896341f)), 8);
#else
  vf n = round_even(clamped * splat(1.44269504088896341f));
#endif
  vf r = clamped - n * splat(0.693359375f);
  r = r - n * splat(-2.12194440e-4f);
  vf p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  vi exponent = (__builtin_convertvector(n, vi) + 127) << 23;
  return select(tiny, splat(0.0f), p * (vf)exponent);
}
INLINE vf sigmoid(vf x) { return splat(1.0f) / (splat(1.0f) + vexp(-x)); }
INLINE vf vtanh(vf x) { return splat(1.0f) - splat(2.0f) / (splat(1.0f) + vexp(x + x)); }

// The first n (1..16) lanes of a row; the others are 0.
template <class T>
INLINE vf load_tail(const T* p, int n) {
  alignas(64) T a[16] = {};
  memcpy(a, p, n * sizeof(T));
  return load(a);
}
template <class T>
INLINE void store_tail(T* p, vf x, int n) {
  alignas(64) T a[16];
  store(a, x);
  memcpy(p, a, n * sizeof(T));
}

}  // namespace esclusa
