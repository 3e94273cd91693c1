// The indexer of sparse attention (DeepSeek-AI 2025, arXiv:2512.02556): a token attends to the `chosen` keys before it
// whose scores are the largest, and to all if it has no more. The scores are those of small heads of their own
// (IndexTask), whose keys are cached beside the latents.
//
// What is chosen depends on the token's position and the scores alone, of equal scores the earlier keys, so the same
// request gets the same keys in any company.
#pragma once
#include <vector>

#include "model/cache/kv_cache.h"
#include "model/step/step.h"

namespace forearm {

// Writes the indices of the `chosen` largest of `count` scores, ascending; of equal scores at the border the first
// ones. room: [count].
void choose_largest(const float* scores, int64_t count, int64_t chosen, float* room, int32_t* out);

class Indexer {
 public:
  // Phases handed out task by task: of its rows twice, and two multiplications.
  static constexpr int64_t kPhases = 4;

  // All arguments must outlive this. Throws std::invalid_argument if a matrix is missing or has a wrong size.
  Indexer(const Weights& weights, const KvBlocks& kv, Step& step);

  // Floats of one row's scores, and of a member's copy of them; 0: no context is so long that keys are chosen.
  static int64_t scratch_floats(const Config& config, const Limits& limits);

  // Whether the layer has an indexer of its own.
  bool has(size_t layer) const { return layers_[layer].in; }
  // The matrix of the layer's queries; null: it has none.
  const Matrix* queries(size_t layer) const { return has(layer) ? &layers_[layer].q->matrix : nullptr; }
  // Finds the rows of the step whose keys are chosen; by one thread, before the walk.
  void plan();

  // Multiplies the rows of the stream with the matrix of keys and weights. ready: those rows for the matrix `before`.
  void project(StepWalk& w, size_t layer, const Matrix& before, const Operand& ready);
  // Normalizes, rotates and stores the keys of the member's rows.
  void store_keys(const StepWalk& w, size_t layer);
  // Multiplies the latent of queries, as project does.
  void project_queries(StepWalk& w, size_t layer, const Matrix& before, const Operand& ready);
  // Chooses the keys of all rows that have too many. Ends with a barrier if there are any.
  void choose(const StepWalk& w, size_t layer);

 private:
  struct LayerMatrices {
    const Linear *in = nullptr, *q = nullptr;
  };
  // A row of the step, and where the blocks of its sequence begin.
  struct LongRow {
    int64_t row, first_block;
  };
  const LatentKind& kind(size_t layer) const { return *step_.config.layers[layer].mixer_as<LatentKind>(); }

  void rotate(const LatentKind& kind, float* x, int64_t stride, int64_t heads, Range rows) const;
  void score(int member, size_t layer, const LongRow& row, float* scores, Range keys) const;

  const Weights& weights_;
  const KvBlocks& kv_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
  std::vector<LongRow> rows_;
};

}  // namespace forearm
