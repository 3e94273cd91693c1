// The attention of a step, divided into pieces of work for the team; it is the same in every layer with the same heads.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "model/cache/kv_cache.h"
#include "model/step/batch.h"

namespace forearm {

// The most tokens of an item: with a group of 6 query heads, each key that is read is used for 192 rows.
constexpr int64_t kItemTokens = 32;

// Attention of neighbouring tokens of one sequence, for one kv head.
struct AttentionItem {
  int64_t row, tokens;     // rows of the step
  int64_t out_row;         // output row of the first token
  int64_t first_position;  // position of the first token
  int64_t first_block;     // index into Batch::block of the sequence's blocks
  int64_t kv_head;
  int64_t head, heads;  // query heads of the kv head's group
  int64_t keys;         // keys of the whole prompt if attention is bidirectional; 0: it is causal
  int64_t partials;     // of a split item: offset of its partial results, in floats
  bool chosen = false;  // one token whose keys were chosen: first_position is that of the last one among them

  // The end of the chunks that any of the tokens attends to.
  int64_t chunk_end(int64_t window) const {
    const int64_t last = first_position + tokens - 1;
    if (keys == 0) return last / kChunkTokens + 1;
    return ((window > 0 && last + window < keys ? last + window : keys) - 1) / kChunkTokens + 1;
  }
  // The first chunk that any of the tokens attends to.
  int64_t chunk_begin(const AttendTask& task) const { return task.first_key(first_position) / kChunkTokens; }
};

// Neighbouring rows of one sequence whose attention is needed, and the output row of the first one.
struct AttentionRows {
  int64_t sequence, row, tokens, out_row;
};

// One item, or one chunk of an item that is split.
struct AttentionWork {
  int32_t item, chunk;
  bool split;
};

class AttentionPlan {
 public:
  // Of a layer, and of those whose heads have the same shape. `kv` must outlive this.
  AttentionPlan(const Config& config, size_t layer, const KvBlocks& kv, int64_t partial_floats, int threads);

  // Plans a batch and cuts long prompts into blocks of tokens. An item so long that its thread would finish long after
  // the others is split into its chunks of keys, as far as there is room for partial results.
  void make(const Batch& batch);
  // Plans only the rows that need logits; the output has no other rows.
  void make_for_logits(const Batch& batch);

  // The pieces of work on the kv heads of a rank.
  const std::vector<AttentionWork>& work(int rank) const { return work_[static_cast<size_t>(rank)]; }
  const AttentionItem& item(const AttentionWork& work) const { return items_[static_cast<size_t>(work.item)]; }
  // Floats of the partial results of one chunk of an item.
  int64_t partial_floats(const AttentionItem& item) const { return item.tokens * item.heads * floats_per_row_; }

  // Counts a computed chunk of a split item. Returns true to the last caller of `chunks`, which has to merge: it sees
  // everything that the other callers wrote before their calls.
  bool finish_chunk(const AttentionWork& work, int64_t chunks) const;

 private:
  void add_items(const Batch& batch, const AttentionRows& rows);
  void divide();
  void cut_groups(const Batch& batch);
  int64_t last_chosen(int64_t position) const;
  int64_t tokens_that_see_all(int64_t position, int64_t tokens) const;

  const KvBlocks& kv_;
  const size_t layer_;
  const HeadShape heads_;
  const int64_t floats_per_row_, most_partials_;
  const int threads_;
  const bool both_ways_;
  int64_t parts_ = 1;  // of a group, each an item
  std::vector<AttentionItem> items_;
  std::vector<std::vector<AttentionWork>> work_;  // by rank
  int64_t counters_ = 0;
  std::unique_ptr<std::atomic<int32_t>[]> finished_;  // by item
};

}  // namespace forearm
