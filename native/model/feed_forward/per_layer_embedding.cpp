#include "model/feed_forward/per_layer_embedding.h"

#include <cmath>
#include <string>

#include "model/step/multiply.h"

namespace forearm {
namespace {

float* row_of(const Operand& rows, int64_t row) { return static_cast<float*>(rows.data) + row * rows.stride; }

}  // namespace

PerLayerEmbedding::PerLayerEmbedding(const Weights& weights, Step& step) : weights_(weights), step_(step) {
  const Config& c = step.config;
  if (!c.per_layer) return;
  const int64_t width = c.per_layer->width;
  table_ = &weights.linear("embed_per_layer", c.per_layer->vocab, c.per_layer_columns());
  model_ = &weights.linear("project_per_layer", c.per_layer_columns(), c.hidden);
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    layers_.push_back({weights.linear(layer + "per_layer_gate", width, c.hidden),
                       weights.linear(layer + "per_layer_out", c.hidden, width)});
  }
}

void PerLayerEmbedding::begin(StepWalk& w) {
  const Operand& inputs = step_.scratch.per_layer;
  GemmTask task{};
  task.a = step_.stream(w, nullptr, Norm{}, model_->matrix);
  task.row_end = w.rows;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f / std::sqrt(static_cast<float>(step_.config.hidden));
  task.out = inputs;
  step_.multiply(w, *model_, task);
  step_.barrier(w);
  const Range rows = step_.mine(w, w.rows);
  step_.kernel.head_norm({row_of(inputs, rows.begin), inputs.stride, rows.size(), static_cast<int64_t>(layers_.size()),
                          step_.config.per_layer->width, weights_.per_layer_norm().weight.data(),
                          step_.config.norm_eps});
  add_rows_of_table(w, rows);
}

void PerLayerEmbedding::add_rows_of_table(const StepWalk& w, Range rows) {
  const float half = std::sqrt(0.5f);
  float* own = step_.scratch.row(w.member);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t token = step_.batch().token[r], row = token < step_.config.per_layer->vocab ? token : 0;
    step_.kernel.embed({&row, 1, table_->matrix.weights(), step_.config.per_layer->scale, own, 0});
    float* x = row_of(step_.scratch.per_layer, r);
    for (int64_t i = 0; i < table_->matrix.k; ++i) x[i] = (x[i] + own[i]) * half;
  }
}

const Norm* PerLayerEmbedding::apply(StepWalk& w, size_t layer, const Norm* add) {
  const Linear &gate = layers_[layer].gate, &out = layers_[layer].out;
  const Operand& gated = step_.scratch.per_layer_gate;
  const bool last = layer + 1 == layers_.size();  // whose rows are those that need logits
  GemmTask task{};
  task.a = step_.stream(w, add, Norm{}, gate.matrix);
  task.row_end = w.rows;
  task.epilogue = Epilogue::activate;
  task.activation = step_.config.layers[layer].feed_forward->activation;
  task.scale = 1.0f;
  task.out = gated;
  step_.multiply(w, gate, task, [&](Range rows, int64_t, Range columns) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const float* input = row_of(step_.scratch.per_layer, last ? step_.batch().logit_row[r] : r) +
                           static_cast<int64_t>(layer) * step_.config.per_layer->width;
      for (int64_t i = columns.begin; i < columns.end; ++i) row_of(gated, r)[i] *= input[i];
    }
  });
  step_.barrier(w);
  const Norm* after = &weights_.norms(layer).per_layer;
  step_.project_back(w, step_.rows_of(w, step_.scratch.activated, gated, out.matrix), out, after);
  step_.barrier(w);
  return after;
}

}  // namespace forearm
