#include "model/mixers/recurrent/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/step/multiply.h"

namespace forearm {
namespace {

// Rows that are computed together: with heads of 128 dimensions their queries, keys, values and results take 96 KiB
// for two value heads, and stay in the second-level cache beside a head's state of 64 KiB.
constexpr int64_t kRows = 32;
constexpr float kNormEps = 1e-6f;  // of the squares' sum of a query or key, in every published model

// A member's scratch, kRows rows of each.
struct Buffers {
  Buffers(const GatedDeltaKind& kind, float* at)
      : key_stride(round_up(kind.key_dim, kPanel)),
        value_stride(round_up(kind.group() * kind.value_dim, kPanel)),
        q(at),
        k(q + kRows * key_stride),
        v(k + kRows * key_stride),
        out(v + kRows * value_stride),
        decay(out + kRows * value_stride),
        beta(decay + kRows * kind.group() * kind.decays()) {}

  int64_t key_stride, value_stride;
  float *q, *k, *v, *out, *decay, *beta;
};

}  // namespace

int64_t GatedDelta::scratch_floats(const GatedDeltaKind& kind) {
  const int64_t key = round_up(kind.key_dim, kPanel), value = round_up(kind.group() * kind.value_dim, kPanel);
  return kRows * (2 * (key + value) + kind.group() * (kind.decays() + 1));
}

GatedDelta::GatedDelta(const Weights& weights, const States& states, Step& step)
    : weights_(weights), states_(states), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    const auto* kind = c.layers[i].mixer_as<GatedDeltaKind>();
    if (!kind) continue;
    const std::string layer = "layers." + std::to_string(i) + ".";
    const DeltaColumns at(*kind);
    own.in = &weights.linear(layer + "delta_in", at.b, c.hidden);
    own.gates = &weights.linear(layer + "delta_gates", at.projected - at.b, c.hidden);
    if (kind->gate_rank) {
      own.z = &weights.linear(layer + "delta_z", kind->value_heads * kind->value_dim, kind->gate_rank);
      own.a = &weights.linear(layer + "delta_a", kind->value_heads * kind->key_dim, kind->gate_rank);
    }
    own.out = &weights.linear(layer + "delta_out", c.hidden, kind->value_heads * kind->value_dim);
    const float unit = 1.0f / std::sqrt(static_cast<float>(kind->key_dim));
    own.key_scale.assign(static_cast<size_t>(kind->key_dim), unit);
    own.query_scale.assign(static_cast<size_t>(kind->key_dim), 1.0f / static_cast<float>(kind->key_dim));
  }
}

const Norm* GatedDelta::mix(StepWalk& w, size_t layer, const Norm* add) {
  const LayerNorms& norms = weights_.norms(layer);
  const Linear& out = *layers_[layer].out;
  project(w, layer, add);
  step_.barrier(w);
  if (kind(layer).gate_rank) project_latents(w, layer);
  // A head's state stays with the members of one rank; a head's sequences follow each other.
  const int64_t sequences = step_.batch().sequences;
  const auto heads = [&](int rank) { return step_.ranks.part(kind(layer).key_heads, 1, rank); };
  step_.hand_out(
      w, [&](int rank) { return heads(rank).size() * sequences; },
      [&](int rank, int64_t i) {
        const int64_t s = i % sequences;
        const Range rows{step_.batch().start[s], step_.batch().start[s + 1]};
        compute_head(w, {layer, heads(rank).begin + i / sequences, s, rows});
      });
  ++w.phase;
  if (layer + 1 == layers_.size()) step_.keep_logit_rows(w);
  step_.barrier(w);
  const Norm* after = step_.config.joins_behind() ? &norms.post_attention : norms.post_attention.if_there();
  step_.project_back(w, step_.output(w, step_.scratch.mixed, out.matrix), out, after);
  step_.barrier(w);
  return after;
}

void GatedDelta::project(StepWalk& w, size_t layer, const Norm* add) {
  const Linear &in = *layers_[layer].in, &gates = *layers_[layer].gates;
  const Norm& norm = weights_.norms(layer).input;
  Operand rows = step_.stream(w, add, norm, in.matrix), out = step_.scratch.mixer_in;
  step_.multiply(w, in, rows, out);
  rows = step_.stream_again(w, norm, gates.matrix, in.matrix, rows);
  out.data = static_cast<float*>(out.data) + DeltaColumns(kind(layer)).b;
  step_.multiply(w, gates, rows, out);
}

// The rows of the two multiplications lie at two sites: members may be in either of them.
void GatedDelta::project_latents(StepWalk& w, size_t layer) {
  const DeltaColumns at(kind(layer));
  const auto columns = [&](int64_t column) {
    return Operand{step_.scratch.mixer_at(0, column), step_.scratch.mixer_in.stride, Form::f32_rows};
  };
  const auto multiply = [&](const Site& site, const Linear& linear, int64_t latent, int64_t out) {
    step_.multiply(w, linear, step_.rows_of(w, site, columns(latent), linear.matrix), columns(out));
  };
  multiply(step_.scratch.inner, *layers_[layer].z, at.z_latent, at.z);
  multiply(step_.scratch.stream, *layers_[layer].a, at.a_latent, at.a);
  step_.barrier(w);
}

void GatedDelta::compute_head(const StepWalk& w, HeadRows all) {
  const GatedDeltaKind& k = kind(all.layer);
  const Batch& batch = step_.batch();
  if (batch.position[all.rows.begin] == 0) {
    const int64_t slot = batch.state[all.sequence], keys = k.key_heads * k.key_dim;
    const Range query{all.head * k.key_dim, (all.head + 1) * k.key_dim};
    states_.clear(all.layer, slot, query, {0, 0});
    states_.clear(all.layer, slot, {keys + query.begin, keys + query.end}, {0, 0});
    for (int64_t run = 0; run < k.runs(); ++run) {
      const int64_t begin = k.run_begin(all.head, run), end = begin + k.run_heads();
      states_.clear(all.layer, slot, {2 * keys + begin * k.value_dim, 2 * keys + end * k.value_dim}, {begin, end});
    }
  }
  for (int64_t row = all.rows.begin; row < all.rows.end; row += kRows)
    compute_rows(w, {all.layer, all.head, all.sequence, {row, std::min(row + kRows, all.rows.end)}});
}

// Computes up to kRows rows.
void GatedDelta::compute_rows(const StepWalk& w, const HeadRows& own) {
  const GatedDeltaKind& k = kind(own.layer);
  const LayerMatrices& layer = layers_[own.layer];
  const Recurrence& weights = weights_.recurrence(own.layer);
  const Buffers to(k, step_.scratch.mixer(w.member));
  const DeltaColumns at(k);
  const int64_t rows = own.rows.size(), keys = k.key_heads * k.key_dim, query = own.head * k.key_dim;
  convolve(own, query, query, k.key_dim, to.q, to.key_stride);
  convolve(own, at.k + query, keys + query, k.key_dim, to.k, to.key_stride);
  // x / sqrt(sum of squares + eps) is an RMSNorm whose weights are 1 / sqrt(key_dim); queries are scaled by as much.
  const float eps = kNormEps / static_cast<float>(k.key_dim);
  step_.kernel.head_norm({to.q, to.key_stride, rows, 1, k.key_dim, layer.query_scale.data(), eps});
  step_.kernel.head_norm({to.k, to.key_stride, rows, 1, k.key_dim, layer.key_scale.data(), eps});
  float* state = states_.at(own.layer, step_.batch().state[own.sequence]).heads;
  for (int64_t run = 0; run < k.runs(); ++run) {
    const int64_t first = k.run_begin(own.head, run), heads = k.run_heads(), value = first * k.value_dim;
    convolve(own, at.v + value, 2 * keys + value, heads * k.value_dim, to.v, to.value_stride);
    const int64_t decays = k.decays();
    step_.kernel.delta_gates({step_.scratch.mixer_at(own.rows.begin, at.a + first * decays),
                              step_.scratch.mixer_at(own.rows.begin, at.b + first), step_.scratch.mixer_in.stride, rows,
                              heads, decays, weights.a_log.data() + first, weights.dt_bias.data() + first * decays,
                              to.decay, to.beta, k.beta_scale, k.least_decay});
    for (int64_t h = 0; h < heads; ++h) {
      float* out = to.out + h * k.value_dim;
      step_.kernel.delta_rule({to.q, to.k, to.key_stride, to.v + h * k.value_dim, to.value_stride,
                               to.decay + h * decays, heads * decays, k.by_channel, to.beta + h, heads, rows, k.key_dim,
                               k.value_dim, state + (first + h) * state_floats(k.key_dim, k.value_dim), out,
                               to.value_stride});
      store(own, out, to.value_stride, first + h);
    }
  }
}

// Convolves `channels` columns of the step's rows, which are the convolution's from `channel` on, into `out`.
void GatedDelta::convolve(const HeadRows& own, int64_t column, int64_t channel, int64_t channels, float* out,
                          int64_t stride) {
  const Convolution& weights = weights_.convolution(own.layer);
  const StateShape shape = step_.config.state(own.layer);
  ShortConvTask task{};
  task.b = step_.scratch.mixer_at(own.rows.begin, column);
  task.stride = step_.scratch.mixer_in.stride;
  task.rows = own.rows.size();
  task.width = shape.tail_rows + 1;
  task.taps = weights.taps.data() + channel;
  task.state = states_.at(own.layer, step_.batch().state[own.sequence]).tail + channel;
  task.channels = shape.channels;
  task.column_end = channels;
  task.out = {out, stride, Form::f32_rows};
  step_.kernel.short_conv(task);
}

// Normalizes a value head's results, multiplies them with their gate and stores them; in the last layer only those of
// rows that need logits.
void GatedDelta::store(const HeadRows& own, float* x, int64_t stride, int64_t value_head) {
  const GatedDeltaKind& k = kind(own.layer);
  const Batch& batch = step_.batch();
  const Operand target = step_.scratch.mixed.target(layers_[own.layer].out->matrix);
  const int64_t column = value_head * k.value_dim;
  const auto store_rows = [&](Range rows, int64_t out_row) {
    GatedNormTask task{};
    task.y = x;
    task.y_stride = stride;
    task.z = step_.scratch.mixer_at(own.rows.begin, DeltaColumns(k).z + column);
    task.z_stride = step_.scratch.mixer_in.stride;
    task.row_begin = rows.begin;
    task.row_end = rows.end;
    task.dim = k.value_dim;
    task.groups = 1;
    task.weight = weights_.recurrence(own.layer).norm.data();
    task.eps = k.gate_norm_eps > 0.0f ? k.gate_norm_eps : step_.config.norm_eps;
    task.z_scale = 1.0f;
    task.out = target;
    task.out_row = out_row;
    task.out_column = column;
    task.by_sigmoid = k.by_channel || k.sigmoid_gate;
    step_.kernel.gated_norm(task);
  };
  if (own.layer + 1 < layers_.size()) return store_rows({0, own.rows.size()}, own.rows.begin);
  const int32_t* end = batch.logit_row + batch.logits;
  for (const int32_t* at = std::lower_bound(batch.logit_row, end, own.rows.begin); at < end && *at < own.rows.end; ++at)
    store_rows({*at - own.rows.begin, *at + 1 - own.rows.begin}, at - batch.logit_row);
}

}  // namespace forearm
