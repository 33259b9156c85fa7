// Sizes that follow from a linear layer's kind; private to the product kernels.
#pragma once
#include "linear.h"

namespace esclusa {

// Whether bfloat16 weights run through AVX512-BF16 dots rather than widened to float32.
bool use_bf16_dot();

inline bool quantised(const Linear& l) { return l.kind == INT8 || l.kind == GROUP4 || l.kind == GROUP8; }
inline bool scaled(const Linear& l) { return quantised(l) || l.kind == HALF; }  // activations carry scales
inline int64_t groups_of(const Linear& l) { return l.kind == HALF ? 1 : (l.k + l.group - 1) / l.group; }
inline int64_t padded_k(const Linear& l) {
  const int64_t step = quantised(l) ? 8 : l.kind == HALF ? HALF_STEP : l.kind == FLOAT8 ? 4 : 2;
  return (l.k + step - 1) / step * step;
}
inline int64_t element_bytes(const Linear& l) { return quantised(l) ? 1 : (l.kind == BF16 && use_bf16_dot() ? 2 : 4); }

inline int64_t panel_bytes(const Linear& l) {
  const int64_t k = padded_k(l);
  switch (l.kind) {
    case F32: return l.k * PANEL * 4;
    case HALF:
    case BF16: return k * PANEL * 2;
    case GROUP4: return k * PANEL / 2;
    default: return k * PANEL;
  }
}

}  // namespace esclusa
