// The short convolutions of a layer of Inkling, of each channel alone over the last tokens: of projected keys, of
// values, and of the results of both halves before they are added to the residual. Each is added to what it reads. The
// layer's state are the last rows that they have read.
#pragma once
#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class LayerConvolutions {
 public:
  enum class Half { mixer, feed_forward };

  // Throws std::invalid_argument if the model has such convolutions, and what they do not leave the same.
  static void check(const Config& config);
  // All arguments must outlive this.
  LayerConvolutions(const Weights& weights, const States& states, Step& step);

  // Convolves the member's channels of keys and values in Scratch::mixer_in; between barriers.
  void convolve_keys_and_values(const StepWalk& w, size_t layer) const;
  // Adds a half's result to the residual, convolved, with a barrier after it. The rows that need logits are known
  // behind the last layer alone: until then each row is one that later ones read.
  void join(StepWalk& w, size_t layer, Half half) const;

 private:
  Range convolve(const StepWalk& w, size_t layer, Range channels, const Operand& rows, int64_t out_column) const;

  const Weights& weights_;
  const States& states_;
  Step& step_;
};

}  // namespace forearm
