#include "model/config.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "model/partition.h"

namespace forearm {
namespace {

// The most KV blocks that hold `keys` neighbouring keys, of which the first is a multiple of their number.
int64_t blocks_of_span(int64_t keys) {
  if (kBlockTokens % keys == 0) return 1;
  return keys % kBlockTokens == 0 ? keys / kBlockTokens : (keys + kBlockTokens - 2) / kBlockTokens + 1;
}

}  // namespace

int64_t MatrixSpec::columns() const {
  if (parts.size() == 1) return parts[0].rows;
  int64_t all = 0;
  for (const MatrixPart& part : parts) all += round_up(part.rows, kPanel);
  return all;
}

bool Config::attends(size_t layer) const {
  return layers[layer].mixer_as<AttentionKind>() || layers[layer].mixer_as<LatentKind>() ||
         layers[layer].mixer_as<CompressedKind>();
}

HeadShape Config::head_shape(size_t layer) const {
  if (const auto* latent = layers[layer].mixer_as<LatentKind>())
    return {heads_of(*latent),
            kv_heads,
            latent->key_dim(),
            true,
            false,
            0,
            latent->rank,
            latent->indexer ? latent->indexer->chosen : 0};
  if (layers[layer].mixer_as<CompressedKind>()) return {heads, kv_heads, head_dim, true, false, 0, head_dim};
  const auto& own = *layers[layer].mixer_as<AttentionKind>();
  const int64_t dim = own.head_dim ? own.head_dim : head_dim, value = own.value_dim ? own.value_dim : dim;
  return {own.heads ? own.heads : heads,
          own.kv_heads ? own.kv_heads : kv_heads,
          dim,
          !own.shared_from,
          !own.shared_from && !own.keys_as_values,
          attention_gate == Gate::none ? 0
          : head_gates                 ? 1
                                       : value,
          0,
          own.blocks ? own.blocks->most() : 0,
          value == dim ? 0 : value,
          own.blocks ? own.blocks->block : 0,
          own.blocks && own.blocks->heads ? (own.blocks->chosen + 1) * blocks_of_span(own.blocks->block) : 0,
          own.bias_dim};
}

std::vector<HeadShape> Config::head_shapes() const {
  std::vector<HeadShape> shapes;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!attends(i)) continue;
    const HeadShape own = head_shape(i);
    if (std::find(shapes.begin(), shapes.end(), own) == shapes.end()) shapes.push_back(own);
  }
  return shapes;
}

int64_t Config::widest_head() const {
  int64_t most = 0;
  for (const HeadShape& shape : head_shapes()) most = std::max(most, shape.head_dim);
  return most ? most : head_dim;
}

StateShape Config::state(size_t layer) const {
  if (const auto* conv = layers[layer].mixer_as<ShortConvKind>())
    return {.tail_rows = conv->width - 1, .channels = hidden};
  if (const auto* mamba = layers[layer].mamba2())
    return {.tail_rows = mamba->taps - 1,
            .channels = mamba->channels(),
            .heads = mamba->heads,
            .head_floats = state_floats(mamba->state_dim, mamba->head_dim)};
  if (const auto* own = layers[layer].mixer_as<LightningKind>())
    return {.heads = own->heads, .head_floats = state_floats(own->head_dim, own->head_dim)};
  if (const auto* own = layers[layer].mixer_as<SelectiveScanKind>())
    return {.tail_rows = own->taps - 1,
            .channels = own->inner,
            .heads = round_up(own->inner, kPanel) / kPanel,  // a head is a panel
            .head_floats = own->state_dim * kPanel};
  if (const auto* own = layers[layer].mixer_as<RgLruKind>())
    return {.tail_rows = own->taps - 1,
            .channels = own->inner,
            .heads = round_up(own->inner, kPanel) / kPanel,  // a head is a panel
            .head_floats = kPanel};
  if (const auto* own = layers[layer].mixer_as<Rwkv7Kind>())
    return {.tail_rows = 2,  // of both halves (TokenShift)
            .channels = hidden,
            .heads = own->heads,
            .head_floats = rwkv7_state_floats(own->head_dim)};
  if (const auto* delta = layers[layer].mixer_as<GatedDeltaKind>())
    return {.tail_rows = delta->width - 1,
            .channels = delta->channels(),
            .heads = delta->value_heads,
            .head_floats = state_floats(delta->key_dim, delta->value_dim),
            .more = ngram_floats(layer)};
  if (const auto* kind = layers[layer].mixer_as<AttentionKind>(); kind && kind->blocks && kind->blocks->heads)
    return {.tail_rows = 1, .channels = kind->blocks->head_dim};
  if (const auto* own = layers[layer].mixer_as<AttentionKind>(); own && own->convolved) {
    const HeadShape heads = head_shape(layer);
    const int64_t channels = (heads.heads + heads.kv_heads) * heads.head_dim;
    return {.tail_rows = own->convolved->taps - 1,
            .channels = channels,
            .heads = 1,  // late rows, and the late half of values
            .head_floats = own->convolved->late() * channels + heads.kv_heads * heads.head_dim / 2};
  }
  if (conv_taps) return {.tail_rows = conv_taps - 1, .channels = LayerConvChannels(*this, layer).end};
  if (const auto* kind = layers[layer].mixer_as<CompressedKind>(); kind && kind->ratio)
    return {.tail_rows = 3 * kind->series(), .channels = head_dim + kind->index_dim};
  return {};
}

int64_t Config::ngram_floats(size_t layer) const {
  const auto& own = layers[layer].ngrams;
  return own ? own->tokens() - 1 + own->tail_rows() * hyper->streams * hidden : 0;
}

int64_t Config::bias_rows() const {
  const auto last = std::max_element(distance_buckets.begin(), distance_buckets.end());
  return last == distance_buckets.end() ? 0 : *last + 1;
}

bool Config::shifts() const { return layers[0].feed_forward && layers[0].feed_forward->shifted; }

bool Config::has_latents() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerKind& layer) { return layer.mixer_as<LatentKind>() != nullptr; });
}

bool Config::joint_gates() const {
  return std::any_of(layers.begin(), layers.end(), [](const LayerKind& layer) {
    const auto* kind = layer.mixer_as<LatentKind>();
    return kind && kind->joint_gates;
  });
}

const LatentKind* Config::indexed() const {
  for (const LayerKind& layer : layers)
    if (const auto* kind = layer.mixer_as<LatentKind>(); kind && kind->indexer) return kind;
  return nullptr;
}

const BlockIndexerKind* Config::block_indexer() const {
  for (const LayerKind& layer : layers)
    if (const auto* kind = layer.mixer_as<AttentionKind>(); kind && kind->blocks) return &*kind->blocks;
  return nullptr;
}

int64_t Config::pooled_columns(int64_t head) const {
  int64_t columns = hidden;
  for (const DenseKind& one : dense)
    if (one.head == head) columns = one.outputs;
  return columns;
}

bool Config::norms_before() const {
  for (size_t i = 0; i < layers.size(); ++i)
    if (placement(i) == NormPlacement::post || placement(i) == NormPlacement::none) return false;
  return true;
}

bool Config::norms_after() const {
  for (size_t i = 0; i < layers.size(); ++i)
    if (placement(i) == NormPlacement::pre || placement(i) == NormPlacement::none) return false;
  return true;
}

bool Config::some_norm_after() const {
  for (size_t i = 0; i < layers.size(); ++i)
    if (placement(i) != NormPlacement::pre && placement(i) != NormPlacement::none) return true;
  return false;
}

bool Config::adds_later() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerKind& layer) { return layer.experts && layer.experts->behind; });
}

const NgramKind* Config::ngrams() const {
  for (const LayerKind& layer : layers)
    if (layer.ngrams) return &*layer.ngrams;
  return nullptr;
}

bool Config::asides() const {
  return std::any_of(layers.begin(), layers.end(), [](const LayerKind& layer) { return layer.aside; });
}

bool Config::has_states() const {
  for (size_t i = 0; i < layers.size(); ++i)
    if (state(i).floats() > 0) return true;
  return false;
}

}  // namespace forearm
