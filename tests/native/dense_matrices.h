// The matrices of a transformer and their formats, as app/forearm/model/families/matrices.py lists them.
#pragma once
#include <string>
#include <vector>

#include "model/config.h"

namespace forearm::checks {

// The matrices of a layer with latent attention.
inline std::vector<MatrixSpec> latent_matrices(const Config& c, const LatentKind& own, const std::string& layer) {
  const auto single = [&layer](const char* name, int64_t rows, int64_t k, Role role, int64_t heads = 1) {
    return MatrixSpec{layer + name, {{layer + name, rows}}, k, role, false, false, heads};
  };
  const MatrixPart q_down{layer + "q_down", own.q_rank}, kv_down{layer + "kv_down", own.rank + own.rotary};
  std::vector<MatrixSpec> all{{layer + "latent_in", {q_down, kv_down}, c.hidden, Role::mixer_in},
                              single("q_up", c.heads * own.query_dim(), own.q_rank, Role::mixer_inner),
                              single("k_up", own.rank, own.plain, Role::mixer_heads, c.heads),
                              single("v_up", own.value, own.rank, Role::mixer_heads, c.heads),
                              single("o", c.hidden, c.heads * own.value, Role::mixer_out)};
  if (!own.indexer || own.indexer->shared) return all;
  const MatrixPart keys{layer + "index_k", own.indexer->head_dim}, weights{layer + "index_weights", own.indexer->heads};
  all.push_back({layer + "index_in", {keys, weights}, c.hidden, Role::router});
  all.push_back(single("index_q", own.indexer->heads * own.indexer->head_dim, own.q_rank, Role::mixer_inner));
  return all;
}

inline std::vector<MatrixSpec> dense_matrices(const Config& c, bool qkv_bias = false, bool other_biases = false) {
  std::vector<MatrixSpec> all;
  const auto single = [&all](const std::string& name, int64_t rows, int64_t k, Role role, bool bias = false) {
    all.push_back({name, {{name, rows}}, k, role, bias});
  };
  single("embed", c.vocab_size, c.hidden, Role::embedding);
  if (c.learned_positions) single("positions", c.max_positions + c.position_offset, c.hidden, Role::table);
  if (c.token_types > 0) single("types", c.token_types, c.hidden, Role::table);
  if (!c.tied_head) single("head", c.vocab_size, c.hidden, Role::head);
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    if (const auto* latent = c.layers[i].mixer_as<LatentKind>()) {
      for (const MatrixSpec& spec : latent_matrices(c, *latent, layer)) all.push_back(spec);
    } else {
      all.push_back({layer + "qkv",
                     {{layer + "q", q}, {layer + "k", kv}, {layer + "v", kv}},
                     c.hidden,
                     Role::mixer_in,
                     qkv_bias});
      single(layer + "o", c.hidden, q, Role::mixer_out, other_biases);
    }
    const auto up_and_down = [&](const std::string& prefix, const FeedForwardKind& own, int64_t experts) {
      std::vector<MatrixPart> up{{prefix + "up", own.width}};
      if (own.gated) up.insert(up.begin(), {prefix + "gate", own.width});
      all.push_back({prefix + "up", up, c.hidden, Role::feed_forward_in, other_biases, own.gated, experts});
      all.push_back({prefix + "down",
                     {{prefix + "down", c.hidden}},
                     own.width,
                     Role::feed_forward_out,
                     other_biases,
                     false,
                     experts});
    };
    const auto& experts = c.layers[i].experts;
    if (experts) {
      all.push_back({layer + "router", {{layer + "router", experts->count}}, c.hidden, Role::router});
      if (experts->shared_gate) all.back().parts.push_back({layer + "shared_gate", 1});
    }
    up_and_down(experts ? layer + "experts." : layer, *c.layers[i].feed_forward, experts ? experts->count : 1);
    if (experts && experts->shared) up_and_down(layer + "shared.", *experts->shared, 1);
  }
  int64_t width = c.hidden;
  for (size_t i = 0; i < c.dense.size(); ++i) {
    single("dense." + std::to_string(i), c.dense[i].outputs, width, Role::pooler, c.dense[i].bias);
    width = c.dense[i].outputs;
  }
  return all;
}

// One format for all, float32 for tables but the embedding, routers, matrices of one head and what is behind pooling.
inline Formats uniform(const Config& c, const Format& format) {
  Formats formats;
  for (const MatrixSpec& matrix : c.matrices) {
    const Role role = matrix.role;
    const bool exact = role == Role::table || role == Role::pooler || role == Role::router || role == Role::mixer_heads;
    formats[matrix.name] = exact ? Format{} : format;
  }
  return formats;
}

}  // namespace forearm::checks
