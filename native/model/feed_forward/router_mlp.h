// A router of experts that is an MLP (Anthony et al. 2025, arXiv:2511.17127; ZAYA1): a projection of the normed
// residual to few numbers, to which those of the layer before are added, scaled; a norm, two layers with GELU, and a
// matrix that gives the logits. The sum is what the next layer's router adds.
#pragma once
#include <vector>

#include "model/step/step.h"

namespace forearm {

class RouterMlp {
 public:
  static constexpr int64_t kPhases = 8;  // phases handed out task by task: rows and multiplication, four times

  // Both arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  RouterMlp(const Weights& weights, Step& step);

  // Writes the logits of the residual's rows to Scratch::router; the caller waits for all members. norm: before it.
  // add: norm of the projection before, which is not yet added to the residual.
  void apply(StepWalk& w, size_t layer, const Norm* add, const Norm& norm);

 private:
  struct LayerMatrices {
    const Linear *down = nullptr, *first = nullptr, *second = nullptr, *out = nullptr;
  };
  void follow(size_t layer, Range rows);

  const Weights& weights_;
  Step& step_;
  std::vector<LayerMatrices> layers_;  // null: the layer has another router, or none
};

}  // namespace forearm
