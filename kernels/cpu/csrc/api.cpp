// The C face of the kernels, called through ctypes (which releases the GIL). Pointers are trusted: shapes, dtypes and
// ranges are checked by the Python side or, where that would cost a pass, here (return value 0 means success).
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <limits>
#include <vector>

#include "attention.h"
#include "decoder.h"
#include "layout.h"
#include "linear.h"
#include "packing.h"
#include "pool.h"
#include "rows.h"
#include "sampling.h"

using namespace esclusa;

namespace {

// Rows per item: enough work to be worth a hand-over (about 16k elements).
template <class F>
void over_rows(int64_t rows, int64_t width, const F& body) {
  const int64_t share = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
  parallel_items((rows + share - 1) / share, [&](int64_t item) {
    for (int64_t row = item * share; row < std::min(rows, (item + 1) * share); row++) body(row);
  });
}

template <class X, class W>
void rms_norm(const X* x, X* residual, const W* weight, X* y, int64_t rows, int64_t n, float eps, float offset) {
  over_rows(rows, n, [&](int64_t row) {
    const X* source = x + row * n;
    if (residual) {
      X* sum = residual + row * n;
      for_lanes(n, [&](int64_t i, int c) { store_n(sum + i, load_n(sum + i, c) + load_n(source + i, c), c); });
      source = sum;
    }
    rms_norm_row(source, weight, y + row * n, n, eps, offset);
  });
}

template <class T>
void rope(T* q, T* k, const float* cos, const float* sin, const int64_t* positions, int64_t rows, int64_t heads,
          int64_t kv_heads, int64_t dim, int64_t half) {
  over_rows(rows, (heads + kv_heads) * dim, [&](int64_t row) {
    const float *c = cos + positions[row] * half, *s = sin + positions[row] * half;
    for (int64_t head = 0; head < heads; head++) rotate_head(q + (row * heads + head) * dim, c, s, half);
    for (int64_t head = 0; head < kv_heads; head++) rotate_head(k + (row * kv_heads + head) * dim, c, s, half);
  });
}

template <class T>
void linear(const Linear& l, const T* x, int64_t rows, void* y, bool y_bf16) {
  static thread_local std::vector<char> packed;
  packed.resize(packed_rows_bytes(l, rows) + 64);
  void* aligned = (void*)(((uintptr_t)packed.data() + 63) / 64 * 64);
  const RowBlocks blocks(l, rows);
  const PackedRows into = place_packed_rows(l, rows, aligned);
  parallel_items(blocks.count, [&](int64_t block) {
    thread_local std::vector<float> scratch;
    scratch.resize(MAX_TILE_ROWS * l.k);
    for (int r = 0; r < blocks.height(block); r++)
      convert_row(x + (blocks.start(block) + r) * l.k, scratch.data() + r * l.k, l.k);
    pack_block(l, blocks, block, scratch.data(), l.k, into);
  });
  multiply(l, blocks, into, y, l.n, y_bf16);
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))
typedef uint16_t bf;

API int esc_version() { return 1; }
API void esc_set_threads(int count) { set_threads(count); }

API void esc_rms_norm(const void* x, void* residual, const void* weight, void* y, int64_t rows, int64_t n, float eps,
                      float offset, int x_bf16, int w_bf16) {
  if (x_bf16 && w_bf16)
    rms_norm((const bf*)x, (bf*)residual, (const bf*)weight, (bf*)y, rows, n, eps, offset);
  else if (x_bf16)
    rms_norm((const bf*)x, (bf*)residual, (const float*)weight, (bf*)y, rows, n, eps, offset);
  else if (w_bf16)
    rms_norm((const float*)x, (float*)residual, (const bf*)weight, (float*)y, rows, n, eps, offset);
  else
    rms_norm((const float*)x, (float*)residual, (const float*)weight, (float*)y, rows, n, eps, offset);
}

API void esc_layer_norm(const void* x, const void* weight, const void* bias, void* y, int64_t rows, int64_t n,
                        float eps, int x_bf16) {
  // Weight and bias come in the dtype of x.
  over_rows(rows, n, [&](int64_t row) {
    if (x_bf16)
      layer_norm_row((const bf*)x + row * n, (const bf*)weight, (const bf*)bias, (bf*)y + row * n, n, eps);
    else
      layer_norm_row((const float*)x + row * n, (const float*)weight, (const float*)bias, (float*)y + row * n, n, eps);
  });
}

API int esc_rope(void* q, void* k, const float* cos, const float* sin, const int64_t* positions, int64_t rows,
                 int64_t heads, int64_t kv_heads, int64_t dim, int64_t half, int64_t table_rows, int x_bf16) {
  for (int64_t i = 0; i < rows; i++)
    if (positions[i] < 0 || positions[i] >= table_rows) return 1;
  if (x_bf16)
    rope((bf*)q, (bf*)k, cos, sin, positions, rows, heads, kv_heads, dim, half);
  else
    rope((float*)q, (float*)k, cos, sin, positions, rows, heads, kv_heads, dim, half);
  return 0;
}

API void esc_gate(const void* x, void* y, int64_t rows, int64_t n, int gelu, int x_bf16) {
  over_rows(rows, 2 * n, [&](int64_t row) {
    if (x_bf16)
      gate_row((const bf*)x + row * 2 * n, (bf*)y + row * n, n, gelu != 0);
    else
      gate_row((const float*)x + row * 2 * n, (float*)y + row * n, n, gelu != 0);
  });
}

API int esc_kv_write(const Cache* cache, const void* key, const void* value, const int64_t* slots, int64_t rows,
                     int x_bf16) {
  for (int64_t i = 0; i < rows; i++)
    if (slots[i] < -1 || slots[i] >= cache->num_blocks * cache->block_size) return 1;
  const int64_t heads = cache->kv_heads, dim = cache->dim;
  over_rows(rows, heads * dim, [&](int64_t row) {
    if (slots[row] < 0) return;
    for (int64_t head = 0; head < heads; head++) {
      const int64_t at = (row * heads + head) * dim;
      if (x_bf16)
        write_kv(*cache, (const bf*)key + at, (const bf*)value + at, slots[row], head);
      else
        write_kv(*cache, (const float*)key + at, (const float*)value + at, slots[row], head);
    }
  });
  return 0;
}

API int esc_read_kv(const Cache* cache, void* key, void* value, const int64_t* slots, int64_t rows) {
  const int64_t heads = cache->kv_heads, dim = cache->dim;
  for (int64_t row = 0; row < rows; row++) {
    if (slots[row] < 0 || slots[row] >= cache->num_blocks * cache->block_size) return 1;
    for (int64_t head = 0; head < heads; head++) {
      const int64_t at = (row * heads + head) * dim;
      if (cache->bf16)
        read_kv(*cache, (bf*)key + at, (bf*)value + at, slots[row], head);
      else
        read_kv(*cache, (float*)key + at, (float*)value + at, slots[row], head);
    }
  }
  return 0;
}

API Plan* esc_plan_new(const int32_t* query_start, const int32_t* kv_len, const int32_t* tables, int64_t sequences,
                       int64_t table_width, int64_t block_size, int64_t heads, int64_t kv_heads, int64_t dim,
                       int64_t window, int deterministic, int* error) {
  Plan* plan = new Plan;
  plan->sequences = sequences;
  plan->block_size = block_size;
  plan->heads = heads;
  plan->kv_heads = kv_heads;
  plan->dim = dim;
  plan->table_width = table_width;
  plan->tables = tables;
  *error = make_plan(*plan, query_start, kv_len, window, deterministic != 0);
  return plan;
}
API void esc_plan_free(Plan* plan) { delete plan; }

namespace {
int plan_fits(const Plan& plan, const Cache& cache, int64_t window) {
  if (plan.largest_block >= cache.num_blocks) return 1;
  if (plan.window > 0 && (window <= 0 || window > plan.window)) return 2;
  if (plan.block_size != cache.block_size || plan.kv_heads != cache.kv_heads || plan.dim != cache.dim) return 3;
  return 0;
}
}  // namespace

API int esc_attend(const Plan* plan, const Cache* cache, const void* q, void* out, float scale, int64_t window,
                   float softcap, int x_bf16) {
  if (const int error = plan_fits(*plan, *cache, window)) return error;
  const int64_t stride = plan->heads * plan->dim;
  if (x_bf16)
    attend(*plan, *cache, (const bf*)q, stride, (bf*)out, stride, scale, window, softcap);
  else
    attend(*plan, *cache, (const float*)q, stride, (float*)out, stride, scale, window, softcap);
  return 0;
}

API void esc_linear(const Linear* l, const void* x, int64_t rows, void* y, int x_bf16, int y_bf16) {
  if (x_bf16)
    linear(*l, (const bf*)x, rows, y, y_bf16 != 0);
  else
    linear(*l, (const float*)x, rows, y, y_bf16 != 0);
}

API void esc_pack_float(const void* source, int source_bf16, int64_t n, int64_t k, int64_t row0, void* weight,
                        int to_bf16) {
  pack_float(source, source_bf16 != 0, n, k, row0, weight, to_bf16 != 0);
}
API void esc_pack_half(const void* source, int source_bf16, int64_t n, int64_t k, int64_t row0, void* weight,
                       float* scale) {
  pack_half(source, source_bf16 != 0, n, k, row0, weight, scale);
}
// Returns what was preferred before.
API int esc_prefer_bf16_dot(int on) {
  const bool before = use_bf16_dot();
  prefer_bf16_dot(on != 0);
  return before;
}
API int esc_has_half() {
#if defined(__AVX512FP16__)
  return 1;
#else
  return 0;
#endif
}
// Large pages for memory that was not touched yet: fewer address look-ups while weights stream by.
API void esc_advise_large_pages(void* memory, int64_t bytes) {
#if defined(__linux__)
  const uintptr_t page = 4096, begin = ((uintptr_t)memory + page - 1) / page * page, end = (uintptr_t)memory + bytes;
  if (end > begin + page) madvise((void*)begin, (end - begin) / page * page, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}
API void esc_pack_int8(const void* source, int source_bf16, int64_t n, int64_t k, int64_t row0, void* weight,
                       float* scale) {
  pack_int8(source, source_bf16 != 0, n, k, row0, weight, scale);
}
API void esc_pack_groups(const uint8_t* codes, const float* scale, const float* min, int64_t n, int64_t k,
                         int64_t group, int64_t row0, int bits, void* weight, uint16_t* group_scale,
                         uint16_t* group_min) {
  pack_groups(codes, scale, min, n, k, group, row0, bits, weight, group_scale, group_min);
}

API int esc_run_stack(const StackCall* stack, const Plan* plan, const int64_t* positions, const int64_t* slots,
                      void* hidden, void* residual, const int64_t* wanted, int64_t count, int64_t table_rows,
                      int x_bf16) {
  for (int64_t i = 0; i < plan->rows; i++) {
    if (positions[i] < 0 || positions[i] >= table_rows) return 4;
    if (slots[i] < -1 || slots[i] >= stack->layers[0].cache.num_blocks * plan->block_size) return 5;
  }
  for (int64_t i = 0; i < stack->count; i++)
    if (const int error = plan_fits(*plan, stack->layers[i].cache, stack->layers[i].window)) return error;
  for (int64_t i = 0; wanted && i < count; i++)
    if (wanted[i] < (i ? wanted[i - 1] + 1 : 0) || wanted[i] >= plan->rows) return 6;
  run_stack(*stack, *plan, positions, slots, hidden, residual, wanted, count, x_bf16 != 0);
  return 0;
}

API void esc_philox(const int64_t* seeds, const int64_t* positions, double* out, int64_t rows) {
  for (int64_t i = 0; i < rows; i++) out[i] = philox_uniform(seeds[i], positions[i]);
}

API void esc_greedy(const void* logits, int64_t rows, int64_t vocab, int64_t* ids, float* logprobs, int x_bf16) {
  parallel_items(rows, [&](int64_t row) {
    if (x_bf16)
      greedy_row((const bf*)logits + row * vocab, vocab, ids + row, logprobs + row);
    else
      greedy_row((const float*)logits + row * vocab, vocab, ids + row, logprobs + row);
  });
}

API void esc_sample(const void* logits, int64_t rows, int64_t vocab, const float* temperature, const int32_t* top_k,
                    const float* top_p, const float* min_p, const double* uniforms, int64_t* ids, int x_bf16) {
  parallel_items(rows, [&](int64_t row) {
    const SampleSettings settings{temperature[row], top_p[row], min_p[row], top_k[row], uniforms[row]};
    if (x_bf16)
      ids[row] = sample_row((const bf*)logits + row * vocab, vocab, settings);
    else
      ids[row] = sample_row((const float*)logits + row * vocab, vocab, settings);
  });
}

API int esc_row_stats(const void* logits, int64_t rows, int64_t vocab, const int64_t* tokens, int64_t top_k, float* out,
                      int64_t* ranks, int64_t* top_ids, float* top_logprobs, int x_bf16) {
  for (int64_t row = 0; row < rows; row++)
    if (tokens[row] < 0 || tokens[row] >= vocab) return 1;
  parallel_items(rows, [&](int64_t row) {
    float values[4];
    if (x_bf16)
      stats_row((const bf*)logits + row * vocab, vocab, tokens[row], top_k, values, ranks + row, top_ids + row * top_k,
                top_logprobs + row * top_k);
    else
      stats_row((const float*)logits + row * vocab, vocab, tokens[row], top_k, values, ranks + row,
                top_ids + row * top_k, top_logprobs + row * top_k);
    for (int i = 0; i < 4; i++) out[i * rows + row] = values[i];
  });
  return 0;
}

API int esc_token_bitmask(void* logits, int64_t vocab, int64_t all_rows, const int32_t* mask, int64_t words,
                          const int64_t* rows, int64_t count, int x_bf16) {
  for (int64_t i = 0; i < count; i++)
    if (rows[i] < 0 || rows[i] >= all_rows) return 1;
  parallel_items(count, [&](int64_t i) {
    const int32_t* bits = mask + i * words;
    for (int64_t v = 0; v < vocab; v++) {
      const bool allowed = v / 32 < words && ((uint32_t)bits[v / 32] >> (v % 32) & 1);
      if (allowed) {
        // Most words of a strict grammar are empty and most of a loose one full: neither needs a look at each bit.
        if (v % 32 == 0 && bits[v / 32] == -1) v += 31;
        continue;
      }
      if (x_bf16)
        ((bf*)logits)[rows[i] * vocab + v] = 0xff80;
      else
        ((float*)logits)[rows[i] * vocab + v] = -std::numeric_limits<float>::infinity();
    }
  });
  return 0;
}
