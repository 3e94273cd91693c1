#include "sampling/candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

namespace forearm {

namespace {

// Whether candidate a comes before b: a larger logit, or an equal one of a lower id (which is a lower position).
struct Before {
  const float* value;
  bool operator()(int32_t a, int32_t b) const { return value[a] > value[b] || (value[a] == value[b] && a < b); }
};

void number(int64_t count, SamplerScratch& scratch) { std::iota(scratch.order, scratch.order + count, 0); }

int64_t keep_through(int64_t count, int32_t last, SamplerScratch& scratch) {
  const float bound = scratch.value[last];
  int64_t kept = 0;
  for (int32_t i = 0; i < count; ++i) {
    const float value = scratch.value[i];
    if (value < bound || (value == bound && i > last)) continue;
    scratch.index[kept] = scratch.index[i];
    scratch.value[kept++] = value;
  }
  return kept;
}

uint32_t mask_word(const LogitRow& row, int64_t begin) {
  const int64_t left = row.n - begin;
  return row.mask[begin / 32] & (left >= 32 ? ~0u : (1u << left) - 1);
}

}  // namespace

// Without a mask: the first of the largest maxima, and the first of its logits. With one a maximum may be that of a
// logit that does not count, so that it only tells where none is larger.
RowMax largest(const Kernels& kernels, const Row& row) {
  if (!row.logits.mask) {
    const RowMax top = kernels.row_max(row.maxima, maxima_of(row.logits.n));
    if (top.nan) return top;
    const int64_t begin = top.index * kMaximumLogits;
    const LogitRow part = part_of(row.logits, begin, kMaximumLogits);
    return {top.value, static_cast<int32_t>(begin) + kernels.row_max(part.x, part.n).index, false};
  }
  RowMax best{-INFINITY, 0, false};
  int64_t at = 0;
  for (int64_t begin = 0; begin < row.logits.n; begin += kMaximumLogits) {
    if (row.maxima[begin / kMaximumLogits] <= best.value) continue;
    float max;
    kernels.row_maxima(part_of(row.logits, begin, kMaximumLogits), &max);
    if (std::isnan(max)) return {max, 0, true};
    if (max > best.value) best.value = max, at = begin;
  }
  const LogitRow part = part_of(row.logits, at, kMaximumLogits);
  kernels.row_collect(part, nullptr, best.value, &best.index, &best.value, 1);
  best.index += static_cast<int32_t>(at);
  return best;
}

double exp_sum(const Kernels& kernels, const LogitRow& row, float max, float inverse_temperature, float* weight,
               double* partial) {
  double total = 0;
  for (int64_t i = 0; i < row.n; i += kSumBlock) {
    const LogitRow part = part_of(row, i, kSumBlock);
    const double sum = kernels.row_exp_sum(part, max, inverse_temperature, weight ? weight + i : nullptr);
    if (partial) partial[i / kSumBlock] = sum;
    total += sum;
  }
  return total;
}

// For few tokens, maxima of many maxima are enough: the 20th of 41 groups is reached by about 26 logits of 152 k.
float bound_of_top(const Kernels& kernels, const Row& row, int64_t k, SamplerScratch& scratch) {
  const float* maxima = row.maxima;
  const int64_t count = maxima_of(row.logits.n);
  if (k > count) return -INFINITY;
  if (row.logits.mask) {
    kernels.row_maxima(row.logits, scratch.weight);
    maxima = scratch.weight;
  }
  const int64_t group = std::max<int64_t>(1, count / (2 * k)), groups = (count + group - 1) / group;
  for (int64_t g = 0; g < groups; ++g)
    scratch.value[g] = kernels.row_max(maxima + g * group, std::min(group, count - g * group)).value;
  std::nth_element(scratch.value, scratch.value + k - 1, scratch.value + groups, std::greater<float>());
  return scratch.value[k - 1];
}

int64_t collect(const Kernels& kernels, const Row& row, float bound, SamplerScratch& scratch) {
  return kernels.row_collect(row.logits, row.maxima, bound, scratch.index, scratch.value, row.logits.n);
}

bool allows_more(const LogitRow& row, int64_t most) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < row.n && count <= most; begin += 32) {
    if (const uint32_t word = mask_word(row, begin)) count += std::popcount(word);
  }
  return count > most;
}

int64_t collect_masked(const LogitRow& row, float* max, SamplerScratch& scratch) {
  int64_t count = 0;
  *max = -INFINITY;
  for (int64_t begin = 0; begin < row.n; begin += 32) {
    for (uint32_t word = mask_word(row, begin); word; word &= word - 1) {
      const int64_t id = begin + std::countr_zero(word);
      scratch.index[count] = static_cast<int32_t>(id);
      scratch.value[count++] = row.x[id];
      *max = std::max(*max, row.x[id]);
    }
  }
  return count;
}

int64_t keep_top(int64_t count, int64_t k, SamplerScratch& scratch) {
  if (k >= count) return count;
  number(count, scratch);
  std::nth_element(scratch.order, scratch.order + k - 1, scratch.order + count, Before{scratch.value});
  return keep_through(count, scratch.order[k - 1], scratch);
}

// Bisects for the last token to keep: tokens left of the middle are likelier than those right of it.
int64_t keep_mass(int64_t count, double mass, float sure, SamplerScratch& scratch) {
  double reached = 0;
  int64_t high = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (scratch.value[i] < sure) {
      scratch.order[high++] = i;
    } else {
      reached += scratch.weight[i];
    }
  }
  if (high == 0) return count;
  int64_t low = 0;  // the first `low` do not reach `mass`
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    std::nth_element(scratch.order + low, scratch.order + middle, scratch.order + high, Before{scratch.value});
    double left = 0;
    for (int64_t i = low; i < middle; ++i) left += scratch.weight[scratch.order[i]];
    if (reached + left >= mass) {
      high = middle;
    } else {
      reached += left;
      low = middle;
    }
  }
  return keep_through(count, scratch.order[low], scratch);
}

void sort_top(int64_t count, int64_t k, SamplerScratch& scratch) {
  number(count, scratch);
  std::partial_sort(scratch.order, scratch.order + k, scratch.order + count, Before{scratch.value});
}

}  // namespace forearm
