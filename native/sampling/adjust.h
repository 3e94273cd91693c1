// Adjusts a line's logits before sampling: allowed tokens, its mask, biases, penalties.
#pragma once
#include "sampling/candidates.h"

namespace forearm {

// Returns the row that the line samples from, with `max` not set: the logits of `raw` with the line's mask, or, if they
// are changed, scratch.row with its maxima.
Row adjust(const Kernels& kernels, const SamplingColumns& sampling, int64_t line, const Row& raw,
           SamplerScratch& scratch);

}  // namespace forearm
