#include "model/mixers/attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/mixers/paged_attention.h"
#include "model/step/multiply.h"

namespace forearm {

Attention::Attention(const Weights& weights, const KvBlocks& kv, const States& states,
                     const LayerConvolutions& convolutions, Step& step)
    : config_(step.config),
      weights_(weights),
      kv_(kv),
      convolutions_(convolutions),
      step_(step),
      relative_(weights, step),
      indexer_(weights, kv, states, step),
      convolved_(weights, states, step),
      shape_of_(config_.layers.size()) {
  int64_t most_units = 0;
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    if (!config_.attends(i) || config_.compressed()) continue;
    const auto plan = [&] { return AttentionPlan(config_, i, kv, step.scratch.partial_floats, step.pool.threads()); };
    const HeadShape heads = config_.head_shape(i);
    size_t& shape = shape_of_[i];
    while (shape < shapes_.size() && shapes_[shape].heads != heads) ++shape;
    if (shape == shapes_.size()) shapes_.push_back({heads, QkvColumns(heads), HeadUnits(heads), plan()});
    if (i + 1 == config_.layers.size() && !config_.conv_taps) last_plan_.emplace(plan());
    if (heads.latent) continue;  // LatentAttention has the layer's matrices
    most_units = std::max(most_units, shapes_[shape].units.count());
    const std::string layer = "layers." + std::to_string(i) + ".";
    own.qkv = &weights.linear(layer + "qkv", shapes_[shape].at.projected, config_.mixer_width(i));
    own.o = &weights.linear(layer + "o", config_.hidden, heads.heads * heads.value_dim());
  }
  if (config_.distance_embeddings()) distances_.emplace(weights, step);
  const int64_t half = step.scratch.alibi_reach + 15;
  float* bias = step.scratch.alibi;
  for (const float slope : config_.slopes)
    for (int64_t distance = -half; distance <= half; ++distance)
      *bias++ = slope * static_cast<float>(config_.bidirectional && distance > 0 ? -distance : distance);
  finished_ = std::make_unique<std::atomic<int64_t>[]>(
      static_cast<size_t>(Step::kRowBlocksPerThread * step.pool.threads() * most_units));
}

void Attention::plan() {
  if (biases_.size() < weights_.attention_biases().size()) spread_biases();
  if (distances_) distances_->project();
  relative_.pack();
  indexer_.plan();
  for (LayersOfShape& shape : shapes_) shape.plan.make(step_.batch());
  if (last_plan_) last_plan_->make_for_logits(step_.batch());
}

// Looks up the bias of every distance and head, once, when the tables have been loaded.
void Attention::spread_biases() {
  const std::vector<int64_t>& buckets = config_.distance_buckets;
  const auto reach = static_cast<int64_t>(buckets.size() / 2);
  const DistanceBias bias{nullptr, reach};
  for (const std::vector<float>& table : weights_.attention_biases()) {
    std::vector<float>& spread = biases_.emplace_back();
    for (int64_t head = 0; head < config_.heads; ++head)
      for (int64_t i = 0; i < bias.stride(); ++i) {
        const int64_t distance = std::clamp(i - (reach + 15), -reach, reach);
        const int64_t bucket = buckets[static_cast<size_t>(distance + reach)];
        spread.push_back(table[static_cast<size_t>(bucket * config_.heads + head)]);
      }
  }
}

void Attention::begin(const StepWalk& w) {
  angles(step_.mine(w, step_.batch().tokens));
  find_slots(w, step_, kv_);
}

void Attention::angles(Range rows) {
  for (size_t i = 0; i < config_.ropes.size(); ++i) {
    const auto pairs = static_cast<int64_t>(config_.ropes[i].inv_freq.size());
    for (int64_t r = rows.begin; r < rows.end; ++r)
      angles_at(config_.ropes[i], step_.batch().position[r], step_.scratch.cosines[i] + r * pairs,
                step_.scratch.sines[i] + r * pairs);
  }
}

const Norm* Attention::mix(StepWalk& w, size_t layer, const Norm* add) {
  const Linear &qkv = *layers_[layer].qkv, &o = *layers_[layer].o;
  const LayerNorms& norms = weights_.norms(layer);
  const Norm* after = config_.joins_behind() ? &norms.post_attention : norms.post_attention.if_there();
  const Operand mixed = attend_to(w, layer, step_.stream(w, add, norms.input, qkv.matrix));
  step_.project_back(w, mixed, o, after, kind(layer).out_scale);
  step_.barrier(w);
  return after;
}

Operand Attention::attend_to(StepWalk& w, size_t layer, const Operand& in) {
  project_qkv(w, layer, in);
  const bool chooses = indexer_.has(layer);
  if (chooses) indexer_.project(w, layer, layers_[layer].qkv->matrix, in);
  step_.barrier(w);
  if (chooses) {
    indexer_.finish(w, layer);
    step_.barrier(w);
    indexer_.choose(w, layer);
  }
  attend(w, layer);
  if (layer + 1 == layers_.size() && !config_.conv_taps) step_.keep_logit_rows(w);
  step_.barrier(w);
  return step_.output(w, step_.scratch.mixed, layers_[layer].o->matrix, weights_.norms(layer).attn_sub.if_there());
}

void Attention::project_qkv(StepWalk& w, size_t layer, const Operand& in) {
  const int64_t tokens = step_.batch().tokens;
  GemmTask task{};
  task.a = in;
  task.row_end = tokens;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.out = step_.scratch.mixer_in;
  const Linear& qkv = *layers_[layer].qkv;
  if (config_.qk_norm != QkNorm::full && !config_.conv_taps && !convolved_.has(layer))
    return step_.multiply(w, qkv, task, [this, layer](Range rows, int64_t row_block, Range columns) {
      finish_columns(layer, rows, row_block, columns);
    });
  step_.multiply(w, qkv, task);
  step_.barrier(w);  // the norm is over all heads of a row, a convolution over rows
  if (convolved_.has(layer)) convolved_.finish(w, layer, qkv);
  if (config_.conv_taps) {
    convolutions_.convolve_keys_and_values(w, layer);
    step_.barrier(w);
  }
  finish_heads(layer, step_.mine(w, tokens), {0, shape(layer).heads.heads}, {0, shape(layer).heads.kv_heads});
}

// Counts computed columns; the member that computed the last ones of a unit of heads finishes it.
void Attention::finish_columns(size_t layer, Range rows, int64_t row_block, Range columns) {
  const HeadUnits& units = shape(layer).units;
  units.each(columns, [&](int64_t index, int64_t count) {
    const HeadUnit& unit = units[index];
    std::atomic<int64_t>& finished = finished_[static_cast<size_t>(row_block * units.count() + index)];
    if (finished.fetch_add(count, std::memory_order_acq_rel) + count < unit.columns) return;
    finished.store(0, std::memory_order_relaxed);  // for the next layer, which is barriers away
    finish_heads(layer, rows, unit.query, unit.kv);
  });
}

// Normalizes and rotates these heads of these rows, and stores keys and values.
void Attention::finish_heads(size_t layer, Range rows, Range query, Range kv) {
  if (rows.size() == 0) return;
  const LayersOfShape& s = shape(layer);
  const int64_t dim = s.heads.head_dim, width = s.heads.value_dim();
  const int64_t key = s.at.key + kv.begin * dim, value = s.at.value + kv.begin * width;
  if (kind(layer).keys_as_values)
    for (int64_t r = rows.begin; r < rows.end; ++r) std::copy_n(qkv_at(r, key), kv.size() * dim, qkv_at(r, value));
  if (config_.qkv_clip > 0.0f) {
    clip(rows, query.begin * dim, query.size() * dim);
    clip(rows, key, kv.size() * dim);
    clip(rows, value, kv.size() * width);
  }
  if (!config_.qk_norm_after_rope) normalize_heads(layer, rows, query, kv);
  if (const auto rope = kind(layer).rope) {
    rotate(static_cast<size_t>(*rope), rows, query.begin * dim, query.size(), dim);
    rotate(static_cast<size_t>(*rope), rows, key, kv.size(), dim);
  }
  if (config_.qk_norm_after_rope) normalize_heads(layer, rows, query, kv);
  if (kind(layer).unit_qk) {
    normalize(rows, query.begin * dim, query.size(), dim, nullptr);
    normalize(rows, key, kv.size(), dim, nullptr);
  }
  if (kind(layer).query_growth != 0.0f) {
    grow(kind(layer), rows, query.begin * dim, query.size() * dim);
    grow(kind(layer), rows, s.at.bias + query.begin * s.heads.bias, query.size() * s.heads.bias);
  }
  for (int64_t h = kv.begin; h < kv.end; ++h)
    step_.kernel.write_kv({kv_.layer(static_cast<int64_t>(layer), h), qkv_at(rows.begin, s.at.key + h * dim),
                           qkv_at(rows.begin, s.at.value + h * width), step_.scratch.mixer_in.stride, rows.size(), dim,
                           h, step_.slots(kv_.group(layer)) + rows.begin});
}

void Attention::clip(Range rows, int64_t column, int64_t columns) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* x = qkv_at(r, column);
    for (int64_t i = 0; i < columns; ++i) x[i] = std::min(std::max(x[i], -config_.qkv_clip), config_.qkv_clip);
  }
}

float Attention::query_factor(float growth, int64_t position, int64_t positions) {
  const int64_t steps = position / positions;
  return steps == 0 ? 1.0f : 1.0f + growth * std::log(1.0f + static_cast<float>(steps));
}

// Multiplies queries beyond the first query_positions, so that attention stays sharp over long contexts.
void Attention::grow(const AttentionKind& kind, Range rows, int64_t column, int64_t columns) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t position = step_.batch().position[r] + kind.query_first;
    const float times = static_cast<float>(position) / static_cast<float>(kind.query_positions);
    const float factor = kind.query_smooth ? 1.0f + kind.query_growth * std::log(std::max(1.0f, times))
                                           : query_factor(kind.query_growth, position, kind.query_positions);
    if (factor == 1.0f) continue;
    float* x = qkv_at(r, column);
    for (int64_t i = 0; i < columns; ++i) x[i] *= factor;
  }
}

// Normalizes neighbouring heads, each by itself. weight: [head_dim], or null.
void Attention::normalize(Range rows, int64_t column, int64_t heads, int64_t head_dim, const float* weight) {
  if (heads == 0) return;
  step_.kernel.head_norm({qkv_at(rows.begin, column), step_.scratch.mixer_in.stride, rows.size(), heads, head_dim,
                          weight, config_.norm_eps});
}

void Attention::normalize_heads(size_t layer, Range rows, Range query, Range kv) {
  const LayerNorms& norms = weights_.norms(layer);
  const LayersOfShape& s = shape(layer);
  const int64_t dim = s.heads.head_dim;
  const auto whole = [&](const float* weight, int64_t column, int64_t width, bool layer_norm, const float* bias) {
    Operand out = step_.scratch.mixer_in;
    out.data = qkv_at(0, column);
    step_.kernel.norm({qkv_at(0, column), step_.scratch.mixer_in.stride, rows.begin, rows.end, width, weight, bias,
                       config_.norm_eps, layer_norm, out});
  };
  const auto each_head = [&](const Norm& norm, int64_t first, Range heads) {
    for (int64_t column = heads.begin * dim; column < heads.end * dim; column += dim)
      whole(norm.weight.data() + column, first + column, dim, config_.layer_norm,
            norm.bias.empty() ? nullptr : norm.bias.data() + column);
  };
  const int64_t width = s.heads.value_dim();
  if (config_.v_norm) normalize(rows, s.at.value + kv.begin * width, kv.size(), width, nullptr);
  if (config_.qk_norm == QkNorm::head) {
    normalize(rows, query.begin * dim, query.size(), dim, norms.q.weight.data());
    normalize(rows, s.at.key + kv.begin * dim, kv.size(), dim, norms.k.weight.data());
  } else if (config_.qk_norm == QkNorm::full) {  // rows are divided, so these are all heads
    whole(norms.q.weight.data(), 0, s.heads.heads * dim, false, nullptr);
    whole(norms.k.weight.data(), s.at.key, s.heads.kv_heads * dim, false, nullptr);
  } else if (config_.qk_norm == QkNorm::each_head) {
    each_head(norms.q, 0, query);
    each_head(norms.k, s.at.key, kv);
  }
}

void Attention::rotate(size_t rope, Range rows, int64_t column, int64_t heads, int64_t head_dim) {
  if (heads == 0) return;
  const auto pairs = static_cast<int64_t>(config_.ropes[rope].inv_freq.size());
  step_.kernel.rope({qkv_at(rows.begin, column), step_.scratch.mixer_in.stride, rows.size(), heads, head_dim, 2 * pairs,
                     step_.scratch.cosines[rope] + rows.begin * pairs, step_.scratch.sines[rope] + rows.begin * pairs,
                     config_.ropes[rope].interleaved});
}

void Attention::attend(StepWalk& w, size_t layer) {
  AttendTask task{};
  task.q = qkv_at(0, 0);
  task.q_stride = step_.scratch.mixer_in.stride;
  if (shape(layer).heads.gates) {
    task.gate = qkv_at(0, shape(layer).at.gate);
    task.gate_kind = config_.attention_gate;
    task.gates = shape(layer).heads.gates;
  }
  task.window = kind(layer).window;
  task.segment = kind(layer).segment;
  task.scale = kind(layer).scale != 0.0f ? kind(layer).scale : config_.attention_scale;
  task.softcap = config_.attention_softcap;
  task.sinks = or_null(weights_.sinks(layer));
  if (!config_.slopes.empty()) task.bias = {step_.scratch.alibi, step_.scratch.alibi_reach};
  if (!biases_.empty())
    task.bias = {biases_[biases_.size() > 1 ? layer : 0].data(),
                 static_cast<int64_t>(config_.distance_buckets.size() / 2)};
  task.out = step_.scratch.mixed.target(layers_[layer].o->matrix, weights_.norms(layer).attn_sub.if_there());
  MakeKeyBias biases;
  if (distances_ || kind(layer).bias_dim || shape(layer).heads.slots)
    biases = [&](int member, const AttentionItem& item, Range keys) { return bias_of(member, layer, item, keys); };
  forearm::attend(w, step_, kv_, plan_of(layer), layer, task, biases);
}

KeyBias Attention::bias_of(int member, size_t layer, const AttentionItem& item, Range keys) const {
  if (shape(layer).heads.slots) return item.chosen ? indexer_.mask(member, item.row, keys) : KeyBias{};
  return distances_ ? distances_->terms(member, layer, item, keys) : relative_.values(member, layer, item, keys);
}

}  // namespace forearm
