// A second embedding of each token, with a part for each layer (Gemma 4 E2B and E4B; introduced by Gemma 3n).
//
//   inputs = (norm(W_model x * hidden^-1/2) + scale * table[token]) / sqrt(2)      [layers, width], x: the embedding
//   after a layer:  x += norm(W_out (activation(W_gate x) * inputs[layer]))
#pragma once
#include <vector>

#include "model/step/step.h"

namespace forearm {

class PerLayerEmbedding {
 public:
  static constexpr int64_t kPhases = 4;  // phases handed out task by task: rows and multiplication, twice

  // Both arguments must outlive this. Throws std::invalid_argument if a matrix is missing or has a wrong size.
  PerLayerEmbedding(const Weights& weights, Step& step);

  // Computes the inputs of all layers from the embedded rows. They are complete at the next barrier.
  void begin(StepWalk& w);
  // Adds the layer's input to the residual, with a barrier after it. `add` and the result: see Attention::mix.
  const Norm* apply(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear &gate, &out;
  };

  void add_rows_of_table(const StepWalk& w, Range rows);

  const Weights& weights_;
  Step& step_;
  const Linear *table_ = nullptr, *model_ = nullptr;  // null: the model has no such embedding
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
