// Candidate tokens, and how they are narrowed down without sorting the vocabulary.
#pragma once
#include <algorithm>

#include "sampling/sampler.h"

namespace forearm {

// A row of logits without NaN and +inf.
struct Row {
  LogitRow logits;
  const float* maxima;  // of the row without its mask
  float max;            // of the logits that count
};

constexpr int64_t kSumBlock = 1024;  // float32 sums then have 64 terms a lane

// Logits [begin, begin + size), or up to the row's end; begin is a multiple of 32.
inline LogitRow part_of(const LogitRow& row, int64_t begin, int64_t size) {
  return {row.x + begin, std::min(size, row.n - begin), row.mask ? row.mask + begin / 32 : nullptr};
}

// Returns the largest logit that counts, reading only where the maxima allow it. `max` need not be set.
RowMax largest(const Kernels& kernels, const Row& row);

// Sum of exp((x[i] - max) * inverse_temperature) in blocks of 1024, these in double. weight gets the terms, partial the
// sums of the blocks; either may be null.
double exp_sum(const Kernels& kernels, const LogitRow& row, float max, float inverse_temperature, float* weight,
               double* partial);

// A bound that at least k logits of the row reach (k <= n) and few more do: the k-th largest maximum of many logits.
// Uses scratch.value and .weight.
float bound_of_top(const Kernels& kernels, const Row& row, int64_t k, SamplerScratch& scratch);

// The tokens whose logit is at least `bound`, in scratch.index and .value; returns how many.
int64_t collect(const Kernels& kernels, const Row& row, float bound, SamplerScratch& scratch);

// Whether the mask has more than `most` tokens; and those it has, in scratch.index and .value, the largest of their
// logits in *max. Returns how many.
bool allows_more(const LogitRow& row, int64_t most);
int64_t collect_masked(const LogitRow& row, float* max, SamplerScratch& scratch);

// Narrow the candidates to the k likeliest; to the fewest of the likeliest whose weights reach `mass`, at least one,
// where those of a logit of `sure` or more are known not to. Return how many are left; ids stay ascending. keep_mass
// reads scratch.weight, which is not narrowed.
int64_t keep_top(int64_t count, int64_t k, SamplerScratch& scratch);
int64_t keep_mass(int64_t count, double mass, float sure, SamplerScratch& scratch);

// Puts the k likeliest of the candidates first in scratch.order, likeliest first.
void sort_top(int64_t count, int64_t k, SamplerScratch& scratch);

}  // namespace forearm
