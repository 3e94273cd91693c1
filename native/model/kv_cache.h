// The paged KV cache of all layers: blocks of 32 tokens, zeroed by the system, packed as kernels.h says. Where prompts
// are computed whole nobody reads a layer's keys after its attention: all layers share one cache.
#pragma once
#include "model/config.h"
#include "model/memory.h"

namespace forearm {

class KvBlocks {
 public:
  KvBlocks(const Config& config, DType dtype);

  // Replaces what there was. Throws OutOfMemory.
  void allocate(int64_t blocks);

  int64_t blocks() const { return blocks_; }
  int64_t bytes_per_block() const { return 2 * layers_ * block_bytes_; }
  int64_t padded_head_dim() const { return padded_head_dim_; }

  // One layer's cache: [keys | values] of [block][kv head].
  KvCache layer(int64_t index) const;
  // Zeroes a block in all layers: its last user may have left an infinity or a NaN behind, and
  // attention multiplies what lies beyond a context by 0.
  void clear(int64_t block) const;

 private:
  const DType dtype_;
  const int64_t layers_, padded_head_dim_, head_bytes_, block_bytes_;
  int64_t blocks_ = 0;
  Region region_;
};

}  // namespace forearm
