// The feed-forward half of a layer, which treats each row alone: up (and gate), an activation, down.
#pragma once
#include <vector>

#include "model/mixers/recurrent/rwkv/token_shift.h"
#include "model/step/step.h"

namespace forearm {

class FeedForward {
 public:
  // Phases handed out task by task: rows and multiplication, twice; the first two for each block of kCutRows rows.
  static int64_t phases(const Config& config, int64_t step_tokens);

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  FeedForward(const Weights& weights, TokenShift& token_shift, Step& step);

  // Computes the feed-forward and adds it to the residual, with a barrier after it. `add` and the result: see
  // Attention::mix.
  const Norm* apply(StepWalk& w, size_t layer, const Norm* add);
  // Multiplies rows with the first matrix; returns their activations as `down` takes them. With a barrier before.
  Operand activate(StepWalk& w, size_t layer, const Operand& in);
  const Linear& up(size_t layer) const { return *layers_[layer].up; }
  const Linear& down(size_t layer) const { return *layers_[layer].down; }

 private:
  Operand rows(StepWalk& w, size_t layer, const Norm* add);
  // Writes the rows that `down` takes, of a layer whose gates are cut.
  void apply_cut(StepWalk& w, size_t layer, const Norm* add);

  struct LayerMatrices {
    const Linear *up = nullptr, *down = nullptr;  // null: a layer of experts, or without a feed-forward
  };

  const Weights& weights_;
  TokenShift& token_shift_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
