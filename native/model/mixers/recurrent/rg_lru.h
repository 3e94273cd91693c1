// The real-gated linear recurrent unit as a mixer (De et al. 2024, arXiv:2402.19427; RecurrentGemma): projects the
// normed residual to x and y, convolves x over the last tokens of each channel, makes two gates of each channel of the
// channels of its head, moves each channel's state by them, and projects the result, gated by y, back to the residual.
// Its state are the last rows of x, and a number of each channel.
#pragma once
#include <vector>

#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class RgLru {
 public:
  // Phases handed out task by task: rows and multiplication, twice, and the heads of two gates.
  static constexpr int64_t kPhases = 6;

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  RgLru(const Weights& weights, const States& states, Step& step);

  // See Attention::mix.
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear *in = nullptr, *input_gate = nullptr, *recurrence_gate = nullptr,
                 *out = nullptr;  // null: another mixer
  };
  const RgLruKind& kind(size_t layer) const { return *step_.config.layers[layer].mixer_as<RgLruKind>(); }

  void multiply_gate(StepWalk& w, const Linear& gate, int64_t column);
  void move_states(const StepWalk& w, size_t layer);

  const Weights& weights_;
  const States& states_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
