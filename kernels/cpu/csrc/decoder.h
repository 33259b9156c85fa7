// A stack of pre-norm decoder layers run in one call: float32 activations inside, no allocation per step once warm.
// Layout of `Layer` is shared with kernels/cpu/decoder.py: keep in step.
#pragma once
#include <cstdint>

#include "attention.h"
#include "linear.h"

namespace esclusa {

struct Layer {
  const Linear* qkv;
  const Linear* o;
  const Linear* gate_up;
  const Linear* down;
  const float* input_norm;
  const float* post_attention_norm;
  const float* q_norm;  // both or neither
  const float* k_norm;
  Cache cache;
  int64_t heads, kv_heads, dim, window;
  float eps, norm_offset, scale, softcap;
  int32_t gelu, unused;
};

struct StackCall {
  const Layer* layers;
  int64_t count, hidden_size, rotary_half;
  const float* cos;
  const float* sin;
};

// hidden and residual: float or bfloat16 [rows][hidden_size]; hidden is read and overwritten, residual is written. Where
// `wanted` (ascending) names `count` rows, the first `count` rows of both hold the result for these.
void run_stack(const StackCall& stack, const Plan& plan, const int64_t* positions, const int64_t* slots, void* hidden,
               void* residual, const int64_t* wanted, int64_t count, bool bf16);

}  // namespace esclusa
