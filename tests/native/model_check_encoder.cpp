// Encoders for model_check: a tiny BERT and a tiny ModernBERT, pooled, with a layer behind.
#include <algorithm>
#include <cmath>

#include "model_check.h"

namespace forearm::checks {
namespace {

// Tokens of each text: one, a block of 32, one more, more than the window on both sides.
constexpr int64_t kLengths[kTexts] = {45, 1, 32, 33, 64, 7, 20};
constexpr int64_t kMost = 64, kAll = 45 + 1 + 32 + 33 + 64 + 7 + 20;

Config tiny_encoder(Shape shape) {
  Config c{};
  const bool bert = shape == Shape::bert;
  c.vocab_size = kVocab;
  c.hidden = 52;
  c.heads = c.kv_heads = 4;
  c.head_dim = 13 + !bert;  // of BERT odd: nothing is rotated
  c.max_positions = kMost;
  c.layer_norm = true;
  c.norm_bias = bert;
  c.norm_residual = bert ? NormResidual::all : NormResidual::first;
  c.bidirectional = c.pooled = c.tied_head = true;
  c.attention_scale = 0.25f;
  c.learned_positions = bert;
  c.position_offset = bert ? 2 : 0;
  c.token_types = bert ? 2 : 0;
  if (!bert) c.ropes.push_back({{1.0f, 0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f}, 1.0f, false});
  const std::optional<int> rope = bert ? std::nullopt : std::optional<int>(0);
  const FeedForwardKind feed_forward{88, Activation::gelu_erf, !bert};
  c.layers = {{AttentionKind{rope, 0}, feed_forward}, {AttentionKind{rope, 9}, feed_forward}};
  c.dense = {{70, true, false, Activation::none, true}, {kVocab, bert, true, Activation::gelu_erf, false}};
  c.matrices = dense_matrices(c, bert, bert);
  return c;
}

// Loads every vector, and every matrix of the list, with names as the executor's.
class Loader {
 public:
  explicit Loader(Executor& executor) : executor_(executor) {}

  // All whose name begins so, each with its bias.
  void matrices(const std::string& prefix) {
    for (const MatrixSpec& spec : executor_.config().matrices)
      for (const MatrixPart& part : spec.parts) {
        if (!part.name.starts_with(prefix)) continue;
        const float scale = 1.7f / std::sqrt(static_cast<float>(spec.k));
        const std::vector<float> values = random_.floats(part.rows * spec.k, 0.0f, scale);
        executor_.load_matrix(part.name, {values.data(), DType::f32, part.rows, spec.k}, 0);
        if (spec.bias) vector(part.name + ".bias", part.rows, 0.0f);
      }
  }
  void norm(const std::string& name, int64_t n) {
    vector(name, n, 1.0f);
    if (executor_.config().norm_bias) vector(name + ".bias", n, 0.0f);
  }
  void layer(const std::string& name) {
    const Config& c = executor_.config();
    matrices(name);
    norm(name + "input_norm", c.hidden);
    norm(name + "pre_mlp_norm", c.hidden);
  }

 private:
  void vector(const std::string& name, int64_t n, float around) {
    executor_.load_vector(name, random_.floats(n, around, 0.3f).data(), n);
  }

  Executor& executor_;
  Random random_;
};

void load(Executor& executor) {
  const Config& c = executor.config();
  Loader loader(executor);
  for (const char* name : {"embed", "positions", "types"}) loader.matrices(name);
  for (size_t i = 0; i < c.layers.size(); ++i) loader.layer("layers." + std::to_string(i) + ".");
  loader.norm("final_norm", c.hidden);
  for (size_t i = 0; i < c.dense.size(); ++i) {
    const std::string name = "dense." + std::to_string(i);
    loader.matrices(name);
    if (c.dense[i].norm) loader.norm(name + ".norm", c.dense[i].outputs);
  }
  executor.finish_loading();
  executor.allocate_kv(kTexts + kAll / kBlockTokens + 1);
}

// Texts [first, end) in one step; every second one has a second part.
void step(Executor& executor, int64_t first, int64_t end, Logits& out) {
  std::vector<int32_t> tokens, positions, types, rows, starts{0}, block_starts{0}, blocks;
  for (int64_t text = first; text < end; ++text) {
    for (int64_t i = 0; i < kLengths[text]; ++i) {
      tokens.push_back(static_cast<int32_t>((i * 31 + text * 7) % kVocab));
      positions.push_back(static_cast<int32_t>(i));
      types.push_back(text % 2 && 2 * i >= kLengths[text]);
      rows.push_back(static_cast<int32_t>(rows.size()));
    }
    starts.push_back(static_cast<int32_t>(tokens.size()));
    for (int64_t b = 0; b * kBlockTokens < kLengths[text]; ++b) blocks.push_back(static_cast<int32_t>(blocks.size()));
    block_starts.push_back(static_cast<int32_t>(blocks.size()));
  }
  const auto count = static_cast<int64_t>(tokens.size()), texts = end - first;
  const bool typed = executor.config().token_types > 0;
  executor.forward({count, texts, count, tokens.data(), positions.data(), starts.data(), block_starts.data(),
                    static_cast<int64_t>(blocks.size()), blocks.data(), rows.data(), typed ? types.data() : nullptr});
  Logits pooled(static_cast<size_t>(texts * kVocab));
  executor.pool(starts.data(), texts, 0, pooled.data());
  out.insert(out.end(), pooled.begin(), pooled.end());
}

}  // namespace

Logits encode(const Kind& kind, const Ranks& ranks, bool together) {
  const Config config = tiny_encoder(kind.shape);
  Executor executor(config, uniform(config, kind.format), {kind.kv, kAll, kTexts, kAll, kMost}, {}, ranks);
  load(executor);
  Logits out;
  if (together) step(executor, 0, kTexts, out);
  for (int64_t text = 0; !together && text < kTexts; ++text) step(executor, text, text + 1, out);
  return out;
}

}  // namespace forearm::checks
