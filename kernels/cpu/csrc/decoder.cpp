#include "decoder.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "pool.h"
#include "rows.h"
#include "simd.h"

namespace esclusa {
namespace {

// Rows that pass through o, norm, gate/up and down together: their activations then stay in cache.
constexpr int64_t MLP_ROWS = 21 * 12;

class Buffer {
 public:
  ~Buffer() { free(memory_); }
  char* get(int64_t bytes) {
    if (bytes > size_) {
      free(memory_);
      size_ = (bytes + 4095) / 4096 * 4096;
      memory_ = (char*)aligned_alloc(4096, size_);
    }
    return memory_;
  }
  float* floats(int64_t count) { return (float*)get(count * 4); }

 private:
  char* memory_ = nullptr;
  int64_t size_ = 0;
};

struct Workspace {
  Buffer hidden, residual, qkv, attended, inner, packed;
};

// One product: fill rows block by block (in parallel), then multiply.
template <class F>
void project(const Linear& linear, int64_t rows, Buffer& packed, float* y, const F& fill) {
  const RowBlocks blocks(linear, rows);
  const PackedRows into = place_packed_rows(linear, rows, packed.get(packed_rows_bytes(linear, rows)));
  parallel_items(blocks.count, [&](int64_t block) {
    thread_local std::vector<float> scratch;
    scratch.resize(MAX_TILE_ROWS * linear.k);
    const float* source = fill(blocks.start(block), blocks.height(block), scratch.data());
    pack_block(linear, blocks, block, source, linear.k, into);
  });
  multiply(linear, blocks, into, y, linear.n, false);
}

void rotate_and_store(const StackCall& stack, const Layer& layer, int64_t position, int64_t slot, float* row) {
  const float* cos = stack.cos + position * stack.rotary_half;
  const float* sin = stack.sin + position * stack.rotary_half;
  float* key = row + layer.heads * layer.dim;
  const float* value = key + layer.kv_heads * layer.dim;
  for (int64_t head = 0; head < layer.heads; head++) {
    float* q = row + head * layer.dim;
    if (layer.q_norm) rms_norm_row(q, layer.q_norm, q, layer.dim, layer.eps, layer.norm_offset);
    rotate_head(q, cos, sin, stack.rotary_half);
  }
  for (int64_t head = 0; head < layer.kv_heads; head++) {
    float* k = key + head * layer.dim;
    if (layer.k_norm) rms_norm_row(k, layer.k_norm, k, layer.dim, layer.eps, layer.norm_offset);
    rotate_head(k, cos, sin, stack.rotary_half);
    if (slot >= 0) write_kv(layer.cache, k, value + head * layer.dim, slot, head);
  }
}

// residual += x, then the norm of it.
void add_and_norm(float* residual, const float* x, const float* weight, float* out, int64_t n, float eps, float offset) {
  if (x) for_lanes(n, [&](int64_t i, int c) { store_n(residual + i, load_n(residual + i, c) + load_n(x + i, c), c); });
  rms_norm_row(residual, weight, out, n, eps, offset);
}

void run_layer(const StackCall& stack, const Layer& layer, bool first, const Plan& plan, const int64_t* positions,
               const int64_t* slots, Workspace& space, float* hidden, float* residual) {
  const int64_t rows = plan.rows, width = stack.hidden_size, qkv_width = layer.qkv->n;
  float* qkv = space.qkv.floats(rows * qkv_width);
  project(*layer.qkv, rows, space.packed, qkv, [&](int64_t start, int height, float* scratch) {
    for (int r = 0; r < height; r++)
      add_and_norm(residual + (start + r) * width, first ? nullptr : hidden + (start + r) * width, layer.input_norm,
                   scratch + r * width, width, layer.eps, layer.norm_offset);
    return (const float*)scratch;
  });
  const int64_t share = std::max<int64_t>(1, std::min<int64_t>(16, rows / (2 * threads())));
  parallel_items((rows + share - 1) / share, [&](int64_t item) {
    for (int64_t row = item * share; row < std::min(rows, (item + 1) * share); row++)
      rotate_and_store(stack, layer, positions[row], slots[row], qkv + row * qkv_width);
  });
  const int64_t attended_width = layer.heads * layer.dim;
  float* attended = space.attended.floats(rows * attended_width);
  attend(plan, layer.cache, qkv, qkv_width, attended, attended_width, layer.scale, layer.window, layer.softcap);
  const int64_t inner_width = layer.gate_up->n;
  for (int64_t begin = 0; begin < rows; begin += MLP_ROWS) {
    const int64_t count = std::min(MLP_ROWS, rows - begin);
    float* out = hidden + begin * width;
    project(*layer.o, count, space.packed, out,
            [&](int64_t start, int, float*) { return (const float*)(attended + (begin + start) * attended_width); });
    float* inner = space.inner.floats(count * inner_width);
    project(*layer.gate_up, count, space.packed, inner, [&](int64_t start, int height, float* scratch) {
      for (int r = 0; r < height; r++)
        add_and_norm(residual + (begin + start + r) * width, out + (start + r) * width, layer.post_attention_norm,
                     scratch + r * width, width, layer.eps, layer.norm_offset);
      return (const float*)scratch;
    });
    project(*layer.down, count, space.packed, out, [&](int64_t start, int height, float* scratch) {
      for (int r = 0; r < height; r++)
        gate_row(inner + (start + r) * inner_width, scratch + r * layer.down->k, layer.down->k, layer.gelu != 0);
      return (const float*)scratch;
    });
  }
}

}  // namespace

void run_stack(const StackCall& stack, const Plan& plan, const int64_t* positions, const int64_t* slots, void* hidden,
               void* residual, bool bf16) {
  static thread_local Workspace space;
  const int64_t elements = plan.rows * stack.hidden_size;
  float* wide_residual = bf16 ? space.residual.floats(elements) : (float*)residual;
  float* wide_hidden = bf16 ? space.hidden.floats(elements) : (float*)hidden;
  if (bf16)
    convert_row((const uint16_t*)hidden, wide_residual, elements);
  else
    memcpy(wide_residual, hidden, elements * 4);
  for (int64_t i = 0; i < stack.count; i++)
    run_layer(stack, stack.layers[i], i == 0, plan, positions, slots, space, wide_hidden, wide_residual);
  if (!bf16) return;
  convert_row(wide_hidden, (uint16_t*)hidden, elements);
  convert_row(wide_residual, (uint16_t*)residual, elements);
}

}  // namespace esclusa
