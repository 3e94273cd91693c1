// The indexer of attention that chooses blocks of keys (MiniMax M3): for each kv head a token attends to the `chosen`
// blocks of neighbouring keys whose scores are the largest, and to all if there are no more. A block's score is that of
// its best key, the product with a small query of the kv head; the keys that it is multiplied with are cached beside
// the layer's, and all kv heads share them. The token's own block and those before it, `local` in all, are always
// chosen.
//
// Keys lie in the KV cache as ever: what is chosen is a table of KV blocks of its own for each token and kv head.
//
// Or (BlockIndexerKind::heads, Qwen4-Exp) blocks of any number of keys are chosen for all kv heads. A block is scored
// once it is complete, as an Indexer scores keys, by the mean of its keys; what the tokens so far add to the next mean
// is a state of fixed size, so it is the same bits however a prompt is cut. A token sees the chosen blocks, and the
// keys behind the last complete one. The table has every KV block that holds such keys, and a bit for each key that is
// seen: attention adds kMasked to the scores of the others.
#pragma once
#include <vector>

#include "model/cache/kv_cache.h"
#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class BlockIndexer {
 public:
  // Phases handed out task by task: of its rows, and a multiplication.
  static constexpr int64_t kPhases = 2;

  // All arguments must outlive this. Throws std::invalid_argument if a matrix is missing or has a wrong size.
  BlockIndexer(const Weights& weights, const KvBlocks& kv, const States& states, Step& step);

  // Floats of one row's scores of one kv head; 0: no context is so long that blocks are chosen.
  static int64_t score_floats(const Config& config, const Limits& limits);
  // Choices that are made for a row: one for each kv head, or one for all.
  static int64_t choices(const Config& config) { return config.block_indexer()->heads ? 1 : config.kv_heads; }
  // Floats of a member's own memory: the scores of blocks, and a copy.
  static int64_t scratch_floats(const Config& config, const Limits& limits);

  bool has(size_t layer) const { return layers_[layer]; }
  // Finds the rows of the step whose blocks are chosen; by one thread, before the walk.
  void plan();

  // Multiplies the rows of the stream. ready: those rows for the matrix `before`.
  void project(StepWalk& w, size_t layer, const Matrix& before, const Operand& ready);
  // Normalizes and rotates the member's queries and keys, and stores the keys, or the means that are complete. A
  // barrier has to follow.
  void finish(const StepWalk& w, size_t layer);
  // Chooses the blocks of all rows that have too many. Ends with a barrier if there are any.
  void choose(const StepWalk& w, size_t layer);
  // What attention adds to the scores of a row's keys in the slots of its table, by which it sees some of them.
  KeyBias mask(int member, int64_t row, Range keys) const;

 private:
  // A row of the step, and where the blocks of its sequence begin.
  struct LongRow {
    int64_t row, first_block;
  };
  const AttentionKind& kind(size_t layer) const { return *step_.config.layers[layer].mixer_as<AttentionKind>(); }

  void normalize(float* x, int64_t heads, Range rows, const BlockIndexerKind& own, const Norm& norm) const;
  void rotate(float* x, int64_t heads, Range rows, const AttentionKind& kind) const;
  void score(int member, size_t layer, const LongRow& row, int64_t slot, Range keys) const;
  void choose(int member, size_t layer, const LongRow& row, int64_t slot, int64_t kv_head) const;
  float* scores(int64_t slot, int64_t kv_head) const;
  void score_means(const StepWalk& w, size_t layer, const LongRow* rows, int64_t count) const;
  void score_chunk(int member, size_t layer, const LongRow* rows, Range slots, int64_t begin) const;
  void choose_means(int member, size_t layer, const LongRow& row, int64_t slot) const;
  void move_sums(const StepWalk& w, size_t layer) const;
  void store_means(size_t layer, Range rows) const;

  const Weights& weights_;
  const KvBlocks& kv_;
  const States& states_;
  Step& step_;
  std::vector<float> head_weights_;    // of the sum of heads' scores
  std::vector<const Linear*> layers_;  // null: a layer that attends to all keys, or to those of a window
  std::vector<LongRow> rows_;
};

}  // namespace forearm
