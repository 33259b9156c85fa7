#include "packing.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "linear.h"
#include "pool.h"
#include "rows.h"

namespace esclusa {
namespace {

uint16_t to_half(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const uint16_t sign = (bits >> 16) & 0x8000;
  const float magnitude = std::fabs(f);
  if (magnitude >= 65520.0f) return sign | 0x7bff;  // the largest finite value: scales must not become infinite
  if (magnitude < 6.103515625e-05f) return sign | (uint16_t)std::nearbyint(magnitude * 16777216.0f);
  memcpy(&bits, &magnitude, 4);
  bits += 0xfff + ((bits >> 13) & 1);
  return sign | (uint16_t)((bits - 0x38000000) >> 13);
}

const float* float_row(const void* source, bool bf16, int64_t row, int64_t k, std::vector<float>& scratch) {
  if (!bf16) return (const float*)source + row * k;
  scratch.resize(k);
  convert_row((const uint16_t*)source + row * k, scratch.data(), k);
  return scratch.data();
}

template <class F>
void each_row(int64_t n, const F& body) {
  parallel_items((n + 63) / 64, [&](int64_t item) {
    for (int64_t row = item * 64; row < std::min(n, item * 64 + 64); row++) body(row);
  });
}

}  // namespace

void pack_float(const void* source, bool source_bf16, int64_t n, int64_t k, int64_t row0, void* weight, bool to_bf16) {
  const int64_t pairs = (k + 1) / 2;
  each_row(n, [&](int64_t row) {
    thread_local std::vector<float> scratch;
    const float* x = float_row(source, source_bf16, row, k, scratch);
    const int64_t panel = (row0 + row) / PANEL, lane = (row0 + row) % PANEL;
    if (to_bf16) {
      uint16_t* out = (uint16_t*)weight + panel * pairs * PANEL * 2 + lane * 2;
      for (int64_t i = 0; i < k; i++) out[i / 2 * PANEL * 2 + i % 2] = narrow(x[i]);
    } else {
      float* out = (float*)weight + panel * k * PANEL + lane;
      for (int64_t i = 0; i < k; i++) out[i * PANEL] = x[i];
    }
  });
}

void pack_half(const void* source, bool source_bf16, int64_t n, int64_t k, int64_t row0, void* weight, float* scale) {
  const int64_t k_padded = (k + HALF_STEP - 1) / HALF_STEP * HALF_STEP;
  each_row(n, [&](int64_t row) {
    thread_local std::vector<float> scratch;
    const float* x = float_row(source, source_bf16, row, k, scratch);
    float peak = 0;
    for (int64_t i = 0; i < k; i++) peak = std::max(peak, std::fabs(x[i]));
    int exponent = 0;
    std::frexp(peak, &exponent);
    const float factor = std::ldexp(1.0f, std::min(120, 6 - exponent));
    scale[row0 + row] = std::ldexp(1.0f, std::max(-120, exponent - 6));
    uint16_t* out = (uint16_t*)weight + (row0 + row) / PANEL * k_padded * PANEL + (row0 + row) % PANEL;
    for (int64_t i = 0; i < k; i++) out[i * PANEL] = to_half(x[i] * factor);
  });
}

void pack_int8(const void* source, bool source_bf16, int64_t n, int64_t k, int64_t row0, void* weight, float* scale) {
  const int64_t k_padded = (k + 7) / 8 * 8;
  each_row(n, [&](int64_t row) {
    thread_local std::vector<float> scratch;
    const float* x = float_row(source, source_bf16, row, k, scratch);
    float peak = 0;
    for (int64_t i = 0; i < k; i++) peak = std::max(peak, std::fabs(x[i]));
    const float inverse = peak > 0 ? 127.0f / peak : 0.0f;
    scale[row0 + row] = peak / 127.0f;
    const int64_t panel = (row0 + row) / PANEL, lane = (row0 + row) % PANEL;
    uint8_t* out = (uint8_t*)weight + panel * k_padded * PANEL + lane * 4;
    for (int64_t i = 0; i < k; i++)
      out[i / 4 * PANEL * 4 + i % 4] = (uint8_t)(128 + (int)std::nearbyint(x[i] * inverse));
  });
}

void pack_groups(const uint8_t* codes, const float* scale, const float* min, int64_t n, int64_t k, int64_t group,
                 int64_t row0, int bits, void* weight, uint16_t* group_scale, uint16_t* group_min) {
  const int64_t groups = k / group;
  each_row(n, [&](int64_t row) {
    const int64_t panel = (row0 + row) / PANEL, lane = (row0 + row) % PANEL;
    const uint8_t* x = codes + row * k;
    if (bits == 4) {
      uint8_t* out = (uint8_t*)weight + panel * k * PANEL / 2 + lane * 4;
      for (int64_t i = 0; i < k; i += 8)
        for (int j = 0; j < 4; j++) out[i / 8 * PANEL * 4 + j] = x[i + j] | (x[i + 4 + j] << 4);
    } else {
      uint8_t* out = (uint8_t*)weight + panel * k * PANEL + lane * 4;
      for (int64_t i = 0; i < k; i++) out[i / 4 * PANEL * 4 + i % 4] = x[i];
    }
    for (int64_t g = 0; g < groups; g++) {
      group_scale[(panel * groups + g) * PANEL + lane] = to_half(scale[row * groups + g]);
      group_min[(panel * groups + g) * PANEL + lane] = to_half(min[row * groups + g]);
    }
  });
}

}  // namespace esclusa
