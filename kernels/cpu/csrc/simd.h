// 16-lane vectors: one source for every instruction set. With AVX-512 a vector is one register; elsewhere `Wide` holds
// pieces of the native width and the same operators. Owns conversions, exp and reductions. Numerical choices: round to
// nearest even, exp by a degree-6 polynomial on [-ln2/2, ln2/2] (relative error below 2e-7), reductions in one fixed tree.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own _mm512_undefined_ps()
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#define INLINE inline __attribute__((always_inline))

namespace esclusa {

constexpr int LANES = 16;

#if defined(__AVX512F__)
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));
typedef int8_t vb __attribute__((vector_size(16)));
typedef float vf_u __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t vu_u __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint16_t vh_u __attribute__((vector_size(32), aligned(2), may_alias));

INLINE vf splat(float x) { return x - vf{}; }
INLINE vi splat_i(int32_t x) { return x - vi{}; }
INLINE vf load(const float* p) { return *(const vf_u*)p; }
INLINE void store(float* p, vf x) { *(vf_u*)p = x; }
INLINE vu load_bits(const void* p) { return *(const vu_u*)p; }
INLINE vf to_float(vi x) { return __builtin_convertvector(x, vf); }
INLINE vi round_to_int(vf x) { return (vi)_mm512_cvtps_epi32((__m512)x); }
INLINE vf round_even(vf x) { return (vf)_mm512_roundscale_ps((__m512)x, 8); }
INLINE vu load_words(const uint16_t* p) { return __builtin_convertvector(*(const vh_u*)p, vu); }
INLINE void store_words(uint16_t* p, vu x) { *(vh_u*)p = __builtin_convertvector(x, vh); }
INLINE void store_bytes(int8_t* p, vi x) {
  const vb bytes = __builtin_convertvector(x, vb);
  memcpy(p, &bytes, 16);
}
#else
// Pieces are members, not an array: the compiler keeps them in registers.
#if defined(__AVX2__)
constexpr int PIECE = 8;
#define ESCLUSA_MEMBERS(PIECE_TYPE) PIECE_TYPE p0, p1;
#define ESCLUSA_EACH(DO) DO(p0, 0) DO(p1, 1)
#else
constexpr int PIECE = 4;
#define ESCLUSA_MEMBERS(PIECE_TYPE) PIECE_TYPE p0, p1, p2, p3;
#define ESCLUSA_EACH(DO) DO(p0, 0) DO(p1, 1) DO(p2, 2) DO(p3, 3)
#endif

template <class E>
struct Wide {
  typedef E piece __attribute__((vector_size(PIECE * sizeof(E))));
  ESCLUSA_MEMBERS(piece)

  INLINE E operator[](int i) const {
    E a[LANES];
    memcpy(a, this, sizeof a);
    return a[i];
  }
  template <class T>
  INLINE explicit operator Wide<T>() const {
    Wide<T> r;
#define ESCLUSA_CAST(M, I) r.M = (typename Wide<T>::piece)M;
    ESCLUSA_EACH(ESCLUSA_CAST)
    return r;
  }
};
template <class E>
struct Same {
  typedef E type;
};
#define ESCLUSA_ARITHMETIC(OP)                                                                  \
  template <class E>                                                                            \
  INLINE Wide<E> operator OP(const Wide<E>& a, const Wide<E>& b) {                              \
    return join(a, b, [](auto x, auto y) __attribute__((always_inline)) { return x OP y; });    \
  }                                                                                             \
  template <class E>                                                                            \
  INLINE Wide<E> operator OP(const Wide<E>& a, typename Same<E>::type b) {                      \
    return join(a, a, [b](auto x, auto) __attribute__((always_inline)) { return x OP b; });     \
  }                                                                                             \
  template <class E, class B>                                                                   \
  INLINE Wide<E>& operator OP##=(Wide<E>& a, const B& b) {                                      \
    return a = a OP b;                                                                          \
  }
template <class E, class F>
INLINE Wide<E> join(const Wide<E>& a, const Wide<E>& b, const F& f) {
  Wide<E> r;
#define ESCLUSA_JOIN(M, I) r.M = f(a.M, b.M);
  ESCLUSA_EACH(ESCLUSA_JOIN)
  return r;
}
ESCLUSA_ARITHMETIC(+)
ESCLUSA_ARITHMETIC(-)
ESCLUSA_ARITHMETIC(*)
ESCLUSA_ARITHMETIC(/)
ESCLUSA_ARITHMETIC(&)
ESCLUSA_ARITHMETIC(|)
ESCLUSA_ARITHMETIC(<<)
ESCLUSA_ARITHMETIC(>>)
template <class E, class F>
INLINE Wide<int32_t> compare(const Wide<E>& a, const Wide<E>& b, const F& f) {
  Wide<int32_t> r;
#define ESCLUSA_COMPARE(M, I) r.M = (Wide<int32_t>::piece)f(a.M, b.M);
  ESCLUSA_EACH(ESCLUSA_COMPARE)
  return r;
}
#define ESCLUSA_COMPARISON(OP)                                                                   \
  template <class E>                                                                             \
  INLINE Wide<int32_t> operator OP(const Wide<E>& a, const Wide<E>& b) {                         \
    return compare(a, b, [](auto x, auto y) __attribute__((always_inline)) { return x OP y; });  \
  }
ESCLUSA_COMPARISON(<)
ESCLUSA_COMPARISON(>)
ESCLUSA_COMPARISON(>=)
ESCLUSA_COMPARISON(==)
template <class E>
INLINE Wide<E> operator-(const Wide<E>& a) {
  return Wide<E>{} - a;
}
template <class E>
INLINE Wide<E> operator~(const Wide<E>& a) {
  Wide<E> r;
#define ESCLUSA_NOT(M, I) r.M = ~a.M;
  ESCLUSA_EACH(ESCLUSA_NOT)
  return r;
}

typedef Wide<float> vf;
typedef Wide<int32_t> vi;
typedef Wide<uint32_t> vu;
typedef uint16_t words_piece __attribute__((vector_size(PIECE * 2)));
typedef int8_t bytes_piece __attribute__((vector_size(PIECE)));

template <class E>
INLINE Wide<E> load_wide(const void* p) {
  Wide<E> r;
#define ESCLUSA_LOAD(M, I) memcpy(&r.M, (const char*)p + I * sizeof r.M, sizeof r.M);
  ESCLUSA_EACH(ESCLUSA_LOAD)
  return r;
}
INLINE vf splat(float x) {
  vf r;
#define ESCLUSA_SPLAT(M, I) r.M = x - (vf::piece){};
  ESCLUSA_EACH(ESCLUSA_SPLAT)
  return r;
}
INLINE vi splat_i(int32_t x) { return vi{} + x; }
INLINE vf load(const float* p) { return load_wide<float>(p); }
INLINE void store(float* p, const vf& x) {
#define ESCLUSA_STORE(M, I) memcpy(p + I * PIECE, &x.M, sizeof x.M);
  ESCLUSA_EACH(ESCLUSA_STORE)
}
INLINE vu load_bits(const void* p) { return load_wide<uint32_t>(p); }
INLINE vf to_float(const vi& x) {
  vf r;
#define ESCLUSA_TO_FLOAT(M, I) r.M = __builtin_convertvector(x.M, vf::piece);
  ESCLUSA_EACH(ESCLUSA_TO_FLOAT)
  return r;
}
// Adding 1.5 * 2^23 drops the fraction for |x| < 2^22.
INLINE vf round_even(const vf& x) { return (x + splat(12582912.0f)) - splat(12582912.0f); }
INLINE vi round_to_int(const vf& x) {
  const vf rounded = round_even(x);
  vi r;
#define ESCLUSA_TO_INT(M, I) r.M = __builtin_convertvector(rounded.M, vi::piece);
  ESCLUSA_EACH(ESCLUSA_TO_INT)
  return r;
}
INLINE vu load_words(const uint16_t* p) {
  vu r;
  words_piece words;
#define ESCLUSA_LOAD_WORDS(M, I)                 \
  memcpy(&words, p + I * PIECE, sizeof words); \
  r.M = __builtin_convertvector(words, vu::piece);
  ESCLUSA_EACH(ESCLUSA_LOAD_WORDS)
  return r;
}
INLINE void store_words(uint16_t* p, const vu& x) {
  words_piece words;
#define ESCLUSA_STORE_WORDS(M, I)                      \
  words = __builtin_convertvector(x.M, words_piece); \
  memcpy(p + I * PIECE, &words, sizeof words);
  ESCLUSA_EACH(ESCLUSA_STORE_WORDS)
}
INLINE void store_bytes(int8_t* p, const vi& x) {
  bytes_piece bytes;
#define ESCLUSA_STORE_BYTES(M, I)                      \
  bytes = __builtin_convertvector(x.M, bytes_piece); \
  memcpy(p + I * PIECE, &bytes, sizeof bytes);
  ESCLUSA_EACH(ESCLUSA_STORE_BYTES)
}
#endif

// One register of the machine: what the inner loops of products hold their sums in.
#if defined(__AVX512F__)
constexpr int NATIVE = 16;
typedef vf nf;
typedef vi ni;
typedef vu nu;
#else
constexpr int NATIVE = PIECE;
typedef vf::piece nf;
typedef vi::piece ni;
typedef vu::piece nu;
#endif
template <class T>
INLINE T native_load(const void* p) {
  T x;
  memcpy(&x, p, sizeof x);
  return x;
}
INLINE nf native_splat(float x) { return x - nf{}; }
INLINE void native_store(float* p, nf x) { memcpy(p, &x, sizeof x); }
// The two halves of a pair-interleaved word of bfloat16: element 0 in the low 16 bits.
INLINE nf native_first(nu w) { return (nf)(w << 16); }
INLINE nf native_second(nu w) { return (nf)(w & 0xffff0000u); }

INLINE vi iota() {
  static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (vi)load_bits(lanes);
}
INLINE vf as_float(vu x) { return (vf)x; }
INLINE vu as_bits(vf x) { return (vu)x; }
INLINE vf select(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
INLINE vf vmax(vf a, vf b) { return select((vi)(a > b), a, b); }
INLINE vf vmin(vf a, vf b) { return select((vi)(a < b), a, b); }
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
INLINE vf load(const uint16_t* p) { return as_float(load_words(p) << 16); }
INLINE void store(uint16_t* p, vf x) {
#ifdef __AVX512BF16__
  *(__m256i_u*)p = (__m256i)_mm512_cvtneps_pbh((__m512)x);
#else
  vu bits = as_bits(x);
  vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  vi is_nan = (vi)(bits & 0x7fffffff) > splat_i(0x7f800000);
  rounded = (rounded & ~(vu)is_nan) | ((vu)is_nan & 0x7fc0);
  store_words(p, rounded);
#endif
}

INLINE float get(const float* p) { return *p; }
INLINE float get(const uint16_t* p) { return widen(*p); }
INLINE void put(float* p, float x) { *p = x; }
INLINE void put(uint16_t* p, float x) { *p = narrow(x); }

// float16 (scales of quantised weights) ---------------------------------------------------------------------------
INLINE nf load_half(const uint16_t* p) {
#if defined(__AVX512F__)
  return (nf)_mm512_cvtph_ps(*(const __m256i_u*)p);
#elif defined(__F16C__)
  return (nf)_mm256_cvtph_ps(*(const __m128i_u*)p);
#else
  // Exponents are re-biased by a multiplication, so subnormals come out right; scales are finite.
  words_piece words;
  memcpy(&words, p, sizeof words);
  const nu h = __builtin_convertvector(words, nu);
  const nf magnitude = (nf)((h & 0x7fff) << 13) * 5.192296858534828e33f;
  return (nf)((nu)magnitude | ((h & 0x8000) << 16));
#endif
}

// Reductions: always the same tree, so the same lanes give the same bits ------------------------------------------
#if defined(__AVX512F__)
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
#else
template <class F>
INLINE float reduce(const vf& x, const F& join) {
  float a[16];
  store(a, x);
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) a[i] = join(a[i], a[i + width]);
  return a[0];
}
INLINE float reduce_add(vf x) {
  return reduce(x, [](float a, float b) __attribute__((always_inline)) { return a + b; });
}
INLINE float reduce_max(vf x) {
  return reduce(x, [](float a, float b) __attribute__((always_inline)) { return a > b ? a : b; });
}
#endif

// exp(x) for x <= 88; below -87.3 the result is 0 (-inf included), NaN stays NaN.
INLINE vf vexp(vf x) {
  vi tiny = (vi)(x < splat(-87.3f));
  vf clamped = vmin(x, splat(88.0f));
  clamped = select(tiny, splat(0.0f), clamped);
  vf n = round_even(clamped * splat(1.44269504088896341f));
  vf r = clamped - n * splat(0.693359375f);
  r = r - n * splat(-2.12194440e-4f);
  vf p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  vi exponent = (round_to_int(n) + 127) << 23;
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
