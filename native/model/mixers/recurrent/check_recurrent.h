// Checks of the sizes of mixers that keep a state.
#pragma once
#include <string>

#include "model/config.h"
#include "model/config_check.h"

namespace forearm {

inline void check_mamba2(const Mamba2Kind& mamba) {
  in_range("heads of Mamba2", mamba.heads, 1, 65536);
  in_range("groups of Mamba2", mamba.groups, 1, mamba.heads);
  in_range("head_dim of Mamba2", mamba.head_dim, 1, 4096);
  in_range("state_dim of Mamba2", mamba.state_dim, 1, 4096);
  in_range("taps of Mamba2", mamba.taps, 2, 64);
  in_range("channels of Mamba2", mamba.channels(), 1, kLargest);
  if (mamba.heads % mamba.groups != 0)
    refuse("the heads of Mamba2 (" + std::to_string(mamba.heads) + ") are not a multiple of its groups (" +
           std::to_string(mamba.groups) + ")");
}

inline void check_delta(const GatedDeltaKind& delta) {
  in_range("key heads of a delta rule", delta.key_heads, 1, 4096);
  in_range("value heads of a delta rule", delta.value_heads, delta.key_heads, 4096);
  if (delta.value_heads % delta.key_heads != 0)
    refuse("value heads (" + std::to_string(delta.value_heads) + ") is not a multiple of key heads (" +
           std::to_string(delta.key_heads) + ")");
  in_range("key dimension of a delta rule", delta.key_dim, 1, 4096);
  in_range("value dimension of a delta rule", delta.value_dim, 1, 4096);
  in_range("width of a delta rule's convolution", delta.width, 2, 64);
  in_range("rank of a delta rule's gates", delta.gate_rank, 0, delta.by_channel ? kLargest : 0);
}

inline void check_lightning(const LightningKind& own) {
  in_range("heads of lightning attention", own.heads, 1, 4096);
  in_range("head_dim of lightning attention", own.head_dim, 1, 4096);
  in_range("slopes of lightning attention", static_cast<int64_t>(own.slopes.size()), own.heads, own.heads);
}

inline void check_rg_lru(const RgLruKind& own) {
  in_range("channels of an RG-LRU", own.inner, 1, kLargest);
  in_range("heads of an RG-LRU", own.heads, 1, own.inner);
  in_range("taps of an RG-LRU", own.taps, 2, 64);
  if (own.inner % own.heads != 0)
    refuse("the channels of an RG-LRU (" + std::to_string(own.inner) + ") are not a multiple of its heads (" +
           std::to_string(own.heads) + ")");
}

// Layers of RWKV-7 have both halves, and hand on the rows of both.
inline void check_rwkv7(const Config& c, size_t layer) {
  const LayerKind& one = c.layers[layer];
  const auto* own = one.mixer_as<Rwkv7Kind>();
  const bool shifted = one.feed_forward && one.feed_forward->shifted && !one.experts && !one.feed_forward->gate_cut;
  if (!own && !(one.feed_forward && one.feed_forward->shifted)) return;
  if (!own || !shifted || c.placement(layer) != NormPlacement::pre || c.norm_residual == NormResidual::all ||
      c.joins_behind() || c.adds_later() || c.alt_up || c.norm_gates || c.modules || c.sub_norm || c.pooled ||
      !c.norm_weight)
    refuse("time mixing of RWKV-7 stands with a shifted feed-forward, norms before each half, and a residual alone");
  in_range("heads of RWKV-7", own->heads, 1, 4096);
  in_range("numbers of a head of RWKV-7", own->head_dim, 1, 4096);
  in_range("rank of the decays of RWKV-7", own->decay_rank, 1, kLargest);
  in_range("rank of the rates of RWKV-7", own->rate_rank, 1, kLargest);
  in_range("rank of the first layer's part of values of RWKV-7", own->value_rank, layer ? 1 : 0, layer ? kLargest : 0);
  in_range("rank of the gates of RWKV-7", own->gate_rank, 1, kLargest);
  const auto* first = c.layers[0].mixer_as<Rwkv7Kind>();
  if (!first || first->inner() != own->inner())
    refuse("all layers of RWKV-7 mix values with those of the first one, which has as many");
}

inline void check_convolved(const Config& c, size_t layer) {
  const auto& kind = *c.layers[layer].mixer_as<AttentionKind>();
  const HeadShape own = c.head_shape(layer);
  in_range("taps of the convolution of queries and keys", kind.convolved->taps, 2, 64);
  in_range("taps of the convolution of heads", kind.convolved->head_taps, 2, 64);
  in_range("numbers that a head is convolved of", own.head_dim * kind.convolved->head_taps, 1, kLargest);
  if (own.kv_heads * own.head_dim % 2 != 0)
    refuse("numbers of all values are " + std::to_string(own.kv_heads * own.head_dim) + "; they must be even");
  if (!own.values || own.value || own.gates || kind.blocks || kind.unit_qk || c.qk_norm != QkNorm::none || c.v_norm ||
      c.qkv_clip != 0.0f || c.bidirectional || c.modules || c.layers[layer].beside || c.layers[layer].aside ||
      !c.distance_buckets.empty())
    refuse("convolved queries and keys need keys and values of their own, without gates and other norms");
}

}  // namespace forearm
