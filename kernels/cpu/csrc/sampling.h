// Choosing tokens without sorting the vocabulary. One row at a time; sums over the vocabulary run in float64 blocks in
// id order, so a row's choice depends on that row alone.
#pragma once
#include <cstdint>

namespace esclusa {

struct SampleSettings {
  float temperature, top_p, min_p;
  int32_t top_k;
  double uniform;
};

double philox_uniform(int64_t seed, int64_t position);
template <class T>
void greedy_row(const T* logits, int64_t vocab, int64_t* id, float* logprob);
template <class T>
int64_t sample_row(const T* logits, int64_t vocab, const SampleSettings& settings);
// out: logprob, logsumexp, entropy, margin; top ids and log-probabilities, most likely first.
template <class T>
void stats_row(const T* logits, int64_t vocab, int64_t token, int64_t top_k, float* out, int64_t* rank,
               int64_t* top_ids, float* top_logprobs);

}  // namespace esclusa
