#include "model/cache/compressor.h"

#include <algorithm>
#include <cmath>

#include "model/partition.h"

namespace forearm {

// Visits the numbers of entries and, where entries are chosen, those of the keys that they are chosen by.
template <class Visit>
void Compressor::each(size_t layer, const Visit& visit) const {
  const CompressedKind& k = kind(layer);
  const int64_t dim = step_.config.head_dim;
  const CompressedColumns at(k, dim);
  visit(Numbers{false, dim, 0, at.gate, 0});
  if (k.chosen) visit(Numbers{true, k.index_dim, at.index, at.index_gate, dim});
}

void Compressor::move_states(const StepWalk& w, size_t layer) const {
  const Batch& batch = step_.batch();
  each(layer, [&](const Numbers& numbers) {
    const Range own = share(numbers.dim, kPanel, w.member, step_.pool.threads());
    if (own.size() == 0) return;
    const Range channels{numbers.channel + own.begin, numbers.channel + own.end};
    for (int64_t s = 0; s < batch.sequences; ++s) {
      if (batch.position[batch.start[s]] == 0) states_.clear(layer, batch.state[s], channels, {0, 0});
      move(layer, numbers, own, s, step_.scratch.mixer(w.member));
    }
  });
}

// Moves these channels of a sequence's state. room: a float for each.
void Compressor::move(size_t layer, const Numbers& numbers, Range channels, int64_t sequence, float* room) const {
  const CompressedKind& k = kind(layer);
  const Batch& batch = step_.batch();
  const Operand& in = step_.scratch.index_in;
  const int64_t stride = step_.config.state(layer).channels, count = channels.size(), series = k.series();
  float* state = states_.at(layer, batch.state[sequence]).tail + numbers.channel + channels.begin;
  const float* biases = weights_.entry_bias(layer, numbers.index).data() + channels.begin;
  for (int64_t row = batch.start[sequence]; row < batch.start[sequence + 1]; ++row) {
    float* x = static_cast<float*>(in.data) + row * in.stride + numbers.at + channels.begin;
    const float* gates = x + (numbers.gates - numbers.at);
    const float* bias = biases + batch.position[row] % k.ratio * series * numbers.dim;
    for (int64_t i = 0; i < series; ++i) {  // the last series makes the entry of this window
      const int64_t at = i * numbers.dim;
      float* to = state + (i + 1 == series ? 0 : 3 * stride);
      add(x + at, gates + at, bias + at, count, to, stride, room);
    }
    if ((batch.position[row] + 1) % k.ratio != 0) continue;
    const float *sum = state + stride, *weighted = state + 2 * stride;
    for (int64_t c = 0; c < count; ++c) x[c] = weighted[c] / sum[c];
    for (int64_t i = 0; i < 3; ++i) {
      float* to = state + i * stride;
      if (series == 2) std::copy_n(to + 3 * stride, count, to);
      std::fill_n(series == 2 ? to + 3 * stride : to, count, 0.0f);
    }
  }
}

// Adds a token's numbers to a state of maxima, sums and weighted sums, `stride` apart; of a sum of 0: of no token yet.
void Compressor::add(const float* numbers, const float* gates, const float* bias, int64_t count, float* state,
                     int64_t stride, float* room) const {
  float *most = state, *sum = state + stride, *weighted = state + 2 * stride;
  for (int64_t c = 0; c < count; ++c) {
    const float gate = gates[c] + bias[c];
    if (sum[c] == 0.0f) most[c] = gate;
    room[c] = -std::fabs(gate - most[c]);
  }
  step_.kernel.row_exp_sum({room, count}, 0.0f, 1.0f, room);
  for (int64_t c = 0; c < count; ++c) {
    const float gate = gates[c] + bias[c];
    const bool above = gate > most[c];
    const float before = above ? room[c] : 1.0f, own = above ? 1.0f : room[c];
    sum[c] = sum[c] * before + own;
    weighted[c] = weighted[c] * before + own * numbers[c];
    most[c] = above ? gate : most[c];
  }
}

void Compressor::store(const StepWalk& w, size_t layer) const {
  const Range rows = step_.mine(w, step_.batch().tokens);
  for (int64_t row = rows.begin; row < rows.end; ++row)
    if ((step_.batch().position[row] + 1) % kind(layer).ratio == 0)
      each(layer, [&](const Numbers& numbers) { store_entry(layer, numbers, row); });
}

// The entry has the position of the first token that it stands for.
void Compressor::store_entry(size_t layer, const Numbers& numbers, int64_t row) const {
  const CompressedKind& k = kind(layer);
  const Scratch& s = step_.scratch;
  const Rope& rope = step_.config.ropes[static_cast<size_t>(k.rope)];
  const auto pairs = static_cast<int64_t>(rope.inv_freq.size());
  float* x = static_cast<float*>(s.index_in.data) + row * s.index_in.stride + numbers.at;
  const LayerNorms& norms = weights_.norms(layer);
  const Norm& norm = numbers.index ? norms.index : norms.entry;
  step_.kernel.head_norm({x, 0, 1, 1, numbers.dim, norm.weight.data(), step_.config.norm_eps});
  float cosines[kMostPairs], sines[kMostPairs];
  const int64_t position = step_.batch().position[row];
  angles_at(rope, position + 1 - k.ratio, cosines, sines);
  step_.kernel.rope({x + numbers.dim - 2 * pairs, 0, 1, 1, 2 * pairs, 2 * pairs, cosines, sines, rope.interleaved});
  const KvCache cache = numbers.index ? kv_.index(layer) : kv_.entries(layer);
  const int64_t slot = step_.slots(kv_.entry_group(layer))[row];
  const auto place = static_cast<int32_t>(slot - slot % kBlockTokens + slot % kBlockTokens / k.ratio);
  step_.kernel.write_kv({cache, x, nullptr, 0, 1, numbers.dim, 0, &place});
}

}  // namespace forearm
