// Lightning attention as a mixer (MiniMax-Text-01; Qin et al. 2024, arXiv:2405.17381): a head's state is multiplied
// with a factor of its own, k v^T is added, and the result is q times the state. That is Mamba2's recurrence with steps
// of 1. Queries, keys and values are silu of projections, results are normalized over all heads and gated.
#pragma once
#include <vector>

#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class Lightning {
 public:
  static constexpr int64_t kPhases = 6;  // phases handed out task by task: rows and multiplication, three times

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  Lightning(const Weights& weights, const States& states, Step& step);

  // See Attention::mix.
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear *in = nullptr, *gate = nullptr, *out = nullptr;  // null: a layer with another mixer
  };
  const LightningKind& kind(size_t layer) const { return *step_.config.layers[layer].mixer_as<LightningKind>(); }

  void project(StepWalk& w, size_t layer, const Norm* add);
  void clear_states(const StepWalk& w, size_t layer);
  void move_states(const StepWalk& w, size_t layer);
  void gate(const StepWalk& w, size_t layer);

  const Weights& weights_;
  const States& states_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
