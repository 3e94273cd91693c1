// The batch of one step: engine/batch.py's Batch in C++.
#pragma once
#include <algorithm>
#include <cstdint>

#include "model/cache/kv_cache.h"
#include "model/config.h"
#include "model/partition.h"

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
  const float* hidden = nullptr;      // [tokens][hidden], of Config::fuses

  // The blocks of all sequences, block_start's, for the layers of a group (KvGroups).
  const int32_t* table(int64_t group) const { return block + group * blocks; }

  // Calls compute(rows, first_output, out_row) for a sequence's rows, in their order: results are needed of those from
  // first_output on, counted from the first, and are the rows from out_row on of what the mixer gives. Of all rows at
  // once or, if only rows that need logits have a result, of rows up to one of them, to the next one, and so on.
  template <class Compute>
  void for_rows_of(int64_t sequence, bool logits_alone, const Compute& compute) const {
    Range rows{start[sequence], start[sequence + 1]};
    if (!logits_alone) return compute(rows, 0, rows.begin);
    const int32_t* last = logit_row + logits;
    for (const int32_t* at = std::lower_bound(logit_row, last, rows.begin); at < last && *at < rows.end; ++at) {
      compute(Range{rows.begin, *at + 1}, *at - rows.begin, at - logit_row);
      rows.begin = *at + 1;
    }
    if (rows.size() > 0) compute(rows, rows.size(), 0);
  }
};

// Checks that forward() can compute a batch. Throws std::invalid_argument naming the array and the index of: sizes
// beyond the limits, a sequence without tokens, a token outside the vocabulary, positions with gaps or beyond the
// context, blocks that do not cover them or do not exist, logit rows that do not ascend, a chunk of a prompt that must
// be whole, slots of states that do not exist or that two sequences have. start and block_start must be valid
// boundaries in their arrays.
void check(const Batch& batch, const Config& config, const Limits& limits, const KvBlocks& kv, int64_t state_slots);

}  // namespace forearm
