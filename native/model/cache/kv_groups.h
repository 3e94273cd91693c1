// Groups of layers whose keys and values lie in blocks of their own, so that blocks of 32 tokens that no window reaches
// back to can be freed for any other use. A block of a sequence is a page for each group, and all pages have one size,
// in which the layers of a group lie one after the other (vLLM's hybrid KV cache manager; Zhang et al. 2025, Jenga,
// arXiv:2503.18292).
#pragma once
#include <vector>

#include "model/config.h"

namespace forearm {

constexpr int64_t kMostKvGroups = 32;

// Places for a layer's entries in a block.
inline int64_t entries_of_block(const CompressedKind& kind) {
  return kind.ratio ? (kBlockTokens + kind.ratio - 1) / kind.ratio : 0;
}

struct KvGroups {
  // By group: the tokens that a query sees at the most, its own among them; 0: all before. Groups that see all come
  // first.
  std::vector<int64_t> reach;
  std::vector<size_t> of;        // by layer; 0 where it has no keys
  std::vector<size_t> entry_of;  // and of the entries of compressed attention, which see all
};

// Divides the layers, which should waste little of the pages and be in few groups. One group of all layers where no
// layer, or every layer, has a window; and one that sees all where windows are not all that bounds keys: latents, and
// prompts computed whole. Layers that keep states alone are in none.
KvGroups kv_groups(const Config& config, DType dtype);
// One group of all layers, which sees all.
KvGroups one_group(const Config& config);

}  // namespace forearm
