// Compressed attention as a mixer (DeepSeek V4): all heads share one key a token, which is its value, too; a query sees
// the keys of a window, and beyond it entries that stand for several tokens each (Compressor): all complete ones, or
// those with the largest scores of small heads, as an Indexer chooses keys. Results of heads are rotated back by the
// query's own angles, since the values are rotated as the keys are.
//
// Keys of the window are attended to where they lie, entries are gathered; each gives partial results of up to
// kChunkTokens keys, folded in one order: the window's chunks, then the entries'. So a result depends on the token's
// position and the scores alone.
#pragma once
#include <vector>

#include "model/cache/compressor.h"
#include "model/step/step.h"

namespace forearm {

class CompressedAttention {
 public:
  // Phases handed out task by task: rows and multiplication four times, groups of heads, and attention.
  static constexpr int64_t kPhases = 10;

  // Sizes of a step's buffers, the largest of all layers.
  struct Sizes {
    int64_t columns = 0;  // of what entries are made of
    int64_t queries = 0;  // that choose entries
    int64_t index = 0;    // numbers of a key that entries are chosen by
    int64_t scores = 0;   // of a row; 0: no context is so long that entries are chosen
    int64_t chosen = 0;
    int64_t partials = 0;  // floats of an item's partial results
  };

  // All arguments must outlive this. Throws std::invalid_argument if a matrix is missing or has a wrong size.
  CompressedAttention(const Weights& weights, const KvBlocks& kv, const States& states, Step& step);

  static Sizes sizes(const Config& config, const Limits& limits);
  // Floats of a member's own scratch.
  static int64_t scratch_floats(const Config& config, const Limits& limits);

  // Plans the step's batch; by one thread, before the walk.
  void plan();
  // See Attention::mix.
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear *in = nullptr, *entry_in = nullptr, *q = nullptr, *index_q = nullptr, *groups = nullptr, *o = nullptr;
  };
  // Neighbouring rows of one sequence that see the same entries, and some of the heads.
  struct Item {
    int64_t row, tokens, out_row;
    int64_t position;     // of the first token
    int64_t first_block;  // index into Batch::table of the sequence's blocks
    int64_t entries;      // that are complete
    bool chosen;          // for the one row of the item
    int64_t head = 0, heads = 0;
  };
  // A row of the step whose entries are chosen.
  struct LongRow {
    int64_t row, first_block, entries;
  };
  // The attention of layers with the same entries.
  struct Plan {
    int64_t ratio, chosen;
    bool for_logits;  // of the last layer: rows that need logits alone
    std::vector<Item> items;
    std::vector<LongRow> long_rows;
  };

  const CompressedKind& kind(size_t layer) const { return *step_.config.layers[layer].mixer_as<CompressedKind>(); }
  const Plan& plan_of(size_t layer) const { return plans_[plan_of_[layer]]; }
  void plan(Plan& own) const;
  void add_items(Plan& own, int64_t sequence, Range rows, int64_t out_row) const;
  void project_entries(StepWalk& w, size_t layer, const Operand& ready) const;
  void store_keys(const StepWalk& w, size_t layer) const;
  void project_queries(StepWalk& w, size_t layer) const;
  void choose(const StepWalk& w, size_t layer) const;
  void score(int member, size_t layer, const LongRow* rows, int64_t count, int64_t slot, int64_t begin) const;
  void attend(StepWalk& w, size_t layer) const;
  void attend_item(int member, size_t layer, const Item& item) const;
  void turn_queries(size_t layer, const Item& item) const;
  void turn_back(size_t layer, const Item& item, const Operand& out) const;
  KvCache gather(int member, const KvCache& from, const Item& item, size_t layer, Range entries) const;
  void multiply_groups(StepWalk& w, size_t layer) const;
  void rotate(int rope, float* x, int64_t stride, int64_t row, int64_t rows, int64_t heads, int64_t dim) const;

  const Weights& weights_;
  const KvBlocks& kv_;
  Step& step_;
  Compressor compressor_;
  std::vector<LayerMatrices> layers_;
  std::vector<Plan> plans_;
  std::vector<size_t> plan_of_;  // by layer
};

}  // namespace forearm
