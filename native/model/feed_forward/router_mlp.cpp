#include "model/feed_forward/router_mlp.h"

#include <algorithm>
#include <string>

#include "model/step/multiply.h"

namespace forearm {

RouterMlp::RouterMlp(const Weights& weights, Step& step) : weights_(weights), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    const auto& experts = c.layers[i].experts;
    if (!experts || !experts->router_rank) continue;
    const std::string layer = "layers." + std::to_string(i) + ".";
    const int64_t rank = experts->router_rank;
    own.down = &weights.linear(layer + "router_down", rank, c.hidden);
    own.first = &weights.linear(layer + "router_first", rank, rank);
    own.second = &weights.linear(layer + "router_second", rank, rank);
    own.out = &weights.linear(layer + "router", experts->choices(), rank);
  }
}

void RouterMlp::apply(StepWalk& w, size_t layer, const Norm* add, const Norm& norm) {
  const LayerMatrices& own = layers_[layer];
  const Scratch& s = step_.scratch;
  GemmTask task{};
  task.row_end = w.rows;
  task.scale = 1.0f;
  task.activation = Activation::gelu_erf;
  const auto multiply = [&](const Operand& rows, const Linear& linear, Epilogue epilogue, const Operand& out) {
    task.a = rows;
    task.epilogue = epilogue;
    task.out = out;
    step_.multiply(w, linear, task);
  };
  multiply(step_.stream(w, add, norm, own.down->matrix), *own.down, Epilogue::store, s.router_in);
  step_.barrier(w);
  follow(layer, step_.mine(w, w.rows));
  step_.barrier(w);
  multiply(step_.rows_of(w, s.stream, s.router_in, own.first->matrix), *own.first, Epilogue::activate, s.router_middle);
  step_.barrier(w);
  multiply(step_.rows_of(w, s.stream, s.router_middle, own.second->matrix), *own.second, Epilogue::activate,
           s.router_in);
  step_.barrier(w);
  multiply(step_.rows_of(w, s.stream, s.router_in, own.out->matrix), *own.out, Epilogue::store, s.router);
}

// Adds what the layer before has handed on, hands on the sum, and normalizes it.
void RouterMlp::follow(size_t layer, Range rows) {
  const std::vector<float>& scale = weights_.router_state(layer);
  const Operand &in = step_.scratch.router_in, &state = step_.scratch.router_state;
  const int64_t rank = step_.config.layers[layer].experts->router_rank;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* x = static_cast<float*>(in.data) + r * in.stride;
    float* handed = static_cast<float*>(state.data) + r * state.stride;
    for (size_t i = 0; i < scale.size(); ++i) x[i] += handed[i] * scale[i];
    std::copy_n(x, rank, handed);
  }
  const Norm& norm = weights_.router_norm(layer);
  step_.kernel.norm({static_cast<float*>(in.data), in.stride, rows.begin, rows.end, rank, norm.weight.data(), nullptr,
                     step_.config.norm_eps, false, in});
}

}  // namespace forearm
