// Sizes of what experts need in a step's memory (Scratch).
#pragma once
#include <cstdint>

#include "model/config.h"

namespace forearm {

// Results of experts that are computed at once: a step of more rows is computed in blocks, so that its buffers stay
// small and still each expert's weights are read for many rows (of 128 experts, 8 a row: 128 rows each).
constexpr int64_t kBlockResults = 16384;
constexpr int64_t kResultColumns = 64;  // of which a member's own buffer holds all results of a block

// The sizes of the buffers of experts: the largest of all layers; 0 without experts.
struct ExpertSizes {
  int64_t rows = 0;       // of a block, even
  int64_t positions = 0;  // rows by expert: `active` for each row, each expert's beginning at an even one
  int64_t slots = 0, count = 0, router_columns = 0, width = 0, groups = 0;
  bool apart = false;       // of some layer
  int64_t router_rank = 0;  // ExpertsKind's
};
int64_t expert_block_rows(const ExpertsKind& experts, int64_t step_tokens);
ExpertSizes expert_sizes(const Config& config, int64_t step_tokens);

}  // namespace forearm
