// A block of attention and a feed-forward beside the residual (Zamba2; Glorioso et al. 2024, arXiv:2411.15242).
// Attention reads the residual and the embedding side by side, the feed-forward reads attention's result, and a linear
// function of its result is added to what the next layer's mixer, Mamba2, reads, but not to the residual.
#pragma once
#include <vector>

#include "model/feed_forward/feed_forward.h"
#include "model/mixers/attention.h"

namespace forearm {

class SideBlock {
 public:
  // Phases handed out task by task, beside those of both halves: rows and multiplication of the last matrix.
  static constexpr int64_t kPhases = 2;

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  SideBlock(const Weights& weights, Attention& attention, FeedForward& feed_forward, Step& step);

  // Keeps the embeddings of the member's rows for all layers of the step.
  void begin(const StepWalk& w);
  // Adds a layer's result to the residual, with barriers before and after.
  void apply(StepWalk& w, size_t layer);
  // Takes it from the member's rows again; after a barrier behind the multiplication that has read it.
  void restore(const StepWalk& w);

 private:
  const Weights& weights_;
  Attention& attention_;
  FeedForward& feed_forward_;
  Step& step_;
  std::vector<const Linear*> last_;  // by layer; null: of another kind
};

}  // namespace forearm
