// The attention of a step as pieces of work for the team, the same in every layer.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "model/batch.h"
#include "model/kv_cache.h"

namespace forearm {

// Tokens of one sequence under one kv head.
struct AttentionItem {
  int64_t row, tokens;     // rows of the step
  int64_t out_row;         // where the first one's goes
  int64_t first_position;  // of the first one
  int64_t first_block;     // index into Batch::block of the sequence's blocks
  int64_t kv_head;
  int64_t keys;      // of the whole prompt where tokens see both ways; 0: they see what comes before
  int64_t partials;  // split items: where theirs start, in floats

  // Behind the last chunk that any of the tokens sees.
  int64_t chunk_end(int64_t window) const {
    const int64_t last = first_position + tokens - 1;
    if (keys == 0) return last / kChunkTokens + 1;
    return ((window > 0 && last + window < keys ? last + window : keys) - 1) / kChunkTokens + 1;
  }
  // The first chunk that a window lets any of the tokens see.
  int64_t chunk_begin(int64_t window) const {
    return window > 0 && first_position >= window ? (first_position - window + 1) / kChunkTokens : 0;
  }
};

// Neighbouring rows of one sequence whose attention is wanted, and where the first one's goes.
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
  // `kv` must outlive this.
  AttentionPlan(const Config& config, const KvBlocks& kv, int64_t partial_floats, int threads);

  // Cuts long prompts into blocks of tokens. An item so long that one thread would still work on it while the others
  // are done is split into its chunks of keys, as far as the room for partial results goes.
  void make(const Batch& batch);
  // Of the rows alone that want logits; the output has no others.
  void make_for_logits(const Batch& batch);

  // Over the heads of this rank.
  const std::vector<AttentionWork>& work(int rank) const { return work_[static_cast<size_t>(rank)]; }
  const AttentionItem& item(const AttentionWork& work) const { return items_[static_cast<size_t>(work.item)]; }
  int64_t floats_per_token() const { return floats_per_token_; }

  // Called once for each computed chunk of a split item; true for the last of `chunks`: it has to merge. What the
  // others wrote before their calls is visible to it.
  bool finish_chunk(const AttentionWork& work, int64_t chunks) const;

 private:
  void add_items(const Batch& batch, const AttentionRows& rows);
  void divide();

  const KvBlocks& kv_;
  const int64_t kv_heads_, floats_per_token_, partial_floats_;
  const int threads_;
  const bool both_ways_;
  std::vector<AttentionItem> items_;
  std::vector<std::vector<AttentionWork>> work_;  // by rank
  int64_t counters_ = 0;
  std::unique_ptr<std::atomic<int32_t>[]> finished_;  // by item
};

}  // namespace forearm
