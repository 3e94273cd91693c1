// Mamba2 as a mixer (Granite 4 H, Bamba, Falcon-H1, Nemotron-H): projects the normed residual to z, x, b, c and dt,
// convolves x, b and c over the last tokens of each channel, moves each head's state by them, gates and normalizes, and
// projects back to the residual. Its state are the last rows of x, b and c, and a matrix of each head.
#pragma once
#include <vector>

#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class Mamba2 {
 public:
  static constexpr int64_t kPhases = 4;  // phases handed out task by task: rows and multiplication, twice

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  Mamba2(const Weights& weights, const States& states, Step& step);

  // The halves of Attention::mix, with a barrier between them: attention may be computed there, or the residual be
  // changed.
  void project(StepWalk& w, size_t layer, const Norm* add);
  const Norm* finish(StepWalk& w, size_t layer);

 private:
  struct LayerMatrices {
    const Linear *in = nullptr, *out = nullptr;  // null: a layer without Mamba2
  };
  const Mamba2Kind& kind(size_t layer) const { return *step_.config.layers[layer].mamba2(); }
  // The rows of the joint matrix's columns.
  const Operand& projected(size_t layer) const {
    return step_.config.layers[layer].beside ? step_.scratch.beside_in : step_.scratch.mixer_in;
  }

  void scale(size_t layer, Range channels);
  void convolve(const StepWalk& w, size_t layer);
  void move_states(const StepWalk& w, size_t layer);
  void gate(const StepWalk& w, size_t layer);

  const Weights& weights_;
  const States& states_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
