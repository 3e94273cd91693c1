#include "model/feed_forward/feed_forward.h"

#include <string>

#include "model/step/multiply.h"

namespace forearm {

FeedForward::FeedForward(const Weights& weights, Step& step) : weights_(weights), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    if (c.layers[i].experts || !c.layers[i].feed_forward) continue;
    const FeedForwardKind& kind = *c.layers[i].feed_forward;
    const std::string layer = "layers." + std::to_string(i) + ".";
    const int64_t columns = kind.gated ? 2 * round_up(kind.width, kPanel) : kind.width;
    own.up = &weights.linear(layer + "up", columns, c.hidden);
    own.down = &weights.linear(layer + "down", c.hidden, kind.width);
  }
}

const Norm* FeedForward::apply(StepWalk& w, size_t layer, const Norm* add) {
  const Linear &up = *layers_[layer].up, &down = *layers_[layer].down;
  const FeedForwardKind& kind = *step_.config.layers[layer].feed_forward;
  const LayerNorms& norms = weights_.norms(layer);
  GemmTask task{};
  task.a = step_.stream(w, add, norms.pre_mlp, up.matrix);
  task.row_end = w.rows;
  task.epilogue = kind.gated ? Epilogue::gated : Epilogue::activate;
  task.activation = kind.activation;
  task.scale = kind.gate_scale;
  const Xielu xielu = kind.activation == Activation::xielu ? weights_.xielu(layer) : Xielu{};
  task.xielu = &xielu;
  task.out = step_.scratch.activated.target(down.matrix);
  step_.multiply(w, up, task);
  step_.barrier(w);
  const Norm* after = norms.post_mlp.if_there();
  step_.project_back(w, step_.output(w, step_.scratch.activated, down.matrix), down, after, kind.out_scale);
  step_.barrier(w);
  return after;
}

}  // namespace forearm
