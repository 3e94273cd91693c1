#include "model/feed_forward/alt_up.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/step/multiply.h"

namespace forearm {
namespace {

constexpr float kLeastSquare = 1e-5f;  // of the mean of a stream's squares
constexpr int64_t kColumns = 64;       // of all streams that are mixed at once

// Sums in 16 lanes, folded by halves: the same order whatever vectors a compiler makes of it.
float dot(const float* a, const float* b, int64_t n) {
  float lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t lane = 0; lane < 16; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (int64_t lane = 0; i + lane < n; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (int half = 8; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

}  // namespace

AltUp::AltUp(const Weights& weights, Step& step)
    : weights_(weights),
      step_(step),
      streams_(step.config.alt_up ? step.config.alt_up->streams : 0),
      hidden_(step.config.hidden),
      stride_(round_up(hidden_, kPanel)) {
  if (!streams_) return;
  in_ = &weights.linear("stream_in", streams_ == 2 ? hidden_ : (streams_ - 1) * stride_, hidden_);
  for (int64_t i = 1; i < streams_; ++i)
    out_.push_back(&weights.linear("stream_out_" + std::to_string(i), hidden_, hidden_));
  for (size_t i = 0; i < step.config.layers.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    layers_.push_back({weights.linear(layer + "laurel_left", step.config.alt_up->laurel, hidden_),
                       weights.linear(layer + "laurel_right", hidden_, step.config.alt_up->laurel)});
  }
}

Operand AltUp::stream(int64_t i) const {
  Operand rows = step_.scratch.streams;
  rows.data = stream_row(i, 0);
  return rows;
}

float* AltUp::stream_row(int64_t i, int64_t row) const {
  const Operand& rows = step_.scratch.streams;
  return static_cast<float*>(rows.data) + row * rows.stride + i * stride_;
}

float AltUp::root_mean_square(const float* x) const {
  return std::sqrt(dot(x, x, hidden_) / static_cast<float>(hidden_));
}

void AltUp::begin(StepWalk& w) {
  GemmTask task{};
  task.a = step_.stream(w, nullptr, Norm{}, in_->matrix);
  task.row_end = w.rows;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.out = stream(1);
  step_.multiply(w, *in_, task);
  step_.barrier(w);
  const Range own = step_.mine(w, w.rows);
  for (int64_t r = own.begin; r < own.end; ++r) {
    std::copy_n(step_.residual_row(r), hidden_, stream_row(0, r));
    const float size = root_mean_square(stream_row(0, r));
    for (int64_t i = 1; i < streams_; ++i) {
      float* x = stream_row(i, r);
      const float factor = size / std::fmax(root_mean_square(x), std::sqrt(kLeastSquare));
      for (int64_t c = 0; c < hidden_; ++c) x[c] *= factor;
    }
    predict(w.member, 0, r);
  }
  step_.barrier(w);
}

// modalities: [streams]
void AltUp::route(int member, size_t layer, const float* x, float* modalities) const {
  const AltUpVectors& own = weights_.alt_up(layer);
  float* normed = step_.scratch.row(member);
  step_.kernel.norm(
      {x, 0, 0, 1, hidden_, own.norm.data(), nullptr, step_.config.norm_eps, false, {normed, 0, Form::f32_rows}});
  for (int64_t i = 0; i < streams_; ++i)
    modalities[i] = std::tanh(dot(own.router.data() + i * hidden_, normed, hidden_) / static_cast<float>(hidden_));
}

// Replaces the streams of a row by those that the layer begins with.
void AltUp::predict(int member, size_t layer, int64_t row) const {
  float modalities[AltUpKind::kMost], factors[AltUpKind::kMost * AltUpKind::kMost];
  route(member, layer, stream_row(0, row), modalities);
  const float* weights = weights_.alt_up(layer).predict.data();
  for (int64_t i = 0; i < streams_ * streams_; ++i) factors[i] = dot(weights + i * streams_, modalities, streams_);
  for (int64_t first = 0; first < hidden_; first += kColumns) {
    const int64_t count = std::min(kColumns, hidden_ - first);
    float before[AltUpKind::kMost][kColumns];
    for (int64_t i = 0; i < streams_; ++i) std::copy_n(stream_row(i, row) + first, count, before[i]);
    for (int64_t i = 0; i < streams_; ++i) {
      float* to = stream_row(i, row) + first;
      for (int64_t j = 0; j < streams_; ++j)
        for (int64_t c = 0; c < count; ++c) to[c] += factors[i * streams_ + j] * before[j][c];
    }
  }
  std::copy_n(stream_row(0, row), hidden_, step_.residual_row(row));
}

// As Step::keep_logit_rows: ascending, so that a row is read before it is overwritten.
void AltUp::keep_logit_rows(const StepWalk& w) const {
  const Range columns = share(streams_ * stride_, kPanel, w.member, step_.pool.threads());
  for (int64_t i = 0; i < w.rows; ++i) {
    const float* from = stream_row(0, step_.batch().logit_row[i]);
    if (step_.batch().logit_row[i] != i)
      std::copy(from + columns.begin, from + columns.end, stream_row(0, i) + columns.begin);
  }
}

void AltUp::add_laurel(StepWalk& w, size_t layer) {
  if (layer + 1 == layers_.size()) keep_logit_rows(w);
  const Linear &left = layers_[layer].laurel_left, &right = layers_[layer].laurel_right;
  const Norm& before = weights_.norms(layer).input;
  GemmTask task{};
  task.row_end = w.rows;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.a = step_.stream(w, nullptr, before, left.matrix);
  task.out = step_.scratch.laurel_in;
  step_.multiply(w, left, task);
  step_.barrier(w);
  task.a = step_.rows_of(w, step_.scratch.activated, step_.scratch.laurel_in, right.matrix);
  task.out = step_.scratch.laurel;
  step_.multiply(w, right, task);
  step_.barrier(w);
  const Range own = step_.mine(w, w.rows);
  float* normed = step_.scratch.row(w.member);
  for (int64_t r = own.begin; r < own.end; ++r) {
    float* x = step_.residual_row(r);
    step_.normalize(before, x, {0, 1}, {normed, 0, Form::f32_rows});
    for (int64_t c = 0; c < hidden_; ++c) x[c] += normed[c];
  }
  const Operand& added = step_.scratch.laurel;
  step_.kernel.add_norm(
      {{static_cast<const float*>(added.data), added.stride, own.begin, own.end, hidden_,
        weights_.alt_up(layer).laurel.weight.data(), nullptr, step_.config.norm_eps, false, step_.scratch.residual},
       1.0f});
  step_.barrier(w);
}

const Norm* AltUp::correct(StepWalk& w, size_t layer, const Norm& add) {
  const AltUpVectors& vectors = weights_.alt_up(layer);
  const Range own = step_.mine(w, w.rows);
  step_.add_projected(add, own);
  for (int64_t r = own.begin; r < own.end; ++r) {
    float* x = step_.residual_row(r);
    float modalities[AltUpKind::kMost];
    route(w.member, layer, x, modalities);
    const float* predicted = stream_row(0, r);
    for (int64_t c = 0; c < hidden_; ++c) x[c] -= predicted[c];
    for (int64_t i = 0; i < streams_; ++i) {
      const float factor = 1.0f + dot(vectors.correct.data() + i * streams_, modalities, streams_);
      float* to = stream_row(i, r);
      for (int64_t c = 0; c < hidden_; ++c) to[c] += factor * x[c];
    }
    std::copy_n(stream_row(0, r), hidden_, x);
    for (int64_t c = 0; c < static_cast<int64_t>(vectors.scale.size()); ++c) x[c] *= vectors.scale[c];
  }
  step_.barrier(w);
  return nullptr;
}

const Norm* AltUp::go_on(StepWalk& w, size_t layer, const Norm& add) {
  const Range own = step_.mine(w, w.rows);
  float* normed = step_.scratch.row(w.member);
  for (int64_t r = own.begin; r < own.end; ++r) {
    step_.normalize(add, step_.projected_row(r), {0, 1}, {normed, 0, Form::f32_rows});
    for (int64_t i = 1; i < streams_; ++i) {
      float* to = stream_row(i, r);
      for (int64_t c = 0; c < hidden_; ++c) to[c] += normed[c];
    }
    if (layer + 1 < layers_.size()) predict(w.member, layer + 1, r);
  }
  step_.barrier(w);
  return nullptr;
}

void AltUp::finish(StepWalk& w) {
  const Range own = step_.mine(w, w.rows);
  for (int64_t r = own.begin; r < own.end; ++r) std::copy_n(stream_row(0, r), hidden_, step_.residual_row(r));
  for (int64_t i = 1; i < streams_; ++i) {
    const Linear& out = *out_[static_cast<size_t>(i - 1)];
    GemmTask task{};
    task.a = step_.rows_of(w, step_.scratch.stream, stream(i), out.matrix);
    task.row_end = w.rows;
    task.epilogue = Epilogue::store;
    task.scale = 1.0f;
    task.out = step_.scratch.projected;
    step_.multiply(w, out, task);
    step_.barrier(w);
    for (int64_t r = own.begin; r < own.end; ++r) {
      const float *x = step_.projected_row(r), size = root_mean_square(stream_row(0, r));
      const float factor = size / std::fmax(root_mean_square(x), std::sqrt(kLeastSquare));
      for (int64_t c = 0; c < hidden_; ++c) step_.residual_row(r)[c] += factor * x[c];
    }
    step_.barrier(w);
  }
  for (int64_t r = own.begin; r < own.end; ++r)
    for (int64_t c = 0; c < hidden_; ++c) step_.residual_row(r)[c] /= static_cast<float>(streams_);
  step_.barrier(w);
}

}  // namespace forearm
