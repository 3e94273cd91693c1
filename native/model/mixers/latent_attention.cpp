#include "model/mixers/latent_attention.h"

#include <algorithm>
#include <string>

#include "model/mixers/paged_attention.h"
#include "model/step/multiply.h"
#include "model/step/multiply_heads.h"
#include "model/step/sigmoid.h"

namespace forearm {

LatentAttention::LatentAttention(const Weights& weights, const KvBlocks& kv, const Attention& attention, Step& step)
    : config_(step.config),
      weights_(weights),
      kv_(kv),
      attention_(attention),
      step_(step),
      indexer_(weights, kv, step) {
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    if (!config_.layers[i].mixer_as<LatentKind>()) continue;
    const LatentKind& k = kind(i);
    const std::string layer = "layers." + std::to_string(i) + ".";
    const int64_t heads = config_.heads_of(k);
    own.in = &weights.linear(layer + "latent_in", LatentColumns(k, config_).end, config_.hidden);
    if (k.q_rank) own.q = &weights.linear(layer + "q_up", QueryColumns(k, config_).end, k.query_columns());
    own.k_up = &weights.linear(layer + "k_up", k.rank, k.plain, heads);
    own.v_up = &weights.linear(layer + "v_up", k.value, k.rank, heads);
    own.o = &weights.linear(layer + "o", config_.hidden, heads * k.value);
  }
}

const Norm* LatentAttention::mix(StepWalk& w, size_t layer, const Norm* add) {
  const LayerMatrices& m = layers_[layer];
  const LayerNorms& norms = weights_.norms(layer);
  const Operand rows = step_.stream(w, add, norms.input, m.in->matrix);
  step_.multiply(w, *m.in, rows, step_.scratch.mixer_in);
  if (indexer_.has(layer)) indexer_.project(w, layer, m.in->matrix, rows);
  step_.barrier(w);
  store_latents(w, layer);
  if (indexer_.has(layer)) indexer_.store_keys(w, layer);
  step_.barrier(w);
  if (m.q) project_queries(w, layer);
  absorb(w, layer);
  step_.barrier(w);
  if (kind(layer).query_growth != 0.0f) {
    grow(w, kind(layer));
    step_.barrier(w);
  }
  if (indexer_.has(layer)) indexer_.choose(w, layer);
  attend(w, layer);
  if (layer + 1 == layers_.size()) step_.keep_logit_rows(w);
  step_.barrier(w);
  weigh(w, layer);
  step_.barrier(w);
  const Norm* after = config_.joins_behind() ? &norms.post_attention : norms.post_attention.if_there();
  const Operand mixed = config_.gates_latents() ? step_.raw_output(w, step_.scratch.mixed, m.o->matrix)
                                                : step_.output(w, step_.scratch.mixed, m.o->matrix);
  step_.project_back(w, mixed, *m.o, after);
  step_.barrier(w);
  return after;
}

// Normalizes both latents of the member's rows, rotates the shared key, and stores what the cache keeps.
void LatentAttention::store_latents(const StepWalk& w, size_t layer) {
  const LatentKind& k = kind(layer);
  const LayerNorms& norms = weights_.norms(layer);
  const Operand& in = step_.scratch.mixer_in;
  const Range rows = step_.mine(w, w.rows);
  const auto normalize = [&](int64_t column, int64_t width, const Norm& norm, const Operand& out) {
    step_.kernel.norm({floats_at(in, 0, column), in.stride, rows.begin, rows.end, width, norm.weight.data(), nullptr,
                       k.norm_eps, false, out});
  };
  if (k.joint_gates) {
    const Operand& twice = step_.scratch.inner.raw;
    normalize(0, k.q_rank, norms.q, twice);
    for (int64_t r = rows.begin; r < rows.end; ++r)
      std::copy_n(floats_at(in, r, 0), k.q_rank, floats_at(twice, r, k.q_rank));
  } else if (k.q_rank) {
    const Operand latent = step_.scratch.inner.target(layers_[layer].q->matrix);
    normalize(0, k.q_rank, norms.q, latent);
    if (const Matrix* other = indexer_.queries(layer)) {
      const Operand own = step_.scratch.inner.target(*other);
      if (own.data != latent.data) normalize(0, k.q_rank, norms.q, own);  // one is floats, the other codes
    }
  }
  const int64_t at = LatentColumns(k, config_).latent;
  normalize(at, k.rank, norms.k, part_of(in, 0, at));
  if (k.key_norm) normalize(at + k.rank, k.rotary, norms.rotated_key, part_of(in, 0, at + k.rank));
  rotate(k, in, at + k.rank, rows);
  step_.kernel.write_kv({kv_.layer(static_cast<int64_t>(layer), 0), floats_at(in, rows.begin, at), nullptr, in.stride,
                         rows.size(), k.key_dim(), 0, step_.scratch.slots + rows.begin});
}

// Rotates k.rotary columns of x from `column` on, if the layer has positions.
void LatentAttention::rotate(const LatentKind& k, const Operand& x, int64_t column, Range rows) const {
  if (!k.rope) return;
  const auto rope = static_cast<size_t>(*k.rope);
  const int64_t first = rows.begin * k.rotary / 2;
  step_.kernel.rope({floats_at(x, rows.begin, column), x.stride, rows.size(), 1, k.rotary, k.rotary,
                     step_.scratch.cosines[rope] + first, step_.scratch.sines[rope] + first,
                     config_.ropes[rope].interleaved});
}

void LatentAttention::project_queries(StepWalk& w, size_t layer) {
  const Linear& q = *layers_[layer].q;
  const bool joint = kind(layer).joint_gates;
  const Operand latents =
      joint ? step_.raw_output(w, step_.scratch.inner, q.matrix) : step_.output(w, step_.scratch.inner, q.matrix);
  step_.multiply(w, q, latents, step_.scratch.queries);
  if (indexer_.has(layer)) indexer_.project_queries(w, layer, q.matrix, latents);
  step_.barrier(w);
}

// Multiplies the plain part of each head's query with W_K, and appends the rotated part.
void LatentAttention::absorb(StepWalk& w, size_t layer) {
  const LatentKind& k = kind(layer);
  const Operand& queries = k.q_rank ? step_.scratch.queries : step_.scratch.mixer_in;
  const Operand& absorbed = step_.scratch.absorbed;
  each_head(w, step_, layers_[layer].k_up->matrix, [&](int64_t head, Range rows, Range columns) {
    const int64_t from_column = head * k.query_dim(), to = head * k.key_dim();
    multiply_head(w.member, step_, layers_[layer].k_up->matrix, head, columns,
                  part_of(queries, rows.begin, from_column), rows.size(), part_of(absorbed, rows.begin, to));
    if (columns.begin > 0) return;
    rotate(k, queries, from_column + k.plain, rows);
    const float* rotated = floats_at(queries, rows.begin, from_column + k.plain);
    for (int64_t r = 0; r < rows.size(); ++r)
      std::copy_n(rotated + r * queries.stride, k.rotary, floats_at(absorbed, rows.begin + r, to + k.rank));
    const bool gated = config_.attention_gate != Gate::none && config_.head_gates;
    for (int64_t r = rows.begin; r < rows.end && gated; ++r)
      *floats_at(absorbed, r, config_.heads_of(k) * k.key_dim() + head) =
          *floats_at(step_.scratch.mixer_in, r, LatentColumns(k, config_).gate + head);
  });
}

// Multiplies the absorbed queries of the member's rows, as Attention does with queries.
void LatentAttention::grow(const StepWalk& w, const LatentKind& k) const {
  const Range rows = step_.mine(w, w.rows);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float factor = Attention::query_factor(k.query_growth, step_.batch().position[r], k.query_positions);
    float* x = floats_at(step_.scratch.absorbed, r, 0);
    for (int64_t i = 0; i < config_.heads_of(k) * k.key_dim() && factor != 1.0f; ++i) x[i] *= factor;
  }
}

void LatentAttention::attend(StepWalk& w, size_t layer) {
  const LatentKind& k = kind(layer);
  AttendTask task{};
  task.q = floats_at(step_.scratch.absorbed, 0, 0);
  task.q_stride = step_.scratch.absorbed.stride;
  task.scale = config_.attention_scale;
  if (config_.attention_gate != Gate::none && config_.head_gates)
    task.gate = task.q + config_.heads_of(k) * k.key_dim();
  task.window = k.window;
  task.gate_kind = config_.attention_gate;
  task.gates = 1;
  task.sinks = or_null(weights_.sinks(layer));
  task.out = step_.scratch.attended;
  forearm::attend(w, step_, kv_, attention_.plan_of(layer), layer, task);
}

// Multiplies each head's weighted latent with W_V, and the result with its gates if every number has one.
void LatentAttention::weigh(StepWalk& w, size_t layer) {
  const LatentKind& k = kind(layer);
  const bool gated = config_.gates_latents();
  const Operand out = gated ? step_.scratch.mixed.raw : step_.scratch.mixed.target(layers_[layer].o->matrix);
  each_head(w, step_, layers_[layer].v_up->matrix, [&](int64_t head, Range rows, Range columns) {
    multiply_head(w.member, step_, layers_[layer].v_up->matrix, head, columns,
                  part_of(step_.scratch.attended, rows.begin, head * k.rank), rows.size(),
                  part_of(out, rows.begin, head * k.value));
    if (gated) gate(layer, head, rows, columns);
  });
}

void LatentAttention::gate(size_t layer, int64_t head, Range rows, Range columns) const {
  const LatentKind& k = kind(layer);
  const int64_t first = head * k.value + columns.begin;
  const int64_t from = first + (k.joint_gates ? QueryColumns(k, config_).gate : LatentColumns(k, config_).gate);
  const Operand& beside = k.joint_gates ? step_.scratch.queries : step_.scratch.mixer_in;
  const bool last = layer + 1 == layers_.size();  // whose rows are those of logits
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* gates = floats_at(beside, last ? step_.batch().logit_row[r] : r, from);
    float* x = floats_at(step_.scratch.mixed.raw, r, first);
    for (int64_t i = 0; i < columns.size(); ++i) x[i] *= sigmoid(gates[i]);
  }
}

}  // namespace forearm
