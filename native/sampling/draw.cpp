#include "sampling/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace forearm {

namespace {

// Depths below the largest logit, in units of the temperature. Everything below kDeepest has a weight of 0 in float32.
constexpr float kFirstDepth = 8.0f, kDeepest = 104.0f, kFinest = 0.01f;
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr int64_t kFew = 2000;  // candidates that are quicker to select from than to count once more

double weigh_candidates(const Kernels& kernels, int64_t count, float max, const Draw& draw, SamplerScratch& scratch) {
  return exp_sum(kernels, {scratch.value, count}, max, 1.0f / draw.temperature, scratch.weight, nullptr);
}

// top-p alone: candidates are taken from as deep below the largest logit as it needs to find the share asked for. The
// depth is doubled until it is enough, then halved into until few candidates lie between enough and not enough.
int64_t narrow_by_mass(const Kernels& kernels, const Row& row, const Draw& draw, SamplerScratch& scratch) {
  const double total = exp_sum(kernels, row.logits, row.max, 1.0f / draw.temperature, nullptr, nullptr);
  const double wanted = draw.top_p * total;
  const auto bound = [&](float depth) { return row.max - depth * draw.temperature; };
  int64_t count = 0;
  const auto suffices = [&](float depth) {
    count = collect(kernels, row, bound(depth), scratch);
    return weigh_candidates(kernels, count, row.max, draw, scratch) >= wanted;
  };

  float low = 0, high = kFirstDepth;
  int64_t within_low = 0;
  while (!suffices(high) && high < kDeepest) {
    low = high;
    within_low = count;
    high *= 2;
  }
  for (int64_t within_high = count; within_high - within_low > kFew && high - low > kFinest;) {
    const float middle = low + (high - low) / 2;
    const bool enough = suffices(middle);
    (enough ? high : low) = middle;
    (enough ? within_high : within_low) = count;
  }
  suffices(high);  // takes these candidates again
  return keep_mass(count, wanted, low > 0 ? bound(low) : INFINITY, scratch);
}

int64_t narrow(const Kernels& kernels, const Row& row, const Draw& draw, SamplerScratch& scratch) {
  const bool by_count = draw.top_k > 0 && draw.top_k < row.logits.n, by_mass = draw.top_p < 1.0f;
  if (!by_count && draw.min_p <= 0.0f) return narrow_by_mass(kernels, row, draw, scratch);

  // Forbidden tokens are never candidates, even if fewer than k others are left.
  float bound = draw.min_p > 0.0f ? row.max + draw.temperature * std::log(draw.min_p) : kLowest;
  if (by_count) bound = std::max(bound, bound_of_top(kernels, row, draw.top_k, scratch));
  int64_t count = collect(kernels, row, bound, scratch);
  if (by_count) count = keep_top(count, draw.top_k, scratch);
  if (!by_mass) return count;
  const double mass = weigh_candidates(kernels, count, row.max, draw, scratch);
  return keep_mass(count, draw.top_p * mass, INFINITY, scratch);
}

// Returns the position in the row whose share of the weights contains `uniform`. Only the weights of that block of sums
// are written: those of a whole row would be as many bytes as were read.
int64_t pick(const Kernels& kernels, const LogitRow& row, float max, const Draw& draw, SamplerScratch& scratch) {
  const float inverse = 1.0f / draw.temperature;
  float* weight = scratch.weight;
  const double* sum = scratch.partial;
  const auto weigh = [&](int64_t begin) {
    kernels.row_exp_sum(part_of(row, begin, kSumBlock), max, inverse, weight + begin);
  };
  double left = exp_sum(kernels, row, max, inverse, nullptr, scratch.partial) * draw.uniform;
  int64_t block = 0;
  while ((block + 1) * kSumBlock < row.n && left >= sum[block]) left -= sum[block++];
  const int64_t end = std::min((block + 1) * kSumBlock, row.n);
  int64_t i = block * kSumBlock;
  weigh(i);
  while (i < end && left >= weight[i]) left -= weight[i++];
  while (i == end || weight[i] == 0) {  // rounding carried past the last one
    if (i % kSumBlock == 0 && i != end) weigh(i - kSumBlock);
    --i;
  }
  return i;
}

}  // namespace

int32_t draw_token(const Kernels& kernels, const Row& row, const Draw& draw, SamplerScratch& scratch) {
  if (draw.top_p >= 1.0f && draw.min_p <= 0.0f && (draw.top_k <= 0 || draw.top_k >= row.logits.n)) {
    return static_cast<int32_t>(pick(kernels, row.logits, row.max, draw, scratch));
  }
  const int64_t count = narrow(kernels, row, draw, scratch);
  return scratch.index[pick(kernels, {scratch.value, count}, row.max, draw, scratch)];
}

int32_t draw_candidate(const Kernels& kernels, int64_t count, float max, const Draw& draw, SamplerScratch& scratch) {
  if (draw.min_p > 0.0f) {
    const float bound = max + draw.temperature * std::log(draw.min_p);
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (scratch.value[i] < bound) continue;
      scratch.index[kept] = scratch.index[i];
      scratch.value[kept++] = scratch.value[i];
    }
    count = kept;
  }
  if (draw.top_k > 0) count = keep_top(count, draw.top_k, scratch);
  if (draw.top_p < 1.0f) {
    const double mass = weigh_candidates(kernels, count, max, draw, scratch);
    count = keep_mass(count, draw.top_p * mass, INFINITY, scratch);
  }
  return scratch.index[pick(kernels, {scratch.value, count}, max, draw, scratch)];
}

}  // namespace forearm
