// Row-wise float32 building blocks: norms, rotation, gates. Each row is summed in one fixed order.
#pragma once
#include <cmath>

#include "simd.h"

namespace esclusa {

// Calls body(index, count) for 16 lanes at a time; count < 16 only in the last call.
template <class F>
INLINE void for_lanes(int64_t n, const F& body) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) body(i, LANES);
  if (i < n) body(i, (int)(n - i));
}
template <class T>
INLINE vf load_n(const T* p, int n) {
  return n == LANES ? load(p) : load_tail(p, n);
}
template <class T>
INLINE void store_n(T* p, vf x, int n) {
  if (n == LANES)
    store(p, x);
  else
    store_tail(p, x, n);
}

template <class X, class Y>
INLINE void convert_row(const X* x, Y* y, int64_t n) {
  for_lanes(n, [&](int64_t i, int c) { store_n(y + i, load_n(x + i, c), c); });
}

template <class X>
INLINE float sum_of_squares(const X* x, int64_t n) {
  vf sum = {};
  for_lanes(n, [&](int64_t i, int c) {
    const vf v = load_n(x + i, c);
    sum += v * v;
  });
  return reduce_add(sum);
}

template <class X, class W, class Y>
INLINE void rms_norm_row(const X* x, const W* weight, Y* y, int64_t n, float eps, float offset) {
  const vf inverse = splat(1.0f / std::sqrt(sum_of_squares(x, n) / (float)n + eps));
  for_lanes(n, [&](int64_t i, int c) {
    store_n(y + i, load_n(x + i, c) * inverse * (load_n(weight + i, c) + splat(offset)), c);
  });
}

template <class X, class W>
INLINE void layer_norm_row(const X* x, const W* weight, const W* bias, X* y, int64_t n, float eps) {
  vf sum = {};
  for_lanes(n, [&](int64_t i, int c) { sum += load_n(x + i, c); });
  const float mean = reduce_add(sum) / (float)n;
  vf squares = {};
  for_lanes(n, [&](int64_t i, int c) {
    vf d = load_n(x + i, c) - splat(mean);
    if (c < LANES) d = load_tail((const float*)&d, c);
    squares += d * d;
  });
  const vf inverse = splat(1.0f / std::sqrt(reduce_add(squares) / (float)n + eps));
  for_lanes(n, [&](int64_t i, int c) {
    vf v = (load_n(x + i, c) - splat(mean)) * inverse * load_n(weight + i, c);
    if (bias) v += load_n(bias + i, c);
    store_n(y + i, v, c);
  });
}

// Rotate one head in place, halves convention: (a, b) -> (a cos - b sin, b cos + a sin).
template <class T>
INLINE void rotate_head(T* head, const float* cos, const float* sin, int64_t half) {
  for_lanes(half, [&](int64_t i, int n) {
    const vf a = load_n(head + i, n), b = load_n(head + half + i, n), c = load_n(cos + i, n), s = load_n(sin + i, n);
    store_n(head + i, a * c - b * s, n);
    store_n(head + half + i, b * c + a * s, n);
  });
}

INLINE vf activate(vf x, bool gelu) {
  if (!gelu) return x * sigmoid(x);
  // 0.5 (1 + tanh(u)) = sigmoid(2u), with u = sqrt(2/pi) (x + 0.044715 x^3).
  return x * sigmoid(splat(1.5957691216f) * (x + splat(0.044715f) * x * x * x));
}

template <class X, class Y>
INLINE void gate_row(const X* x, Y* y, int64_t n, bool gelu) {
  for_lanes(n, [&](int64_t i, int c) { store_n(y + i, activate(load_n(x + i, c), gelu) * load_n(x + n + i, c), c); });
}

}  // namespace esclusa
