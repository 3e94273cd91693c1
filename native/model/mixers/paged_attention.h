// Attention over the paged KV cache, for the mixers and for modules of torch: the slots of a step's tokens, and the
// pieces of its plan.
#pragma once
#include <functional>

#include "model/cache/kv_cache.h"
#include "model/mixers/attention_plan.h"
#include "model/step/step.h"

namespace forearm {

// Computes a member's share of Scratch::slots, where the step's keys and values go, and clears the blocks of its rank
// that the step begins.
void find_slots(const StepWalk& w, const Step& step, const KvBlocks& kv);

// Attends all pieces of `plan` in one layer, handed out to the team: one phase. `task` has what all pieces share: q and
// its stride, window, scale, softcap, sinks and out. biases: makes those of an item's rows and a range of keys in the
// member's scratch; empty: there are none.
using MakeKeyBias = std::function<KeyBias(int member, const AttentionItem& item, Range keys)>;
void attend(StepWalk& w, Step& step, const KvBlocks& kv, const AttentionPlan& plan, size_t layer,
            const AttendTask& task, const MakeKeyBias& biases = {});

}  // namespace forearm
