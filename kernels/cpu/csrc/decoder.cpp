#include "decoder.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "pool.h"
#include "rows.h"
#include "simd.h"

namespace esclusa {
namespace {

// Enough rows to hide reading the weights behind arithmetic, few enough for their activations to stay in one L2 cache.
constexpr int64_t CHUNK_ROWS = 96;

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

// What one thread needs for the rows that it works on, and what all rows share between two barriers.
struct Workspace {
  Buffer inner, packed;
};
struct Shared {
  Buffer hidden, residual, qkv, attended;
};
Workspace& workspace() {
  static thread_local Workspace space;
  return space;
}

// The activations of one product, packed block by block: `fill` gives the rows of a block, `pitch` floats apart (0: no
// gap between them).
template <class F>
PackedRows gather(const Linear& linear, const RowBlocks& blocks, Buffer& packed, const F& fill, int64_t pitch = 0) {
  const PackedRows into = place_packed_rows(linear, blocks.rows, packed.get(packed_rows_bytes(linear, blocks.rows)));
  parallel_items(blocks.count, [&](int64_t block) {
    thread_local std::vector<float> scratch;
    scratch.resize(MAX_TILE_ROWS * linear.k);
    const float* source = fill(blocks.start(block), blocks.height(block), scratch.data());
    pack_block(linear, blocks, block, source, pitch ? pitch : linear.k, into);
  });
  return into;
}

template <class F>
void project(const Linear& linear, const Following& following, int64_t rows, Buffer& packed, float* y, const F& fill,
             int64_t pitch = 0) {
  const RowBlocks blocks(linear, rows);
  multiply(linear, blocks, gather(linear, blocks, packed, fill, pitch), y, linear.n, false, following);
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
void add_and_norm(float* residual, const float* x, const float* weight, float* out, int64_t n, float eps,
                  float offset) {
  if (x) for_lanes(n, [&](int64_t i, int c) { store_n(residual + i, load_n(residual + i, c) + load_n(x + i, c), c); });
  rms_norm_row(residual, weight, out, n, eps, offset);
}

// One step's rows on their way through the layers.
struct Pass {
  const StackCall& stack;
  const int64_t *positions, *slots;
  float *hidden, *residual, *qkv, *attended;

  // Norm, q, k and v, rotation, keys and values into the cache, for rows [begin, begin + count).
  void before_attention(int64_t number, int64_t begin, int64_t count) const {
    const Layer& layer = stack.layers[number];
    const int64_t width = stack.hidden_size, qkv_width = layer.qkv->n;
    float* out = qkv + begin * qkv_width;
    project(*layer.qkv, {layer.o}, count, workspace().packed, out, [&](int64_t start, int height, float* scratch) {
      for (int64_t r = 0, row = begin + start; r < height; r++, row++)
        add_and_norm(residual + row * width, number == 0 ? nullptr : hidden + row * width, layer.input_norm,
                     scratch + r * width, width, layer.eps, layer.norm_offset);
      return (const float*)scratch;
    });
    const int64_t share = std::max<int64_t>(1, std::min<int64_t>(16, count / (2 * threads())));
    parallel_items((count + share - 1) / share, [&](int64_t item) {
      for (int64_t row = item * share; row < std::min(count, (item + 1) * share); row++)
        rotate_and_store(stack, layer, positions[begin + row], slots[begin + row], out + row * qkv_width);
    });
  }

  // Output projection, residual, norm and the gated MLP, whose result waits in `hidden` for the next norm.
  void after_attention(int64_t number, int64_t begin, int64_t count) const {
    const Layer& layer = stack.layers[number];
    const int64_t width = stack.hidden_size, attended_width = layer.heads * layer.dim, inner_width = layer.down->k;
    Workspace& space = workspace();
    float* out = hidden + begin * width;
    project(*layer.o, {layer.gate_up, can_gate(*layer.gate_up)}, count, space.packed, out,
            [&](int64_t start, int, float*) { return attended + (begin + start) * attended_width; });
    const auto normed = [&](int64_t start, int height, float* scratch) {
      for (int r = 0; r < height; r++)
        add_and_norm(residual + (begin + start + r) * width, out + (start + r) * width, layer.post_attention_norm,
                     scratch + r * width, width, layer.eps, layer.norm_offset);
      return (const float*)scratch;
    };
    const Linear& gate_up = *layer.gate_up;
    int64_t pitch = inner_width;
    float* inner = space.inner.floats(count * gate_up.n);
    if (can_gate(gate_up)) {
      const RowBlocks blocks(gate_up, count);
      multiply_gated(gate_up, blocks, gather(gate_up, blocks, space.packed, normed), inner, layer.gelu != 0,
                     {layer.down});
    } else {
      pitch = gate_up.n;
      project(gate_up, {layer.down}, count, space.packed, inner, normed);
      parallel_items(count, [&](int64_t row) {
        gate_row(inner + row * pitch, inner + row * pitch, inner_width, layer.gelu != 0);
      });
    }
    const Following next{number + 1 < stack.count ? stack.layers[number + 1].qkv : nullptr};
    project(*layer.down, next, count, space.packed, out,
            [&](int64_t start, int, float*) { return inner + start * pitch; }, pitch);
  }
};

// body(first row, rows). Many rows: each thread takes its own through all products of a layer, which reads weights once
// per chunk but keeps activations in one cache and needs no barrier but those around attention. Few rows: threads share
// each product.
template <class F>
void over_chunks(int64_t rows, const F& body) {
  const int64_t lanes = threads();
  if (rows < CHUNK_ROWS * lanes) return body(0, rows);
  const int64_t chunks = lanes * ((rows + lanes * CHUNK_ROWS - 1) / (lanes * CHUNK_ROWS));
  parallel_items(chunks, [&](int64_t chunk) {
    const int64_t begin = rows * chunk / chunks;
    body(begin, rows * (chunk + 1) / chunks - begin);
  });
}

// The named rows, in ascending order, move to the front.
void keep_rows(float* matrix, int64_t width, const int64_t* rows, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (rows[i] != i) memcpy(matrix + i * width, matrix + rows[i] * width, width * 4);
}

}  // namespace

void run_stack(const StackCall& stack, const Plan& plan, const int64_t* positions, const int64_t* slots, void* hidden,
               void* residual, const int64_t* wanted, int64_t count, bool bf16) {
  static thread_local Shared shared;
  const int64_t rows = plan.rows, elements = rows * stack.hidden_size;
  int64_t qkv_width = 0, attended_width = 0;
  for (int64_t i = 0; i < stack.count; i++) {
    qkv_width = std::max(qkv_width, stack.layers[i].qkv->n);
    attended_width = std::max(attended_width, stack.layers[i].heads * stack.layers[i].dim);
  }
  const Pass pass{stack,
                  positions,
                  slots,
                  bf16 ? shared.hidden.floats(elements) : (float*)hidden,
                  bf16 ? shared.residual.floats(elements) : (float*)residual,
                  shared.qkv.floats(rows * qkv_width),
                  shared.attended.floats(rows * attended_width)};
  if (bf16)
    convert_row((const uint16_t*)hidden, pass.residual, elements);
  else
    memcpy(pass.residual, hidden, elements * 4);
  for (int64_t i = 0; i < stack.count; i++) {
    over_chunks(rows, [&](int64_t begin, int64_t size) {
      if (i > 0) pass.after_attention(i - 1, begin, size);
      pass.before_attention(i, begin, size);
    });
    const Layer& layer = stack.layers[i];
    attend(plan, layer.cache, (const float*)pass.qkv, layer.qkv->n, pass.attended, layer.heads * layer.dim, layer.scale,
           layer.window, layer.softcap);
  }
  const Layer& last = stack.layers[stack.count - 1];
  if (wanted) {
    keep_rows(pass.residual, stack.hidden_size, wanted, count);
    keep_rows(pass.attended, last.heads * last.dim, wanted, count);
  }
  over_chunks(count, [&](int64_t begin, int64_t size) { pass.after_attention(stack.count - 1, begin, size); });
  if (!bf16) return;
  convert_row(pass.hidden, (uint16_t*)hidden, count * stack.hidden_size);
  convert_row(pass.residual, (uint16_t*)residual, count * stack.hidden_size);
}

}  // namespace esclusa
