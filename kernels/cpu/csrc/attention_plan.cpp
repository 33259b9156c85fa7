// Cuts one step's attention into items of similar cost, once for all layers.
#include <algorithm>

#include "attention.h"
#include "pool.h"

namespace esclusa {
namespace {

int64_t queries_per_item(int64_t group) { return std::max<int64_t>(1, MAX_ROWS / group); }
int64_t tiles_of(int64_t length, int64_t block_size) {
  const int64_t whole = length / block_size, rest = length % block_size;
  return whole * ((block_size + 15) / 16) + (rest + 15) / 16;
}

}  // namespace

int make_plan(Plan& plan, const int32_t* query_start, const int32_t* kv_len, int64_t window, bool deterministic) {
  const int64_t sequences = plan.sequences, group = plan.heads / plan.kv_heads;
  plan.query_start.assign(query_start, query_start + sequences + 1);
  plan.kv_len.assign(kv_len, kv_len + sequences);
  plan.rows = query_start[sequences];
  const int64_t per_item = queries_per_item(group);
  int64_t busy = 0;
  for (int64_t s = 0; s < sequences; s++) {
    const int64_t queries = query_start[s + 1] - query_start[s];
    if (queries < 0 || query_start[0] != 0) return PLAN_STARTS;
    if (kv_len[s] < queries || kv_len[s] > plan.table_width * plan.block_size) return PLAN_LENGTH;
    for (int64_t b = 0; b * plan.block_size < kv_len[s] && queries > 0; b++) {
      const int32_t block = plan.tables[s * plan.table_width + b];
      const bool visible = window <= 0 || (b + 1) * plan.block_size > kv_len[s] - queries - window + 1;
      if (block < 0 && visible) return PLAN_TABLE;
      if (block < 0) plan.window = window;
      plan.largest_block = std::max(plan.largest_block, block);
    }
    busy += (queries + per_item - 1) / per_item * plan.kv_heads;
  }
  for (int64_t s = 0; s < sequences; s++) {
    const int64_t queries = query_start[s + 1] - query_start[s], first = kv_len[s] - queries;
    for (int64_t at = 0; at < queries; at += per_item) {
      const int64_t count = std::min(per_item, queries - at);
      const int64_t end = tiles_of(first + at + count, plan.block_size);
      const int64_t start = 0;
      int64_t parts = 1;
      if (!deterministic && count == 1 && busy < 2 * threads())
        parts = std::max<int64_t>(1, std::min((2 * threads() + busy - 1) / busy, (end - start) / 16));
      // Several heads an item where enough items are left for all threads and the rows are few.
      const int64_t together = parts > 1 || busy < 16 * threads()
                                   ? 1
                                   : std::clamp<int64_t>(MAX_ROWS / 2 / (count * group), 1, plan.kv_heads);
      for (int64_t head = 0; head < plan.kv_heads; head += together) {
        if (parts == 1) {
          const int32_t heads = (int32_t)std::min(together, plan.kv_heads - head);
          plan.items.push_back(
              {(int32_t)s, (int32_t)head, heads, (int32_t)at, (int32_t)count, (int32_t)start, (int32_t)end, -1});
          continue;
        }
        plan.split_first.push_back((int32_t)plan.slots);
        plan.split_count.push_back((int32_t)parts);
        plan.split_row.push_back((int32_t)(query_start[s] + at));
        plan.split_head.push_back((int32_t)head);
        const int64_t chunks = (end - start + CHUNK_TILES - 1) / CHUNK_TILES;
        for (int64_t p = 0; p < parts; p++) {
          const int64_t from = start + chunks * p / parts * CHUNK_TILES;
          const int64_t to = std::min(end, start + chunks * (p + 1) / parts * CHUNK_TILES);
          plan.items.push_back(
              {(int32_t)s, (int32_t)head, 1, (int32_t)at, 1, (int32_t)from, (int32_t)to, (int32_t)plan.slots++});
        }
      }
    }
  }
  // Largest first, so that the last items to finish are small; dealt out to the runs that threads walk, so that each
  // starts large and all weigh alike.
  std::stable_sort(plan.items.begin(), plan.items.end(), [](const AttentionItem& a, const AttentionItem& b) {
    return (int64_t)a.heads * a.queries * (a.last_tile - a.first_tile) >
           (int64_t)b.heads * b.queries * (b.last_tile - b.first_tile);
  });
  const std::vector<AttentionItem> sorted = plan.items;
  const size_t lanes = threads();
  size_t at = 0;
  for (size_t lane = 0; lane < lanes; lane++)
    for (size_t i = lane; i < sorted.size(); i += lanes) plan.items[at++] = sorted[i];
  return PLAN_OK;
}

}  // namespace esclusa
