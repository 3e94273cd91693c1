// The matrices of a dense transformer and their formats, as app/forearm/model/families/matrices.py lists them.
#pragma once
#include <string>
#include <vector>

#include "model/config.h"

namespace forearm::checks {

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
    const FeedForwardKind& feed_forward = c.layers[i].feed_forward;
    std::vector<MatrixPart> up{{layer + "up", feed_forward.width}};
    if (feed_forward.gated) up.insert(up.begin(), {layer + "gate", feed_forward.width});
    all.push_back(
        {layer + "qkv", {{layer + "q", q}, {layer + "k", kv}, {layer + "v", kv}}, c.hidden, Role::mixer_in, qkv_bias});
    single(layer + "o", c.hidden, q, Role::mixer_out, other_biases);
    all.push_back({layer + "up", up, c.hidden, Role::feed_forward_in, other_biases, feed_forward.gated});
    single(layer + "down", c.hidden, feed_forward.width, Role::feed_forward_out, other_biases);
  }
  int64_t width = c.hidden;
  for (size_t i = 0; i < c.dense.size(); ++i) {
    single("dense." + std::to_string(i), c.dense[i].outputs, width, Role::pooler, c.dense[i].bias);
    width = c.dense[i].outputs;
  }
  return all;
}

// One format for all, float32 for tables but the embedding and for what stands behind pooling.
inline Formats uniform(const Config& c, const Format& format) {
  Formats formats;
  for (const MatrixSpec& matrix : c.matrices)
    formats[matrix.name] = matrix.role == Role::table || matrix.role == Role::pooler ? Format{} : format;
  return formats;
}

}  // namespace forearm::checks
