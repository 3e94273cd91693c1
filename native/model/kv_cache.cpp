#include "model/kv_cache.h"

#include <cstring>
#include <stdexcept>

namespace forearm {
namespace {

DType checked(DType dtype) {
  if (dtype == DType::int4) throw std::invalid_argument("kv_dtype is int4, which is a dtype of weights only");
  return dtype;
}

}  // namespace

KvBlocks::KvBlocks(const Config& c, DType dtype)
    : dtype_(checked(dtype)),
      layers_(c.pooled ? 1 : static_cast<int64_t>(c.layers.size())),
      padded_head_dim_(round_up(c.head_dim, kPanel)),
      head_bytes_(kv_head_bytes(dtype, padded_head_dim_)),
      block_bytes_(c.kv_heads * head_bytes_) {}

void KvBlocks::allocate(int64_t blocks) {
  region_ = Region();  // the old one goes before the new one comes
  blocks_ = 0;
  region_ = Region("a KV cache of " + std::to_string(blocks) + " blocks", blocks * bytes_per_block());
  blocks_ = blocks;
}

KvCache KvBlocks::layer(int64_t index) const {
  char* keys = region_.data() + 2 * (index % layers_) * blocks_ * block_bytes_;
  return {keys, keys + blocks_ * block_bytes_, block_bytes_, head_bytes_, dtype_, padded_head_dim_};
}

void KvBlocks::clear(int64_t block) const {
  for (int64_t i = 0; i < layers_; ++i) {
    const KvCache cache = layer(i);
    std::memset(cache.keys + block * block_bytes_, 0, static_cast<size_t>(block_bytes_));
    std::memset(cache.values + block * block_bytes_, 0, static_cast<size_t>(block_bytes_));
  }
}

}  // namespace forearm
