#include "model/mixers/recurrent/short_conv.h"

#include <string>

#include "model/step/multiply.h"

namespace forearm {

ShortConv::ShortConv(const Weights& weights, const States& states, Step& step)
    : weights_(weights), states_(states), step_(step), at_(step.config) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    if (!c.layers[i].mixer_as<ShortConvKind>()) continue;
    const std::string layer = "layers." + std::to_string(i) + ".";
    own.in = &weights.linear(layer + "conv_in", at_.end, c.hidden);
    own.out = &weights.linear(layer + "conv_out", c.hidden, c.hidden);
  }
}

const Norm* ShortConv::mix(StepWalk& w, size_t layer, const Norm* add) {
  const Linear &in = *layers_[layer].in, &out = *layers_[layer].out;
  const LayerNorms& norms = weights_.norms(layer);
  step_.multiply(w, in, step_.stream(w, add, norms.input, in.matrix), step_.scratch.mixer_in);
  step_.barrier(w);
  convolve(w, layer);
  if (layer + 1 == layers_.size()) step_.keep_logit_rows(w);
  step_.barrier(w);
  const Norm* after = norms.post_attention.if_there();
  step_.project_back(w, step_.output(w, step_.scratch.mixed, out.matrix), out, after);
  step_.barrier(w);
  return after;
}

// Convolves the member's channels of all sequences. In the last layer only rows that need logits have a result.
void ShortConv::convolve(const StepWalk& w, size_t layer) {
  const Batch& batch = step_.batch();
  const Operand& in = step_.scratch.mixer_in;
  const Range channels = share(step_.config.hidden, kPanel, w.member, step_.pool.threads());
  const Convolution& weights = weights_.convolution(layer);
  ShortConvTask task{};
  task.stride = in.stride;
  task.width = step_.config.layers[layer].mixer_as<ShortConvKind>()->width;
  task.taps = weights.taps.data();
  task.bias = or_null(weights.bias);
  task.channels = step_.config.hidden;
  task.column_begin = channels.begin;
  task.column_end = channels.end;
  task.out = step_.scratch.mixed.target(layers_[layer].out->matrix);
  const auto convolve_rows = [&](Range rows, int64_t first_output, int64_t out_row) {
    task.b = static_cast<float*>(in.data) + rows.begin * in.stride;
    task.c = task.b + at_.c;
    task.x = task.b + at_.x;
    task.rows = rows.size();
    task.first_output = first_output;
    task.out_row = out_row;
    step_.kernel.short_conv(task);
  };
  for (int64_t s = 0; s < batch.sequences; ++s) {
    task.state = states_.at(layer, batch.state[s]).tail;
    if (batch.position[batch.start[s]] == 0) states_.clear(layer, batch.state[s], channels, {0, 0});
    batch.for_rows_of(s, layer + 1 == layers_.size(), convolve_rows);
  }
}

}  // namespace forearm
