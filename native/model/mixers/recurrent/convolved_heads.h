// Queries, keys and values of compressed convolutional attention (Figliolia et al. 2025, arXiv:2510.04476; ZAYA1).
// Projected queries and keys go through a convolution over the last tokens of each channel, and one over the last
// results of all channels of a head; means of projected queries and keys are added, each head is normalized, and keys
// are scaled. The second half of values is the one that the token before has projected. The state are the last rows of
// both convolutions' inputs, and the last token's second half of values.
#pragma once
#include <vector>

#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class ConvolvedHeads {
 public:
  static constexpr int64_t kPhases = 1;  // phases handed out task by task: the matrices of heads

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  ConvolvedHeads(const Weights& weights, const States& states, Step& step);

  bool has(size_t layer) const { return heads_[layer] != nullptr; }
  // Makes queries, keys and values, before their angles, of the rows that `qkv` has projected to Scratch::mixer_in,
  // with a barrier before the member's rows (Step::mine) are finished.
  void finish(StepWalk& w, size_t layer, const Linear& qkv);
  // Columns of Scratch::convolved: the rows that the heads' matrices take, and those that they give.
  static int64_t columns(const HeadShape& heads, const ConvolvedKind& kind) {
    return (kind.head_taps + 1) * (heads.heads + heads.kv_heads) * heads.head_dim;
  }

 private:
  const ConvolvedKind& kind(size_t layer) const {
    return *step_.config.layers[layer].mixer_as<AttentionKind>()->convolved;
  }
  void convolve(size_t layer, int64_t column, int64_t first, Range channels);
  void spread(size_t layer, int64_t sequence, Range channels);
  void delay_values(size_t layer, const Linear& qkv, Range columns);
  void add_means(size_t layer, Range rows);
  void normalize(size_t layer, Range rows);

  const Weights& weights_;
  const States& states_;
  Step& step_;
  std::vector<const Linear*> heads_;  // by layer: the convolution of each head, as a matrix; null: another mixer
};

}  // namespace forearm
