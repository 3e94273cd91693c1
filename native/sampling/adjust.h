// What is done to a line's logits before anything is chosen: allowed tokens, its mask, biases, penalties.
#pragma once
#include "sampling/sampler.h"

namespace forearm {

// The row that line samples from: `raw` itself where nothing is to be done, else scratch.row.
const float* adjust(const SamplingColumns& sampling, int64_t line, const float* raw, int64_t vocab,
                    SamplerScratch& scratch);

// Whether a line's mask is all that is done to it.
bool only_masked(const SamplingColumns& sampling, int64_t line);

}  // namespace forearm
