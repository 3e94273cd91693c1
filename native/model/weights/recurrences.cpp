// The vectors of recurrences, and the convolutions before them.
#include <cmath>
#include <numbers>
#include <string>

#include "model/weights/weights.h"

namespace forearm {

void Weights::declare_convolution(size_t layer, int64_t width, int64_t channels, bool bias) {
  const std::string name = "layers." + std::to_string(layer) + ".conv";
  const int64_t taps = width * channels;
  declare_vector(name, convolutions_[layer].taps, taps, {.rows = taps, .panels = {}, .width = width});
  if (bias) declare_vector(name + ".bias", convolutions_[layer].bias, channels, {channels, {}});
}

// What a convolution reads is added to its result: that is one more for each channel's last tap.
void Weights::declare_layer_convolutions(const Config& c, size_t layer) {
  declare_convolution(layer, c.conv_taps, LayerConvChannels(c, layer).end, false);
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  VectorValues& taps = vectors_.at(prefix + "conv");
  taps.plus = 1.0f;
  taps.plus_last = true;
  declare_vector(prefix + "feed_forward_scale", convolutions_[layer].scale, 1, {1, {}});
}

void Weights::declare_mamba2(size_t layer, const Mamba2Kind& kind) {
  declare_convolution(layer, kind.taps, kind.channels(), kind.conv_bias);
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  Recurrence& own = recurrences_[layer];
  declare_vector(prefix + "dt_bias", own.dt_bias, kind.heads, {kind.heads, {}});
  declare_vector(prefix + "a_log", own.a_log, kind.heads, {kind.heads, {}});
  declare_vector(prefix + "d", own.d, kind.heads, {kind.heads, {}});
  if (kind.norm) declare_vector(prefix + "gate_norm", own.norm, kind.inner(), {kind.inner(), {}});
}

void Weights::declare_delta(size_t layer, const GatedDeltaKind& kind) {
  declare_convolution(layer, kind.width, kind.channels(), false);
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  Recurrence& own = recurrences_[layer];
  const int64_t decays = kind.value_heads * kind.decays();
  declare_vector(prefix + "dt_bias", own.dt_bias, decays, {decays, {}});
  declare_vector(prefix + "a_log", own.a_log, kind.value_heads, {kind.value_heads, {}});
  declare_vector(prefix + "gate_norm", own.norm, kind.value_dim, {kind.value_dim, {}});
}

void Weights::declare_lightning(size_t layer, const LightningKind& kind) {
  Recurrence& own = recurrences_[layer];
  for (const float slope : kind.slopes) own.a_log.push_back(std::log(slope));
  own.d.resize(kind.slopes.size());
  declare_vector("layers." + std::to_string(layer) + ".gate_norm", own.norm, kind.inner(), {kind.inner(), {}});
}

void Weights::declare_scan(size_t layer, const SelectiveScanKind& kind) {
  declare_convolution(layer, kind.taps, kind.inner, kind.conv_bias);
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  Recurrence& own = recurrences_[layer];
  const int64_t norms = kind.dt_rank + 2 * kind.state_dim, rows = kind.inner * kind.state_dim;
  declare_vector(prefix + "a_log", own.a_log, round_up(kind.inner, kPanel) * kind.state_dim,
                 {.rows = rows, .panels = {}, .width = kind.state_dim, .lanes = kPanel});
  vectors_.at(prefix + "a_log").kept = [](double value) { return -std::numbers::log2e * std::exp(value); };
  declare_vector(prefix + "d", own.d, kind.inner, {kind.inner, {}});
  if (kind.norm_weights) declare_vector(prefix + "scan_norm", own.norm, norms, {norms, {}});
}

void Weights::declare_convolved(const Config& c, size_t layer, const ConvolvedKind& kind) {
  const HeadShape heads = c.head_shape(layer);
  declare_convolution(layer, kind.taps, (heads.heads + heads.kv_heads) * heads.head_dim, true);
  declare_vector("layers." + std::to_string(layer) + ".key_scale", convolutions_[layer].key_scale, heads.kv_heads,
                 {heads.kv_heads, {}});
}

void Weights::declare_rg_lru(size_t layer, const RgLruKind& kind) {
  declare_convolution(layer, kind.taps, kind.inner, true);
  const std::string name = "layers." + std::to_string(layer) + ".lru_rate";
  declare_vector(name, recurrences_[layer].a_log, kind.inner, {kind.inner, {}});
  vectors_.at(name).kept = [](double value) {
    return -8.0 * (std::fmax(value, 0.0) + std::log1p(std::exp(-std::fabs(value))));
  };
}

void Weights::declare_rwkv7(const Config& c, size_t layer, const Rwkv7Kind& kind) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  Recurrence& own = recurrences_[layer];
  const auto declare = [&](const char* name, std::vector<float>& values, int64_t n) {
    declare_vector(prefix + name, values, n, {n, {}});
  };
  declare("gate_norm", own.norm, kind.inner());
  declare("gate_norm.bias", own.norm_bias, kind.inner());
  declare("rwkv_k_k", own.removal, kind.inner());
  declare("rwkv_k_a", own.replaced, kind.inner());
  declare("rwkv_r_k", own.bonus, kind.inner());
  declare("rwkv_mixes", own.mixes, 6 * c.hidden);
  declare("mlp_mix", own.mlp_mix, c.hidden);
}

}  // namespace forearm
