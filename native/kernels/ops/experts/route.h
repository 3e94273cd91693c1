// The choice of a token's experts from a router's logits, and their weights.
#pragma once
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/ops/rows/logits.h"
#include "kernels/simd/math.h"

namespace forearm {
namespace {

inline void write_sigmoids(const float* x, int64_t n, float* out) {
  for_columns(n, [&](int64_t i, int64_t lanes) { store_lanes(out + i, sigmoid(load_lanes(x + i, lanes)), lanes); });
}

// Writes the score of each expert; those of the chosen alone (softmax_chosen, sigmoid_chosen, sparse_mixer) come after
// the choice.
inline void score_experts(const RouteTask& t, const float* logits, float* scores) {
  const LogitRow row{logits, t.experts};
  if (t.score == Score::sigmoid) return write_sigmoids(logits, t.experts, scores);
  if (t.score == Score::sqrt_softplus) {
    for_columns(t.experts, [&](int64_t i, int64_t lanes) {
      store_lanes(scores + i, softplus(load_lanes(logits + i, lanes)), lanes);
    });
    for (int64_t i = 0; i < t.experts; ++i) scores[i] = sqrtf(scores[i]);
    return;
  }
  if (t.score != Score::softmax) {
    __builtin_memcpy(scores, logits, static_cast<uint64_t>(t.experts) * 4);
    return;
  }
  const F16 sum = broadcast(row_exp_sum(row, row_max(logits, t.experts).value, 1.0f, scores));
  for_columns(t.experts, [&](int64_t i, int64_t lanes) {
    store_lanes(scores + i, div(load_lanes(scores + i, lanes), sum), lanes);
  });
}

// Takes the largest of x[0 .. n), of equal ones the lowest, and puts -inf in its place.
inline RowMax take_largest(float* x, int64_t n) {
  const RowMax found = row_max(x, n);
  x[found.index] = -__builtin_inff();
  return found;
}

// Excludes the experts of all but the `groups_kept` groups with the largest sums of their `group_best` best.
inline void keep_groups(const RouteTask& t, float* choice, float* room) {
  const int64_t size = t.experts / t.groups;
  float *sums = room, *left_out = sums + t.groups, *scores = left_out + t.groups;
  for (int64_t g = 0; g < t.groups; ++g) {
    __builtin_memcpy(scores, choice + g * size, static_cast<uint64_t>(size) * 4);
    sums[g] = 0.0f;
    for (int64_t i = 0; i < t.group_best; ++i) sums[g] += take_largest(scores, size).value;
    left_out[g] = 1.0f;
  }
  for (int64_t i = 0; i < t.groups_kept; ++i) left_out[take_largest(sums, t.groups).index] = 0.0f;
  for (int64_t i = 0; i < t.experts; ++i)
    if (left_out[i / size] != 0.0f) choice[i] = -__builtin_inff();
}

// The sum of exp(logit - top) over the experts that are left and near the top: Phi-3.5-MoE's sparse mixer.
inline float near_sum(const RouteTask& t, const float* left, float top) {
  F16 sum = zero();
  const F16 most = broadcast(top), share = broadcast(2.0f * t.jitter);
  for_columns(t.experts, [&](int64_t i, int64_t lanes) {
    const F16 logit = load_lanes(left + i, lanes);
    const M16 near = less_equal(sub(most, logit), mul(share, max(abs(logit), most)));
    sum = add(sum, only_lanes(select(near, exp(sub(logit, most)), zero()), lanes, 0.0f));
  });
  return reduce_add(sum);
}

inline void route_row(const RouteTask& t, int64_t row) {
  const float* logits = t.logits + row * t.stride;
  float *scores = t.scratch, *choice = scores + t.experts, *room = choice + t.experts;
  score_experts(t, logits, scores);
  const bool by_logits = !t.correction && t.groups <= 1;
  for (int64_t i = 0; i < t.experts; ++i)
    choice[i] = by_logits ? logits[i] : t.correction ? scores[i] + t.correction[i] : scores[i];
  if (t.groups > 1) keep_groups(t, choice, room);
  int32_t* chosen = t.chosen + row * t.slots;
  float* weights = t.weights + row * t.slots;
  float sum = 0.0f;
  for (int64_t i = 0; i < t.active; ++i) {
    const bool sparse = t.score == Score::sparse_mixer;
    const RowMax best = row_max(choice, t.experts);
    weights[i] = sparse ? 1.0f / near_sum(t, choice, best.value) : scores[best.index];
    choice[best.index] = -__builtin_inff();
    chosen[i] = best.index;
    sum += weights[i];
  }
  if (t.score == Score::sigmoid_chosen) {
    write_sigmoids(weights, t.active, weights);
    sum = 0.0f;
    for (int64_t i = 0; i < t.active; ++i) sum += weights[i];
  }
  if (t.score == Score::softmax_chosen) sum = row_exp_sum({weights, t.active}, weights[0], 1.0f, weights);
  const bool divided = t.renormalized || t.score == Score::softmax_chosen;
  const float factor = divided ? t.scale / (sum + t.sum_epsilon) : t.scale;
  for (int64_t i = 0; i < t.active; ++i) weights[i] *= factor;
}

inline void route(const RouteTask& t) {
  for (int64_t row = t.row_begin; row < t.row_end; ++row) route_row(t, row);
}

}  // namespace
}  // namespace forearm
