// Weights from row-major tensors into the panels that `linear.h` describes. Rows `row0..row0+n` of a matrix of `total`
// outputs, so that several weights can be stacked. Destination bytes that no weight covers stay as they were (zero).
#pragma once
#include <cstdint>

namespace esclusa {

void pack_float(const void* source, bool source_bf16, int64_t n, int64_t k, int64_t row0, void* weight, bool to_bf16);
// float16 of the weight times a power of two per output; needs AVX512-FP16 to run.
void pack_half(const void* source, bool source_bf16, int64_t n, int64_t k, int64_t row0, void* weight, float* scale);
void pack_int8(const void* source, bool source_bf16, int64_t n, int64_t k, int64_t row0, void* weight, float* scale);
// codes uint8 [n][k], scale and min float [n][k/group]; bits 4 or 8.
void pack_groups(const uint8_t* codes, const float* scale, const float* min, int64_t n, int64_t k, int64_t group,
                 int64_t row0, int bits, void* weight, uint16_t* group_scale, uint16_t* group_min);

}  // namespace esclusa
