#include "model/step/expert_sizes.h"

#include <algorithm>

#include "model/partition.h"

namespace forearm {

int64_t expert_block_rows(const ExpertsKind& experts, int64_t step_tokens) {
  return std::min(round_up(step_tokens, 2), std::max<int64_t>(2, kBlockResults / experts.active / 2 * 2));
}

ExpertSizes expert_sizes(const Config& c, int64_t step_tokens) {
  ExpertSizes most;
  for (const LayerKind& layer : c.layers) {
    if (!layer.experts) continue;
    const ExpertsKind& experts = *layer.experts;
    const int64_t rows = expert_block_rows(experts, step_tokens), results = rows * experts.active;
    most.rows = std::max(most.rows, rows);
    most.positions = std::max(most.positions, round_up(results + std::min(results, experts.count), 2));
    most.slots = std::max(most.slots, experts.slots());
    most.count = std::max(most.count, experts.choices());
    most.groups = std::max(most.groups, experts.groups);
    most.apart = most.apart || experts.apart;
    most.router_rank = std::max(most.router_rank, experts.router_rank);
    most.router_columns = std::max(most.router_columns, experts.gate_column() + (experts.shared_gate ? 1 : 0));
    most.width = std::max(most.width, layer.feed_forward->width);
  }
  return most;
}

}  // namespace forearm
