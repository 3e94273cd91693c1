// Attention as a mixer: projects the normed residual to queries, keys and values, applies their norms and rotary
// angles, stores keys and values in the KV cache, attends, and projects back to the residual.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "model/cache/kv_cache.h"
#include "model/mixers/biases/distance_embeddings.h"
#include "model/mixers/biases/relative_bias.h"
#include "model/mixers/block_indexer.h"
#include "model/mixers/recurrent/convolved_heads.h"
#include "model/mixers/recurrent/layer_convolutions.h"
#include "model/step/step.h"

namespace forearm {

class Attention {
 public:
  // Phases handed out task by task: rows and multiplication twice, and attention.
  static constexpr int64_t kPhases = 5 + BlockIndexer::kPhases + ConvolvedHeads::kPhases;

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  Attention(const Weights& weights, const KvBlocks& kv, const States& states, const LayerConvolutions& convolutions,
            Step& step);

  // Plans the attention of the step's batch, which is the same in layers with the same heads.
  void plan();
  // The plan of a layer: the last one's has only rows that need logits.
  const AttentionPlan& plan_of(size_t layer) const {
    return last_plan_ && layer + 1 == layers_.size() ? *last_plan_ : shape(layer).plan;
  }
  // Computes a member's share of the data that all layers read: rotary angles and slots of keys and values.
  void begin(const StepWalk& w);
  // Computes this layer's mixer and adds it to the residual, with barriers before and after. add: the norm of the
  // projection before, which is not yet added to the residual; returns the norm of this one's projection. null: none.
  // In the last layer only rows that need logits are computed to the end, unless later rows read them (Config's
  // conv_taps).
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

  // Projects the rows `in` and attends; returns the rows that the last matrix takes. With a barrier before they are
  // made.
  Operand attend_to(StepWalk& w, size_t layer, const Operand& in);
  const Linear& in(size_t layer) const { return *layers_[layer].qkv; }
  const Linear& out(size_t layer) const { return *layers_[layer].o; }

  // What multiplies a query at `position` (AttentionKind::query_growth).
  static float query_factor(float growth, int64_t position, int64_t positions);

 private:
  struct LayerMatrices {
    const Linear *qkv = nullptr, *o = nullptr;  // null: a layer with another mixer
  };
  // What layers have in common whose heads are the same.
  struct LayersOfShape {
    HeadShape heads;
    QkvColumns at;
    HeadUnits units;
    AttentionPlan plan;
  };
  const LayersOfShape& shape(size_t layer) const { return shapes_[shape_of_[layer]]; }
  const AttentionKind& kind(size_t layer) const { return *config_.layers[layer].mixer_as<AttentionKind>(); }

  void spread_biases();
  void angles(Range rows);
  void project_qkv(StepWalk& w, size_t layer, const Operand& in);
  void finish_columns(size_t layer, Range rows, int64_t row_block, Range columns);
  void finish_heads(size_t layer, Range rows, Range query, Range kv);
  void clip(Range rows, int64_t column, int64_t columns);
  void grow(const AttentionKind& kind, Range rows, int64_t column, int64_t columns);
  void normalize(Range rows, int64_t column, int64_t heads, int64_t head_dim, const float* weight);
  void normalize_heads(size_t layer, Range rows, Range query, Range kv);
  void rotate(size_t rope, Range rows, int64_t column, int64_t heads, int64_t head_dim);
  void attend(StepWalk& w, size_t layer);
  KeyBias bias_of(int member, size_t layer, const AttentionItem& item, Range keys) const;
  float* qkv_at(int64_t row, int64_t column) const { return step_.scratch.mixer_at(row, column); }

  const Config& config_;
  const Weights& weights_;
  const KvBlocks& kv_;
  const LayerConvolutions& convolutions_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
  std::vector<std::vector<float>> biases_;  // DistanceBias::values of all layers or of each; empty: not spread yet
  std::optional<DistanceEmbeddings> distances_;
  RelativeBias relative_;
  BlockIndexer indexer_;
  ConvolvedHeads convolved_;
  std::vector<LayersOfShape> shapes_;
  std::vector<size_t> shape_of_;  // by layer: an index into shapes_
  // For the last layer, if it attends and is computed for rows of logits alone.
  std::optional<AttentionPlan> last_plan_;
  std::unique_ptr<std::atomic<int64_t>[]> finished_;  // by row block and unit: number of computed columns
};

}  // namespace forearm
