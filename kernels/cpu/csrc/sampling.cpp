#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "rows.h"
#include "simd.h"

namespace esclusa {
namespace {

constexpr float NONE = -std::numeric_limits<float>::infinity();
constexpr int BLOCK = 512;  // ids per partial sum

INLINE vf without_nan(vf x) { return select(x == x, x, splat(NONE)); }

template <class T>
INLINE vf logits_at(const T* p, int64_t i, int n) {
  if (n == LANES) return without_nan(load(p + i));
  alignas(64) float a[16];
  for (int j = 0; j < 16; j++) a[j] = j < n ? get(p + i + j) : NONE;
  return without_nan(load(a));
}

struct Best {
  float value;
  int64_t id;
};

template <class T>
Best best_of(const T* logits, int64_t vocab) {
  vf value = splat(NONE);
  vi where = {}, at = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for_lanes(vocab, [&](int64_t i, int n) {
    const vf x = logits_at(logits, i, n);
    const vi larger = x > value;
    value = select(larger, x, value);
    where = (at & larger) | (where & ~larger);
    at += 16;
  });
  Best best{NONE, vocab};
  for (int j = 0; j < LANES; j++)
    if (value[j] > best.value || (value[j] == best.value && where[j] < best.id)) best = {value[j], where[j]};
  if (best.value == NONE) best.id = 0;
  return best;
}

template <class T>
double sum_exp(const T* logits, int64_t vocab, float largest) {
  double total = 0;
  for (int64_t begin = 0; begin < vocab; begin += BLOCK) {
    vf sum = {};
    for_lanes(std::min<int64_t>(BLOCK, vocab - begin),
              [&](int64_t i, int n) { sum += vexp(logits_at(logits, begin + i, n) - splat(largest)); });
    total += reduce_add(sum);
  }
  return total;
}

struct Candidate {
  float mass;
  int32_t id;
};
bool before(const Candidate& a, const Candidate& b) { return a.mass > b.mass || (a.mass == b.mass && a.id < b.id); }

// Masses lie in (0, 1]: eight buckets an octave by the top bits of the float, largest first.
constexpr int BUCKETS = 127 * 8 + 1;
int bucket_of(float mass) {
  uint32_t bits;
  memcpy(&bits, &mass, 4);
  return std::max(0, (int)(0x3f800000u >> 20) - (int)(bits >> 20));
}

// Keeps, in id order, the first `limit` candidates of the order (mass, id), or those before which less than
// `target` mass lies. One histogram finds the bucket of the last one; only that bucket is sorted.
void keep_largest(std::vector<Candidate>& all, int64_t limit, double target) {
  static thread_local std::vector<int32_t> counts(BUCKETS);
  static thread_local std::vector<double> masses(BUCKETS);
  std::fill(counts.begin(), counts.end(), 0);
  std::fill(masses.begin(), masses.end(), 0.0);
  for (const Candidate& c : all) {
    const int bucket = bucket_of(c.mass);
    counts[bucket]++;
    masses[bucket] += c.mass;
  }
  int64_t count = 0;
  double mass = 0;
  int bucket = 0;
  while (bucket < BUCKETS && count + counts[bucket] < limit && mass + masses[bucket] < target) {
    count += counts[bucket];
    mass += masses[bucket++];
  }
  if (bucket == BUCKETS) return;
  std::vector<Candidate> edge;
  for (const Candidate& c : all)
    if (bucket_of(c.mass) == bucket) edge.push_back(c);
  std::sort(edge.begin(), edge.end(), before);
  Candidate last = edge.front();
  for (const Candidate& c : edge) {
    if (count > 0 && (count >= limit || mass >= target)) break;
    last = c;
    count++;
    mass += c.mass;
  }
  size_t kept = 0;
  for (const Candidate& c : all) {
    const int at = bucket_of(c.mass);
    if (at < bucket || (at == bucket && !before(last, c))) all[kept++] = c;
  }
  all.resize(kept);
}

}  // namespace

double philox_uniform(int64_t seed, int64_t position) {
  uint32_t key[2] = {(uint32_t)seed, (uint32_t)((uint64_t)seed >> 32)};
  uint32_t c[4] = {(uint32_t)position, (uint32_t)((uint64_t)position >> 32), 0, 0};
  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
    const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ key[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ key[1],
                              (uint32_t)a};
    memcpy(c, next, sizeof c);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return (double)((uint64_t)(c[0] >> 5) * 67108864u + (c[1] >> 6)) / 9007199254740992.0;
}

template <class T>
void greedy_row(const T* logits, int64_t vocab, int64_t* id, float* logprob) {
  const Best best = best_of(logits, vocab);
  *id = best.id;
  *logprob = (float)-std::log(sum_exp(logits, vocab, best.value));
}

template <class T>
int64_t sample_row(const T* logits, int64_t vocab, const SampleSettings& settings) {
  const Best best = best_of(logits, vocab);
  if (!(settings.temperature > 0) || best.value == NONE) return best.id;
  static thread_local std::vector<float> mass;
  static thread_local std::vector<double> block_sums;
  mass.resize(vocab);
  block_sums.clear();
  const vf heat = splat(1.0f / settings.temperature), largest = splat(best.value);
  double total = 0;
  for (int64_t begin = 0; begin < vocab; begin += BLOCK) {
    vf sum = {};
    for_lanes(std::min<int64_t>(BLOCK, vocab - begin), [&](int64_t i, int n) {
      const vf e = vexp((logits_at(logits, begin + i, n) - largest) * heat);
      store_n(mass.data() + begin + i, e, n);
      sum += e;
    });
    block_sums.push_back(reduce_add(sum));
    total += block_sums.back();
  }
  const bool by_rank = settings.top_k > 0 && settings.top_k < vocab;
  if (!by_rank && settings.top_p >= 1.0f && settings.min_p <= 0.0f) {
    double target = settings.uniform * total, passed = 0;
    size_t block = 0;
    while (block + 1 < block_sums.size() && passed + block_sums[block] <= target) passed += block_sums[block++];
    int64_t last = best.id;
    for (int64_t i = (int64_t)block * BLOCK; i < vocab; i++) {
      if (mass[i] <= 0) continue;
      last = i;
      passed += mass[i];
      if (passed > target) return i;
    }
    return last;
  }
  static thread_local std::vector<Candidate> candidates;
  // The head of the distribution nearly always decides; the tail is visited when it does not.
  for (const float floor : {1e-3f, 1e-6f, 0.0f}) {
    candidates.clear();
    const float least = std::max(floor, settings.min_p);
    double sum = 0;
    for (int64_t begin = 0; begin < vocab; begin += LANES) {
      const int n = (int)std::min<int64_t>(LANES, vocab - begin);
      const vf e = load_n(mass.data() + begin, n);
#if defined(__AVX512F__)
      uint32_t hits = _mm512_cmp_ps_mask((__m512)e, _mm512_set1_ps(least), _CMP_GE_OQ) &
                      _mm512_cmp_ps_mask((__m512)e, _mm512_setzero_ps(), _CMP_GT_OQ);
#else
      uint32_t hits = 0;
      for (int j = 0; j < n; j++) hits |= (uint32_t)(mass[begin + j] >= least && mass[begin + j] > 0) << j;
#endif
      for (; hits; hits &= hits - 1) {
        const int j = __builtin_ctz(hits);
        candidates.push_back({mass[begin + j], (int32_t)(begin + j)});
        sum += mass[begin + j];
      }
    }
    const bool complete = least == settings.min_p || floor == 0.0f;
    const bool enough = by_rank ? (int64_t)candidates.size() >= settings.top_k
                                : settings.min_p <= 0.0f && sum >= settings.top_p * total;
    if (!complete && !enough) continue;
    if (by_rank) {
      keep_largest(candidates, settings.top_k, std::numeric_limits<double>::infinity());
      sum = 0;
      for (const Candidate& c : candidates) sum += c.mass;
    } else if (!complete) {
      sum = total;
    }
    if (settings.top_p < 1.0f)
      keep_largest(candidates, std::numeric_limits<int64_t>::max(), (double)settings.top_p * sum);
    break;
  }
  double kept = 0;
  for (const Candidate& c : candidates) kept += c.mass;
  const double target = settings.uniform * kept;
  double passed = 0;
  for (const Candidate& c : candidates) {
    passed += c.mass;
    if (passed > target) return c.id;
  }
  return candidates.empty() ? best.id : candidates.back().id;
}

template <class T>
void stats_row(const T* logits, int64_t vocab, int64_t token, int64_t top_k, float* out, int64_t* rank, int64_t* top_ids,
               float* top_logprobs) {
  const Best best = best_of(logits, vocab);
  const float chosen = get(logits + token);
  vf first = splat(NONE), second = splat(NONE);
  vi above = {};
  double total = 0, weighted = 0;
  for (int64_t begin = 0; begin < vocab; begin += BLOCK) {
    vf sum = {}, product = {};
    for_lanes(std::min<int64_t>(BLOCK, vocab - begin), [&](int64_t i, int n) {
      const vf x = logits_at(logits, begin + i, n);
      const vf shifted = x - splat(best.value), e = vexp(shifted);
      sum += e;
      product += select(e > splat(0.0f), e * shifted, splat(0.0f));
      second = vmax(vmin(x, first), second);
      first = vmax(x, first);
      above -= (vi)(x > splat(chosen));
    });
    total += reduce_add(sum);
    weighted += reduce_add(product);
  }
  float runner_up = NONE;
  bool top_seen = false;
  for (int j = 0; j < LANES; j++) {
    if (first[j] == best.value && !top_seen)
      top_seen = true;
    else
      runner_up = std::max(runner_up, first[j]);
    runner_up = std::max(runner_up, second[j]);
  }
  const double log_total = std::log(total);
  out[0] = (float)((double)chosen - best.value - log_total);
  out[1] = (float)(best.value + log_total);
  out[2] = (float)(log_total - weighted / total);
  out[3] = (float)((1.0 - std::exp((double)runner_up - best.value)) / total);
  *rank = 1;
  for (int j = 0; j < LANES; j++) *rank += above[j];
  if (top_k <= 0) return;
  std::vector<Candidate> top;  // sorted; a new entry is rare after the first few hundred ids
  for (int64_t i = 0; i < vocab; i++) {
    const float x = get(logits + i);
    const Candidate c{x, (int32_t)i};
    if ((int64_t)top.size() == top_k && !before(c, top.back())) continue;
    if ((int64_t)top.size() == top_k) top.pop_back();
    top.insert(std::upper_bound(top.begin(), top.end(), c, before), c);
  }
  for (int64_t i = 0; i < (int64_t)top.size(); i++) {
    top_ids[i] = top[i].id;
    top_logprobs[i] = (float)((double)top[i].mass - best.value - log_total);
  }
}

template void greedy_row(const float*, int64_t, int64_t*, float*);
template void greedy_row(const uint16_t*, int64_t, int64_t*, float*);
template int64_t sample_row(const float*, int64_t, const SampleSettings&);
template int64_t sample_row(const uint16_t*, int64_t, const SampleSettings&);
template void stats_row(const float*, int64_t, int64_t, int64_t, float*, int64_t*, int64_t*, float*);
template void stats_row(const uint16_t*, int64_t, int64_t, int64_t, float*, int64_t*, int64_t*, float*);

}  // namespace esclusa
