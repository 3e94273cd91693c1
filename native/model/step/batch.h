// The batch of one step: engine/batch.py's Batch in C++.
#pragma once
#include <cstdint>

#include "model/cache/kv_cache.h"
#include "model/config.h"

namespace forearm {

struct Batch {
  int64_t tokens, sequences, logits;  // how many
  const int32_t* token;               // [tokens]
  const int32_t* position;            // [tokens]
  const int32_t* start;               // [sequences + 1]
  const int32_t* block_start;         // [sequences + 1]
  int64_t blocks;                     // of a group of layers
  const int32_t* block;               // [groups][blocks]
  const int32_t* logit_row;           // [logits]
  const int32_t* type = nullptr;      // [tokens], if the model has token types; null: all 0
  const int32_t* state = nullptr;     // [sequences], if layers keep states: the slot of each sequence

  // The blocks of all sequences, block_start's, for the layers of a group (KvGroups).
  const int32_t* table(int64_t group) const { return block + group * blocks; }
};

// Checks that forward() can compute a batch. Throws std::invalid_argument naming the array and the index of: sizes
// beyond the limits, a sequence without tokens, a token outside the vocabulary, positions with gaps or beyond the
// context, blocks that do not cover them or do not exist, logit rows that do not ascend, a chunk of a prompt that must
// be whole, slots of states that do not exist or that two sequences have. start and block_start must be valid
// boundaries in their arrays.
void check(const Batch& batch, const Config& config, const Limits& limits, const KvBlocks& kv, int64_t state_slots);

}  // namespace forearm
