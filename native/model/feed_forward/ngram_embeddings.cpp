#include "model/feed_forward/ngram_embeddings.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "model/step/multiply.h"
#include "model/step/multiply_heads.h"
#include "model/step/sigmoid.h"

namespace forearm {
namespace {

constexpr float kLeastGate = 1e-6f;

}  // namespace

NgramEmbeddings::NgramEmbeddings(const Weights& weights, const States& states, Step& step)
    : weights_(weights),
      states_(states),
      step_(step),
      streams_(step.config.hyper ? step.config.hyper->streams : 0),
      layers_(step.config.layers.size()) {
  const Config& c = step.config;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!c.layers[i].ngrams) continue;
    const NgramKind& own = kind(i);
    const std::string layer = "layers." + std::to_string(i) + ".";
    layers_[i].table = &weights.linear(layer + "ngrams", own.rows, own.width / own.all_heads());
    layers_[i].in = &weights.linear(layer + "ngrams_in", NgramColumns(c).end, own.width);
  }
}

void NgramEmbeddings::add(StepWalk& w, size_t layer) {
  const Batch& batch = step_.batch();
  const Scratch& s = step_.scratch;
  const Linear& in = *layers_[layer].in;
  const Range own = step_.mine(w, w.rows);
  for (int64_t i = 0; i < batch.sequences; ++i)
    for (int64_t row = std::max<int64_t>(own.begin, batch.start[i]);
         row < std::min<int64_t>(own.end, batch.start[i + 1]); ++row)
      look_up(layer, i, row);
  step_.barrier(w);
  step_.multiply(w, in, step_.rows_of(w, s.stream, s.ngrams, in.matrix), s.ngrams_in);
  step_.barrier(w);
  for (int64_t row = own.begin; row < own.end; ++row) gate(w, layer, row);
  step_.barrier(w);
  const int64_t hidden = step_.config.hidden;
  const Range channels = share(all_streams(), kPanel, w.member, step_.pool.threads());
  for (int64_t i = 0; i < batch.sequences; ++i) {
    for (int64_t at = channels.begin; at < channels.end;) {
      const int64_t end = std::min(channels.end, (at / hidden + 1) * hidden);
      convolve(layer, i, at / hidden, {at, end});
      at = end;
    }
    keep(layer, i, channels, w.member == 0);
  }
  step_.barrier(w);
}

float* NgramEmbeddings::stream(int64_t i, int64_t row) const {
  return floats_at(step_.scratch.streams, row, i * round_up(step_.config.hidden, kPanel));
}

// Of the sequence, in the step or before it; before the first one it is as if a text had ended.
int32_t NgramEmbeddings::token_before(size_t layer, int64_t sequence, int64_t row, int64_t distance) const {
  const Batch& batch = step_.batch();
  const int64_t first = batch.start[sequence];
  if (row - distance >= first) return batch.token[row - distance];
  if (batch.position[row] < distance) return static_cast<int32_t>(kind(layer).end);
  const float* kept = states_.at(layer, batch.state[sequence]).more;
  return std::bit_cast<int32_t>(kept[kind(layer).tokens() - 1 - (distance - (row - first))]);
}

// Writes the embeddings of a row's heads.
void NgramEmbeddings::look_up(size_t layer, int64_t sequence, int64_t row) const {
  const NgramKind& own = kind(layer);
  const int64_t width = own.width / own.all_heads();
  uint64_t hash = static_cast<uint64_t>(step_.batch().token[row]) * static_cast<uint64_t>(own.multipliers[0]);
  int64_t before = 0, first = 0;  // first: of the head's rows
  for (int64_t n = 1, head = 0; n < own.tokens(); ++n) {
    before = n > 1 && before == own.end ? own.end : token_before(layer, sequence, row, n);
    hash ^= static_cast<uint64_t>(before) * static_cast<uint64_t>(own.multipliers[static_cast<size_t>(n)]);
    for (int64_t i = 0; i < own.heads; ++i, ++head) {
      const int64_t size = own.sizes[static_cast<size_t>(head)];
      const auto at = static_cast<int32_t>(first + static_cast<int64_t>(hash) % size);
      step_.kernel.embed({&at, 1, layers_[layer].table->matrix.weights(), 1.0f,
                          floats_at(step_.scratch.ngrams, row, head * width), 0});
      first += size;
    }
  }
}

void NgramEmbeddings::normalize(const float* x, const float* weight, float* out) const {
  const Config& c = step_.config;
  step_.kernel.norm({x, 0, 0, 1, c.hidden, weight, nullptr, c.norm_eps, false, {out, 0, Form::f32_rows}});
}

// Replaces the row's keys by its gated value of each stream, and writes what the convolution reads.
void NgramEmbeddings::gate(const StepWalk& w, size_t layer, int64_t row) const {
  const NgramVectors& own = weights_.ngrams(layer);
  const int64_t hidden = step_.config.hidden;
  const float* value = floats_at(step_.scratch.ngrams_in, row, NgramColumns(step_.config).value);
  float *query = step_.scratch.row(w.member), *convolved = floats_at(step_.scratch.ngrams_gated, row, 0);
  for (int64_t i = 0; i < streams_; ++i) {
    float *key = floats_at(step_.scratch.ngrams_in, row, i * hidden), *out = convolved + i * hidden;
    normalize(stream(i, row), own.query.weight.data() + i * hidden, query);
    normalize(key, own.key.weight.data() + i * hidden, out);
    double sum = 0.0;
    for (int64_t c = 0; c < hidden; ++c) sum += static_cast<double>(out[c]) * query[c];
    const float product = static_cast<float>(sum) / std::sqrt(static_cast<float>(hidden));
    const float size = std::sqrt(std::fmax(std::fabs(product), kLeastGate));
    const float weight = sigmoid(product == 0.0f ? 0.0f : std::copysign(size, product));
    for (int64_t c = 0; c < hidden; ++c) key[c] = weight * value[c];
    normalize(key, own.convolved.weight.data() + i * hidden, out);
  }
}

// Adds a stream's values and their convolution to these channels of it, counted through all streams.
void NgramEmbeddings::convolve(size_t layer, int64_t sequence, int64_t stream_index, Range columns) const {
  const NgramKind& own = kind(layer);
  const Batch& batch = step_.batch();
  const std::vector<float>& taps = weights_.ngrams(layer).taps;
  const int64_t first = batch.start[sequence], all = all_streams(), tail = own.tail_rows();
  const float* kept = states_.at(layer, batch.state[sequence]).more + own.tokens() - 1;
  const float* rows = floats_at(step_.scratch.ngrams_gated, first, 0);
  for (int64_t row = first; row < batch.start[sequence + 1]; ++row) {
    float* to = stream(stream_index, row) + columns.begin - stream_index * step_.config.hidden;
    const float* value = floats_at(step_.scratch.ngrams_in, row, columns.begin);
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      float sum = 0.0f;
      for (int64_t j = 0; j < own.taps; ++j) {
        const int64_t back = (own.taps - 1 - j) * own.tokens(), from = row - first - back;
        if (batch.position[row] < back) continue;
        const float x = from >= 0 ? rows[from * step_.scratch.ngrams_gated.stride + c] : kept[(tail + from) * all + c];
        sum += taps[static_cast<size_t>(j * all + c)] * x;
      }
      to[c - columns.begin] += value[c - columns.begin] + sum * sigmoid(sum);
    }
  }
}

// Keeps the last rows' channels for the next step, and the last tokens.
void NgramEmbeddings::keep(size_t layer, int64_t sequence, Range channels, bool tokens) const {
  const NgramKind& own = kind(layer);
  const Batch& batch = step_.batch();
  const int64_t first = batch.start[sequence], count = batch.start[sequence + 1] - first, all = all_streams();
  float *ids = states_.at(layer, batch.state[sequence]).more, *tail = ids + own.tokens() - 1;
  const int64_t kept = own.tail_rows(), before = own.tokens() - 1;
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t from = count - kept + i;  // a row of the step, or one that is kept
    const float* x = from >= 0 ? floats_at(step_.scratch.ngrams_gated, first + from, 0) : tail + (i + count) * all;
    std::copy(x + channels.begin, x + channels.end, tail + i * all + channels.begin);
  }
  for (int64_t i = 0; i < before && tokens; ++i) {
    const int64_t from = count - before + i;
    ids[i] = from >= 0 ? std::bit_cast<float>(batch.token[first + from]) : ids[i + count];
  }
}

}  // namespace forearm
