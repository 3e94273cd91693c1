#include "model/mixers/biases/distance_embeddings.h"

#include <algorithm>
#include <numeric>

#include "kernels/pack.h"

namespace forearm {
namespace {

constexpr int64_t kPairKeys = 2 * kBlockTokens;
// Keys that are multiplied at once: with the 32 queries of an item they have 63 distances.
constexpr int64_t kKeys = kBlockTokens;

int64_t head_floats(const Config& c) { return packed_elements(c.bias_rows(), c.head_dim, 4); }

// Columns of whole panels that hold these.
Range panels_of(int64_t first, int64_t last) { return {first / kPanel * kPanel, round_up(last + 1, kPanel)}; }

}  // namespace

DistanceEmbeddings::DistanceEmbeddings(const Weights& weights, Step& step)
    : config_(step.config),
      weights_(weights),
      step_(step),
      rows_(config_.bias_rows()),
      width_(round_up(rows_, kPanel)),
      at_(config_.head_shape(0)) {
  const auto reach = static_cast<int64_t>(config_.distance_buckets.size() / 2);
  for (int64_t distance = 1 - config_.max_positions; distance < config_.max_positions; ++distance)
    places_.push_back(static_cast<int32_t>(
        config_.distance_buckets[static_cast<size_t>(reach - std::clamp(distance, -reach, reach))]));
}

int64_t DistanceEmbeddings::kept_floats(const Config& c) {
  return c.distance_embeddings() ? static_cast<int64_t>(c.layers.size()) * 2 * c.heads * head_floats(c) : 0;
}

int64_t DistanceEmbeddings::scratch_floats(const Config& c, const Limits& limits) {
  if (!c.distance_embeddings()) return 0;
  const int64_t width = round_up(c.bias_rows(), kPanel);
  return kItemTokens * round_up(limits.max_model_len, kPairKeys) + (kItemTokens + kKeys) * width;
}

float* DistanceEmbeddings::packed(size_t layer, Side side, int64_t head) const {
  const auto before = static_cast<int64_t>(2 * layer + (side == of_queries ? 1 : 0)) * config_.heads + head;
  return step_.scratch.distances + before * head_floats(config_);
}

void DistanceEmbeddings::project() {
  if (projected_) return;
  projected_ = true;
  std::vector<int32_t> ids(static_cast<size_t>(rows_));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> rows(static_cast<size_t>(rows_ * config_.hidden));
  const Linear& table = weights_.linear("distances", rows_, config_.hidden);
  step_.kernel.embed({ids.data(), rows_, table.matrix.weights(), 1.0f, rows.data(), config_.hidden});
  if (const Norm* norm = weights_.distance_norm().if_there())
    step_.kernel.norm({rows.data(),
                       config_.hidden,
                       0,
                       rows_,
                       config_.hidden,
                       norm->weight.data(),
                       or_null(norm->bias),
                       config_.norm_eps,
                       config_.layer_norm,
                       {rows.data(), config_.hidden, Form::f32_rows}});
  for (size_t layer = 0; layer < config_.layers.size(); ++layer) project_layer(layer, rows);
}

void DistanceEmbeddings::project_layer(size_t layer, const std::vector<float>& rows) {
  const std::string name = "layers." + std::to_string(layer);
  std::vector<float> projected(static_cast<size_t>(rows_ * at_.value));
  if (config_.distances_apart()) {
    project_by(weights_.linear(name + ".distance_q"), rows, projected.data());
    project_by(weights_.linear(name + ".distance_k"), rows, projected.data() + at_.key);
  } else {
    project_by(weights_.linear(name + ".qkv"), rows, projected.data());
  }
  const int64_t dim = config_.head_dim;
  std::vector<float> head(static_cast<size_t>(rows_ * dim));
  for (const Side side : {of_keys, of_queries})
    for (int64_t h = 0; h < config_.heads; ++h) {
      const float* from = projected.data() + (side == of_keys ? at_.key : 0) + h * dim;
      for (int64_t r = 0; r < rows_; ++r) std::copy_n(from + r * at_.value, dim, head.data() + r * dim);
      const Layout layout = step_.kernel.layout[static_cast<int>(DType::f32)];
      pack_rows(head.data(), DType::f32, rows_, {packed(layer, side, h), DType::f32, layout.quantum, dim}, 0);
    }
}

// Multiplies as a step does, with the rows in the form that the matrix takes, as many at once as a step has.
void DistanceEmbeddings::project_by(const Linear& linear, const std::vector<float>& rows, float* out) const {
  const Operand in = step_.scratch.stream.shared.operand(linear.matrix);
  const int64_t wanted = config_.distances_apart() ? linear.matrix.n : at_.value;
  for (int64_t first = 0; first < rows_; first += step_.scratch.step_tokens) {
    const int64_t count = std::min(step_.scratch.step_tokens, rows_ - first);
    step_.kernel.quantize({rows.data() + first * config_.hidden, config_.hidden, 0, count, config_.hidden,
                           linear.matrix.order_of(0), in});
    step_.pool.run([&](int member) {
      const Range columns = share(wanted, kPanel, member, step_.pool.threads());
      GemmTask task{};
      task.a = in;
      task.row_end = columns.size() > 0 ? count : 0;
      task.w = linear.matrix.weights();
      task.n_begin = columns.begin;
      task.n_end = columns.end;
      task.bias = or_null(linear.bias);
      task.epilogue = Epilogue::store;
      task.scale = 1.0f;
      task.out = {out + first * at_.value, at_.value, Form::f32_rows};
      task.scratch = step_.scratch.gemm(member);
      if (columns.size() > 0) step_.kernel.gemm(task);
    });
  }
}

// out[r][n] = rows[r] . by[n] for `count` rows that lie in Scratch::mixer_in, and columns n of whole panels.
void DistanceEmbeddings::multiply(const float* rows, int64_t count, const float* by, Range columns, float* out) const {
  GemmTask task{};
  task.a = {const_cast<float*>(rows), step_.scratch.mixer_in.stride, Form::f32_rows};
  task.row_end = count;
  task.w = {by, DType::f32, rows_, config_.head_dim};
  task.n_begin = columns.begin;
  task.n_end = std::min(columns.end, rows_);
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.out = {out, width_, Form::f32_rows};
  step_.kernel.gemm(task);
}

KeyBias DistanceEmbeddings::terms(int member, size_t layer, const AttentionItem& item, Range keys) const {
  const int64_t stride = round_up(keys.size(), kPairKeys), dim = config_.head_dim, head = item.kv_head;
  const int64_t query = item.first_position, last = query + item.tokens - 1, sequence = item.row - query;
  float* terms = step_.scratch.mixer(member);
  float *by_query = terms + kItemTokens * stride, *by_key = by_query + kItemTokens * width_;
  multiply(step_.scratch.mixer_at(item.row, head * dim), item.tokens, packed(layer, of_keys, head),
           panels_of(place(query - keys.end + 1), place(last - keys.begin)), by_query);
  for (int64_t r = 0; r < item.tokens; ++r) std::fill(terms + r * stride + keys.size(), terms + (r + 1) * stride, 0.0f);
  for (int64_t first = keys.begin; first < keys.end; first += kKeys) {
    const int64_t count = std::min(kKeys, keys.end - first);
    multiply(step_.scratch.mixer_at(sequence + first, at_.key + head * dim), count, packed(layer, of_queries, head),
             panels_of(place(query - first - count + 1), place(last - first)), by_key);
    for (int64_t r = 0; r < item.tokens; ++r) {
      const float* of_row = by_query + r * width_;
      float* to = terms + r * stride + first - keys.begin;
      for (int64_t j = 0; j < count; ++j) {
        const int64_t n = place(query + r - first - j);
        to[j] = (of_row[n] + by_key[j * width_ + n]) * config_.attention_scale;
      }
    }
  }
  return {terms, stride, keys.begin};
}

}  // namespace forearm
