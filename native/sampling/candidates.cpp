#include "sampling/candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

namespace forearm {

namespace {

constexpr int64_t kMaxBlock = 256;

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

}  // namespace

double exp_sum(const Kernels& kernels, const float* x, int64_t n, float max, float inverse_temperature, float* weight,
               double* partial) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kSumBlock) {
    const int64_t size = std::min(kSumBlock, n - i);
    const double sum = kernels.row_exp_sum(x + i, size, max, inverse_temperature, weight ? weight + i : nullptr);
    if (partial) partial[i / kSumBlock] = sum;
    total += sum;
  }
  return total;
}

float bound_of_top(const Kernels& kernels, const Row& row, int64_t k, SamplerScratch& scratch) {
  const int64_t blocks = (row.n + kMaxBlock - 1) / kMaxBlock;
  if (k > blocks) return -INFINITY;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * kMaxBlock;
    scratch.value[b] = kernels.row_max(row.x + begin, std::min(kMaxBlock, row.n - begin)).value;
  }
  std::nth_element(scratch.value, scratch.value + k - 1, scratch.value + blocks, std::greater<float>());
  return scratch.value[k - 1];
}

int64_t collect(const Kernels& kernels, const Row& row, float bound, SamplerScratch& scratch) {
  return kernels.row_collect(row.x, row.n, bound, scratch.index, scratch.value, row.n);
}

int64_t collect_masked(const uint32_t* mask, const Row& row, int64_t most, float* max, SamplerScratch& scratch) {
  int64_t count = 0;
  *max = -INFINITY;
  for (int64_t begin = 0; begin < row.n; begin += 32) {
    uint32_t word = mask[begin / 32];
    if (begin + 32 > row.n) word &= (1u << (row.n - begin)) - 1;
    for (; word; word &= word - 1) {
      if (count == most) return -1;
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

// Halves the range in which the last one to keep lies: what is left of the middle is likelier than what is right of it.
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
