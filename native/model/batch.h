// One step as it comes from Python: engine/batch.py's Batch.
#pragma once
#include <cstdint>

#include "model/config.h"

namespace forearm {

struct Batch {
  int64_t tokens, sequences, logits;  // how many
  const int32_t* token;               // [tokens]
  const int32_t* position;            // [tokens]
  const int32_t* start;               // [sequences + 1]
  const int32_t* block_start;         // [sequences + 1]
  int64_t blocks;                     // length of block
  const int32_t* block;
  const int32_t* logit_row;       // [logits]
  const int32_t* type = nullptr;  // [tokens], where the model has token types; null: all 0
};

// Throws std::invalid_argument naming the array and the index of what forward() could not compute: sizes beyond the
// limits, a sequence without tokens, a token outside the vocabulary, positions with gaps or beyond the context, blocks
// that do not cover them or do not exist, logit rows that do not ascend, a prompt in parts where it must be whole.
// start and block_start cut their arrays.
void check(const Batch& batch, const Config& config, const Limits& limits, int64_t kv_blocks);

}  // namespace forearm
