// Temperature, min-p, top-k, top-p and the draw.
#pragma once
#include "sampling/candidates.h"

namespace forearm {

struct Draw {
  float temperature;  // above 0
  int64_t top_k;      // 0: all
  float top_p, min_p;
  double uniform;  // in [0, 1)
};

// The id drawn from a row whose max is finite. Ids stand in ascending order on the line that `uniform` points into.
int32_t draw_token(const Kernels& kernels, const Row& row, const Draw& draw, SamplerScratch& scratch);

// The same among the first `count` candidates of scratch.index and .value alone, the largest of which is a finite
// `max`.
int32_t draw_candidate(const Kernels& kernels, int64_t count, float max, const Draw& draw, SamplerScratch& scratch);

}  // namespace forearm
