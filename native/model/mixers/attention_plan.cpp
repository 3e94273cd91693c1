#include "model/mixers/attention_plan.h"

#include <algorithm>

namespace forearm {
namespace {

// Query heads that a group is cut into at the least where all heads share one key (latent attention): each item turns
// the keys that it reads into values, which takes as long as about two rows' products.
constexpr int64_t kItemHeads = 8;

}  // namespace

AttentionPlan::AttentionPlan(const Config& c, size_t layer, const KvBlocks& kv, int64_t partial_floats, int threads)
    : kv_(kv),
      layer_(layer),
      heads_(c.head_shape(layer)),
      floats_per_row_(2 + kv.padded_value_dim(layer)),
      most_partials_(partial_floats),
      threads_(threads),
      both_ways_(c.bidirectional),
      work_(static_cast<size_t>(kv.ranks())) {}

void AttentionPlan::add_items(const Batch& b, const AttentionRows& rows) {
  const int64_t keys = both_ways_ ? b.start[rows.sequence + 1] - b.start[rows.sequence] : 0;
  const int64_t seeing_all = tokens_that_see_all(b.position[rows.row], rows.tokens);
  for (int64_t i = 0; i < heads_.kv_heads * parts_; ++i) {
    const int64_t kv_head = i / parts_;
    const Range heads = share(heads_.group(), 1, i % parts_, parts_);
    // The last tokens attend to most keys; long work comes first, so that all members finish at about the same time.
    for (int64_t token = rows.tokens - 1; token >= seeing_all; --token)
      items_.push_back({rows.row + token, 1, rows.out_row + token, last_chosen(b.position[rows.row] + token),
                        b.block_start[rows.sequence], kv_head, heads.begin, heads.size(), keys, 0, true});
    for (int64_t end = seeing_all; end > 0; end -= std::min(end, kItemTokens)) {
      const int64_t begin = end - std::min(end, kItemTokens), row = rows.row + begin;
      items_.push_back({row, end - begin, rows.out_row + begin, b.position[row], b.block_start[rows.sequence], kv_head,
                        heads.begin, heads.size(), keys, 0});
    }
  }
}

// The position of the last one among the keys that are chosen for a token; of blocks that is its own. Where keys are
// masked, it is that of the last slot.
int64_t AttentionPlan::last_chosen(int64_t position) const {
  if (heads_.slots) return heads_.slots * kBlockTokens - 1;
  return heads_.chosen - 1 - (heads_.block ? heads_.block - 1 - position % heads_.block : 0);
}

// The first tokens of a sequence's rows, which have no more keys than can be chosen.
int64_t AttentionPlan::tokens_that_see_all(int64_t position, int64_t tokens) const {
  return heads_.chosen ? std::clamp<int64_t>(heads_.chosen - position, 0, tokens) : tokens;
}

// With few sequences, the heads of a latent are divided, so that all members have work. That changes no result: rows
// are computed each by itself.
void AttentionPlan::cut_groups(const Batch& b) {
  int64_t items = 0;
  for (int64_t s = 0; s < b.sequences; ++s) {
    const int64_t tokens = b.start[s + 1] - b.start[s];
    const int64_t seeing_all = tokens_that_see_all(b.position[b.start[s]], tokens);
    items += (seeing_all + kItemTokens - 1) / kItemTokens + tokens - seeing_all;
  }
  const int64_t most = (heads_.group() + kItemHeads - 1) / kItemHeads;
  parts_ = heads_.latent ? std::clamp<int64_t>((threads_ + items - 1) / items, 1, most) : 1;
}

void AttentionPlan::make(const Batch& b) {
  items_.clear();
  cut_groups(b);
  for (int64_t s = 0; s < b.sequences; ++s) add_items(b, {s, b.start[s], b.start[s + 1] - b.start[s], b.start[s]});
  divide();
}

void AttentionPlan::make_for_logits(const Batch& b) {
  items_.clear();
  cut_groups(b);
  for (int64_t s = 0, i = 0; i < b.logits;) {
    while (b.start[s + 1] <= b.logit_row[i]) ++s;
    int64_t end = i + 1;
    while (end < b.logits && b.logit_row[end] == b.logit_row[end - 1] + 1 && b.logit_row[end] < b.start[s + 1]) ++end;
    add_items(b, {s, b.logit_row[i], end - i, i});
    i = end;
  }
  divide();
}

void AttentionPlan::divide() {
  for (std::vector<AttentionWork>& work : work_) work.clear();
  if (static_cast<int64_t>(items_.size()) > counters_) {
    counters_ = static_cast<int64_t>(items_.size());
    finished_ = std::make_unique<std::atomic<int32_t>[]>(items_.size());
  }
  int64_t cost = 0;  // tokens times chunks
  for (const AttentionItem& item : items_) cost += item.tokens * item.chunk_end(0);

  int64_t used = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    AttentionItem& item = items_[i];
    const int64_t chunks = item.chunk_end(0), floats = chunks * partial_floats(item);
    const bool long_one = 2 * threads_ * item.tokens * chunks > cost;
    const bool split = threads_ > 1 && chunks > 1 && long_one && used + floats <= most_partials_;
    std::vector<AttentionWork>& work = work_[static_cast<size_t>(kv_.rank_of(layer_, item.kv_head))];
    for (int64_t chunk = 0; chunk < (split ? chunks : 1); ++chunk)
      work.push_back({static_cast<int32_t>(i), static_cast<int32_t>(chunk), split});
    if (!split) continue;
    item.partials = used;
    used += floats;
  }
}

bool AttentionPlan::finish_chunk(const AttentionWork& work, int64_t chunks) const {
  std::atomic<int32_t>& finished = finished_[static_cast<size_t>(work.item)];
  if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < chunks) return false;
  finished.store(0, std::memory_order_relaxed);  // for the next layer, which is a barrier away
  return true;
}

}  // namespace forearm
