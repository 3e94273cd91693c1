// Groups of layers whose keys and values lie in blocks of their own, so that blocks of 32 tokens that no window reaches
// back to can be freed for any other use. A block of a sequence is a page for each group, and all pages have one size,
// in which the layers of a group lie one after the other (vLLM's hybrid KV cache manager; Zhang et al. 2025, Jenga,
// arXiv:2503.18292).
#pragma once
#include <vector>

#include "model/config.h"

namespace forearm {

constexpr int64_t kMostKvGroups = 32;

struct KvGroups {
  // By group: the tokens that a query sees at the most, its own among them; 0: all before. Groups that see all come
  // first.
  std::vector<int64_t> reach;
  std::vector<size_t> of;  // by layer; 0 where it has no keys
};

// Divides the layers, which should waste little of the pages and be in few groups. One group of all layers where no
// layer, or every layer, has a window; and one that sees all where windows are not all that bounds them: layers that
// keep states or entries, latents, and prompts computed whole.
KvGroups kv_groups(const Config& config, DType dtype);

}  // namespace forearm
