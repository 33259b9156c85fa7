// Paged attention over a cache whose layout lets scores and sums run along vector lanes without reductions:
//   key   [block][kv_head][tile][dim/2][16 keys][2 dims] bfloat16, or [..][tile][dim][16 keys] float
//   value [block][kv_head][slots/2][dims][2 keys] bfloat16, or [..][slots][dims] float
// A tile is 16 slots of a block (the last may be short), `dims` is the head dimension rounded up to 16.
// Scores and sums run in float32 with an online softmax over chunks of four tiles. Chunk borders are fixed by the
// block size, so a query row gives the same bits in any batch and chunking unless its kv range was split.
#pragma once
#include <cstdint>
#include <vector>

namespace esclusa {

constexpr int CHUNK_TILES = 4;
constexpr int CHUNK = CHUNK_TILES * 16;
constexpr int MAX_ROWS = 48;  // query rows (tokens x heads of a group) of one item

struct Cache {
  void* key;
  void* value;
  int64_t num_blocks, block_size, kv_heads, dim;
  int32_t bf16, unused;

  int64_t tiles() const { return (block_size + 15) / 16; }
  int64_t dims() const { return (dim + 15) / 16 * 16; }
  int64_t key_elements() const { return tiles() * 16 * dim; }  // of one block and kv head
  int64_t value_elements() const { return tiles() * 16 * dims(); }
};

struct AttentionItem {
  int32_t sequence, kv_head, heads, first_query, queries, first_tile, last_tile;
  int32_t slot;  // >= 0: where the partial result of a split goes; such items have one head
};

struct Plan {
  int64_t sequences, block_size, heads, kv_heads, dim, table_width, rows;
  const int32_t* tables;
  std::vector<int32_t> query_start, kv_len;
  std::vector<AttentionItem> items;
  std::vector<int32_t> split_first, split_count, split_row, split_head;  // one entry per (row, kv head) that was split
  int64_t slots = 0;
  int32_t largest_block = -1;
  int64_t window = 0;  // > 0: some blocks are gone, so only windows up to this one may be asked for
};

enum PlanError { PLAN_OK = 0, PLAN_STARTS = 1, PLAN_LENGTH = 2, PLAN_TABLE = 3 };

int make_plan(Plan& plan, const int32_t* query_start, const int32_t* kv_len, int64_t window, bool deterministic);

// Rows of q, k, v are `stride` elements apart; k and v of one row hold all kv heads.
template <class T>
void write_kv(const Cache& cache, const T* key, const T* value, int64_t slot, int64_t kv_head);
template <class T>
void read_kv(const Cache& cache, T* key, T* value, int64_t slot, int64_t kv_head);

// q [rows][q_stride], out [rows][out_stride]; window <= 0 and softcap <= 0 mean none.
template <class T>
void attend(const Plan& plan, const Cache& cache, const T* q, int64_t q_stride, T* out, int64_t out_stride, float scale,
            int64_t window, float softcap);

}  // namespace esclusa
