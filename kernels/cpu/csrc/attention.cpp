#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "pool.h"
#include "rows.h"
#include "simd.h"

namespace esclusa {
namespace {

constexpr float NONE = -std::numeric_limits<float>::infinity();
#if defined(__AVX512F__)
constexpr int BAND = 6;  // rows whose sums fit the registers
#else
constexpr int BAND = 2;
#endif

struct TileView {
  const char* key;
  const char* value;
  int64_t first_key;
  int valid;
  int64_t key_ahead, value_ahead;  // bytes to the tile one chunk on: it travels to the cache meanwhile; 0: none
};

TileView view_tile(const Plan& plan, const Cache& cache, int64_t sequence, int64_t kv_head, int64_t tile) {
  const int64_t per_block = cache.tiles(), block = tile / per_block, inner = tile % per_block;
  const int64_t physical = plan.tables[sequence * plan.table_width + block];
  const int64_t at = physical * cache.kv_heads + kv_head;
  const int64_t bytes = cache.bf16 ? 2 : 4;
  return {(const char*)cache.key + (at * cache.key_elements() + inner * 16 * cache.dim) * bytes,
          (const char*)cache.value + (at * cache.value_elements() + inner * 16 * cache.dims()) * bytes,
          block * cache.block_size + inner * 16,
          (int)std::min<int64_t>(16, cache.block_size - inner * 16),
          0,
          0};
}

int64_t tile_first_key(const Cache& cache, int64_t tile) {
  return tile / cache.tiles() * cache.block_size + tile % cache.tiles() * 16;
}

// Registers that hold one tile of scores or 16 dimensions, and how many tiles a pass can sum at once.
constexpr int PER_TILE = 16 / NATIVE;
#if defined(__AVX512F__)
constexpr int PASS_TILES = 4;
#else
constexpr int PASS_TILES = 4 / PER_TILE;
#endif

// scores[r][64] = q[r] . key for four tiles
template <int R, bool BF16>
void score_band(const float* q, int64_t dim, const TileView* tiles, float* scores) {
  constexpr int V = PASS_TILES * PER_TILE;
  const int64_t step = BF16 ? 2 : 1;
  for (int first = 0; first < CHUNK_TILES; first += PASS_TILES) {
    nf sum[R][V] = {};
    const char* keys[PASS_TILES];
    for (int t = 0; t < PASS_TILES; t++) keys[t] = tiles[first + t].key;
    for (int64_t d = 0; d < dim; d += step) {
      if (tiles[0].key_ahead)
#pragma GCC unroll 4
        for (int t = 0; t < PASS_TILES; t++)
          __builtin_prefetch(keys[t] + tiles[first + t].key_ahead + d / step * 64, 0, 2);
      // Words are read twice rather than held: 24 sums leave no registers for both halves.
#pragma GCC unroll 2
      for (int half = 0; half < step; half++) {
        nf wide[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
          const nu word = native_load<nu>(keys[v / PER_TILE] + d / step * 64 + v % PER_TILE * NATIVE * 4);
          wide[v] = !BF16 ? (nf)word : half == 0 ? native_first(word) : native_second(word);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
          const float x = q[r * dim + d + half];
#pragma GCC unroll 8
          for (int v = 0; v < V; v++) sum[r][v] += x * wide[v];
        }
      }
    }
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++) native_store(scores + r * CHUNK + first * 16 + v * NATIVE, sum[r][v]);
  }
}

// out[r][dims] += weights[r][first..last) . value for one tile, V registers of dimensions at a time
template <int R, int V, bool BF16>
void mix_tile(const float* weights, const TileView& tile, int first, int last, int64_t dims, int64_t at, float* out) {
  const char* value = tile.value;
  const int64_t ahead = tile.value_ahead;
  nf sum[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sum[r][v] = native_load<nf>(out + r * dims + at + v * NATIVE);
  const auto add = [&](auto second, int key, const char* words) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      const nu word = native_load<nu>(words + v * NATIVE * 4);
      const nf wide = !BF16 ? (nf)word : second ? native_second(word) : native_first(word);
#pragma GCC unroll 6
      for (int r = 0; r < R; r++) sum[r][v] += weights[r * CHUNK + key] * wide;
    }
  };
  for (int key = first; key < last; key++) {
    const char* words = value + ((BF16 ? key / 2 : key) * dims + at) * 4;
    if (ahead && (!BF16 || key % 2 == 0))
      for (int v = 0; v < V; v += PER_TILE) __builtin_prefetch(words + ahead + v * NATIVE * 4, 0, 2);
    if (BF16 && key % 2)
      add(std::true_type{}, key, words);
    else
      add(std::false_type{}, key, words);
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) native_store(out + r * dims + at + v * NATIVE, sum[r][v]);
}

struct Band {  // up to BAND rows: positions, softmax state, where their sums live
  int64_t position[BAND];
  float largest[BAND], total[BAND];
};

template <int R, bool BF16>
void chunk_band(const float* q, int64_t dim, int64_t dims, const TileView* tiles, int count, int64_t window,
                float softcap, int64_t lowest_key, Band& band, float* out) {
  alignas(64) float scores[R * CHUNK];
  score_band<R, BF16>(q, dim, tiles, scores);
  const vi lanes = iota();
  int64_t highest = 0;
  for (int r = 0; r < R; r++) {
    highest = std::max(highest, band.position[r]);
    vf x[CHUNK_TILES];
    vf peak = splat(NONE);
    for (int t = 0; t < CHUNK_TILES; t++) {
      x[t] = load(scores + r * CHUNK + t * 16);
      if (softcap > 0) x[t] = splat(softcap) * vtanh(x[t] * splat(1.0f / softcap));
      const int64_t key = tiles[t].first_key;
      const int64_t end = t < count ? std::min<int64_t>(tiles[t].valid, band.position[r] - key + 1) : 0;
      const int64_t begin = window > 0 ? band.position[r] - window + 1 - key : 0;
      if (end < 16 || begin > 0) {
        const vi seen = (vi)(lanes < splat_i((int)std::max<int64_t>(end, 0))) &
                        (vi)(lanes >= splat_i((int)std::min<int64_t>(begin, 16)));
        x[t] = select(seen, x[t], splat(NONE));
      }
      peak = vmax(x[t], peak);
    }
    const float before = band.largest[r], now = std::max(before, reduce_max(peak));
    if (now == NONE) {
      for (int t = 0; t < CHUNK_TILES; t++) store(scores + r * CHUNK + t * 16, vf{});
      continue;
    }
    vf sum = {};
    for (int t = 0; t < CHUNK_TILES; t++) {
      const vf weight = vexp(x[t] - splat(now));
      store(scores + r * CHUNK + t * 16, weight);
      sum += weight;
    }
    if (now != before) {
      const float shrink = vexp(splat(before - now))[0];
      band.largest[r] = now;
      band.total[r] *= shrink;
      float* row = out + r * dims;
      for (int64_t d = 0; d < dims; d += 16) store(row + d, load(row + d) * splat(shrink));
    }
    band.total[r] += reduce_add(sum);
  }
  for (int t = 0; t < count; t++) {
    const int64_t key = tiles[t].first_key;
    const int first = (int)std::max<int64_t>(0, lowest_key - key);
    const int last = (int)std::min<int64_t>(tiles[t].valid, highest - key + 1);
    if (first >= last) continue;
    int64_t at = 0;
    for (; at + 4 * NATIVE <= dims; at += 4 * NATIVE)
      mix_tile<R, 4, BF16>(scores + t * 16, tiles[t], first, last, dims, at, out);
    for (; at < dims; at += 16) mix_tile<R, PER_TILE, BF16>(scores + t * 16, tiles[t], first, last, dims, at, out);
  }
}

typedef void (*ChunkFunction)(const float*, int64_t, int64_t, const TileView*, int, int64_t, float, int64_t, Band&,
                              float*);
template <bool BF16>
ChunkFunction chunk_function(int rows) {
  switch (rows) {
    case 1: return chunk_band<1, BF16>;
    case 2: return chunk_band<2, BF16>;
#if defined(__AVX512F__)
    case 3: return chunk_band<3, BF16>;
    case 4: return chunk_band<4, BF16>;
    case 5: return chunk_band<5, BF16>;
    case 6: return chunk_band<6, BF16>;
#endif
  }
  return nullptr;
}

struct Scratch {
  std::vector<float> q, out;
  std::vector<Band> bands;
};

template <class T>
void attend_item(const Plan& plan, const Cache& cache, const AttentionItem& item, const AttentionItem* following,
                 const T* q, int64_t q_stride, T* out, int64_t out_stride, float scale, int64_t window, float softcap,
                 float* partial) {
  const int64_t group = plan.heads / plan.kv_heads, dim = plan.dim, dims = cache.dims();
  const int64_t rows = item.queries * group, begin = plan.query_start[item.sequence];  // rows of one kv head
  const int64_t bands = (rows + BAND - 1) / BAND;
  const int64_t first_position =
      plan.kv_len[item.sequence] - (plan.query_start[item.sequence + 1] - begin) + item.first_query;
  thread_local Scratch scratch;
  scratch.q.resize(item.heads * rows * dim);
  scratch.out.assign(item.heads * rows * dims, 0.0f);
  scratch.bands.resize(item.heads * bands);
  const auto place = [&](int64_t row, int64_t stride) {  // of a row's head in q and out
    const int64_t head = item.kv_head + row / rows, r = row % rows;
    return (begin + item.first_query + r / group) * stride + (head * group + r % group) * dim;
  };
  for (int64_t row = 0; row < item.heads * rows; row++) {
    const T* source = q + place(row, q_stride);
    float* target = scratch.q.data() + row * dim;
    for_lanes(dim, [&](int64_t i, int c) { store_n(target + i, load_n(source + i, c) * splat(scale), c); });
    const int64_t r = row % rows;
    Band& b = scratch.bands[row / rows * bands + r / BAND];
    b.position[r % BAND] = first_position + r / group;
    b.largest[r % BAND] = NONE;
    b.total[r % BAND] = 0;
  }
  // Blocks that the window has left behind may belong to somebody else by now: none of their keys is read. Chunks
  // still start at multiples of their size, so that a row sums alike whichever tile of queries it came in.
  const int64_t oldest = window > 0 ? std::max<int64_t>(0, first_position - window + 1) : 0;
  const int64_t alive = oldest / cache.block_size * cache.tiles();
  const int64_t key_bytes = cache.key_elements() * (cache.bf16 ? 2 : 4);
  const int64_t value_bytes = cache.value_elements() * (cache.bf16 ? 2 : 4);
  const int64_t start = std::max<int64_t>(item.first_tile, alive / CHUNK_TILES * CHUNK_TILES);
  for (int64_t tile = start; tile < item.last_tile; tile += CHUNK_TILES) {
    TileView tiles[CHUNK_TILES];
    const int count = (int)std::min<int64_t>(CHUNK_TILES, item.last_tile - tile);
    for (int t = 0; t < CHUNK_TILES; t++) {
      const bool readable = t < count && tile + t >= alive;
      tiles[t] = view_tile(plan, cache, item.sequence, item.kv_head, readable ? tile + t : std::max(tile, alive));
      if (readable) continue;
      tiles[t].valid = 0;
      tiles[t].first_key = tile_first_key(cache, tile + t);
    }
    // What is read after this chunk travels to the cache meanwhile: the next chunk, or the first of the next item.
    int64_t key_ahead[CHUNK_TILES] = {}, value_ahead[CHUNK_TILES] = {};
    const bool more = tile + CHUNK_TILES < item.last_tile;
    const AttentionItem* ahead = more ? &item : following;
    if (ahead && tile >= alive) {
      const int64_t first = more ? tile + CHUNK_TILES : ahead->first_tile;
      for (int t = 0; t < CHUNK_TILES && first + t < ahead->last_tile; t++) {
        const TileView next = view_tile(plan, cache, ahead->sequence, ahead->kv_head, first + t);
        key_ahead[t] = next.key - tiles[t].key;
        value_ahead[t] = next.value - tiles[t].value;
      }
    }
    const int64_t end_key = tiles[count - 1].first_key + 16;
    // Heads inside chunks: the heads of a block lie side by side, so memory is read in longer runs.
    for (int64_t head = 0; head < item.heads; head++) {
      for (int t = 0; t < CHUNK_TILES; t++) {
        tiles[t].key_ahead = key_ahead[t];
        tiles[t].value_ahead = value_ahead[t];
      }
      for (int64_t b = 0; b < bands; b++) {
        Band& band = scratch.bands[head * bands + b];
        const int height = (int)std::min<int64_t>(BAND, rows - b * BAND);
        const int64_t lowest = window > 0 ? std::max<int64_t>(0, band.position[0] - window + 1) : 0;
        if (tiles[0].first_key > band.position[height - 1] || end_key <= lowest) continue;
        const auto function = cache.bf16 ? chunk_function<true>(height) : chunk_function<false>(height);
        const int64_t row = head * rows + b * BAND;
        function(scratch.q.data() + row * dim, dim, dims, tiles, count, window, softcap, lowest, band,
                 scratch.out.data() + row * dims);
        for (int t = 0; t < CHUNK_TILES; t++) tiles[t].key_ahead = tiles[t].value_ahead = 0;
      }
      for (int t = 0; t < CHUNK_TILES; t++) {
        tiles[t].key += key_bytes;
        tiles[t].value += value_bytes;
      }
    }
  }
  for (int64_t row = 0; row < item.heads * rows; row++) {
    const int64_t r = row % rows;
    const Band& b = scratch.bands[row / rows * bands + r / BAND];
    const float* sums = scratch.out.data() + row * dims;
    if (item.slot >= 0) {
      float* target = partial + (item.slot * group + r) * (dims + 16);
      target[0] = b.largest[r % BAND];
      target[1] = b.total[r % BAND];
      memcpy(target + 16, sums, dims * 4);
      continue;
    }
    const vf inverse = splat(b.total[r % BAND] > 0 ? 1.0f / b.total[r % BAND] : 0.0f);
    T* target = out + place(row, out_stride);
    for_lanes(dim, [&](int64_t i, int c) { store_n(target + i, load(sums + i) * inverse, c); });
  }
}

// Parts of one row in ascending key order.
template <class T>
void merge_parts(const Plan& plan, int64_t dims, int64_t index, const float* partial, T* out, int64_t out_stride) {
  const int64_t group = plan.heads / plan.kv_heads;
  for (int64_t g = 0; g < group; g++) {
    float largest = NONE, total = 0;
    auto part = [&](int64_t i) { return partial + ((plan.split_first[index] + i) * group + g) * (dims + 16); };
    for (int64_t i = 0; i < plan.split_count[index]; i++) largest = std::max(largest, part(i)[0]);
    std::vector<float> factor(plan.split_count[index]);
    for (int64_t i = 0; i < plan.split_count[index]; i++) {
      factor[i] = part(i)[0] == NONE ? 0.0f : vexp(splat(part(i)[0] - largest))[0];
      total += part(i)[1] * factor[i];
    }
    T* target = out + plan.split_row[index] * out_stride + (plan.split_head[index] * group + g) * plan.dim;
    const vf inverse = splat(total > 0 ? 1.0f / total : 0.0f);
    for_lanes(plan.dim, [&](int64_t d, int c) {
      vf sum = {};
      for (int64_t i = 0; i < plan.split_count[index]; i++) sum += load(part(i) + 16 + d) * splat(factor[i]);
      store_n(target + d, sum * inverse, c);
    });
  }
}

}  // namespace

template <class T>
void write_kv(const Cache& cache, const T* key, const T* value, int64_t slot, int64_t kv_head) {
  const int64_t block = slot / cache.block_size, offset = slot % cache.block_size, dim = cache.dim, dims = cache.dims();
  const int64_t at = block * cache.kv_heads + kv_head;
  const int64_t tile = at * cache.key_elements() + offset / 16 * 16 * dim, lane = offset % 16;
  if (cache.bf16) {
    // Slots are written one by one, also where two share a word: another thread may be writing the neighbour.
    thread_local std::vector<uint16_t> narrowed;
    narrowed.resize(2 * (dim + 1));
    uint16_t *new_key = narrowed.data(), *new_value = new_key + dim + 1;
    convert_row(key, new_key, dim);
    convert_row(value, new_value, dim);
    uint16_t* k = (uint16_t*)cache.key + tile + lane * 2;
    for (int64_t d = 0; d + 1 < dim; d += 2) memcpy(k + d * 16, new_key + d, 4);
    if (dim % 2) k[(dim - 1) * 16] = new_key[dim - 1];
    uint16_t* v = (uint16_t*)cache.value + at * cache.value_elements() + offset / 2 * dims * 2 + offset % 2;
    for (int64_t d = 0; d < dim; d++) v[d * 2] = new_value[d];
  } else {
    float* k = (float*)cache.key + tile + lane;
    for (int64_t d = 0; d < dim; d++) k[d * 16] = get(key + d);
    float* v = (float*)cache.value + at * cache.value_elements() + offset * dims;
    for (int64_t d = 0; d < dim; d++) v[d] = get(value + d);
  }
}

template <class T>
void read_kv(const Cache& cache, T* key, T* value, int64_t slot, int64_t kv_head) {
  const int64_t block = slot / cache.block_size, offset = slot % cache.block_size, dim = cache.dim, dims = cache.dims();
  const int64_t at = block * cache.kv_heads + kv_head;
  const int64_t tile = at * cache.key_elements() + offset / 16 * 16 * dim, lane = offset % 16;
  for (int64_t d = 0; d < dim; d++) {
    if (cache.bf16) {
      put(key + d, widen(((const uint16_t*)cache.key)[tile + lane * 2 + d / 2 * 32 + d % 2]));
      put(value + d,
          widen(
              ((const uint16_t*)cache.value)[at * cache.value_elements() + (offset / 2 * dims + d) * 2 + offset % 2]));
    } else {
      put(key + d, ((const float*)cache.key)[tile + lane + d * 16]);
      put(value + d, ((const float*)cache.value)[at * cache.value_elements() + offset * dims + d]);
    }
  }
}

template <class T>
void attend(const Plan& plan, const Cache& cache, const T* q, int64_t q_stride, T* out, int64_t out_stride, float scale,
            int64_t window, float softcap) {
  std::vector<float> partial(plan.slots * (plan.heads / plan.kv_heads) * (cache.dims() + 16));
  parallel_spans((int64_t)plan.items.size(), 1, [&](int64_t i, int64_t, int64_t next, int64_t) {
    // Behind a window the first blocks of a sequence may be gone.
    const AttentionItem* following = next >= 0 && window <= 0 ? &plan.items[next] : nullptr;
    attend_item(plan, cache, plan.items[i], following, q, q_stride, out, out_stride, scale, window, softcap,
                partial.data());
  });
  parallel_items((int64_t)plan.split_first.size(),
                 [&](int64_t i) { merge_parts(plan, cache.dims(), i, partial.data(), out, out_stride); });
}

template void write_kv(const Cache&, const float*, const float*, int64_t, int64_t);
template void write_kv(const Cache&, const uint16_t*, const uint16_t*, int64_t, int64_t);
template void read_kv(const Cache&, float*, float*, int64_t, int64_t);
template void read_kv(const Cache&, uint16_t*, uint16_t*, int64_t, int64_t);
template void attend(const Plan&, const Cache&, const float*, int64_t, float*, int64_t, float, int64_t, float);
template void attend(const Plan&, const Cache&, const uint16_t*, int64_t, uint16_t*, int64_t, float, int64_t, float);

}  // namespace esclusa
