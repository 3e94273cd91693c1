#include "model/mixers/recurrent/mamba2.h"

#include <algorithm>
#include <string>

#include "model/step/multiply.h"

namespace forearm {
namespace {

float* columns_at(const Operand& rows, int64_t row, int64_t column) {
  return static_cast<float*>(rows.data) + row * rows.stride + column;
}

}  // namespace

Mamba2::Mamba2(const Weights& weights, const States& states, Step& step)
    : weights_(weights), states_(states), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    if (!c.layers[i].mamba2()) continue;
    const std::string layer = "layers." + std::to_string(i) + ".";
    own.in = &weights.linear(layer + "mamba_in", Mamba2Columns(kind(i)).end, c.hidden);
    own.out = &weights.linear(layer + "mamba_out", c.hidden, kind(i).inner());
  }
}

void Mamba2::project(StepWalk& w, size_t layer, const Norm* add) {
  const Linear& in = *layers_[layer].in;
  step_.multiply(w, in, step_.stream(w, add, weights_.norms(layer).input, in.matrix), projected(layer));
}

const Norm* Mamba2::finish(StepWalk& w, size_t layer) {
  const Linear& out = *layers_[layer].out;
  convolve(w, layer);
  step_.barrier(w);
  move_states(w, layer);
  step_.barrier(w);
  // Attention has kept these rows already where it stands beside.
  if (layer + 1 == layers_.size() && !step_.config.layers[layer].beside) step_.keep_logit_rows(w);
  gate(w, layer);
  step_.barrier(w);
  const Norm* after = weights_.norms(layer).post_attention.if_there();
  step_.project_back(w, step_.output(w, step_.scratch.mixed, out.matrix), out, after, kind(layer).out_scale);
  step_.barrier(w);
  return after;
}

// Multiplies the member's channels of x, b and c with their factors.
void Mamba2::scale(size_t layer, Range channels) {
  const Mamba2Kind& k = kind(layer);
  const int64_t shared = k.groups * k.state_dim;
  const auto section = [&](int64_t begin, int64_t end, float factor) {
    const int64_t first = std::max(begin, channels.begin), last = std::min(end, channels.end);
    for (int64_t row = 0; row < step_.batch().tokens && factor != 1.0f; ++row) {
      float* x = columns_at(projected(layer), row, Mamba2Columns(k).xbc);
      for (int64_t i = first; i < last; ++i) x[i] *= factor;
    }
  };
  section(0, k.inner(), k.x_scale);
  section(k.inner(), k.inner() + shared, k.b_scale);
  section(k.inner() + shared, k.channels(), k.c_scale);
}

// Convolves the member's channels of all sequences, and clears its heads of those that begin.
void Mamba2::convolve(const StepWalk& w, size_t layer) {
  const Batch& batch = step_.batch();
  const Mamba2Kind& k = kind(layer);
  const Convolution& weights = weights_.convolution(layer);
  const Range channels = share(k.channels(), kPanel, w.member, step_.pool.threads());
  const Range heads = share(k.heads, 1, w.member, step_.pool.threads());
  ShortConvTask task{};
  task.stride = projected(layer).stride;
  task.width = k.taps;
  task.taps = weights.taps.data();
  task.bias = or_null(weights.bias);
  task.channels = k.channels();
  task.column_begin = channels.begin;
  task.column_end = channels.end;
  task.out = step_.scratch.convolved;
  scale(layer, channels);
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const Range rows{batch.start[s], batch.start[s + 1]};
    if (batch.position[rows.begin] == 0) states_.clear(layer, batch.state[s], channels, heads);
    task.b = columns_at(projected(layer), rows.begin, Mamba2Columns(k).xbc);
    task.rows = rows.size();
    task.state = states_.at(layer, batch.state[s]).tail;
    task.out_row = rows.begin;
    step_.kernel.short_conv(task);
  }
}

// Moves the member's panels of the states by the tokens of all sequences; y replaces x.
void Mamba2::move_states(const StepWalk& w, size_t layer) {
  const Batch& batch = step_.batch();
  const Mamba2Kind& k = kind(layer);
  const Recurrence& weights = weights_.recurrence(layer);
  const Range panels = share(k.heads * state_panels(k.head_dim), 1, w.member, step_.pool.threads());
  const Operand &in = projected(layer), &xbc = step_.scratch.convolved;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t row = batch.start[s];
    step_.kernel.mamba2({columns_at(xbc, row, 0),
                         columns_at(xbc, row, k.inner()),
                         columns_at(xbc, row, k.inner() + k.groups * k.state_dim),
                         xbc.stride,
                         columns_at(in, row, Mamba2Columns(k).dt),
                         in.stride,
                         batch.start[s + 1] - row,
                         k.heads,
                         k.groups,
                         k.head_dim,
                         k.state_dim,
                         panels.begin,
                         panels.end,
                         weights.dt_bias.data(),
                         weights.a_log.data(),
                         weights.d.data(),
                         k.dt_scale,
                         k.dt_least,
                         k.dt_most,
                         states_.at(layer, batch.state[s]).heads});
  }
}

void Mamba2::gate(const StepWalk& w, size_t layer) {
  const Mamba2Kind& k = kind(layer);
  const Operand &y = step_.scratch.convolved, &z = projected(layer);
  GatedNormTask task{static_cast<float*>(y.data),
                     y.stride,
                     static_cast<const float*>(z.data),
                     z.stride,
                     0,
                     0,
                     k.inner(),
                     k.groups,
                     or_null(weights_.recurrence(layer).norm),
                     step_.config.norm_eps,
                     k.gate_first,
                     k.z_scale,
                     step_.scratch.mixed.target(layers_[layer].out->matrix),
                     0};
  step_.gate(w, task, layer + 1 == layers_.size());
}

}  // namespace forearm
