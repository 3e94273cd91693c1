#include "model/cache/kv_groups.h"

#include <algorithm>
#include <cmath>

namespace forearm {
namespace {

// A group more costs a table of each sequence in each step: as much as this share of the pages wasted.
constexpr double kGroupCost = 0.005;

// What a layer keeps of each 32 tokens, in one group: its keys and values, or its entries.
struct Part {
  size_t layer;
  int64_t bytes;
  bool entries = false;
};

// Puts parts into pages of so many bytes, in their order, and returns the number of pages.
int64_t pages_of(const std::vector<Part>& parts, int64_t page, int64_t first, KvGroups& groups) {
  int64_t pages = 0, left = 0;
  for (const Part& part : parts) {
    if (part.bytes > left) {
      ++pages;
      left = page;
    }
    left -= part.bytes;
    (part.entries ? groups.entry_of : groups.of)[part.layer] = static_cast<size_t>(first + pages - 1);
  }
  return pages;
}

int64_t reach_of(const LayerKind& layer) {
  if (const auto* compressed = layer.mixer_as<CompressedKind>()) return compressed->window;
  const auto* attention = layer.mixer_as<AttentionKind>();
  return std::max(attention->window, attention->segment);
}

// The layers that attend have heads and keys of their own or another layer's, all of which a query sees or a window.
bool divisible(const Config& c) {
  if (c.pooled || c.modules || c.bidirectional || c.has_latents()) return false;
  return !c.block_indexer();
}

}  // namespace

KvGroups one_group(const Config& c) {
  const std::vector<size_t> first(c.layers.size());
  return {{0}, first, first};
}

KvGroups kv_groups(const Config& c, DType dtype) {
  KvGroups best = one_group(c);
  if (!divisible(c)) return best;
  std::vector<Part> all, windowed;
  int64_t most = 0, total = 0, reach = 0;
  const auto head_bytes = [&](int64_t dim, int64_t keys) { return kv_head_bytes(dtype, round_up(dim, kPanel), keys); };
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const LayerKind& layer = c.layers[i];
    const auto* attention = layer.mixer_as<AttentionKind>();
    if (!c.attends(i) || (attention && attention->shared_from)) continue;
    const HeadShape heads = c.head_shape(i);
    const int64_t sides = heads.latent ? 1 : 2, own = reach_of(layer);
    (own ? windowed : all).push_back({i, sides * heads.kv_heads * head_bytes(heads.head_dim, kBlockTokens)});
    reach = std::max(reach, own);
    if (const auto* compressed = layer.mixer_as<CompressedKind>(); compressed && compressed->ratio) {
      const int64_t entries = entries_of_block(*compressed);
      const int64_t index = compressed->chosen ? head_bytes(compressed->index_dim, entries) : 0;
      all.push_back({i, head_bytes(c.head_dim, entries) + index, true});
    }
  }
  for (const std::vector<Part>* parts : {&all, &windowed})
    for (const Part& part : *parts) {
      most = std::max(most, part.bytes);
      total += part.bytes;
    }
  if (all.empty()) best.reach = {reach};
  if (all.empty() || windowed.empty()) return best;

  double least = INFINITY;
  int64_t page = 0;
  for (const Part& part : all) {
    page += part.bytes;
    if (page < most) continue;
    KvGroups groups = one_group(c);
    const int64_t first = pages_of(all, page, 0, groups), pages = first + pages_of(windowed, page, first, groups);
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
