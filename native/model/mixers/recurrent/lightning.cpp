#include "model/mixers/recurrent/lightning.h"

#include <string>

#include "model/step/multiply.h"

namespace forearm {

Lightning::Lightning(const Weights& weights, const States& states, Step& step)
    : weights_(weights), states_(states), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    if (!c.layers[i].mixer_as<LightningKind>()) continue;
    const std::string layer = "layers." + std::to_string(i) + ".";
    own.in = &weights.linear(layer + "lightning_in", LightningColumns(kind(i)).gate, c.hidden);
    own.gate = &weights.linear(layer + "lightning_gate", kind(i).inner(), c.hidden);
    own.out = &weights.linear(layer + "lightning_out", c.hidden, kind(i).inner());
  }
}

const Norm* Lightning::mix(StepWalk& w, size_t layer, const Norm* add) {
  const Linear& out = *layers_[layer].out;
  project(w, layer, add);
  clear_states(w, layer);
  step_.barrier(w);
  move_states(w, layer);
  step_.barrier(w);
  if (layer + 1 == layers_.size()) step_.keep_logit_rows(w);
  gate(w, layer);
  step_.barrier(w);
  const Norm* after = weights_.norms(layer).post_attention.if_there();
  step_.project_back(w, step_.output(w, step_.scratch.mixed, out.matrix), out, after, kind(layer).out_scale);
  step_.barrier(w);
  return after;
}

void Lightning::project(StepWalk& w, size_t layer, const Norm* add) {
  const Linear &in = *layers_[layer].in, &gate = *layers_[layer].gate;
  const Norm& norm = weights_.norms(layer).input;
  GemmTask task{};
  task.a = step_.stream(w, add, norm, in.matrix);
  task.row_end = step_.batch().tokens;
  task.epilogue = Epilogue::activate;
  task.activation = Activation::silu;
  task.scale = 1.0f;
  task.out = step_.scratch.mixer_in;
  step_.multiply(w, in, task);
  task.a = step_.stream_again(w, norm, gate.matrix, in.matrix, task.a);
  task.epilogue = Epilogue::store;
  task.out.data = step_.scratch.mixer_at(0, LightningColumns(kind(layer)).gate);
  step_.multiply(w, gate, task);
}

// Clears the member's heads of sequences that begin.
void Lightning::clear_states(const StepWalk& w, size_t layer) {
  const Batch& batch = step_.batch();
  const Range heads = share(kind(layer).heads, 1, w.member, step_.pool.threads());
  for (int64_t s = 0; s < batch.sequences; ++s)
    if (batch.position[batch.start[s]] == 0) states_.clear(layer, batch.state[s], {0, 0}, heads);
}

// Moves the member's panels of the states by the tokens of all sequences; results replace values.
void Lightning::move_states(const StepWalk& w, size_t layer) {
  const Batch& batch = step_.batch();
  const LightningKind& k = kind(layer);
  const LightningColumns at(k);
  const Recurrence& weights = weights_.recurrence(layer);
  const Range panels = share(k.heads * state_panels(k.head_dim), 1, w.member, step_.pool.threads());
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t row = batch.start[s], stride = step_.scratch.mixer_in.stride;
    Mamba2Task task{};
    task.x = step_.scratch.mixer_at(row, 0);
    task.b = step_.scratch.mixer_at(row, at.k);
    task.c = step_.scratch.mixer_at(row, at.q);
    task.stride = stride;
    task.dt = step_.scratch.mixer_at(row, at.gate);  // of no effect: steps have the bounds 1 and 1
    task.dt_stride = stride;
    task.rows = batch.start[s + 1] - row;
    task.heads = task.groups = k.heads;
    task.head_dim = task.state_dim = k.head_dim;
    task.panel_begin = panels.begin;
    task.panel_end = panels.end;
    task.dt_bias = task.d = weights.d.data();  // zeros
    task.a_log = weights.a_log.data();
    task.dt_least = task.dt_most = 1.0f;
    task.state = states_.at(layer, batch.state[s]).heads;
    step_.kernel.mamba2(task);
  }
}

void Lightning::gate(const StepWalk& w, size_t layer) {
  const LightningKind& k = kind(layer);
  GatedNormTask task{};
  task.y = step_.scratch.mixer_at(0, 0);
  task.z = step_.scratch.mixer_at(0, LightningColumns(k).gate);
  task.y_stride = task.z_stride = step_.scratch.mixer_in.stride;
  task.dim = k.inner();
  task.groups = 1;
  task.weight = weights_.recurrence(layer).norm.data();
  task.eps = k.norm_eps;
  task.z_scale = 1.0f;
  task.by_sigmoid = true;
  task.out = step_.scratch.mixed.target(layers_[layer].out->matrix);
  step_.gate(w, task, layer + 1 == layers_.size());
}

}  // namespace forearm
