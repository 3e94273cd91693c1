#include "model/mixers/mamba2.h"

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
    if (!c.layers[i].mixer_as<Mamba2Kind>()) continue;
    const std::string layer = "layers." + std::to_string(i) + ".";
    own.in = &weights.linear(layer + "mamba_in", Mamba2Columns(kind(i)).end, c.hidden);
    own.out = &weights.linear(layer + "mamba_out", c.hidden, kind(i).inner());
  }
}

const Norm* Mamba2::mix(StepWalk& w, size_t layer, const Norm* add) {
  const Linear &in = *layers_[layer].in, &out = *layers_[layer].out;
  const LayerNorms& norms = weights_.norms(layer);
  GemmTask task{};
  task.a = step_.stream(w, add, norms.input, in.matrix);
  task.row_end = w.rows;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.out = step_.scratch.mixer_in;
  step_.multiply(w, in, task);
  step_.barrier(w);
  convolve(w, layer);
  step_.barrier(w);
  move_states(w, layer);
  step_.barrier(w);
  if (layer + 1 == layers_.size()) step_.keep_logit_rows(w);
  gate(w, layer);
  step_.barrier(w);
  const Norm* after = norms.post_attention.if_there();
  step_.project_back(w, step_.output(w, step_.scratch.mixed, out.matrix), out, after);
  step_.barrier(w);
  return after;
}

// Convolves the member's channels of all sequences.
void Mamba2::convolve(const StepWalk& w, size_t layer) {
  const Batch& batch = step_.batch();
  const Mamba2Kind& k = kind(layer);
  const Convolution& weights = weights_.convolution(layer);
  const Range channels = share(k.channels(), kPanel, w.member, step_.pool.threads());
  ShortConvTask task{};
  task.stride = step_.scratch.mixer_in.stride;
  task.width = k.taps;
  task.taps = weights.taps.data();
  task.bias = or_null(weights.bias);
  task.channels = k.channels();
  task.column_begin = channels.begin;
  task.column_end = channels.end;
  task.out = step_.scratch.convolved;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const Range rows{batch.start[s], batch.start[s + 1]};
    if (batch.position[rows.begin] == 0) states_.clear(layer, batch.state[s], channels, {0, 0});
    task.b = columns_at(step_.scratch.mixer_in, rows.begin, Mamba2Columns(k).xbc);
    task.rows = rows.size();
    task.state = states_.at(layer, batch.state[s]).tail;
    task.out_row = rows.begin;
    step_.kernel.short_conv(task);
  }
}

// Moves the states of the member's heads by the tokens of all sequences; y replaces x.
void Mamba2::move_states(const StepWalk& w, size_t layer) {
  const Batch& batch = step_.batch();
  const Mamba2Kind& k = kind(layer);
  const Recurrence& weights = weights_.recurrence(layer);
  const Range heads = share(k.heads, 1, w.member, step_.pool.threads());
  const Operand &in = step_.scratch.mixer_in, &xbc = step_.scratch.convolved;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t row = batch.start[s];
    if (batch.position[row] == 0) states_.clear(layer, batch.state[s], {0, 0}, heads);
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
                         heads.begin,
                         heads.end,
                         weights.dt_bias.data(),
                         weights.a_log.data(),
                         weights.d.data(),
                         1.0f,
                         k.dt_least,
                         k.dt_most,
                         states_.at(layer, batch.state[s]).heads});
  }
}

// Gates and normalizes the member's rows; in the last layer only rows that need logits are left.
void Mamba2::gate(const StepWalk& w, size_t layer) {
  const Mamba2Kind& k = kind(layer);
  const bool last = layer + 1 == layers_.size();
  const Operand &y = step_.scratch.convolved, &z = step_.scratch.mixer_in;
  GatedNormTask task{static_cast<float*>(y.data),
                     y.stride,
                     static_cast<const float*>(z.data),
                     z.stride,
                     0,
                     0,
                     k.inner(),
                     k.groups,
                     weights_.recurrence(layer).norm.data(),
                     step_.config.norm_eps,
                     true,
                     1.0f,
                     step_.scratch.mixed.target(layers_[layer].out->matrix),
                     0};
  const Range rows = step_.mine(w, w.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    task.row_begin = last ? step_.batch().logit_row[row] : row;
    task.row_end = task.row_begin + 1;
    task.out_row = row;
    step_.kernel.gated_norm(task);
  }
}

}  // namespace forearm
