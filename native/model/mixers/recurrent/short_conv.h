// The gated short convolution as a mixer (LFM2): projects the normed residual to b, c and x, convolves b * x over the
// last tokens of each channel, multiplies with c, and projects back to the residual. Its state are the last b * x.
#pragma once
#include <vector>

#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class ShortConv {
 public:
  static constexpr int64_t kPhases = 4;  // phases handed out task by task: rows and multiplication, twice

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  ShortConv(const Weights& weights, const States& states, Step& step);

  // See Attention::mix.
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear *in = nullptr, *out = nullptr;  // null: a layer with another mixer
  };

  void convolve(const StepWalk& w, size_t layer);

  const Weights& weights_;
  const States& states_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
  const ShortConvColumns at_;
};

}  // namespace forearm
