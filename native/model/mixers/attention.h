// Attention as a mixer: queries, keys and values of the normed residual, their norms and angles, the KV cache, softmax
// over what each token sees, and the projection back.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "model/kv_cache.h"
#include "model/mixers/attention_plan.h"
#include "model/step/step.h"

namespace forearm {

class Attention {
 public:
  static constexpr int64_t kPhases = 5;  // handed out: twice rows and then their multiplication; attention

  // Everything must outlive this. Throws std::invalid_argument if a layer's matrices are not there or of other sizes.
  Attention(const Weights& weights, const KvBlocks& kv, Step& step);

  // Plans the work of the step's batch, the same in every layer.
  void plan();
  // A member's share of what all layers read: angles, and where keys and values go.
  void begin(const StepWalk& w);
  // The mixer of this layer, from the residual to the residual, with barriers before and after. add: norm of what was
  // projected before, which the residual has yet to get; returns that of what is projected here. null: none.
  // Rows that want no logits end in the last layer.
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear &qkv, &o;
  };

  template <class Visit>
  void each_slot(Range rows, const Visit& visit) const;
  void angles(Range rows);
  void project_qkv(StepWalk& w, size_t layer, const Operand& in);
  void finish_columns(size_t layer, Range rows, int64_t row_block, Range columns);
  void finish_heads(size_t layer, Range rows, Range query, Range kv);
  void normalise_heads(const LayerNorms& norms, Range rows, Range query, Range kv);
  void rotate(size_t rope, Range rows, int64_t column, int64_t heads);
  void attend(StepWalk& w, size_t layer);
  void attend_one(int member, size_t layer, const AttentionPlan& plan, const AttentionWork& work);
  void keep_logit_rows(StepWalk& w);
  float* qkv_at(int64_t row, int64_t column) const {
    const Operand& qkv = step_.scratch.qkv;
    return static_cast<float*>(qkv.data) + row * qkv.stride + column;
  }

  const Config& config_;
  const Weights& weights_;
  const KvBlocks& kv_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
  const QkvColumns at_;
  const HeadUnits units_;
  AttentionPlan plan_, last_plan_;                    // of all layers but the last, and of the last one
  std::unique_ptr<std::atomic<int64_t>[]> finished_;  // by row block and unit: columns that are there
};

}  // namespace forearm
