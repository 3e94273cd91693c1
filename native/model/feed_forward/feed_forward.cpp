#include "model/feed_forward/feed_forward.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/step/multiply.h"

namespace forearm {
namespace {

// The sum of f(i) for i < n in 16 lanes, folded by halves: the same order whatever vectors a compiler makes of it.
template <class Term>
float sum_of(int64_t n, const Term& f) {
  float lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t lane = 0; lane < 16; ++lane) lanes[lane] += f(i + lane);
  for (int64_t lane = 0; i + lane < n; ++lane) lanes[lane] += f(i + lane);
  for (int half = 8; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

// Replaces a row whose panels alternate gate and up by gelu_tanh(cut gate) * up in its first `width` numbers. Most cut
// gates are 0, so that the few tanh take less time than the sums; a NaN stays one.
void cut_and_activate(float* row, int64_t width, float cut) {
  const auto gate_at = [](int64_t i) { return i / kPanel * 2 * kPanel + i % kPanel; };
  const auto count = static_cast<float>(width);
  const float mean = sum_of(width, [&](int64_t i) { return row[gate_at(i)]; }) / count;
  const float variance = sum_of(width,
                                [&](int64_t i) {
                                  const float d = row[gate_at(i)] - mean;
                                  return d * d;
                                }) /
                         count;
  const float least = mean + cut * std::sqrt(variance);
  for (int64_t i = 0; i < width; ++i) {
    const float gate = row[gate_at(i)] - least, up = row[gate_at(i) + kPanel];
    const float inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
    row[i] = gate <= 0.0f ? 0.0f : 0.5f * gate * (1.0f + std::tanh(inner)) * up;
  }
}

}  // namespace

int64_t FeedForward::phases(const Config& c, int64_t step_tokens) {
  const auto cuts = [](const LayerKind& layer) { return layer.feed_forward && layer.feed_forward->gate_cut; };
  const bool some = std::any_of(c.layers.begin(), c.layers.end(), cuts);
  return 4 + (some ? 2 * ((step_tokens + kCutRows - 1) / kCutRows) : 0);
}

FeedForward::FeedForward(const Weights& weights, TokenShift& token_shift, Step& step)
    : weights_(weights), token_shift_(token_shift), step_(step) {
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
  const Linear& down = *layers_[layer].down;
  const FeedForwardKind& kind = *step_.config.layers[layer].feed_forward;
  const LayerNorms& norms = weights_.norms(layer);
  if (kind.gate_cut) apply_cut(w, layer, add);
  const Operand activated =
      kind.gate_cut ? step_.output(w, step_.scratch.activated, down.matrix) : activate(w, layer, rows(w, layer, add));
  const Norm* after = step_.config.joins_both() ? &norms.post_mlp : norms.post_mlp.if_there();
  step_.project_back(w, activated, down, after, kind.out_scale);
  step_.barrier(w);
  return after;
}

// Returns the rows that the first matrix is multiplied with. Behind the last layer's mixer a shifted feed-forward needs
// all rows until they are mixed.
Operand FeedForward::rows(StepWalk& w, size_t layer, const Norm* add) {
  const Matrix& up = layers_[layer].up->matrix;
  const Norm& norm = weights_.norms(layer).pre_mlp;
  if (!step_.config.layers[layer].feed_forward->shifted) return step_.stream(w, add, norm, up);
  const bool last = layer + 1 == layers_.size();
  const Site& site = step_.scratch.shifted[0];
  token_shift_.normalize(w, add, norm);
  step_.barrier(w);
  token_shift_.mix(w, layer, TokenShift::Half::feed_forward, weights_.recurrence(layer).mlp_mix.data(), site.target(up),
                   last);
  token_shift_.keep(w, layer, TokenShift::Half::feed_forward);
  if (last) step_.keep_logit_rows(w);
  step_.barrier(w);
  return step_.output(w, site, up);
}

Operand FeedForward::activate(StepWalk& w, size_t layer, const Operand& in) {
  const Linear &up = *layers_[layer].up, &down = *layers_[layer].down;
  const FeedForwardKind& kind = *step_.config.layers[layer].feed_forward;
  const Norm* norm = weights_.norms(layer).ffn_sub.if_there();
  GemmTask task{};
  task.a = in;
  task.row_end = w.rows;
  task.epilogue = kind.gated ? Epilogue::gated : Epilogue::activate;
  task.activation = kind.activation;
  task.gate_limit = kind.gate_limit;
  task.limit = kind.limit;
  task.scale = kind.gate_scale;
  const Xielu xielu = kind.activation == Activation::xielu ? weights_.xielu(layer) : Xielu{};
  task.xielu = &xielu;
  task.out = step_.scratch.activated.target(down.matrix, norm);
  step_.multiply(w, up, task);
  step_.barrier(w);
  return step_.output(w, step_.scratch.activated, down.matrix, norm);
}

void FeedForward::apply_cut(StepWalk& w, size_t layer, const Norm* add) {
  const Matrix &up = layers_[layer].up->matrix, &down = layers_[layer].down->matrix;
  const FeedForwardKind& kind = *step_.config.layers[layer].feed_forward;
  if (add) step_.add_projected(*add, step_.mine(w, w.rows));
  step_.barrier(w);
  const Operand gates = step_.scratch.cut_gates, target = step_.scratch.activated.target(down);
  for (int64_t first = 0; first < w.rows; first += kCutRows) {
    StepWalk block{w.member, std::min(kCutRows, w.rows - first), w.phase};
    Operand rows = step_.scratch.residual;
    rows.data = step_.residual_row(first);
    GemmTask task{};
    task.a = step_.normed_rows(block, rows, weights_.norms(layer).pre_mlp, up);
    task.row_end = block.rows;
    task.epilogue = Epilogue::store;
    task.scale = 1.0f;
    task.out = gates;
    step_.multiply(block, *layers_[layer].up, task);
    step_.barrier(w);
    const Range own = step_.mine(w, block.rows);
    for (int64_t r = own.begin; r < own.end; ++r) {
      float* row = static_cast<float*>(gates.data) + r * gates.stride;
      cut_and_activate(row, kind.width, *kind.gate_cut);
      float* turned = layers_[layer].down->matrix.format.turned ? row : nullptr;
      step_.kernel.quantize({row, 0, first + r, first + r + 1, kind.width, nullptr, target, turned});  // of stride 0
    }
    w.phase = block.phase;
    step_.barrier(w);
  }
}

}  // namespace forearm
