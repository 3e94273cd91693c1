#include "model/cache/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace forearm {
namespace {

DType checked(DType dtype) {
  if (!number_format(dtype).in_cache)
    throw std::invalid_argument(std::string("kv_dtype is ") + number_format(dtype).name +
                                ", which is a dtype of weights only");
  return dtype;
}

// The number of each layer's cache.
std::vector<int64_t> places_of(const Config& c) {
  std::vector<int64_t> places;
  int64_t next = 0;
  for (const LayerKind& layer : c.layers) {
    const bool has_keys = layer.mixer_as<AttentionKind>() || layer.mixer_as<LatentKind>();
    places.push_back(has_keys && !c.pooled ? next++ : 0);
  }
  return places;
}

}  // namespace

KvBlocks::KvBlocks(const Config& c, DType dtype, const Ranks& ranks)
    : dtype_(checked(dtype)),
      place_(places_of(c)),
      layers_(*std::max_element(place_.begin(), place_.end()) + 1),
      padded_head_dim_(round_up(c.head_dim, kPanel)),
      latent_(c.latent() ? c.latent()->rank : 0),
      head_bytes_(kv_head_bytes(dtype, padded_head_dim_)),
      block_bytes_(c.kv_heads * head_bytes_) {
  for (int rank = 0; rank < ranks.count(); ++rank) {
    parts_.push_back({ranks.part(c.kv_heads, 1, rank), 0});
    rank_of_.insert(rank_of_.end(), static_cast<size_t>(heads(rank).size()), rank);
  }
}

void KvBlocks::allocate(int64_t blocks) {
  region_ = Region();  // frees the old region before the new one is allocated
  blocks_ = 0;
  int64_t bytes = 0;
  for (Part& part : parts_) {
    part.at = round_up(bytes, kHugePage);
    bytes = part.at + sides() * layers_ * blocks * part.heads.size() * head_bytes_;
  }
  region_ = Region("a KV cache of " + std::to_string(blocks) + " blocks", bytes);
  blocks_ = blocks;
}

KvCache KvBlocks::layer(int64_t index, int64_t kv_head) const {
  return cache(place_[static_cast<size_t>(index)], kv_head);
}

KvCache KvBlocks::cache(int64_t place, int64_t kv_head) const {
  const Part& part = parts_[static_cast<size_t>(rank_of(kv_head))];
  const int64_t block_bytes = part.heads.size() * head_bytes_;
  // The parts of the ranks before are at least one block's heads long, so this address still lies in the region.
  char* keys = region_.data() + part.at + sides() * place * blocks_ * block_bytes - part.heads.begin * head_bytes_;
  char* values = latent_ ? nullptr : keys + blocks_ * block_bytes;
  return {keys, values, block_bytes, head_bytes_, dtype_, padded_head_dim_, latent_};
}

void KvBlocks::clear(int64_t block, int rank) const {
  const Range own = heads(rank);
  for (int64_t i = 0; i < layers_ && own.size() > 0; ++i) {
    const KvCache one = cache(i, own.begin);
    const int64_t at = block * one.block_bytes + own.begin * head_bytes_;
    std::memset(one.keys + at, 0, static_cast<size_t>(one.block_bytes));
    if (!latent_) std::memset(one.values + at, 0, static_cast<size_t>(one.block_bytes));
  }
}

}  // namespace forearm
