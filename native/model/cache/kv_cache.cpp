#include "model/cache/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace forearm {
namespace {

DType checked(DType dtype) {
  if (!number_format(dtype).in_cache)
    throw std::invalid_argument(std::string("kv_dtype is ") + number_format(dtype).name +
                                ", which is a dtype of weights only");
  return dtype;
}

// One head's keys alone, as those of a latent are.
HeadShape keys_of(int64_t dim) { return {1, 1, dim, true, false, 0, dim}; }

// The layer whose cache a layer uses: a model that is pooled keeps nothing, so its layers of the same heads share one.
size_t first_alike(const Config& c, size_t layer) {
  for (size_t i = 0; i < layer && c.pooled && c.attends(layer); ++i)
    if (c.attends(i) && c.head_shape(i) == c.head_shape(layer)) return i;
  return layer;
}

}  // namespace

KvBlocks::KvBlocks(const Config& c, DType dtype, const Ranks& ranks, bool grouped)
    : dtype_(checked(dtype)),
      ranks_(ranks),
      groups_(grouped ? kv_groups(c, dtype) : one_group(c)),
      group_bytes_(groups_.reach.size(), std::vector<int64_t>(static_cast<size_t>(ranks.count()))),
      rank_bytes_(static_cast<size_t>(ranks.count())),
      rank_at_(static_cast<size_t>(ranks.count())) {
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const auto* attention = c.layers[i].mixer_as<AttentionKind>();
    const bool shares = attention && attention->shared_from;
    const size_t alike = first_alike(c, i);
    const bool own = c.attends(i) && !shares && alike == i;
    place_.push_back(own ? caches_.size() : shares ? place_[*attention->shared_from] : alike < i ? place_[alike] : 0);
    if (own) {
      const HeadShape heads = c.head_shape(i);
      add_cache(heads, heads.chosen > 0 && !heads.block, kBlockTokens, groups_.of[i]);
    }
    const auto* latent = c.layers[i].mixer_as<LatentKind>();
    const bool indexed = latent && latent->indexer && !latent->indexer->shared;
    const bool blocks = attention && attention->blocks;
    index_place_.push_back(indexed || blocks ? caches_.size() : 0);
    const int64_t mean = blocks && attention->blocks->heads ? attention->blocks->block : 0;  // keys that one stands for
    if (indexed || blocks)
      add_cache(keys_of(blocks ? attention->blocks->head_dim : latent->indexer->head_dim), mean > 0,
                mean ? (kBlockTokens + mean - 1) / mean : kBlockTokens);
    const auto* compressed = c.layers[i].mixer_as<CompressedKind>();
    const int64_t entries = compressed ? entries_of_block(*compressed) : 0;
    entry_place_.push_back(entries ? caches_.size() : 0);
    if (entries) add_cache(keys_of(c.head_dim), true, entries, groups_.entry_of[i]);
    if (!entries || !compressed->chosen) continue;
    index_place_.back() = caches_.size();
    add_cache(keys_of(compressed->index_dim), true, entries, groups_.entry_of[i]);
  }
  // Blocks count tokens; a model without attention has some for nothing.
  if (caches_.empty()) add_cache({c.heads, c.kv_heads, c.head_dim, true, true, 0}, false);
  for (const std::vector<int64_t>& bytes : group_bytes_)
    for (size_t rank = 0; rank < bytes.size(); ++rank) rank_bytes_[rank] = std::max(rank_bytes_[rank], bytes[rank]);
}

void KvBlocks::add_cache(const HeadShape& s, bool by_token, int64_t block_keys, size_t group) {
  LayerCache& own = caches_.emplace_back();
  own.padded_head_dim = round_up(s.head_dim, kPanel);
  own.latent = s.latent;
  own.value = s.value;
  own.by_token = by_token;
  own.block_keys = block_keys;
  own.head_bytes = kv_head_bytes(dtype_, own.padded_head_dim, block_keys);
  own.group = group;
  own.before = group_bytes_[group];
  const int64_t sides = s.latent ? 1 : 2;
  for (int rank = 0; rank < ranks_.count(); ++rank) {
    const Range heads = own.heads.emplace_back(ranks_.part(s.kv_heads, 1, rank));
    own.rank_of.insert(own.rank_of.end(), static_cast<size_t>(heads.size()), rank);
    group_bytes_[group][static_cast<size_t>(rank)] += sides * heads.size() * own.head_bytes;
  }
}

int64_t KvBlocks::bytes_per_block() const {
  return std::accumulate(rank_bytes_.begin(), rank_bytes_.end(), int64_t{0});
}

int64_t KvBlocks::padded_head_dim() const {
  int64_t most = 0;
  for (const LayerCache& own : caches_) most = std::max(most, own.padded_head_dim);
  return most;
}

void KvBlocks::allocate(int64_t blocks) {
  region_ = Region();  // frees the old region before the new one is allocated
  blocks_ = 0;
  int64_t bytes = 0;
  for (size_t rank = 0; rank < rank_at_.size(); ++rank) {
    rank_at_[rank] = round_up(bytes, kHugePage);
    bytes = rank_at_[rank] + blocks * rank_bytes_[rank];
  }
  region_ = Region("a KV cache of " + std::to_string(blocks) + " blocks", bytes);
  blocks_ = blocks;
  for (const LayerCache& own : caches_) {
    for (const Range heads : own.heads) {
      if (heads.size() == 0) continue;
      const KvCache one = cache(own, heads.begin);
      for (void* side : {one.keys, one.values})
        if (side) region_.begin_small(static_cast<char*>(side) + heads.begin * own.head_bytes);
    }
  }
}

KvCache KvBlocks::layer(int64_t index, int64_t kv_head) const {
  return cache(cache_of(static_cast<size_t>(index)), kv_head);
}

KvCache KvBlocks::cache(const LayerCache& own, int64_t kv_head) const {
  const auto rank = static_cast<size_t>(own.rank_of[static_cast<size_t>(kv_head)]);
  const Range heads = own.heads[rank];
  const int64_t side_bytes = heads.size() * own.head_bytes, pages = groups() > 1 ? 1 : blocks_;
  const int64_t block_bytes = groups() > 1 ? rank_bytes_[rank] : side_bytes;
  // The parts of the ranks before are at least one block's heads long, so this address still lies in the region.
  char* keys = region_.data() + rank_at_[rank] + pages * own.before[rank] - heads.begin * own.head_bytes;
  char* values = own.latent ? nullptr : keys + pages * side_bytes;
  return {keys,       values,       block_bytes, own.head_bytes, dtype_, own.padded_head_dim,
          own.latent, own.by_token, own.value,   own.block_keys};
}

void KvBlocks::clear(int64_t block, int64_t group, int rank) const {
  for (const LayerCache& own : caches_) {
    const Range heads = own.heads[static_cast<size_t>(rank)];
    if (heads.size() == 0 || own.group != static_cast<size_t>(group)) continue;
    const KvCache one = cache(own, heads.begin);
    const int64_t at = block * one.block_bytes + heads.begin * own.head_bytes;
    const auto bytes = static_cast<size_t>(heads.size() * own.head_bytes);
    std::memset(one.keys + at, 0, bytes);
    if (one.values) std::memset(one.values + at, 0, bytes);
  }
}

}  // namespace forearm
