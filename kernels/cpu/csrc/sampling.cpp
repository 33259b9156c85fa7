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

INLINE vf without_nan(vf x) { return select((vi)(x == x), x, splat(NONE)); }

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
  vi where = {}, at = iota();
  for_lanes(vocab, [&](int64_t i, int n) {
    const vf x = logits_at(logits, i, n);
    const vi larger = (vi)(x > value);
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

uint32_t to_bits(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}
float from_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

// How many masses reach a threshold, and their sum.
struct Above {
  uint32_t bits;  // of the threshold: floats above zero order like their bits
  int64_t count;
  double sum;
};

constexpr int PROBES = 4;
constexpr int EDGE = 96;  // few enough to sort

void measure(const float* mass, int64_t vocab, Above (&probes)[PROBES]) {
  vf least[PROBES];
  vi counts[PROBES] = {};
  for (int p = 0; p < PROBES; p++) {
    least[p] = splat(from_bits(probes[p].bits));
    probes[p].sum = 0;
  }
  for (int64_t begin = 0; begin < vocab; begin += BLOCK) {
    vf sums[PROBES] = {};
    for_lanes(std::min<int64_t>(BLOCK, vocab - begin), [&](int64_t i, int n) {
      const vf e = load_n(mass + begin + i, n);
      for (int p = 0; p < PROBES; p++) {
        const vi reaches = (vi)(e >= least[p]);
        counts[p] -= reaches;
        sums[p] += (vf)((vi)e & reaches);
      }
    });
    for (int p = 0; p < PROBES; p++) probes[p].sum += reduce_add(sums[p]);
  }
  for (int p = 0; p < PROBES; p++) {
    probes[p].count = 0;
    for (int j = 0; j < LANES; j++) probes[p].count += counts[p][j];
  }
}

// Entries with masses in [least, most), in ascending order of ids; `ids` null: the position is the id.
struct Slice {
  std::vector<float> mass;
  std::vector<int32_t> ids;
};

void slice(const float* mass, const int32_t* ids, int64_t size, float least, float most, Slice& into) {
  into.mass.resize(size + LANES);
  into.ids.resize(size + LANES);
  int64_t count = 0, at = 0;
#if defined(__AVX512F__)
  __m512i place = (__m512i)iota();
  for (; at + LANES <= size; at += LANES, place = _mm512_add_epi32(place, _mm512_set1_epi32(LANES))) {
    const __m512 e = (__m512)load(mass + at);
    const __mmask16 inside = _mm512_cmp_ps_mask(e, _mm512_set1_ps(least), _CMP_GE_OQ) &
                             _mm512_cmp_ps_mask(e, _mm512_set1_ps(most), _CMP_LT_OQ);
    if (!inside) continue;
    const __m512i names = ids ? _mm512_loadu_si512(ids + at) : place;
    _mm512_storeu_ps(into.mass.data() + count, _mm512_maskz_compress_ps(inside, e));
    _mm512_storeu_si512(into.ids.data() + count, _mm512_maskz_compress_epi32(inside, names));
    count += __builtin_popcount(inside);
  }
#endif
  for (; at < size; at++)
    if (mass[at] >= least && mass[at] < most) {
      into.mass[count] = mass[at];
      into.ids[count++] = ids ? ids[at] : (int32_t)at;
    }
  into.mass.resize(count);
  into.ids.resize(count);
}

// Zeroes all but the first `limit` masses of the order (mass, id), or those before which less than `target` lies, and
// returns what is left. The border is found by narrowing thresholds with vector passes, soon over the entries between
// the thresholds alone; only the last few are sorted.
double keep_largest(float* mass, int64_t vocab, int64_t limit, double target, double total) {
  const auto reached = [&](const Above& a) { return a.count >= limit || a.sum >= target; };
  Above high{0x3f800001u, 0, 0.0}, low{1, vocab, std::numeric_limits<double>::infinity()}, passed{0, 0, 0.0};
  bool known = false;  // whether `low` was measured
  static thread_local Slice slices[2];
  const float* values = mass;
  const int32_t* ids = nullptr;
  int64_t size = vocab;
  const auto narrow = [&](Slice& into) {  // `into` is not what `values` lies in
    slice(values, ids, size, from_bits(low.bits), from_bits(high.bits), into);
    values = into.mass.data(), ids = into.ids.data(), size = (int64_t)into.mass.size(), passed = high;
  };
  int next = 0;
  // Where few ids hold the mass the border lies near the largest, which is 1; where many do, around their mean.
  Above probes[PROBES] = {};
  const float mean = (float)(total / (double)vocab);
  const float first[PROBES] = {std::max(0.03f, 4 * mean), std::max(0.0003f, mean), mean / 16, from_bits(1)};
  for (int p = 0; p < PROBES; p++) probes[p].bits = std::max(to_bits(first[p]), 1u);
  while (high.bits - low.bits > 1 && (!known || low.count - high.count > EDGE)) {
    measure(values, size, probes);
    for (Above& probe : probes) probe.count += passed.count, probe.sum += passed.sum;
    known = true;
    int p = 0;
    while (p < PROBES && !reached(probes[p])) high = probes[p++];
    if (p == PROBES && high.bits == 1) return high.sum;  // nothing to drop
    if (p < PROBES) low = probes[p];
    if (low.count - high.count < size / 2) narrow(slices[next]), next = 1 - next;
    const uint32_t width = high.bits - low.bits;
    for (int i = 0; i < PROBES; i++) probes[i].bits = high.bits - (uint32_t)((uint64_t)width * (i + 1) / (PROBES + 1));
    for (int i = 0; i < PROBES; i++) probes[i].bits = std::max(probes[i].bits, low.bits);
  }
  narrow(slices[next]);
  static thread_local std::vector<Candidate> edge;
  edge.clear();
  for (int64_t i = 0; i < size; i++) edge.push_back({values[i], ids[i]});
  // Neighbouring thresholds leave only equal masses, which are in order already.
  if (high.bits - low.bits > 1) std::sort(edge.begin(), edge.end(), before);
  int64_t count = high.count;
  double sum = high.sum;
  Candidate last{from_bits(high.bits), -1};
  for (const Candidate& c : edge) {
    if (count > 0 && (count >= limit || sum >= target)) break;
    last = c;
    count++;
    sum += c.mass;
  }
  const vf border = splat(last.mass);
  const vi last_id = splat_i(last.id);
  vi at = iota();
  for_lanes(vocab, [&](int64_t i, int n) {
    const vf e = load_n(mass + i, n);
    const vi kept = (vi)(e > border) | ((vi)(e == border) & (vi)(last_id >= at));
    store_n(mass + i, (vf)((vi)e & kept), n);
    at += 16;
  });
  return sum;
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
  static thread_local std::vector<double> sums;
  mass.resize(vocab);
  const vf heat = splat(1.0f / settings.temperature), largest = splat(best.value), least = splat(settings.min_p);
  double total = 0;
  for (int64_t begin = 0; begin < vocab; begin += BLOCK) {
    vf sum = {};
    for_lanes(std::min<int64_t>(BLOCK, vocab - begin), [&](int64_t i, int n) {
      vf e = vexp((logits_at(logits, begin + i, n) - largest) * heat);
      e = select((vi)(e >= least), e, splat(0.0f));
      store_n(mass.data() + begin + i, e, n);
      sum += e;
    });
    total += reduce_add(sum);
  }
  if (settings.top_k > 0 && settings.top_k < vocab)
    total = keep_largest(mass.data(), vocab, settings.top_k, std::numeric_limits<double>::infinity(), total);
  if (settings.top_p < 1.0f)
    keep_largest(mass.data(), vocab, std::numeric_limits<int64_t>::max(), (double)settings.top_p * total, total);
  sums.clear();
  total = 0;
  for (int64_t begin = 0; begin < vocab; begin += BLOCK) {
    vf sum = {};
    for_lanes(std::min<int64_t>(BLOCK, vocab - begin),
              [&](int64_t i, int n) { sum += load_n(mass.data() + begin + i, n); });
    sums.push_back(reduce_add(sum));
    total += sums.back();
  }
  const double target = settings.uniform * total;
  double passed = 0;
  size_t block = 0;
  while (block + 1 < sums.size() && passed + sums[block] <= target) passed += sums[block++];
  int64_t last = best.id;
  for (int64_t i = (int64_t)block * BLOCK; i < vocab; i++) {
    if (mass[i] <= 0) continue;
    last = i;
    passed += mass[i];
    if (passed > target) return i;
  }
  return last;
}

template <class T>
void stats_row(const T* logits, int64_t vocab, int64_t token, int64_t top_k, float* out, int64_t* rank,
               int64_t* top_ids, float* top_logprobs) {
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
      product += select((vi)(e > splat(0.0f)), e * shifted, splat(0.0f));
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
