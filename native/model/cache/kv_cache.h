// The paged KV cache of all layers: blocks of 32 tokens, zeroed by the system, packed as kernels.h defines. For models
// whose prompts are computed whole, no layer's keys are read after its attention, so all layers share one cache. Layers
// whose mixer is not attention have none, and those that share keys and values have that of the layer they read. Latent
// attention has keys alone, of one head (KvCache::latent); with an indexer they lie by token, and layers that choose
// keys have those of the indexer beside them. Compressed attention has its entries there, each in the block of the last
// token that it stands for, and the keys that entries are chosen by.
//
// Where layers are in several groups (KvGroups), a block is a page of one of them, and all layers of a group have their
// keys and values, or their entries, in it. Else each layer has its blocks next to each other.
//
// Each rank has its own kv heads, whose memory begins at a huge page. A head's part of a block can be as small as 2 kB
// (64 values of 8 bits), so a page with all heads would mix the heads of several ranks.
#pragma once
#include <vector>

#include "model/cache/kv_groups.h"
#include "model/config.h"
#include "model/memory.h"
#include "model/partition.h"

namespace forearm {

// The place of an entry that stands for `ratio` tokens, in a cache by token: in the block of the last of them.
inline int32_t entry_place(int64_t entry, int64_t ratio) {
  const int64_t last = (entry + 1) * ratio - 1;
  return static_cast<int32_t>(last / kBlockTokens * kBlockTokens + last % kBlockTokens / ratio);
}

class KvBlocks {
 public:
  // grouped: as Limits::kv_groups.
  KvBlocks(const Config& config, DType dtype, const Ranks& ranks, bool grouped = false);

  // Allocates the cache and drops the old one. Throws OutOfMemory.
  void allocate(int64_t blocks);
  // Makes a huge page where the first tokens' blocks of a layer have small ones. Returns whether one was left.
  bool merge_page() { return region_.merge_page(); }

  int64_t blocks() const { return blocks_; }
  int64_t bytes_per_block() const;
  int64_t groups() const { return static_cast<int64_t>(groups_.reach.size()); }
  // The group that a layer's keys and values are in.
  int64_t group(size_t layer) const { return static_cast<int64_t>(groups_.of[layer]); }
  // And its entries, and the keys that they are chosen by.
  int64_t entry_group(size_t layer) const { return static_cast<int64_t>(groups_.entry_of[layer]); }
  // Of a layer's values.
  int64_t padded_value_dim(size_t layer) const { return cache_of(layer).value_dim(); }
  // Of the layer with the largest heads.
  int64_t padded_head_dim() const;

  int ranks() const { return ranks_.count(); }
  Range heads(size_t layer, int rank) const { return cache_of(layer).heads[static_cast<size_t>(rank)]; }
  int rank_of(size_t layer, int64_t kv_head) const { return cache_of(layer).rank_of[static_cast<size_t>(kv_head)]; }
  // One layer's cache for the rank of this head: [keys | values] of [block][kv head]. Heads are indexed from the
  // model's first head.
  KvCache layer(int64_t index, int64_t kv_head) const;
  // The cache of the keys that a layer's indexer scores.
  KvCache index(size_t layer) const { return cache(caches_[index_place_[layer]], 0); }
  // The cache of a layer's entries.
  KvCache entries(size_t layer) const { return cache(caches_[entry_place_[layer]], 0); }
  // Zeroes the rank's heads of a block in all layers of a group: its last user may have left an infinity or a NaN, and
  // attention multiplies values beyond a context by 0. The first call puts the pages on the caller's node.
  void clear(int64_t block, int64_t group, int rank) const;

 private:
  // The cache of a layer.
  struct LayerCache {
    int64_t padded_head_dim, latent, value, head_bytes;
    bool by_token;
    int64_t block_keys;
    size_t group;
    std::vector<Range> heads;     // by rank
    std::vector<int64_t> before;  // by rank: bytes of a block in the group's caches before this one
    std::vector<int> rank_of;     // by kv head

    int64_t value_dim() const { return latent ? latent : value ? round_up(value, kPanel) : padded_head_dim; }
  };

  // by_token, block_keys: KvCache's.
  void add_cache(const HeadShape& shape, bool by_token, int64_t block_keys = kBlockTokens, size_t group = 0);
  const LayerCache& cache_of(size_t layer) const { return caches_[place_[layer]]; }
  KvCache cache(const LayerCache& own, int64_t kv_head) const;

  const DType dtype_;
  const Ranks ranks_;
  const KvGroups groups_;
  std::vector<LayerCache> caches_;
  std::vector<size_t> place_;                      // by layer: the index of its cache; 0 where it has none
  std::vector<size_t> index_place_;                // and of its indexer's
  std::vector<size_t> entry_place_;                // and of its entries
  std::vector<std::vector<int64_t>> group_bytes_;  // by group and rank: bytes of a block in all caches
  std::vector<int64_t> rank_bytes_;                // by rank: bytes of a block, the most of any group
  std::vector<int64_t> rank_at_;                   // by rank: offset in the region
  int64_t blocks_ = 0;
  Region region_;
};

}  // namespace forearm
