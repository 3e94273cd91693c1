#include "model/weights/weights.h"

#include <cmath>
#include <limits>
#include <stdexcept>

namespace forearm {
namespace {

// Returns the missing rows from row `first` on, such as "layers.3.q (rows 64 to 127)".
std::string missing_rows(const std::string& name, const std::vector<bool>& loaded) {
  size_t first = 0;
  while (loaded[first]) ++first;
  size_t last = loaded.size() - 1;
  while (loaded[last]) --last;
  if (first == 0 && last + 1 == loaded.size()) return name;
  return name + " (rows " + std::to_string(first) + " to " + std::to_string(last) + ")";
}

}  // namespace

Weights::Weights(const Config& c, const Formats& formats, const Ranks& ranks, std::shared_ptr<const Weights> lender)
    : ranks_(ranks),
      shared_(c.shared),
      lender_(std::move(lender)),
      lends_head_(lender_ && shared_.contains("head")),
      layers_(c.layers.size()),
      xielus_(c.layers.size()),
      corrections_(c.layers.size()),
      expert_scales_(c.layers.size()),
      sinks_(c.layers.size()),
      router_states_(c.layers.size()),
      alt_ups_(c.layers.size()),
      ngrams_(c.layers.size()),
      entry_biases_(2 * c.layers.size()),
      by_token_(c.layers.size()),
      convolutions_(c.layers.size()),
      recurrences_(c.layers.size()),
      relative_biases_(c.layers.size()),
      pooler_norms_(c.dense.size()) {
  Formats left = formats;
  for (const MatrixSpec& spec : c.matrices)
    shared_.contains(spec.name) ? static_cast<void>(left.erase(spec.name)) : declare(spec, left);
  if (!left.empty())
    throw std::invalid_argument("there is a format for '" + left.begin()->first + "'; this model has no such matrix");
  for (size_t i = 0; i < layers_.size() && !c.modules; ++i) declare_norms(c, i);
  for (size_t i = 0; i < layers_.size(); ++i)
    if (const auto& experts = c.layers[i].experts; experts && experts->correction) {
      const int64_t given = experts->choices() - experts->always;
      declare_vector("layers." + std::to_string(i) + ".correction", corrections_[i], experts->choices(), {given, {}});
      std::fill(corrections_[i].begin() + given, corrections_[i].end(), std::numeric_limits<float>::infinity());
    }
  if (c.hyper) declare_hyper(c);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    if (const auto& experts = c.layers[i].experts; experts && experts->by_token) {
      const int64_t values = c.vocab_size * experts->active;
      declare_vector(layer + "experts_by_token", by_token_[i], values, {values, {}});
      vectors_.at(layer + "experts_by_token").below = experts->count;
    }
    if (const auto& experts = c.layers[i].experts; experts && experts->router_rank) declare_router(c, i);
    if (const auto* own = c.layers[i].mixer_as<CompressedKind>()) declare_compressed(c, i, *own);
    if (const auto& own = c.layers[i].feed_forward; own && own->activation == Activation::xielu)
      declare_vector("layers." + std::to_string(i) + ".xielu", xielus_[i], 4, {4, {}});
    const auto* own = c.layers[i].mixer_as<AttentionKind>();
    const auto* latent = c.layers[i].mixer_as<LatentKind>();
    if ((own && own->sinks) || (latent && latent->sinks) || c.layers[i].mixer_as<CompressedKind>()) {
      const int64_t heads = c.head_shape(i).heads;
      declare_vector(layer + "sinks", sinks_[i], heads, {heads, {}});
    }
    if (own && own->bias_dim) {
      const int64_t values = own->bias_dim * own->bias_reach;
      declare_vector(layer + "relative_bias", relative_biases_[i], values, {values, {}});
    }
    if (c.conv_taps) declare_layer_convolutions(c, i);
    if (c.alt_up) declare_alt_up(c, i);
    if (c.layers[i].ngrams) declare_ngrams(c, i);
    if (const auto* conv = c.layers[i].mixer_as<ShortConvKind>())
      declare_convolution(i, conv->width, c.hidden, conv->bias);
    if (const auto* mamba = c.layers[i].mamba2()) declare_mamba2(i, *mamba);
    if (const auto* delta = c.layers[i].mixer_as<GatedDeltaKind>()) declare_delta(i, *delta);
    if (const auto* own = c.layers[i].mixer_as<LightningKind>()) declare_lightning(i, *own);
    if (const auto* own = c.layers[i].mixer_as<SelectiveScanKind>()) declare_scan(i, *own);
    if (const auto* own = c.layers[i].mixer_as<RgLruKind>()) declare_rg_lru(i, *own);
    if (const auto* own = c.layers[i].mixer_as<Rwkv7Kind>()) declare_rwkv7(c, i, *own);
    if (const auto* own = c.layers[i].mixer_as<AttentionKind>(); own && own->convolved)
      declare_convolved(c, i, *own->convolved);
  }
  if (c.distance_embeddings()) {
    if (!c.distances_apart()) declare_norm(c, "distance_norm", distance_norm_, c.hidden, c.layer_norm && c.norm_bias);
  } else if (const int64_t values = c.bias_rows() * c.heads; values > 0) {
    const bool own = c.distance_bias == DistanceBiasKind::each_layer;
    attention_biases_.resize(own ? c.layers.size() : 1);
    for (size_t i = 0; i < attention_biases_.size(); ++i)
      declare_vector((own ? "layers." + std::to_string(i) + "." : "") + "attention_bias", attention_biases_[i], values,
                     {values, {}});
  }
  const bool final_bias = (c.layer_norm && c.norm_bias) || (c.centred && !c.tied_head);
  if (c.final_norm && !c.modules) declare_norm(c, "final_norm", final_norm_, c.hidden, final_bias);
  if (c.keeps_hidden && c.centred && !c.tied_head)
    declare_vector("head_columns", head_columns_, c.hidden, {c.hidden, {}});
  if (c.head_dense) declare_norm(c, "head_dense.norm", head_norm_, c.hidden, c.layer_norm && c.norm_bias);
  if (c.fuses) declare_norm(c, "hidden_norm", hidden_norm_, c.hidden, c.layer_norm && c.norm_bias);
  if (c.embed_norm) declare_norm(c, "embed_norm", embed_norm_, c.embedding_columns(), c.layer_norm && c.norm_bias);
  if (c.merges) declare_vector("embed_merge", embed_merge_, 2 * c.hidden, {2 * c.hidden, {}});
  if (c.per_layer) declare_norm(c, "per_layer_norm", per_layer_norm_, c.per_layer->width, false);
  for (size_t i = 0; i < c.dense.size(); ++i)
    if (c.dense[i].norm)
      declare_norm(c, "dense." + std::to_string(i) + ".norm", pooler_norms_[i], c.dense[i].outputs, c.norm_bias);
  place_matrices();
}

// Removes the format of the matrix from `formats` and returns it.
void Weights::declare(const MatrixSpec& spec, Formats& formats) {
  const auto format = formats.extract(spec.name);
  if (format.empty()) throw std::invalid_argument("there is no format for the matrix '" + spec.name + "'");
  Linear& linear = linears_[spec.name];
  // Columns of the head, which may be the embedding, are cut at the boundaries of the logits' maxima.
  const bool looked_up = spec.role == Role::embedding || spec.role == Role::table || spec.role == Role::head;
  const auto parts = static_cast<int64_t>(spec.parts.size());
  const int64_t unit = looked_up ? kMaximumLogits : spec.interleaved ? parts * kPanel : kPanel;
  const int64_t columns = spec.columns();
  linear.matrix.shape(spec.name, columns, spec.k, format.mapped(), split_columns(columns, unit, ranks_.threads()),
                      spec.experts);
  shaped_.push_back(&linear.matrix);
  int64_t panel = 0;
  for (int64_t i = 0; i < parts; ++i) {
    const MatrixPart& part = spec.parts[static_cast<size_t>(i)];
    const Place place{part.rows, spec.interleaved ? PanelMap{parts, i} : PanelMap{1, panel}, spec.experts,
                      linear.matrix.first_panel(1)};
    matrices_.emplace(part.name,
                      MatrixRows{&linear.matrix, place, std::vector<bool>(static_cast<size_t>(place.all_rows()))});
    if (spec.bias && part.bias)
      declare_vector(part.name + ".bias", linear.bias, spec.experts * round_up(columns, kPanel), place);
    panel += round_up(part.rows, kPanel) / kPanel;
  }
}

void Weights::declare_norms(const Config& c, size_t layer) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  LayerNorms& norms = layers_[layer];
  const bool biases = c.layer_norm && c.norm_bias, before = biases || c.centred;
  const NormPlacement placement = c.placement(layer);
  if (placement != NormPlacement::post && placement != NormPlacement::none) {
    if (c.layers[layer].mixes() && !c.projects_embedding(layer))
      declare_norm(c, prefix + "input_norm", norms.input, c.mixer_width(layer), before);
    if (c.layers[layer].feed_forward) declare_norm(c, prefix + "pre_mlp_norm", norms.pre_mlp, c.hidden, before);
    norms.pre_mlp.in_residual = c.norm_residual == NormResidual::all;
    norms.input.in_residual = norms.pre_mlp.in_residual || (c.norm_residual == NormResidual::first && layer == 0);
  }
  norms.input.gated = c.norm_gates > 0 && c.layers[layer].mixes();
  norms.pre_mlp.gated = c.norm_gates > 0 && c.layers[layer].experts;
  if (placement != NormPlacement::pre && placement != NormPlacement::none) {
    if (placement != NormPlacement::around_mlp)
      declare_norm(c, prefix + "post_attention_norm", norms.post_attention, c.hidden, biases);
    declare_norm(c, prefix + "post_mlp_norm", norms.post_mlp, c.hidden, biases);
  }
  if (const auto& experts = c.layers[layer].experts; experts && experts->apart) {
    declare_vector(prefix + "expert_scale", expert_scales_[layer], experts->count, {experts->count, {}});
    declare_norm(c, prefix + "router_norm", norms.router, c.hidden, false);
    declare_norm(c, prefix + "pre_experts_norm", norms.pre_experts, c.hidden, false);
    declare_norm(c, prefix + "post_experts_norm", norms.post_experts, c.hidden, false);
    declare_norm(c, prefix + "post_shared_norm", norms.post_shared, c.hidden, false);
  }
  if (const auto* latent = c.layers[layer].mixer_as<LatentKind>()) {
    if (latent->q_rank) declare_norm(c, prefix + "q_norm", norms.q, latent->q_rank, false);
    declare_norm(c, prefix + "k_norm", norms.k, latent->rank, false);
    if (latent->key_norm) declare_norm(c, prefix + "rotated_key_norm", norms.rotated_key, latent->rotary, false);
    if (latent->indexer && !latent->indexer->shared)
      declare_norm(c, prefix + "index_norm", norms.index, latent->indexer->head_dim, true);
  }
  if (const auto* own = c.layers[layer].mixer_as<AttentionKind>(); own && own->blocks) {
    declare_norm(c, prefix + "index_q_norm", norms.index_q, own->blocks->head_dim, false);
    declare_norm(c, prefix + "index_norm", norms.index, own->blocks->head_dim, false);
  }
  if (c.sub_norm) {
    const HeadShape own = c.head_shape(layer);
    declare_norm(c, prefix + "attn_sub_norm", norms.attn_sub, own.heads * own.head_dim, false);
    declare_norm(c, prefix + "ffn_sub_norm", norms.ffn_sub, c.layers[layer].feed_forward->width, false);
  }
  if (c.per_layer) declare_norm(c, prefix + "per_layer_norm", norms.per_layer, c.hidden, false);
  Norm& last = c.per_layer ? norms.per_layer : norms.post_mlp;
  if (c.layer_scalar) declare_vector(prefix + "scalar", last.stream_scale, 1, {1, {}});
  if (c.merges) {
    declare_vector(prefix + "attention_merge", norms.post_attention.merge, 4 * c.hidden, {4 * c.hidden, {}});
    declare_vector(prefix + "mlp_merge", norms.post_mlp.merge, 4 * c.hidden, {4 * c.hidden, {}});
  }
  if (c.qk_norm == QkNorm::none || !c.layers[layer].mixer_as<AttentionKind>()) return;
  const HeadShape own = c.head_shape(layer);
  const bool one = c.qk_norm == QkNorm::head;
  declare_norm(c, prefix + "q_norm", norms.q, own.head_dim * (one ? 1 : own.heads), c.qk_norm_bias);
  if (own.keys) declare_norm(c, prefix + "k_norm", norms.k, own.head_dim * (one ? 1 : own.kv_heads), c.qk_norm_bias);
}

void Weights::declare_alt_up(const Config& c, size_t layer) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  const int64_t streams = c.alt_up->streams, squared = streams * streams;
  AltUpVectors& own = alt_ups_[layer];
  const auto declare = [&](const char* name, std::vector<float>& values, int64_t n) {
    declare_vector(prefix + "alt_up_" + name, values, n, {n, {}});
  };
  declare("norm", own.norm, c.hidden);
  declare("router", own.router, streams * c.hidden);
  declare("predict", own.predict, squared * streams);
  declare("correct", own.correct, squared);
  if (c.alt_up->scaled) declare("scale", own.scale, c.hidden);
  declare_norm(c, prefix + "laurel_norm", own.laurel, c.hidden, false);
  layers_[layer].post_attention.stream_scale = {std::sqrt(0.5f)};  // of the residual, attention and the path beside it
}

void Weights::declare_hyper(const Config& c) {
  hypers_.resize(2 * c.layers.size() + 1);
  for (size_t half = 0; half < hypers_.size(); ++half) {
    const bool head = half + 1 == hypers_.size();
    const std::string name =
        head ? "hyper_head" : "layers." + std::to_string(half / 2) + (half % 2 ? ".hyper_mlp" : ".hyper_attention");
    if (c.hyper->rank) {
      const int64_t numbers = c.hyper->streams * c.hidden, values = c.hyper->streams * numbers;
      declare_norm(c, name + "_norm", hypers_[half].norm, numbers, false);
      if (!head) declare_vector(name + "_project", hypers_[half].project, values, {values, {}});
      continue;
    }
    const int64_t count = head ? c.hyper->streams : c.hyper->weights();
    const int64_t values = count * c.hyper->streams * c.hidden, scales = head ? 1 : c.hyper->scales();
    declare_vector(name + "_project", hypers_[half].project, values, {values, {}});
    declare_vector(name + "_base", hypers_[half].base, count, {count, {}});
    declare_vector(name + "_scale", hypers_[half].scale, scales, {scales, {}});
  }
}

void Weights::declare_ngrams(const Config& c, size_t layer) {
  const std::string prefix = "layers." + std::to_string(layer) + ".ngrams_";
  NgramVectors& own = ngrams_[layer];
  const int64_t numbers = c.hyper->streams * c.hidden, width = c.layers[layer].ngrams->taps;
  declare_norm(c, prefix + "key_norm", own.key, numbers, false);
  declare_norm(c, prefix + "query_norm", own.query, numbers, false);
  declare_norm(c, prefix + "conv_norm", own.convolved, numbers, false);
  declare_vector(prefix + "conv", own.taps, width * numbers, {.rows = width * numbers, .panels = {}, .width = width});
}

void Weights::declare_compressed(const Config& c, size_t layer, const CompressedKind& kind) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  LayerNorms& norms = layers_[layer];
  declare_norm(c, prefix + "q_norm", norms.q, kind.q_rank, false);
  declare_norm(c, prefix + "k_norm", norms.k, c.head_dim, false);
  const auto entries = [&](const std::string& name, bool index, int64_t dim, Norm& norm) {
    const int64_t values = kind.ratio * kind.series() * dim;
    declare_vector(prefix + name + "_bias", entry_biases_[2 * layer + index], values, {values, {}});
    declare_norm(c, prefix + name + "_norm", norm, dim, false);
  };
  if (kind.ratio) entries("entry", false, c.head_dim, norms.entry);
  if (kind.chosen) entries("index", true, kind.index_dim, norms.index);
}

void Weights::declare_router(const Config& c, size_t layer) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  const ExpertsKind& kind = *c.layers[layer].experts;
  declare_norm(c, prefix + "router_norm", layers_[layer].router, kind.router_rank, false);
  if (kind.router_follows)
    declare_vector(prefix + "router_state", router_states_[layer], kind.router_rank, {kind.router_rank, {}});
}

void Weights::declare_norm(const Config& c, const std::string& name, Norm& norm, int64_t n, bool with_bias) {
  if (!c.norm_weight) return norm.weight.assign(static_cast<size_t>(n), 1.0f);
  declare_vector(name, norm.weight, n, {n, {}});
  vectors_.at(name).plus = c.norm_plus_one ? 1.0f : 0.0f;
  if (with_bias) declare_vector(name + ".bias", norm.bias, n, {n, {}});
}

void Weights::declare_vector(const std::string& name, std::vector<float>& values, int64_t padded, Place place) {
  if (values.empty()) vector_bytes_ += padded * 4;
  values.resize(static_cast<size_t>(padded));
  vectors_.emplace(name, VectorValues{&values, place, 0.0f, std::vector<bool>(static_cast<size_t>(place.all_rows()))});
}

Xielu Weights::xielu(size_t layer) const {
  const std::vector<float>& stored = xielus_[layer];
  const auto softplus = [](float x) { return std::fmax(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); };
  return {softplus(stored[0]), stored[2] + softplus(stored[1]), stored[2], stored[3]};
}

void Weights::place_matrices() {
  Pieces pieces;
  for (Matrix* matrix : shaped_) matrix->place(pieces);
  region_ = Region("the model's packed weights", pieces.bytes());
  for (Matrix* matrix : shaped_) matrix->settle(region_.data());
  for (int rank = 0; rank < ranks_.count() && ranks_.count() > 1; ++rank)
    for (const Matrix* matrix : shaped_)
      matrix->each_piece(matrix->columns_of(ranks_.members(rank)), [&](char* at, char*) { region_.split_page(at); });
}

// Throws if rows row .. row + rows - 1 of width k are not rows of that matrix.
Weights::MatrixRows& Weights::rows_for(const std::string& name, int64_t row, int64_t rows, int64_t k) {
  const auto found = matrices_.find(name);
  if (found == matrices_.end()) throw std::invalid_argument("this model has no matrix '" + name + "'");
  if (mapped_) throw std::invalid_argument("'" + name + "' can't be loaded: the weights are mapped from a file");
  MatrixRows& part = found->second;
  if (k != part.matrix->k || row < 0 || rows < 1 || row + rows > part.place.all_rows())
    throw std::invalid_argument("'" + name + "' is [" + std::to_string(part.place.all_rows()) + ", " +
                                std::to_string(part.matrix->k) + "]; rows " + std::to_string(row) + " to " +
                                std::to_string(row + rows - 1) + " of width " + std::to_string(k) + " do not fit");
  return part;
}

// Calls pack(first row of the panel, its row in the expert, number of rows, the expert's panels, buffers) for each
// panel that the rows touch. Each member packs a share of the panels, so that a piece of a large matrix, which lies in
// the columns of few members, keeps all busy. The pages stay on the nodes of their readers, which have touched them
// before.
template <class Pack>
void Weights::pack_panels(MatrixRows& part, int64_t row, int64_t rows, Pool& pool, const Pack& pack) {
  if (!part.matrix->touched) pool.run([&](int member) { part.matrix->touch(member); });
  part.matrix->touched = true;
  for (int64_t first = row; first < row + rows;) {
    const int64_t end = std::min(row + rows, (first / part.place.rows + 1) * part.place.rows);
    pack_expert(part, first, end - first, pool, pack);
    first = end;
  }
  std::fill_n(part.loaded.begin() + row, rows, true);
}

// Rows of one expert.
template <class Pack>
void Weights::pack_expert(const MatrixRows& part, int64_t row, int64_t rows, Pool& pool, const Pack& pack) {
  const int64_t expert = row / part.place.rows, begin = row % part.place.rows, end = begin + rows;
  const int64_t panel = begin / kPanel, panels = (end - 1) / kPanel + 1 - panel;
  pool.run([&](int member) {
    PackRoom room;
    const Range own = share(panels, 1, member, pool.threads());
    for (int64_t p = panel + own.begin; p < panel + own.end; ++p) {
      const int64_t first = std::max(p * kPanel, begin);
      pack(row - begin + first, first, std::min((p + 1) * kPanel, end) - first, part.place.of(expert), room);
    }
  });
}

void Weights::load_matrix(const std::string& name, const Tensor& tensor, int64_t row, const Rounding& rounding,
                          Pool& pool) {
  MatrixRows& part = rows_for(name, row, tensor.rows, tensor.k);
  part.matrix->check_floats();
  const int64_t row_bytes = tensor.k * dtype_bytes(tensor.dtype);
  pack_panels(part, row, tensor.rows, pool,
              [&](int64_t from, int64_t first, int64_t count, PanelMap panels, PackRoom& room) {
                const char* rows = static_cast<const char*>(tensor.data) + (from - row) * row_bytes;
                part.matrix->pack(Tensor{rows, tensor.dtype, count, tensor.k}, first, panels, rounding, room);
              });
}

void Weights::load_codes(const std::string& name, const CodeRows& codes, const int32_t* order, int64_t row,
                         Pool& pool) {
  MatrixRows& part = rows_for(name, row, codes.rows, codes.k);
  Matrix& matrix = *part.matrix;
  matrix.check_codes(codes);
  if (order && row / part.place.rows != (row + codes.rows - 1) / part.place.rows)
    throw std::invalid_argument("'" + name + "': an order comes with the rows of one expert");
  matrix.set_order(order, row / part.place.rows);
  const int64_t groups = matrix.groups();
  const auto from = [](auto* values, int64_t at) { return values ? values + at : nullptr; };
  pack_panels(part, row, codes.rows, pool,
              [&](int64_t source, int64_t first, int64_t count, PanelMap panels, PackRoom&) {
                const int64_t at = source - row, scales = at * groups;
                matrix.pack(CodeRows{codes.codes + at * codes.k, count, codes.k, codes.scales + scales,
                                     from(codes.zeros, scales), from(codes.offsets, scales)},
                            first, panels);
              });
}

const Matrix& Weights::matrix_of(const std::string& part) const {
  const auto found = matrices_.find(part);
  if (found == matrices_.end()) throw std::invalid_argument("this model has no matrix '" + part + "'");
  return *found->second.matrix;
}

void Weights::load_vector(const std::string& name, const float* data, int64_t n, int64_t row) {
  const auto found = vectors_.find(name);
  if (found == vectors_.end()) throw std::invalid_argument("this model has no vector '" + name + "'");
  VectorValues& part = found->second;
  if (row < 0 || row + n > part.place.all_rows())
    throw std::invalid_argument("'" + name + "' has " + std::to_string(part.place.all_rows()) + " values; " +
                                std::to_string(n) + " were given from " + std::to_string(row) + " on");
  for (int64_t i = 0; i < n && part.below; ++i)
    if (!(data[i] >= 0.0f && data[i] < static_cast<float>(part.below)) || data[i] != std::floor(data[i]))
      throw std::invalid_argument("'" + name + "' has the value " + std::to_string(data[i]) +
                                  "; each must be a whole number from 0 to " + std::to_string(part.below - 1));
  for (int64_t i = 0; i < n; ++i) {
    const bool plain = part.plus_last && (row + i + 1) % part.place.width != 0;
    const float value = part.kept ? static_cast<float>(part.kept(data[i])) : plain ? data[i] : data[i] + part.plus;
    (*part.values)[static_cast<size_t>(part.place.column(row + i))] = value;
  }
  std::fill_n(part.loaded.begin() + row, n, true);
}

void Weights::finish() {
  std::string missing;
  const auto add = [&missing](const std::string& name) { missing += (missing.empty() ? "" : ", ") + name; };
  for (const auto& [name, part] : matrices_)
    if (std::find(part.loaded.begin(), part.loaded.end(), false) != part.loaded.end())
      add(missing_rows(name, part.loaded));
  for (const auto& [name, part] : vectors_)
    if (std::find(part.loaded.begin(), part.loaded.end(), false) != part.loaded.end())
      add(missing_rows(name, part.loaded));
  if (!missing.empty()) throw std::invalid_argument("these tensors are missing: " + missing);
  set_final_norms();
}

}  // namespace forearm
