// A bias of scores by distance that each token makes for itself (Inkling): a head has some numbers of the token, which
// weigh as many profiles of the bias, each a value for every distance back from the query, up to a reach. Keys farther
// back have none.
//
// The profiles are kept packed, a matrix for each layer, so that the gemm of floats makes a query's values of all
// distances at once. Its rows begin at the farthest distance, so that they stand in the order of the keys.
#pragma once
#include "model/mixers/attention_plan.h"
#include "model/step/step.h"

namespace forearm {

class RelativeBias {
 public:
  // Both arguments must outlive this.
  RelativeBias(const Weights& weights, Step& step);

  // Packs the profiles of every layer, once; before the first step.
  void pack();
  // Returns the biases of an item's rows, which lie in the member's scratch, or none if all of these keys are beyond
  // the reach of the first row.
  KeyBias values(int member, size_t layer, const AttentionItem& item, Range keys) const;

  // Throws std::invalid_argument if a layer has such a bias that it can't have.
  static void check(const Config& config);
  // Floats that the profiles of a model take, and those of a member's scratch; 0: it has no such bias.
  static int64_t kept_floats(const Config& config);
  static int64_t scratch_floats(const Config& config);

 private:
  const AttentionKind& kind(size_t layer) const { return *config_.layers[layer].mixer_as<AttentionKind>(); }

  const Config& config_;
  const Weights& weights_;
  Step& step_;
  std::vector<float*> packed_;  // by layer; null: it has none
  bool ready_ = false;
};

}  // namespace forearm
