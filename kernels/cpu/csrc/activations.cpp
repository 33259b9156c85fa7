// Activations into the layout that the tiles read: transposed per block of rows, rounded to 8 bits per group of inputs
// where weights are codes, or to float16 per row.
#include <algorithm>
#include <cmath>
#include <vector>

#include "layout.h"
#include "rows.h"
#include "simd.h"

namespace esclusa {
namespace {

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
    for (int r = 0; r < height; r++) {
      uint32_t* a = (uint32_t*)into.codes + first * k_padded + r * HALF_STEP;
      const float* row = x + r * stride;
      vf largest = {};
      for_lanes(l.k, [&](int64_t i, int n) { largest = vmax(vabs(load_n(row + i, n)), largest); });
      int exponent;
      std::frexp(reduce_max(largest), &exponent);  // below 2^exponent
      const vf factor = splat(std::ldexp(1.0f, std::min(120, -exponent)));
      into.scale[first + r] = std::ldexp(1.0f, std::max(-120, exponent));
      static_assert(HALF_STEP == LANES, "one vector per row and step");
      for_lanes(l.k, [&](int64_t i, int n) {
        const __m512i half = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtxps_ph((__m512)(load_n(row + i, n) * factor)));
        _mm512_storeu_si512(a + i * height, _mm512_or_si512(half, _mm512_slli_epi32(half, 16)));
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
    const float factor = l.kind == FLOAT8 ? FLOAT8_FACTOR : 1.0f;
    for (int64_t k = 0; k < l.k; k++)
      for (int r = 0; r < height; r++) *a++ = x[r * stride + k] * factor;
    for (int64_t k = l.k; k < k_padded; k++)
      for (int r = 0; r < height; r++) *a++ = 0;
    return;
  }
  const int64_t groups = groups_of(l);
  thread_local std::vector<int8_t> row_codes;
  row_codes.resize(k_padded + LANES);
  int8_t* codes = row_codes.data();
  int32_t* a = (int32_t*)((int8_t*)into.codes + first * k_padded);
  thread_local std::vector<float> sorted;
  if (l.columns) sorted.resize(l.k);
  for (int r = 0; r < height; r++) {
    const float* row = x + r * stride;
    if (l.columns) {
      for (int64_t k = 0; k < l.k; k++) sorted[k] = row[l.columns[k]];
      row = sorted.data();
    }
    quantise_row(l, row, codes, into.scale + first * groups + r, into.offset + first * groups + r, height);
    for (int64_t k = 0; k < k_padded / 4; k++) memcpy(a + k * height + r, codes + 4 * k, 4);
  }
}

}  // namespace esclusa
