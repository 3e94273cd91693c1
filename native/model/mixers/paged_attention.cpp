#include "model/mixers/paged_attention.h"

#include <algorithm>

namespace forearm {
namespace {

// Calls visit(row, block, offset in the block) with the slot of each row's keys and values in a group's blocks.
template <class Visit>
void each_slot(const Batch& batch, int64_t group, Range rows, const Visit& visit) {
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int32_t* blocks = batch.table(group) + batch.block_start[s];
    const int64_t first = std::max<int64_t>(rows.begin, batch.start[s]);
    const int64_t end = std::min<int64_t>(rows.end, batch.start[s + 1]);
    for (int64_t r = first; r < end; ++r)
      visit(r, int64_t{blocks[batch.position[r] / kBlockTokens]}, batch.position[r] % kBlockTokens);
  }
}

// Replaces the task's cache, which lies by token, by packed keys of its own: those of the task's chunks, chosen or all.
void gather(int member, const Step& step, const AttentionItem& item, AttendTask& task) {
  const Scratch& s = step.scratch;
  const int64_t keys = task.first_position + task.token_end;
  KvCache own = task.cache;
  own.by_token = false;
  own.keys = s.gathered(member);
  own.block_bytes = own.head_bytes;
  const int32_t* chosen = item.chosen ? s.chosen_keys(item.row) : nullptr;
  step.kernel.gather_keys({task.cache, own, task.blocks, item.kv_head, chosen, task.chunk_begin * kChunkTokens,
                           std::min(task.chunk_end * kChunkTokens, keys)});
  own.keys -= item.kv_head * own.head_bytes;
  task.cache = own;
  task.blocks = s.gathered_blocks;
  task.next_count = 0;
}

// The KV blocks of an item's keys: those of its sequence, or those that were chosen for its token and kv head.
const int32_t* blocks_of(const Step& step, const KvBlocks& kv, size_t layer, const AttentionItem& item) {
  const HeadShape heads = step.config.head_shape(layer);
  if (item.chosen && heads.block) return step.scratch.chosen_blocks(item.row, heads.slots ? 0 : item.kv_head);
  return step.batch().table(kv.group(layer)) + item.first_block;
}

// Names what this member will probably take after piece `i` of its rank, as every member takes one in turn.
void foresee(const Step& step, const KvBlocks& kv, const AttentionPlan& plan, size_t layer, int rank, int64_t i,
             AttendTask& task) {
  const std::vector<AttentionWork>& work = plan.work(rank);
  i += step.ranks.members(rank).size();
  if (i >= static_cast<int64_t>(work.size())) return;
  const AttentionWork& later = work[static_cast<size_t>(i)];
  const AttentionItem& item = plan.item(later);
  const int64_t key = std::max(task.first_key(item.first_position), later.chunk * kChunkTokens);
  const int64_t first = key / (2 * kBlockTokens) * 2;
  task.next_blocks = blocks_of(step, kv, layer, item) + first;
  task.next_count = std::min<int64_t>(2, item.first_position / kBlockTokens + 1 - first);
  task.next_kv_head = item.kv_head;
}

void attend_piece(int member, const Step& step, const KvBlocks& kv, const AttentionPlan& plan, size_t layer,
                  AttendTask task, const AttentionWork& work, const MakeKeyBias& biases) {
  const AttentionItem& item = plan.item(work);
  task.cache = kv.layer(static_cast<int64_t>(layer), item.kv_head);
  task.blocks = blocks_of(step, kv, layer, item);
  const HeadShape heads = step.config.head_shape(layer);
  task.q += item.row * task.q_stride + item.head * heads.head_dim;
  if (task.gate) task.gate += item.row * task.q_stride + item.head * task.gates;
  task.head_dim = heads.head_dim;
  task.kv_head = item.kv_head;
  task.group = item.heads;
  if (item.heads < heads.group()) {  // all heads share one key, and the results are floats
    task.out.data = static_cast<float*>(task.out.data) + item.head * heads.latent;
    if (task.sinks) task.sinks += item.head;
  }
  task.token_end = item.tokens;
  task.first_position = item.first_position;
  task.keys = item.keys;
  task.chunk_begin = item.chunk_begin(task);
  task.chunk_end = item.chunk_end(task.window);
  task.out_row = item.out_row;
  task.scratch = step.scratch.attend(member);
  const auto add_biases = [&] {
    const int64_t keys = item.keys ? item.keys : item.first_position + item.tokens;
    if (biases) {
      const Range own{task.chunk_begin * kChunkTokens, std::min(task.chunk_end * kChunkTokens, keys)};
      task.key_bias = biases(member, item, own);
    }
  };
  if (!work.split) {
    if (task.cache.by_token) gather(member, step, item, task);
    add_biases();
    return step.kernel.attend(task);
  }

  const int64_t first = task.chunk_begin, chunks = task.chunk_end - first;
  if (work.chunk < first || work.chunk >= task.chunk_end) return;
  const int64_t stride = plan.partial_floats(item);
  float* partials = step.scratch.partials + item.partials;
  task.chunk_begin = work.chunk;
  task.chunk_end = work.chunk + 1;
  task.partials = partials + work.chunk * stride;
  if (task.cache.by_token) gather(member, step, item, task);
  add_biases();
  step.kernel.attend(task);
  if (!plan.finish_chunk(work, chunks)) return;
  task.partials = partials + first * stride;
  step.kernel.merge({task, chunks, stride});
}

}  // namespace

void find_slots(const StepWalk& w, const Step& step, const KvBlocks& kv) {
  const Batch& batch = step.batch();
  const int rank = step.ranks.of(w.member);
  const Range mates = step.ranks.members(rank);
  for (int64_t group = 0; group < kv.groups(); ++group) {
    each_slot(batch, group, step.mine(w, batch.tokens), [&](int64_t r, int64_t block, int64_t offset) {
      step.slots(group)[r] = static_cast<int32_t>(block * kBlockTokens + offset);
    });
    each_slot(batch, group, share(batch.tokens, 2, w.member - mates.begin, mates.size()),
              [&](int64_t, int64_t block, int64_t offset) {
                if (offset == 0) kv.clear(block, group, rank);
              });
  }
}

void attend(StepWalk& w, Step& step, const KvBlocks& kv, const AttentionPlan& plan, size_t layer,
            const AttendTask& task, const MakeKeyBias& biases) {
  step.hand_out(
      w, [&plan](int rank) { return static_cast<int64_t>(plan.work(rank).size()); },
      [&](int rank, int64_t i) {
        AttendTask piece = task;
        foresee(step, kv, plan, layer, rank, i, piece);
        attend_piece(w.member, step, kv, plan, layer, piece, plan.work(rank)[static_cast<size_t>(i)], biases);
      });
  ++w.phase;
}

}  // namespace forearm
