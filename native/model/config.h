// One model as the executor reads it: app/forearm/model/config.py's ModelConfig in C++.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace forearm {

enum class NormPlacement { pre, post, sandwich };
enum class QkNorm { none, head, full };

struct Rope {
  std::vector<float> inv_freq;  // [rotary_dim / 2]
  float scale = 1.0f;
  bool interleaved = false;
};

struct LayerKind {
  std::optional<int> rope;  // index into Config::ropes
  int64_t window = 0;       // 0: all keys
};

struct Config {
  int64_t vocab_size, hidden, intermediate, heads, kv_heads, head_dim, max_positions;
  std::vector<LayerKind> layers;
  std::vector<Rope> ropes;
  bool learned_positions = false;
  int64_t position_offset = 0;

  float norm_eps = 1e-6f;
  bool layer_norm = false;
  NormPlacement norm_placement = NormPlacement::pre;
  bool norm_plus_one = false;
  bool final_norm = true;
  QkNorm qk_norm = QkNorm::none;

  Activation activation = Activation::silu;
  bool gated = true;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, head_bias = false;
  bool tied_head = false;

  float attention_scale = 1.0f, attention_softcap = 0.0f;
  float logits_softcap = 0.0f, logits_scale = 1.0f, embedding_scale = 1.0f, residual_scale = 1.0f;

  int64_t group() const { return heads / kv_heads; }
  bool norm_before() const { return norm_placement != NormPlacement::post; }
  bool norm_after() const { return norm_placement != NormPlacement::pre; }
};

// How one packed matrix is kept and multiplied: WeightFormat in C++.
struct Format {
  enum class Zero { none, int8, float32 };
  DType dtype = DType::f32;
  int64_t group = 0;  // values of a row that share a scale; 0: the whole row
  DType scale_dtype = DType::f32;
  Zero zero = Zero::none;
  bool wide = false;     // activations are not rounded to int8
  bool ordered = false;  // columns of activations are permuted: Weights::load_codes' order
};
// By the names of the packed matrices: embed, positions, head, layers.{i}.{qkv,o,up,down}.
using Formats = std::map<std::string, Format>;

// What one executor is made for.
struct Limits {
  DType kv_dtype;
  int64_t step_tokens, step_sequences, step_logit_rows, max_model_len;
};

// Throws std::invalid_argument naming the field and its value: sizes that can't be, heads that don't divide, an odd
// rotary dimension.
void check(const Config& config, const Limits& limits);
// The same of a format that can't be: `name` is the matrix's, `k` its width.
void check(const std::string& name, const Format& format, int64_t k);

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace forearm
