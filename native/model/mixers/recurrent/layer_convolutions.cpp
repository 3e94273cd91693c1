#include "model/mixers/recurrent/layer_convolutions.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "model/step/multiply_heads.h"

namespace forearm {
namespace {

// A layer of attention and a feed-forward, or experts, each of one projection at its end.
bool is_plain(const LayerKind& layer) {
  const auto* own = layer.mixer_as<AttentionKind>();
  const auto& half = layer.feed_forward;
  return own && !own->shared_from && !own->keys_as_values && !own->value_dim && !own->blocks && !own->convolved &&
         !layer.beside && !layer.aside && half && !half->gate_cut &&
         !(layer.experts && (layer.experts->apart || layer.experts->ahead));
}

}  // namespace

void LayerConvolutions::check(const Config& c) {
  if (c.conv_taps == 0) return;
  if (c.conv_taps < 2 || c.conv_taps > 64)
    throw std::invalid_argument("the convolutions of a layer have " + std::to_string(c.conv_taps) +
                                " taps; they must have 2 to 64");
  if (c.some_norm_after() || c.norm_residual != NormResidual::none || c.parallel_residual || c.hyper || c.alt_up ||
      c.per_layer || c.layer_scalar || c.merges || c.norm_gates || c.qk_norm == QkNorm::full || c.adds_later() ||
      c.modules || c.sub_norm || !std::all_of(c.layers.begin(), c.layers.end(), is_plain))
    throw std::invalid_argument(
        "four convolutions in each layer need plain attention, and norms that stand before each half alone");
}

LayerConvolutions::LayerConvolutions(const Weights& weights, const States& states, Step& step)
    : weights_(weights), states_(states), step_(step) {}

void LayerConvolutions::convolve_keys_and_values(const StepWalk& w, size_t layer) const {
  const LayerConvChannels channels(step_.config, layer);
  const QkvColumns columns(step_.config.head_shape(layer));
  const Operand& convolved = step_.scratch.convolved;
  for (const bool values : {false, true}) {
    Operand rows = step_.scratch.mixer_in;
    rows.data = floats_at(rows, 0, values ? columns.value : columns.key);
    const Range part = values ? Range{channels.value, channels.mixer} : Range{0, channels.value};
    const Range own = convolve(w, layer, part, rows, part.begin);
    for (int64_t r = 0; r < w.rows; ++r)
      std::copy_n(floats_at(convolved, r, part.begin + own.begin), own.size(), floats_at(rows, r, own.begin));
  }
}

void LayerConvolutions::join(StepWalk& w, size_t layer, Half half) const {
  const LayerConvChannels channels(step_.config, layer);
  const bool last = half == Half::feed_forward;
  const Range part = last ? Range{channels.feed_forward, channels.end} : Range{channels.mixer, channels.feed_forward};
  const Range own = convolve(w, layer, part, step_.scratch.projected, 0);
  const float scale = step_.config.residual_scale * (last ? weights_.convolution(layer).scale[0] : 1.0f);
  for (int64_t r = 0; r < w.rows; ++r)
    for (int64_t i = own.begin; i < own.end; ++i)
      step_.residual_row(r)[i] += scale * *floats_at(step_.scratch.convolved, r, i);
  if (last && layer + 1 == step_.config.layers.size()) step_.keep_logit_rows(w);  // of the same channels
  step_.barrier(w);
}

// Convolves the member's share of these channels, whose columns in `rows` start at 0, to Scratch::convolved from
// out_column on. Returns the share.
Range LayerConvolutions::convolve(const StepWalk& w, size_t layer, Range channels, const Operand& rows,
                                  int64_t out_column) const {
  const Batch& batch = step_.batch();
  const Range own = share(channels.size(), kPanel, w.member, step_.pool.threads());
  ShortConvTask task{};
  task.stride = rows.stride;
  task.width = step_.config.conv_taps;
  task.taps = weights_.convolution(layer).taps.data() + channels.begin;
  task.channels = LayerConvChannels(step_.config, layer).end;
  task.column_begin = own.begin;
  task.column_end = own.end;
  task.out = step_.scratch.convolved;
  task.out.data = floats_at(task.out, 0, out_column);
  task.plain = true;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const Range of_sequence{batch.start[s], batch.start[s + 1]};
    if (batch.position[of_sequence.begin] == 0)
      states_.clear(layer, batch.state[s], {channels.begin + own.begin, channels.begin + own.end}, {0, 0});
    task.b = floats_at(rows, of_sequence.begin, 0);
    task.rows = of_sequence.size();
    task.state = states_.at(layer, batch.state[s]).tail + channels.begin;
    task.out_row = of_sequence.begin;
    step_.kernel.short_conv(task);
  }
  return own;
}

}  // namespace forearm
