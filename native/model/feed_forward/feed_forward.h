// The half of a layer that sees one row at a time: up (and gate), an activation, down.
#pragma once
#include <vector>

#include "model/step/step.h"

namespace forearm {

class FeedForward {
 public:
  static constexpr int64_t kPhases = 4;  // handed out: twice rows, and then their multiplication

  // Both must outlive this. Throws std::invalid_argument if a layer's matrices are not there or of other sizes.
  FeedForward(const Weights& weights, Step& step);

  // From the residual to the residual, with a barrier behind; `add` and what is returned as of Attention::mix.
  const Norm* apply(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear &up, &down;
  };

  const Weights& weights_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
