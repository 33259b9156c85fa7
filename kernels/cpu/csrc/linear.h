// y = x W^T over packed weights. Shared between C++ and the ctypes structure in kernels/cpu/linear.py: keep in step.
//
// Weights lie in panels of 32 outputs, inputs innermost in groups that one instruction eats:
//   F32      [panel][k][32]           float
//   BF16     [panel][k/2][32][2]      pairs, so that widening is one shift or one mask
//   INT8     [panel][k/4][32][4]      code + 128 as unsigned byte; `scale` float [outputs]
//   GROUP4   [panel][k/8][32][4]      low nibbles hold inputs 0..3 of eight, high nibbles 4..7
//   GROUP8   [panel][k/4][32][4]      unsigned codes
//   HALF     [panel][k][32]           float16 of weight * 2^e; `scale` float [outputs] holds 2^-e; k in whole sixteens
//   FLOAT8   [panel][k/4][32][4]      float8 e4m3; `scale` float [panel][k/group][32]
//   both GROUP kinds: float16 `group_scale`, `group_min` [panel][k/group][32]; weight = code * scale + min
//
// HALF is how bfloat16 weights run on CPUs with AVX512-FP16, at twice the rate of float32: eight bits of mantissa fit into
// eleven, so weights stay exact; activations are scaled per row by a power of two into [1/2, 1) and rounded to eleven
// bits (bfloat16 has eight). Products sum in float16 over 32 inputs, these sums in float16 over 768 inputs, and in float32
// beyond: that adds about as much error as rounding
// activations to bfloat16 would behind an outlier, and less elsewhere. Nothing can overflow:
// 1 * 64 * 768 < 65504.
//
// FLOAT8 codes become floats by shifting them under the exponent of float32, which makes them smaller by 2^120.
// Activations are made larger by 2^60 and sums again by 2^60, so that nothing in between leaves the range of float32.
//
// Every output sums its inputs in ascending order in one accumulator (per group where there are groups), whatever the
// number of rows: a row's result is bitwise the same alone and in any batch.
#pragma once
#include <cstdint>

namespace esclusa {

enum Kind : int32_t { F32 = 0, BF16 = 1, INT8 = 2, GROUP4 = 3, GROUP8 = 4, HALF = 5, FLOAT8 = 6 };
constexpr int HALF_CHUNK = 32, HALF_TOTAL = 768;
constexpr int HALF_STEP = 16;
constexpr float FLOAT8_FACTOR = 1152921504606846976.0f;  // 2^60
constexpr int PANEL = 32;
#if defined(__AVX512F__)
constexpr int MAX_TILE_ROWS = 12;
#else
constexpr int MAX_TILE_ROWS = 3;
#endif

struct Linear {
  int64_t n, k;
  int32_t kind, group;
  const void* weight;
  const float* scale;
  const uint16_t* group_scale;
  const uint16_t* group_min;
  const float* bias;
  const int32_t* columns;  // quantised kinds: input of the product -> place in the row of activations; null: the same
};

// Rows are cut into blocks of nearly equal height, at most what the registers hold: half as many where integer and float
// sums live side by side.
struct RowBlocks {
  int64_t rows, count, base, extra;
  RowBlocks(const Linear& linear, int64_t m) : rows(m) {
    const bool two_sums =
        linear.kind == INT8 || linear.kind == GROUP4 || linear.kind == GROUP8 || linear.kind == FLOAT8;
    const int64_t most = two_sums ? (MAX_TILE_ROWS + 1) / 2 : MAX_TILE_ROWS;
    count = (m + most - 1) / most;
    base = count ? m / count : 0;
    extra = m - base * count;
  }
  int height(int64_t block) const { return (int)(base + (block < extra)); }
  int64_t start(int64_t block) const { return block * base + (block < extra ? block : extra); }
};

// Activations of one product in the layout its kernel reads: per block `[k/step][height][step]`, for HALF in words that
// hold the value twice.
struct PackedRows {
  void* codes;
  float* scale;   // per block [groups][height], quantised kinds
  float* offset;  // same shape: float sum of the activations of the group
};

int64_t packed_rows_bytes(const Linear& linear, int64_t rows);
PackedRows place_packed_rows(const Linear& linear, int64_t rows, void* memory);
// `block_rows`: float [height][stride] of this block.
void pack_block(const Linear& linear, const RowBlocks& blocks, int64_t block, const float* block_rows, int64_t stride,
                const PackedRows& into);

// The product that comes after this one, if known: its first weights are fetched while the last of this one are used.
struct Following {
  const Linear* linear = nullptr;
  bool gated = false;
};

// y[rows][ldy] float or bfloat16.
void multiply(const Linear& linear, const RowBlocks& blocks, const PackedRows& rows, void* y, int64_t ldy, bool y_bf16,
              const Following& following = {});

// For a stack of gate and up: y[rows][n / 2] float = activation(first half) * second half. Where `can_gate` says so.
bool can_gate(const Linear& linear);
void multiply_gated(const Linear& linear, const RowBlocks& blocks, const PackedRows& rows, float* y, bool gelu,
                    const Following& following = {});

// Overrides the choice made for this CPU (tests); packed weights serve both.
void prefer_bf16_dot(bool on);

}  // namespace esclusa
