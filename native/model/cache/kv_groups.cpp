#include "model/cache/kv_groups.h"

#include <algorithm>
#include <cmath>

namespace forearm {
namespace {

// A group more costs a table of each sequence in each step: as much as this share of the pages wasted.
constexpr double kGroupCost = 0.005;

struct Layer {
  size_t index;
  int64_t bytes;  // of a block's keys and values
};

// Puts layers into pages of so many bytes, in their order, and returns the number of pages.
int64_t pages_of(const std::vector<Layer>& layers, int64_t page, int64_t first, std::vector<size_t>& of) {
  int64_t pages = 0, left = 0;
  for (const Layer& layer : layers) {
    if (layer.bytes > left) {
      ++pages;
      left = page;
    }
    left -= layer.bytes;
    of[layer.index] = static_cast<size_t>(first + pages - 1);
  }
  return pages;
}

int64_t reach_of(const AttentionKind& attention) { return std::max(attention.window, attention.segment); }

// Every layer that attends has heads, and keys of its own or another layer's.
bool divisible(const Config& c) {
  if (c.pooled || c.modules || c.bidirectional || c.has_states()) return false;
  return std::all_of(c.layers.begin(), c.layers.end(),
                     [](const LayerKind& layer) { return layer.mixer_as<AttentionKind>() || !layer.mixes(); });
}

}  // namespace

KvGroups kv_groups(const Config& c, DType dtype) {
  const KvGroups whole{{0}, std::vector<size_t>(c.layers.size())};
  if (!divisible(c)) return whole;
  std::vector<Layer> all, windowed;
  int64_t most = 0, total = 0, reach = 0;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const auto* attention = c.layers[i].mixer_as<AttentionKind>();
    if (!attention || attention->shared_from) continue;
    const HeadShape heads = c.head_shape(i);
    const int64_t bytes = 2 * heads.kv_heads * kv_head_bytes(dtype, round_up(heads.head_dim, kPanel), kBlockTokens);
    (reach_of(*attention) ? windowed : all).push_back({i, bytes});
    reach = std::max(reach, reach_of(*attention));
    most = std::max(most, bytes);
    total += bytes;
  }
  KvGroups best = whole;
  if (all.empty()) best.reach = {reach};
  if (all.empty() || windowed.empty()) return best;

  double least = INFINITY;
  int64_t page = 0;
  for (const Layer& layer : all) {
    page += layer.bytes;
    if (page < most) continue;
    KvGroups groups{{}, std::vector<size_t>(c.layers.size())};
    const int64_t first = pages_of(all, page, 0, groups.of), pages = first + pages_of(windowed, page, first, groups.of);
    const double cost = static_cast<double>(pages * page - total) / static_cast<double>(total) +
                        kGroupCost * static_cast<double>(pages);
    if (pages > kMostKvGroups || cost >= least) continue;
    least = cost;
    groups.reach.assign(static_cast<size_t>(first), 0);
    groups.reach.resize(static_cast<size_t>(pages), reach);
    best = groups;
  }
  for (size_t i = 0; i < c.layers.size(); ++i)
    if (const auto* attention = c.layers[i].mixer_as<AttentionKind>(); attention && attention->shared_from)
      best.of[i] = best.of[*attention->shared_from];
  return best;
}

}  // namespace forearm
