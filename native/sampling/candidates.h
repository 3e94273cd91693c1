// Tokens that are still in the running, and narrowing them down without sorting the vocabulary.
#pragma once
#include "sampling/sampler.h"

namespace forearm {

// A row of logits without NaN and +inf.
struct Row {
  const float* x;
  int64_t n;
  float max;
};

constexpr int64_t kSumBlock = 1024;  // so float32 sums have 64 terms a lane

// Sum of exp((x[i] - max) * inverse_temperature) in blocks of 1024, these in double. weight gets the terms, partial the
// sums of the blocks; either may be null.
double exp_sum(const Kernels& kernels, const float* x, int64_t n, float max, float inverse_temperature, float* weight,
               double* partial);

// A bound that at least k logits of the row reach (k <= n) and few more do: the k-th largest of the maxima of small
// blocks. Uses scratch.value.
float bound_of_top(const Kernels& kernels, const Row& row, int64_t k, SamplerScratch& scratch);

// The tokens whose logit is at least `bound`, in scratch.index and .value; returns how many.
int64_t collect(const Kernels& kernels, const Row& row, float bound, SamplerScratch& scratch);

// The tokens that the mask has, in scratch.index and .value, and the largest logit of them in *max. Returns how many,
// or -1 if they are more than `most`.
int64_t collect_masked(const uint32_t* mask, const Row& row, int64_t most, float* max, SamplerScratch& scratch);

// Narrow the candidates to the k likeliest; to the fewest of the likeliest whose weights reach `mass`, at least one,
// where those of a logit of `sure` or more are known not to. Return how many are left; ids stay ascending. keep_mass
// reads scratch.weight, which is not narrowed.
int64_t keep_top(int64_t count, int64_t k, SamplerScratch& scratch);
int64_t keep_mass(int64_t count, double mass, float sure, SamplerScratch& scratch);

// Puts the k likeliest of the candidates first in scratch.order, likeliest first.
void sort_top(int64_t count, int64_t k, SamplerScratch& scratch);

}  // namespace forearm
