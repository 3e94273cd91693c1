#include "model/mixers/recurrent/convolved_heads.h"

#include <algorithm>
#include <string>

#include "model/step/multiply_heads.h"

namespace forearm {
namespace {

// The least length of a head before it is normalized, as transformers' (float32's epsilon).
constexpr float kLeastLength = 0x1p-23f;

}  // namespace

ConvolvedHeads::ConvolvedHeads(const Weights& weights, const States& states, Step& step)
    : weights_(weights), states_(states), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const Linear*& own = heads_.emplace_back(nullptr);
    const auto* attention = c.layers[i].mixer_as<AttentionKind>();
    if (!attention || !attention->convolved) continue;
    const HeadShape heads = c.head_shape(i);
    own = &weights.linear("layers." + std::to_string(i) + ".conv_heads", heads.head_dim,
                          heads.head_dim * attention->convolved->head_taps, heads.heads + heads.kv_heads);
  }
}

void ConvolvedHeads::finish(StepWalk& w, size_t layer, const Linear& qkv) {
  const HeadShape heads = step_.config.head_shape(layer);
  const QkvColumns at(heads);
  const int64_t query = heads.heads * heads.head_dim, key = heads.kv_heads * heads.head_dim;
  const auto own = [&](int64_t columns) { return share(columns, kPanel, w.member, step_.pool.threads()); };
  convolve(layer, 0, 0, own(query));
  convolve(layer, at.key, query, own(key));
  delay_values(layer, qkv, own(key / 2));
  step_.barrier(w);
  const Linear& linear = *heads_[layer];
  const Matrix& matrix = linear.matrix;
  const int64_t out = kind(layer).head_taps * (query + key);
  each_head(w, step_, matrix, [&](int64_t head, Range rows, Range columns) {
    multiply_head(w.member, step_, matrix, head, columns, part_of(step_.scratch.convolved, rows.begin, head * matrix.k),
                  rows.size(), part_of(step_.scratch.convolved, rows.begin, out + head * matrix.n),
                  linear.bias_of(head));
  });
  step_.barrier(w);
  const Range rows = step_.mine(w, step_.batch().tokens);
  add_means(layer, rows);
  normalize(layer, rows);
}

// Convolves the member's channels of all sequences, [channels.begin, channels.end) behind channel `first`, which stand
// from `column` on in Scratch::mixer_in.
void ConvolvedHeads::convolve(size_t layer, int64_t column, int64_t first, Range channels) {
  const Batch& batch = step_.batch();
  const HeadShape heads = step_.config.head_shape(layer);
  const Convolution& weights = weights_.convolution(layer);
  const int64_t all = (heads.heads + heads.kv_heads) * heads.head_dim;
  const Range own{first + channels.begin, first + channels.end};
  ShortConvTask task{};
  task.stride = step_.scratch.mixer_in.stride;
  task.width = kind(layer).taps;
  task.taps = weights.taps.data() + first;
  task.bias = weights.bias.data() + first;
  task.channels = all;
  task.column_begin = channels.begin;
  task.column_end = channels.end;
  task.out = part_of(step_.scratch.convolved, 0, kind(layer).head_taps * all + first);
  task.plain = true;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const Range rows{batch.start[s], batch.start[s + 1]};
    const LayerState state = states_.at(layer, batch.state[s]);
    if (batch.position[rows.begin] == 0) {
      states_.clear(layer, batch.state[s], own, {0, 0});
      // Rows before the first token are zeros, of which the first convolution makes its bias.
      for (int64_t i = 0; i < kind(layer).late(); ++i)
        std::copy(weights.bias.begin() + own.begin, weights.bias.begin() + own.end, state.heads + i * all + own.begin);
    }
    task.b = step_.scratch.mixer_at(rows.begin, column);
    task.rows = rows.size();
    task.state = state.tail + first;
    task.out_row = rows.begin;
    step_.kernel.short_conv(task);
    spread(layer, s, own);
  }
}

// Puts the channels of each row and of the rows before it side by side, as the matrices of heads take them: channel by
// channel, and of each the last head_taps rows.
void ConvolvedHeads::spread(size_t layer, int64_t sequence, Range channels) {
  const Batch& batch = step_.batch();
  const HeadShape heads = step_.config.head_shape(layer);
  const int64_t all = (heads.heads + heads.kv_heads) * heads.head_dim, taps = kind(layer).head_taps;
  const int64_t begin = batch.start[sequence], rows = batch.start[sequence + 1] - begin, late = kind(layer).late();
  float* kept = states_.at(layer, batch.state[sequence]).heads;
  const Operand& convolved = step_.scratch.convolved;
  // Row `i` of those that are kept and, behind them, those of the step.
  const auto row = [&](int64_t i) {
    return i < late ? kept + i * all : floats_at(convolved, begin + i - late, taps * all);
  };
  for (int64_t r = 0; r < rows; ++r) {
    float* out = floats_at(convolved, begin + r, 0);
    for (int64_t tap = 0; tap < taps; ++tap) {
      const float* from = row(r + tap);
      for (int64_t c = channels.begin; c < channels.end; ++c) out[c * taps + tap] = from[c];
    }
  }
  // Ascending, so that a row is read before it is overwritten.
  for (int64_t i = 0; i < late; ++i) {
    const float* from = row(rows + i);
    std::copy(from + channels.begin, from + channels.end, kept + i * all + channels.begin);
  }
}

// Moves the member's columns of the second half of values one token on.
void ConvolvedHeads::delay_values(size_t layer, const Linear& qkv, Range columns) {
  const Batch& batch = step_.batch();
  const HeadShape heads = step_.config.head_shape(layer);
  const int64_t half = heads.kv_heads * heads.head_dim / 2, first = QkvColumns(heads).value + half;
  const int64_t behind = kind(layer).late() * (heads.heads + heads.kv_heads) * heads.head_dim;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const Range rows{batch.start[s], batch.start[s + 1]};
    float* kept = states_.at(layer, batch.state[s]).heads + behind;
    const bool begins = batch.position[rows.begin] == 0;
    for (int64_t i = columns.begin; i < columns.end; ++i) {
      // Before the first token stands a row of zeros, of which the bias is made.
      float before = !begins ? kept[i] : qkv.bias.empty() ? 0.0f : qkv.bias[static_cast<size_t>(first + i)];
      for (int64_t r = rows.begin; r < rows.end; ++r) std::swap(before, *step_.scratch.mixer_at(r, first + i));
      kept[i] = before;
    }
  }
}

// Adds means of projected queries and keys to what the convolutions have made of them: to a query half of itself and of
// its group's key, to a key the mean of what its queries get.
void ConvolvedHeads::add_means(size_t layer, Range rows) {
  const HeadShape heads = step_.config.head_shape(layer);
  const int64_t dim = heads.head_dim, group = heads.group(), query = heads.heads * dim;
  const int64_t out = kind(layer).head_taps * (query + heads.kv_heads * dim), key = QkvColumns(heads).key;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* convolved = floats_at(step_.scratch.convolved, r, out);
    float *q = step_.scratch.mixer_at(r, 0), *k = step_.scratch.mixer_at(r, key);
    for (int64_t i = 0; i < heads.kv_heads * dim; ++i) {
      const int64_t first = i / dim * group * dim + i % dim;
      float sum = 0.0f;
      for (int64_t at = first; at < first + group * dim; at += dim) {
        const float mean = (q[at] + k[i]) * 0.5f;
        sum += mean;
        q[at] = convolved[at] + mean;
      }
      k[i] = convolved[query + i] + sum / static_cast<float>(group);
    }
  }
}

// Gives each head the length sqrt(head_dim), and multiplies keys with the number of their head.
void ConvolvedHeads::normalize(size_t layer, Range rows) {
  if (rows.size() == 0) return;
  const HeadShape heads = step_.config.head_shape(layer);
  const int64_t dim = heads.head_dim, key = QkvColumns(heads).key, stride = step_.scratch.mixer_in.stride;
  const float eps = kLeastLength * kLeastLength / static_cast<float>(dim);
  const std::vector<float>& scale = weights_.convolution(layer).key_scale;
  step_.kernel.head_norm({step_.scratch.mixer_at(rows.begin, 0), stride, rows.size(), heads.heads, dim, nullptr, eps});
  step_.kernel.head_norm(
      {step_.scratch.mixer_at(rows.begin, key), stride, rows.size(), heads.kv_heads, dim, nullptr, eps});
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t i = 0; i < heads.kv_heads * dim; ++i)
      *step_.scratch.mixer_at(r, key + i) *= scale[static_cast<size_t>(i / dim)];
}

}  // namespace forearm
