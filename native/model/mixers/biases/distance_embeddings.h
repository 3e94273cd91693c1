// Disentangled attention (He et al. 2020, arXiv:2006.03654, section 3.1): a score has two terms of the distance from
// key to query besides the product of both. The query is multiplied with an embedding of the distance, projected as
// keys are, and the key with the embedding projected as queries are; in DeBERTa 1 by matrices of their own.
//
// The projected embeddings are the same in every step. They are made once and kept packed, a matrix for each layer,
// side and head, so that the gemm of floats multiplies them.
#pragma once
#include "model/mixers/attention_plan.h"
#include "model/step/step.h"

namespace forearm {

class DistanceEmbeddings {
 public:
  // Both arguments must outlive this.
  DistanceEmbeddings(const Weights& weights, Step& step);

  // Projects the embeddings by every layer's matrices, once; before the first step.
  void project();
  // Returns both terms, times the scale of scores, of an item's rows and the keys of a range that begins at a pair of
  // blocks; they lie in the member's scratch. The item's sequence is whole in the step.
  KeyBias terms(int member, size_t layer, const AttentionItem& item, Range keys) const;

  // Floats that the projected embeddings of a model take, and those of a member's scratch; 0: it has no embeddings.
  static int64_t kept_floats(const Config& config);
  static int64_t scratch_floats(const Config& config, const Limits& limits);

 private:
  enum Side { of_keys, of_queries };
  void project_layer(size_t layer, const std::vector<float>& rows);
  void project_by(const Linear& linear, const std::vector<float>& rows, float* out) const;
  float* packed(size_t layer, Side side, int64_t head) const;
  void multiply(const float* rows, int64_t count, const float* by, Range columns, float* out) const;
  int64_t place(int64_t distance) const { return places_[static_cast<size_t>(distance + config_.max_positions - 1)]; }

  const Config& config_;
  const Weights& weights_;
  Step& step_;
  const int64_t rows_, width_;  // of embeddings; columns of products with all of them
  const QkvColumns at_;
  std::vector<int32_t> places_;  // the embedding of each distance query - key, from 1 - max_positions on; ascending
  bool projected_ = false;
};

}  // namespace forearm
