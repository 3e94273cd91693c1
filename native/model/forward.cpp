#include "model/forward.h"

#include <algorithm>
#include <utility>

#include "model/step/multiply.h"
#include "model/step/multiply_heads.h"

namespace forearm {
namespace {

int64_t phases(const Config& c, const Scratch& scratch) {
  // A layer that has two mixers, or one of many phases: no other mixer has more.
  return std::max({Attention::kPhases + Mamba2::kPhases, LatentAttention::kPhases, GatedDelta::kPhases,
                   CompressedAttention::kPhases, Rwkv7::kPhases}) +
         std::max(FeedForward::phases(c, scratch.step_tokens), Experts::phases(c, scratch.step_tokens)) +
         (c.asides() ? SideBlock::kPhases : 0) + (c.per_layer ? PerLayerEmbedding::kPhases : 0) +
         (c.alt_up ? AltUp::kPhases : 0) + (c.norm_gates ? 2 * GatedNorms::kPhases : 0) +
         (c.hyper ? HyperConnections::kPhases : 0);
}

}  // namespace

Forward::Forward(const Config& c, const Ranks& ranks, const Weights& weights, const KvBlocks& kv, const States& states,
                 Scratch& scratch, Pool& pool)
    : c_(c),
      final_norm_(weights.final_norm()),
      embed_norm_(weights.embed_norm()),
      hidden_out_norm_(weights.hidden_out_norm()),
      embed_(weights.linear("embed", c.vocab_size, c.embedding_columns())),
      positions_(c.learned_positions
                     ? &weights.linear("positions", c.max_positions + c.position_offset, c.embedding_columns())
                     : nullptr),
      types_(c.token_types > 0 ? &weights.linear("types", c.token_types, c.embedding_columns()) : nullptr),
      fuse_(c.fuses ? &weights.linear("fuse", c.hidden, 2 * c.hidden) : nullptr),
      embed_in_(c.embed_width ? &weights.linear("embed_in", c.hidden, c.embed_width) : nullptr),
      head_(c.tied_head ? embed_ : weights.linear("head", c.vocab_size, c.hidden)),
      head_dense_(c.head_dense ? &weights.linear("head_dense", c.hidden, c.hidden) : nullptr),
      hidden_norm_(weights.hidden_norm()),
      head_norm_(weights.head_norm()),
      embed_merge_(weights.embed_merge()),
      s_(scratch),
      step_(c, ranks, scratch, pool, phases(c, scratch)),
      convolutions_(weights, states, step_),
      attention_(weights, kv, states, convolutions_, step_),
      latent_attention_(weights, kv, attention_, step_),
      compressed_attention_(weights, kv, states, step_),
      short_conv_(weights, states, step_),
      mamba2_(weights, states, step_),
      lightning_(weights, states, step_),
      selective_scan_(weights, states, step_),
      rg_lru_(weights, states, step_),
      token_shift_(states, step_),
      rwkv7_(weights, states, token_shift_, step_),
      gated_delta_(weights, states, step_),
      feed_forward_(weights, token_shift_, step_),
      experts_(weights, step_),
      side_(weights, attention_, feed_forward_, step_),
      per_layer_(weights, step_),
      alt_up_(weights, step_),
      hyper_(weights, states, step_),
      gated_norms_(weights, step_) {}

void Forward::run(const Batch& batch) {
  if (batch.tokens == 0) return;
  step_.begin(batch);
  attention_.plan();
  latent_attention_.plan();
  compressed_attention_.plan();
  step_.pool.run([this](int member) { walk({member, step_.batch().tokens}); });
}

void Forward::walk(StepWalk w) {
  step_.enter_step(w);
  const Range own = step_.mine(w, w.rows);
  embed(own);
  if (embed_norm_.if_there()) step_.normalize(embed_norm_, step_.residual_row(0), own, s_.residual);
  if (embed_in_) project_embedding(w, own);
  attention_.begin(w);
  step_.barrier(w);
  if (fuse_) fuse(w);
  if (c_.per_layer) per_layer_.begin(w);
  if (c_.alt_up) alt_up_.begin(w);
  if (c_.asides()) side_.begin(w);
  if (c_.hyper) hyper_.begin(w);
  const Norm* add = nullptr;    // norm of the last projection, which is not yet added to the residual
  const Norm* later = nullptr;  // of one that is added behind the layer `due`
  size_t due = 0;
  for (size_t i = 0; i < c_.layers.size(); ++i) {
    step_.enter_layer(w, i);
    if (c_.layers[i].aside) {
      side_.apply(w, i);
      continue;
    }
    if (const auto& own = c_.layers[i].experts; own && own->ahead)
      experts_.route_ahead(w, i, std::exchange(add, nullptr));
    if (c_.norm_gates) add = gated_norms_.apply(w, i, GatedNorms::Half::mixer, add);
    const Norm* mixed = mix(w, i, add);
    if (c_.hyper) mixed = hyper_.join(w, 2 * i);
    if (c_.conv_taps) {
      convolutions_.join(w, i, LayerConvolutions::Half::mixer);
      mixed = nullptr;
    }
    // A parallel feed-forward reads the residual before the mixer's result, which is added after it.
    const Norm* before = c_.parallel_residual ? nullptr : mixed;
    add = mixed;
    if (c_.alt_up) alt_up_.add_laurel(w, i);
    if (!c_.layers[i].feed_forward) continue;
    if (c_.norm_gates && c_.layers[i].experts) add = gated_norms_.apply(w, i, GatedNorms::Half::experts, add);
    add = c_.layers[i].experts ? experts_.apply(w, i, before) : feed_forward_.apply(w, i, before);
    if (const auto& own = c_.layers[i].experts; own && own->behind) {
      later = std::exchange(add, nullptr);
      due = i + static_cast<size_t>(own->behind);
    }
    if (later && i == due) add = std::exchange(later, nullptr);
    if (c_.parallel_residual) add = mixed;
    if (c_.hyper) add = hyper_.join(w, 2 * i + 1);
    if (c_.conv_taps) {
      convolutions_.join(w, i, LayerConvolutions::Half::feed_forward);
      add = nullptr;
    }
    if (c_.alt_up) add = alt_up_.correct(w, i, *add);
    if (c_.per_layer) add = per_layer_.apply(w, i, add);
    if (c_.alt_up) add = alt_up_.go_on(w, i, *add);
  }
  step_.enter_layer(w, c_.layers.size());
  if (w.rows == 0) return;
  if (c_.alt_up) alt_up_.finish(w);
  c_.pooled ? hidden(w, add) : head(w, add);
}

const Norm* Forward::mix(StepWalk& w, size_t layer, const Norm* add) {
  if (!c_.layers[layer].mixes()) {
    if (layer + 1 < c_.layers.size()) return add;
    if (c_.keeps_hidden) add = keep_hidden(w, add);
    step_.keep_logit_rows(w);
    step_.barrier(w);
    return add;
  }
  if (c_.layers[layer].mixer_as<ShortConvKind>()) return short_conv_.mix(w, layer, add);
  if (c_.layers[layer].mixer_as<Mamba2Kind>()) {
    mamba2_.project(w, layer, add);
    step_.barrier(w);
    if (layer > 0 && c_.layers[layer - 1].aside) side_.restore(w);
    return mamba2_.finish(w, layer);
  }
  if (c_.layers[layer].mixer_as<LightningKind>()) return lightning_.mix(w, layer, add);
  if (c_.layers[layer].mixer_as<SelectiveScanKind>()) return selective_scan_.mix(w, layer, add);
  if (c_.layers[layer].mixer_as<RgLruKind>()) return rg_lru_.mix(w, layer, add);
  if (c_.layers[layer].mixer_as<Rwkv7Kind>()) return rwkv7_.mix(w, layer, add);
  if (c_.layers[layer].mixer_as<GatedDeltaKind>()) return gated_delta_.mix(w, layer, add);
  if (c_.layers[layer].mixer_as<LatentKind>()) return latent_attention_.mix(w, layer, add);
  if (c_.layers[layer].mixer_as<CompressedKind>()) return compressed_attention_.mix(w, layer, add);
  if (!c_.layers[layer].beside) return attention_.mix(w, layer, add);
  mamba2_.project(w, layer, add);
  step_.barrier(w);  // attention prepares the same rows again
  const Norm* after = attention_.mix(w, layer, add);
  mamba2_.finish(w, layer);
  return after;
}

void Forward::embed(Range rows) {
  const Batch& batch = step_.batch();
  const auto table = [&](const Matrix& matrix, const int32_t* ids, float scale, float* out, int64_t stride) {
    step_.kernel.embed({ids, rows.size(), matrix.weights(), scale, out, stride});
  };
  table(embed_.matrix, batch.token + rows.begin, c_.embedding_scale, step_.residual_row(rows.begin),
        s_.residual.stride);
  if (c_.dropped_token) drop(rows);
  int32_t* ids = s_.slots + rows.begin;  // a temporary use of the slots: the mixer sets them afterwards
  const auto add_rows_of = [&](const Matrix& matrix) {
    table(matrix, ids, 1.0f, step_.projected_row(rows.begin), s_.projected.stride);
    for (int64_t r = rows.begin; r < rows.end; ++r)
      for (int64_t i = 0; i < matrix.k; ++i) step_.residual_row(r)[i] += step_.projected_row(r)[i];
  };
  if (types_) {
    for (int64_t r = rows.begin; r < rows.end; ++r) s_.slots[r] = batch.type ? batch.type[r] : 0;
    add_rows_of(types_->matrix);
  }
  for (int64_t r = rows.begin; r < rows.end && c_.merges; ++r)
    for (int64_t i = 0; i < c_.hidden; ++i) {
      float& x = step_.residual_row(r)[i];
      x = (x + embed_merge_[static_cast<size_t>(c_.hidden + i)]) * embed_merge_[static_cast<size_t>(i)];
    }
  if (!positions_) return;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    s_.slots[r] = batch.position[r] + static_cast<int32_t>(c_.position_offset);
  add_rows_of(positions_->matrix);
}

// Begins the residual with a linear function of what it is, the embedding, and of the rows that came with the tokens.
void Forward::fuse(StepWalk& w) {
  const Range own = step_.mine(w, w.rows);
  for (int64_t r = own.begin; r < own.end; ++r) std::copy_n(step_.residual_row(r), c_.hidden, floats_at(s_.side, r, 0));
  const Operand right{floats_at(s_.side, 0, c_.hidden), s_.side.stride, Form::f32_rows};
  step_.normalize(hidden_norm_, step_.batch().hidden, c_.hidden, own, right);
  step_.barrier(w);
  step_.multiply(w, *fuse_, step_.rows_of(w, s_.stream, s_.side, fuse_->matrix), s_.residual);
  step_.barrier(w);
}

// Keeps the member's rows behind the final norm; all layers' results are then in the residual. Returns: null.
const Norm* Forward::keep_hidden(StepWalk& w, const Norm* add) {
  const Range own = step_.mine(w, w.rows);
  step_.barrier(w);
  if (add) step_.add_projected(*add, own);
  step_.normalize(hidden_out_norm_, step_.residual_row(0), own, s_.hidden);
  step_.barrier(w);
  return nullptr;
}

// Makes the residual of embeddings of another width. They are read by all members until each has its columns.
void Forward::project_embedding(StepWalk& w, Range rows) {
  step_.barrier(w);
  GemmTask task{};
  task.a = step_.stream(w, nullptr, Norm{}, embed_in_->matrix);
  task.row_end = w.rows;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.out = s_.projected;
  step_.multiply(w, *embed_in_, task);
  step_.barrier(w);
  for (int64_t r = rows.begin; r < rows.end; ++r) std::copy_n(step_.projected_row(r), c_.hidden, step_.residual_row(r));
}

// Multiplies the embeddings of these rows by 1 / (1 - the share of their text's tokens that are dropped), and by 0 if
// they are of the dropped token (ESM; a text of these alone has zeros).
void Forward::drop(Range rows) {
  const Batch& batch = step_.batch();
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const Range text{batch.start[s], batch.start[s + 1]};
    const Range own{std::max(text.begin, rows.begin), std::min(text.end, rows.end)};
    if (own.begin >= own.end) continue;
    const auto count = std::count(batch.token + text.begin, batch.token + text.end, *c_.dropped_token);
    const float share = static_cast<float>(count) / static_cast<float>(text.size());
    for (int64_t r = own.begin; r < own.end && count > 0; ++r) {
      const float factor = batch.token[r] == *c_.dropped_token ? 0.0f : 1.0f / (1.0f - share);
      for (int64_t i = 0; i < c_.hidden; ++i) step_.residual_row(r)[i] *= factor;
    }
  }
}

void Forward::head(StepWalk& w, const Norm* add) {
  GemmTask task{};
  task.a = head_rows(w, add);
  task.row_end = w.rows;
  task.epilogue = c_.logits_softcap > 0.0f ? Epilogue::softcap : Epilogue::store;
  task.scale = c_.logits_scale;
  task.softcap = c_.logits_softcap;
  task.out = s_.logits;
  step_.multiply(w, head_, task, [&](Range rows, int64_t, Range columns) { find_maxima(rows, columns); });
}

// Returns the rows that the head multiplies; those of a layer before it do not take the residual's place, which other
// members may still read.
Operand Forward::head_rows(StepWalk& w, const Norm* add) {
  const Matrix& first = head_dense_ ? head_dense_->matrix : head_.matrix;
  const Operand rows = step_.prepare_stream(w, add, final_norm_.if_there(), first);
  if (!head_dense_) return rows;
  GemmTask task{};
  task.a = rows;
  task.row_end = w.rows;
  task.epilogue = Epilogue::activate;
  task.activation = c_.head_dense->activation;
  task.scale = 1.0f;
  task.out = s_.projected;
  step_.multiply(w, *head_dense_, task);
  step_.barrier(w);
  return step_.normed_rows(w, s_.projected, head_norm_, head_.matrix);
}

// Computes the maxima that the sampler needs while a piece of the logits is still in a near cache.
void Forward::find_maxima(Range rows, Range columns) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* logits = static_cast<float*>(s_.logits.data) + r * s_.logits.stride;
    float* maxima = static_cast<float*>(s_.maxima.data) + r * s_.maxima.stride;
    step_.kernel.row_maxima({logits + columns.begin, columns.size()}, maxima + columns.begin / kMaximumLogits);
  }
}

// Writes the rows after the final norm instead of logits, for pooling.
void Forward::hidden(const StepWalk& w, const Norm* add) {
  const Range rows = step_.mine(w, w.rows);
  if (add) step_.add_projected(*add, rows);
  if (final_norm_.if_there()) return step_.normalize(final_norm_, step_.residual_row(0), rows, s_.logits);
  for (int64_t r = rows.begin; r < rows.end; ++r)
    std::copy_n(step_.residual_row(r), c_.hidden, static_cast<float*>(s_.logits.data) + r * s_.logits.stride);
}

}  // namespace forearm
