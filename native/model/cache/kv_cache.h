// The paged KV cache of all layers: blocks of 32 tokens, zeroed by the system, packed as kernels.h defines. For models
// whose prompts are computed whole, no layer's keys are read after its attention, so all layers share one cache. Layers
// whose mixer is not attention have none. Latent attention has keys alone, of one head (KvCache::latent).
//
// Each rank has its own kv heads, whose memory begins at a huge page. A head's part of a block can be as small as 2 kB
// (64 values of 8 bits), so a page with all heads would mix the heads of several ranks.
#pragma once
#include <vector>

#include "model/config.h"
#include "model/memory.h"
#include "model/partition.h"

namespace forearm {

class KvBlocks {
 public:
  KvBlocks(const Config& config, DType dtype, const Ranks& ranks);

  // Allocates the cache and drops the old one. Throws OutOfMemory.
  void allocate(int64_t blocks);

  int64_t blocks() const { return blocks_; }
  int64_t bytes_per_block() const { return sides() * layers_ * block_bytes_; }
  int64_t padded_head_dim() const { return padded_head_dim_; }
  int64_t padded_value_dim() const { return latent_ ? latent_ : padded_head_dim_; }

  int ranks() const { return static_cast<int>(parts_.size()); }
  int rank_of(int64_t kv_head) const { return rank_of_[static_cast<size_t>(kv_head)]; }
  Range heads(int rank) const { return parts_[static_cast<size_t>(rank)].heads; }
  // One layer's cache for the rank of this head: [keys | values] of [block][kv head]. Heads are indexed from the
  // model's first head.
  KvCache layer(int64_t index, int64_t kv_head) const;
  // Zeroes the rank's heads of a block in all layers: its last user may have left an infinity or a NaN, and attention
  // multiplies values beyond a context by 0. The first call puts the pages on the caller's node.
  void clear(int64_t block, int rank) const;

 private:
  struct Part {
    Range heads;
    int64_t at;  // offset in the region
  };

  KvCache cache(int64_t place, int64_t kv_head) const;
  int64_t sides() const { return latent_ ? 1 : 2; }  // keys and values

  const DType dtype_;
  std::vector<int64_t> place_;  // by layer: the number of its cache
  const int64_t layers_;        // that have a cache
  const int64_t padded_head_dim_, latent_, head_bytes_, block_bytes_;
  std::vector<Part> parts_;   // by rank
  std::vector<int> rank_of_;  // by kv head
  int64_t blocks_ = 0;
  Region region_;
};

}  // namespace forearm
