// Mamba's selective scan as a mixer (Gu and Dao 2023, arXiv:2312.00752; Mamba, Falcon-Mamba, Jamba): projects the
// normed residual to x and gates z, convolves x over the last tokens of each channel, projects the result to b, c and,
// through a latent, dt, moves each channel's state by them, and projects the gated result back to the residual. Its
// state are the last rows of x, and state_dim numbers of each channel.
#pragma once
#include <vector>

#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class SelectiveScan {
 public:
  static constexpr int64_t kPhases = 8;  // phases handed out task by task: rows and multiplication, four times

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  SelectiveScan(const Weights& weights, const States& states, Step& step);

  // See Attention::mix.
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear *in = nullptr, *select = nullptr, *dt = nullptr, *out = nullptr;  // null: a layer with another mixer
  };
  const SelectiveScanKind& kind(size_t layer) const {
    return *step_.config.layers[layer].mixer_as<SelectiveScanKind>();
  }
  // The rows of the joint matrices, from a column on.
  Operand columns(int64_t column) const {
    return {step_.scratch.mixer_at(0, column), step_.scratch.mixer_in.stride, Form::f32_rows};
  }

  void normalize(const StepWalk& w, size_t layer);
  void scan(const StepWalk& w, size_t layer);

  const Weights& weights_;
  const States& states_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
