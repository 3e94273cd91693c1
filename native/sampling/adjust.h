// What is done to a line's logits before anything is chosen: allowed tokens, its mask, biases, penalties.
#pragma once
#include "sampling/candidates.h"

namespace forearm {

// The row that line samples from, `max` left open: the logits of `raw` themselves with the line's mask, or, where
// something is done to them, scratch.row with its maxima.
Row adjust(const Kernels& kernels, const SamplingColumns& sampling, int64_t line, const Row& raw,
           SamplerScratch& scratch);

}  // namespace forearm
