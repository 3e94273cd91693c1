#include "model/feed_forward/hyper_connections.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/step/multiply.h"
#include "model/step/multiply_heads.h"
#include "model/step/sigmoid.h"

namespace forearm {
namespace {

// Columns of a part of all streams, whose products are summed apart: of a row of 4096 columns 32 members have work, and
// a part's weights stay in a near cache while it is computed for all rows.
constexpr int64_t kPartColumns = 128;

// Adds to the lanes of sums that `fold` adds up.
void add_products(const float* a, const float* b, int64_t n, float (&lanes)[16]) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t lane = 0; lane < 16; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (int64_t lane = 0; i + lane < n; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
}

// By halves: the same order whatever vectors a compiler makes of it.
float fold(float (&lanes)[16]) {
  for (int half = 8; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

}  // namespace

HyperConnections::HyperConnections(const Weights& weights, const States& states, Step& step)
    : weights_(weights),
      step_(step),
      ngrams_(weights, states, step),
      streams_(step.config.hyper ? step.config.hyper->streams : 0),
      hidden_(step.config.hidden),
      stride_(round_up(hidden_, kPanel)),
      parts_((hidden_ + kPartColumns - 1) / kPartColumns) {
  const Config& c = step.config;
  const int64_t rank = c.hyper ? c.hyper->rank : 0, numbers = streams_ * hidden_;
  for (size_t half = 0; half <= 2 * c.layers.size() && rank; ++half) {
    const std::string layer = "layers." + std::to_string(half / 2) + (half % 2 ? ".hyper_mlp" : ".hyper_attention");
    const std::string name = half == 2 * c.layers.size() ? "hyper_head" : layer;
    gates_.push_back({&weights.linear(name + "_down", rank, numbers), &weights.linear(name + "_up", numbers, rank)});
  }
}

// The sum of the squares, and one of each weight.
int64_t HyperConnections::sums(const Config& c) {
  return (c.hidden + kPartColumns - 1) / kPartColumns * (1 + c.hyper->weights());
}

Range HyperConnections::columns_of(int64_t part) const {
  return {part * kPartColumns, std::min((part + 1) * kPartColumns, hidden_)};
}

float* HyperConnections::stream(int64_t i, int64_t row) const {
  const Operand& rows = step_.scratch.streams;
  return static_cast<float*>(rows.data) + row * rows.stride + i * stride_;
}

// Calls work(row, part) for all of them, divided among the members, rows of a part following each other.
template <class Work>
void HyperConnections::each_part(const StepWalk& w, const Work& work) const {
  if (w.rows == 0) return;
  const Range own = share(parts_ * w.rows, 1, w.member, step_.pool.threads());
  for (int64_t i = own.begin; i < own.end; ++i) work(i % w.rows, i / w.rows);
}

void HyperConnections::begin(StepWalk& w) {
  each_part(w, [&](int64_t row, int64_t part) {
    const Range columns = columns_of(part);
    for (int64_t i = 0; i < streams_; ++i)
      std::copy_n(step_.residual_row(row) + columns.begin, columns.size(), stream(i, row) + columns.begin);
    if (gates_.empty()) add_up(0, row, part);
  });
  step_.barrier(w);
  read_streams(w, 0);
}

// Makes the residual that a half reads; ends with a barrier.
void HyperConnections::read_streams(StepWalk& w, size_t half) {
  const auto& layers = step_.config.layers;
  if (half % 2 == 0 && half / 2 < layers.size() && layers[half / 2].ngrams) ngrams_.add(w, half / 2);
  if (gates_.empty()) return collapse(w, half);
  if (w.rows > 0) gate(w, half);
}

const Norm* HyperConnections::join(StepWalk& w, size_t half) {
  if (half + 2 == 2 * step_.config.layers.size()) {  // the last mixer's result has the rows of logits alone
    keep_logit_rows(w);
    step_.barrier(w);
  }
  each_part(w, [&](int64_t row, int64_t part) {
    mix(row, columns_of(part));
    if (gates_.empty()) add_up(half + 1, row, part);
  });
  step_.barrier(w);
  read_streams(w, half + 1);
  return nullptr;
}

// As Step::keep_logit_rows: ascending, so that a row is read before it is overwritten.
void HyperConnections::keep_logit_rows(const StepWalk& w) const {
  const Range columns = share(streams_ * stride_, kPanel, w.member, step_.pool.threads());
  const auto* weights = static_cast<float*>(step_.scratch.hyper_weights.data);
  const int64_t stride = step_.scratch.hyper_weights.stride;
  for (int64_t i = 0; i < w.rows; ++i) {
    const int64_t from = step_.batch().logit_row[i];
    if (from == i) continue;
    std::copy_n(stream(0, from) + columns.begin, columns.size(), stream(0, i) + columns.begin);
    if (w.member == 0)
      std::copy_n(weights + from * stride, stride, static_cast<float*>(step_.scratch.hyper_weights.data) + i * stride);
  }
}

// Adds the half's result to these columns of a row's streams, and mixes them, by the weights that were made before it.
void HyperConnections::mix(int64_t row, Range columns) const {
  const Operand& kept = step_.scratch.hyper_weights;
  const float* post = static_cast<float*>(kept.data) + row * kept.stride;
  const float *weights = post + streams_, *y = step_.projected_row(row) + columns.begin;
  const bool mixes = step_.config.hyper->rounds > 0;
  float before[HyperKind::kMost][kPartColumns];
  for (int64_t i = 0; i < streams_; ++i) std::copy_n(stream(i, row) + columns.begin, columns.size(), before[i]);
  for (int64_t j = 0; j < streams_; ++j) {
    float* to = stream(j, row) + columns.begin;
    for (int64_t c = 0; c < columns.size(); ++c) to[c] = post[j] * y[c];
    for (int64_t i = 0; i < streams_ && mixes; ++i)
      for (int64_t c = 0; c < columns.size(); ++c) to[c] += weights[i * streams_ + j] * before[i][c];
    for (int64_t c = 0; c < columns.size() && !mixes; ++c) to[c] += before[j][c];
  }
}

// Adds up the squares of a part of a row's streams, and their products with each row of the half's matrix.
void HyperConnections::add_up(size_t half, int64_t row, int64_t part) const {
  const HyperVectors& own = weights_.hyper(half);
  const Range columns = columns_of(part);
  const auto count = static_cast<int64_t>(own.base.size());
  const Operand& all = step_.scratch.hyper_sums;
  float* sums = static_cast<float*>(all.data) + row * all.stride + part * (1 + step_.config.hyper->weights());
  const auto add = [&](const auto& other) {
    float lanes[16] = {};
    for (int64_t i = 0; i < streams_; ++i)
      add_products(stream(i, row) + columns.begin, other(i) + columns.begin, columns.size(), lanes);
    return fold(lanes);
  };
  *sums++ = add([&](int64_t i) { return stream(i, row); });
  for (int64_t n = 0; n < count; ++n)
    sums[n] = add([&](int64_t i) { return own.project.data() + (n * streams_ + i) * hidden_; });
}

// Makes the weights of a row's streams before a half, or before the final norm, which has pre alone.
void HyperConnections::weigh(size_t half, int64_t row, StreamWeights& own) const {
  const HyperKind& kind = *step_.config.hyper;
  const HyperVectors& vectors = weights_.hyper(half);
  const Operand& all = step_.scratch.hyper_sums;
  float u[1 + (2 + HyperKind::kMost) * HyperKind::kMost] = {};
  const auto count = static_cast<int64_t>(vectors.base.size());
  for (int64_t part = 0; part < parts_; ++part) {
    const float* sums = static_cast<float*>(all.data) + row * all.stride + part * (1 + kind.weights());
    for (int64_t n = 0; n <= count; ++n) u[n] += sums[n];
  }
  const float factor = 1.0f / std::sqrt(u[0] / static_cast<float>(streams_ * hidden_) + step_.config.norm_eps);
  for (int64_t n = 0; n < count; ++n) {
    const auto part = static_cast<size_t>(std::min<int64_t>(n / streams_, 2));
    u[n + 1] = u[n + 1] * factor * vectors.scale[part] + vectors.base[static_cast<size_t>(n)];
  }
  for (int64_t i = 0; i < streams_; ++i) own.pre[i] = sigmoid(u[1 + i]) + kind.eps;
  if (count == streams_) return;
  for (int64_t i = 0; i < streams_; ++i)
    own.post[i] = kind.most * sigmoid(u[1 + streams_ + i]) + (kind.rounds ? 0.0f : kind.eps);
  if (kind.rounds) balance(u + 1 + 2 * streams_, own);
}

// Makes a doubly stochastic matrix of its logits (Sinkhorn and Knopp 1967).
void HyperConnections::balance(const float* logits, StreamWeights& own) const {
  const HyperKind& kind = *step_.config.hyper;
  const auto each = [&](const auto& at) {  // divides the rows or columns by their sums
    for (int64_t i = 0; i < streams_; ++i) {
      float sum = kind.eps;
      for (int64_t j = 0; j < streams_; ++j) sum += at(i, j);
      for (int64_t j = 0; j < streams_; ++j) at(i, j) /= sum;
    }
  };
  const auto by_row = [&](int64_t i, int64_t j) -> float& { return own.mix[i][j]; };
  const auto by_column = [&](int64_t i, int64_t j) -> float& { return own.mix[j][i]; };
  for (int64_t i = 0; i < streams_; ++i) {
    const float* row = logits + i * streams_;
    const float most = *std::max_element(row, row + streams_);
    float sum = 0.0f;
    for (int64_t j = 0; j < streams_; ++j) sum += own.mix[i][j] = std::exp(row[j] - most);
    for (int64_t j = 0; j < streams_; ++j) own.mix[i][j] = own.mix[i][j] / sum + kind.eps;
  }
  each(by_column);
  for (int64_t round = 1; round < kind.rounds; ++round) {
    each(by_row);
    each(by_column);
  }
}

// Makes the residual of all rows; parts of a row follow each other, so that a member weighs few rows.
void HyperConnections::collapse(const StepWalk& w, size_t half) const {
  const Range own = share(parts_ * w.rows, 1, w.member, step_.pool.threads());
  StreamWeights weights{};
  for (int64_t i = own.begin; i < own.end; ++i) {
    const int64_t row = i / parts_, part = i % parts_;
    if (i == own.begin || part == 0) weigh(half, row, weights);
    const Range columns = columns_of(part);
    float* x = step_.residual_row(row) + columns.begin;
    std::fill_n(x, columns.size(), 0.0f);
    for (int64_t s = 0; s < streams_; ++s) {
      const float* from = stream(s, row) + columns.begin;
      for (int64_t c = 0; c < columns.size(); ++c) x[c] += weights.pre[s] * from[c];
    }
    if (part > 0) continue;
    const Operand& kept = step_.scratch.hyper_weights;
    float* to = static_cast<float*>(kept.data) + row * kept.stride;
    std::copy_n(weights.post, streams_, to);
    for (int64_t s = 0; s < streams_ && step_.config.hyper->rounds; ++s)
      std::copy_n(weights.mix[s], streams_, to + (1 + s) * streams_);
  }
  step_.barrier(w);
}

// Makes the residual of all rows as the mean of gated streams, and the weights of the half's result.
void HyperConnections::gate(StepWalk& w, size_t half) {
  const Scratch& s = step_.scratch;
  const Norm& norm = weights_.hyper(half).norm;
  const Range own = share(streams_ * w.rows, 1, w.member, step_.pool.threads());
  for (int64_t i = own.begin; i < own.end; ++i) {
    const int64_t row = i / streams_, at = i % streams_;
    step_.kernel.norm({stream(at, row),
                       0,
                       0,
                       1,
                       hidden_,
                       norm.weight.data() + at * hidden_,
                       nullptr,
                       step_.config.norm_eps,
                       false,
                       {floats_at(s.hyper_normed, row, at * hidden_), 0, Form::f32_rows}});
  }
  step_.barrier(w);
  multiply_gates(w, half);
  const bool injects = half < 2 * step_.config.layers.size();
  each_part(w, [&](int64_t row, int64_t part) {
    const Range columns = columns_of(part);
    float* x = step_.residual_row(row) + columns.begin;
    std::fill_n(x, columns.size(), 0.0f);
    for (int64_t i = 0; i < streams_; ++i) {
      const float* gates = floats_at(s.hyper_gates, row, i * hidden_ + columns.begin);
      const float* from = floats_at(s.hyper_normed, row, i * hidden_ + columns.begin);
      for (int64_t c = 0; c < columns.size(); ++c) x[c] += gates[c] * from[c];
    }
    for (int64_t c = 0; c < columns.size(); ++c) x[c] /= static_cast<float>(streams_);
    for (int64_t i = part; i < streams_ && injects; i += parts_)
      floats_at(s.hyper_weights, row, 0)[i] = step_.config.hyper->most * inject(half, i, row);
  });
  step_.barrier(w);
}

// Ends with a barrier.
void HyperConnections::multiply_gates(StepWalk& w, size_t half) {
  const Scratch& s = step_.scratch;
  const Linear &down = *gates_[half].down, &up = *gates_[half].up;
  GemmTask task{};
  task.row_end = w.rows;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f / static_cast<float>(streams_);
  task.a = step_.rows_of(w, s.stream, s.hyper_normed, down.matrix);
  task.out = s.hyper_few;
  step_.multiply(w, down, task, [&](Range rows, int64_t, Range columns) {
    for (int64_t row = rows.begin; row < rows.end; ++row)
      for (int64_t c = columns.begin; c < columns.end; ++c) {
        float* x = floats_at(s.hyper_few, row, c);
        *x *= sigmoid(*x);
      }
  });
  step_.barrier(w);
  task.a = step_.rows_of(w, s.activated, s.hyper_few, up.matrix);
  task.scale = 1.0f;
  task.out = s.hyper_gates;
  step_.multiply(w, up, task, [&](Range rows, int64_t, Range columns) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      float* x = floats_at(s.hyper_gates, row, columns.begin);
      step_.kernel.row_exp_sum({x, columns.size()}, 0.0f, -1.0f, x);
      for (int64_t c = 0; c < columns.size(); ++c) x[c] = 1.0f / (1.0f + x[c]);
    }
  });
  step_.barrier(w);
}

// What weighs the half's result in a stream, over HyperKind::most.
float HyperConnections::inject(size_t half, int64_t stream_index, int64_t row) const {
  const int64_t numbers = streams_ * hidden_;
  float lanes[16] = {};
  add_products(weights_.hyper(half).project.data() + stream_index * numbers,
               floats_at(step_.scratch.hyper_normed, row, 0), numbers, lanes);
  return sigmoid(fold(lanes) / static_cast<float>(streams_));
}

}  // namespace forearm
