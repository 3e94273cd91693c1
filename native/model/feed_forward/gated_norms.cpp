#include "model/feed_forward/gated_norms.h"

#include <cmath>
#include <string>

#include "model/step/multiply.h"

namespace forearm {

GatedNorms::GatedNorms(const Weights& weights, Step& step) : weights_(weights), step_(step) {
  const Config& c = step.config;
  const auto gate = [&](const std::string& name) {
    return Gate{&weights.linear(name + "_gate_down", c.norm_gates, c.hidden),
                &weights.linear(name + "_gate_up", c.hidden, c.norm_gates)};
  };
  for (size_t i = 0; i < c.layers.size() && c.norm_gates; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    mixers_.push_back(gate(layer + "input"));
    experts_.push_back(c.layers[i].experts ? gate(layer + "pre_mlp") : Gate{});
  }
}

const Norm* GatedNorms::apply(StepWalk& w, size_t layer, Half half, const Norm* add) {
  const LayerNorms& norms = weights_.norms(layer);
  const Norm& norm = half == Half::mixer ? norms.input : norms.pre_mlp;
  const Gate& gate = half == Half::mixer ? mixers_[layer] : experts_[layer];
  const Scratch& s = step_.scratch;
  if (add) {
    step_.add_projected(*add, step_.mine(w, w.rows));
    step_.barrier(w);
  }
  GemmTask task{};
  task.a = step_.normed_rows(w, s.residual, norm, gate.down->matrix);
  task.row_end = w.rows;
  task.epilogue = Epilogue::activate;
  task.activation = Activation::silu;
  task.scale = 1.0f;
  task.out = s.norm_gate_in;
  step_.multiply(w, *gate.down, task);
  step_.barrier(w);
  task.a = step_.rows_of(w, s.stream, s.norm_gate_in, gate.up->matrix);
  task.epilogue = Epilogue::store;
  task.out = s.gated;
  step_.multiply(w, *gate.up, task);
  step_.barrier(w);
  multiply_gates(w, norm, step_.mine(w, w.rows));
  step_.barrier(w);
  return nullptr;
}

void GatedNorms::multiply_gates(const StepWalk& w, const Norm& norm, Range rows) const {
  float* y = step_.scratch.row(w.member);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* x = static_cast<float*>(step_.scratch.gated.data) + r * step_.scratch.gated.stride;
    step_.normalize(norm, step_.residual_row(0), {r, r + 1}, {y, 0, Form::f32_rows});
    for (int64_t i = 0; i < step_.config.hidden; ++i) x[i] = y[i] / (1.0f + std::exp(-x[i]));
  }
}

}  // namespace forearm
