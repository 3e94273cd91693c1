// Attention over the paged KV cache, for the mixers and for modules of torch: the slots of a step's tokens, and the
// pieces of its plan.
#pragma once
#include "model/cache/kv_cache.h"
#include "model/mixers/block_indexer.h"
#include "model/mixers/distance_embeddings.h"
#include "model/step/step.h"

namespace forearm {

// Computes a member's share of Scratch::slots, where the step's keys and values go, and clears the blocks of its rank
// that the step begins.
void find_slots(const StepWalk& w, const Step& step, const KvBlocks& kv);

// What is added to the scores of keys beside slopes.
struct ScoreBiases {
  const DistanceEmbeddings* distances = nullptr;  // null: none
  const BlockIndexer* masks = nullptr;            // of layers with HeadShape::slots
};

// Attends all pieces of `plan` in one layer, handed out to the team: one phase. `task` has what all pieces share: q and
// its stride, window, scale, softcap, sinks and out. biases: what else is added to the scores.
void attend(StepWalk& w, Step& step, const KvBlocks& kv, const AttentionPlan& plan, size_t layer,
            const AttendTask& task, const ScoreBiases& biases = {});

}  // namespace forearm
