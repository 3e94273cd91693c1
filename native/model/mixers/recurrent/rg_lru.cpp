#include "model/mixers/recurrent/rg_lru.h"

#include <string>

#include "model/mixers/recurrent/convolve_channels.h"
#include "model/step/multiply.h"
#include "model/step/multiply_heads.h"

namespace forearm {

RgLru::RgLru(const Weights& weights, const States& states, Step& step)
    : weights_(weights), states_(states), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    if (!c.layers[i].mixer_as<RgLruKind>()) continue;
    const RgLruKind& k = kind(i);
    const std::string layer = "layers." + std::to_string(i) + ".";
    own.in = &weights.linear(layer + "lru_in", RgLruColumns(k).recurrence, c.hidden);
    own.input_gate = &weights.linear(layer + "lru_input_gate", k.head_dim(), k.head_dim(), k.heads);
    own.recurrence_gate = &weights.linear(layer + "lru_recurrence_gate", k.head_dim(), k.head_dim(), k.heads);
    own.out = &weights.linear(layer + "lru_out", c.hidden, k.inner);
  }
}

const Norm* RgLru::mix(StepWalk& w, size_t layer, const Norm* add) {
  const LayerMatrices& own = layers_[layer];
  const LayerNorms& norms = weights_.norms(layer);
  step_.multiply(w, *own.in, step_.stream(w, add, norms.input, own.in->matrix), step_.scratch.mixer_in);
  step_.barrier(w);
  convolve_channels(w, step_, states_, layer, weights_.convolution(layer), kind(layer).inner, kind(layer).taps, true);
  step_.barrier(w);
  multiply_gate(w, *own.input_gate, 0);
  multiply_gate(w, *own.recurrence_gate, RgLruColumns(kind(layer)).recurrence);
  step_.barrier(w);
  move_states(w, layer);
  if (layer + 1 == layers_.size()) step_.keep_logit_rows(w);
  step_.barrier(w);
  const Norm* after = norms.post_attention.if_there();
  step_.project_back(w, step_.output(w, step_.scratch.mixed, own.out->matrix), *own.out, after);
  step_.barrier(w);
  return after;
}

// Makes a gate of each channel, from `column` on, of the channels of its head.
void RgLru::multiply_gate(StepWalk& w, const Linear& gate, int64_t column) {
  const Matrix& matrix = gate.matrix;
  each_head(w, step_, matrix, [&](int64_t head, Range rows, Range columns) {
    multiply_head(w.member, step_, matrix, head, columns, part_of(step_.scratch.convolved, rows.begin, head * matrix.k),
                  rows.size(), part_of(step_.scratch.mixer_in, rows.begin, column + head * matrix.n),
                  gate.bias_of(head));
  });
}

// Moves the states of the member's channels by all sequences. In the last layer only rows that need logits have a
// result.
void RgLru::move_states(const StepWalk& w, size_t layer) {
  const Batch& batch = step_.batch();
  const RgLruColumns at(kind(layer));
  const Operand& x = step_.scratch.convolved;
  const Range channels = share(kind(layer).inner, kPanel, w.member, step_.pool.threads());
  RgLruTask task{};
  task.x_stride = x.stride;
  task.stride = step_.scratch.mixer_in.stride;
  task.channel_begin = channels.begin;
  task.channel_end = channels.end;
  task.rate = weights_.recurrence(layer).a_log.data();
  task.out = step_.scratch.mixed.target(layers_[layer].out->matrix);
  const auto move_rows = [&](Range rows, int64_t first_output, int64_t out_row) {
    task.x = floats_at(x, rows.begin, 0);
    task.i = step_.scratch.mixer_at(rows.begin, 0);
    task.y = step_.scratch.mixer_at(rows.begin, at.y);
    task.r = step_.scratch.mixer_at(rows.begin, at.recurrence);
    task.rows = rows.size();
    task.begins = batch.position[rows.begin] == 0;
    task.first_output = first_output;
    task.out_row = out_row;
    step_.kernel.rg_lru(task);
  };
  for (int64_t s = 0; s < batch.sequences; ++s) {
    task.state = states_.at(layer, batch.state[s]).heads;
    batch.for_rows_of(s, layer + 1 == layers_.size(), move_rows);
  }
}

}  // namespace forearm
