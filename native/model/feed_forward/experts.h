// The feed-forward of layers with experts: a router chooses some experts for each row, and their weighted sum, and a
// shared expert's, is added to the residual.
//
// Rows are sorted by expert, so that an expert's weights are read once; columns are divided among the members as those
// of other matrices are, and then pieces of about the same cost, whichever experts the rows have chosen. A row's
// results are reduced in the order of its own choice: no other row changes them.
#pragma once
#include <vector>

#include "model/feed_forward/expert_rows.h"
#include "model/feed_forward/router_mlp.h"
#include "model/step/step.h"

namespace forearm {

class Experts {
 public:
  // Both arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  Experts(const Weights& weights, Step& step);
  // The number of phases handed out task by task; step_tokens: of the largest step.
  static int64_t phases(const Config& config, int64_t step_tokens);

  // Computes the feed-forward and adds it to the residual, with a barrier after it. `add` and the result: see
  // Attention::mix.
  const Norm* apply(StepWalk& w, size_t layer, const Norm* add);
  // Adds the projection before to the residual and multiplies it with the router, with a barrier after it, for `apply`
  // behind the mixer (ExpertsKind::ahead).
  void route_ahead(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear *router = nullptr, *up = nullptr, *down = nullptr, *shared_up = nullptr, *shared_down = nullptr;
  };
  // Up to kBlockResults results that are computed together.
  struct Block {
    size_t layer;
    Range rows;
    Scratch::Routes routes;
    RowsByExpert& sorted;
    bool one_row;  // every expert multiplies the same row, which is not copied
  };

  void multiply_router(StepWalk& w, size_t layer, const Norm* add);
  void route(const StepWalk& w, const Block& block, Range rows) const;
  Operand sort_rows(StepWalk& w, const Block& block);
  void copy_row(const StepWalk& w, const Block& block, int64_t row, const Operand& out) const;
  void multiply_up(StepWalk& w, const Block& block, const Operand& in) const;
  Operand activated(StepWalk& w, const Block& block) const;
  void multiply_down(StepWalk& w, const Block& block, const Operand& in, const Operand& shared) const;
  void add_results(const StepWalk& w, const Block& block, const Operand& in, const Operand& shared,
                   Range columns) const;
  void add_shared(StepWalk& w, size_t layer, const Operand& shared);
  void look_up(const Block& block, Range rows) const;
  // The norm behind the experts; null: their sum is added to the residual. One without weights: it is projected.
  const Norm* norm_behind(size_t layer) const {
    const Norm& norm = weights_.norms(layer).post_mlp;
    return step_.config.joins_both() || kind(layer).behind ? &norm : norm.if_there();
  }
  // The norm that experts read the residual through.
  const Norm& norm_before(size_t layer) const {
    const LayerNorms& norms = weights_.norms(layer);
    return kind(layer).apart ? norms.pre_experts : norms.pre_mlp;
  }
  const ExpertsKind& kind(size_t layer) const { return *step_.config.layers[layer].experts; }

  const Weights& weights_;
  Step& step_;
  RouterMlp router_;
  std::vector<LayerMatrices> layers_;
  std::vector<RowsByExpert> sorted_;  // by member
  std::vector<float> ones_;           // weights of results whose inputs were multiplied with them
};

}  // namespace forearm
