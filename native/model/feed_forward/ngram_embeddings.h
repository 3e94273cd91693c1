// Embeddings of the last tokens together (Qwen4-Exp), which are added to residual streams before a layer. Hashes of the
// last 2, 3 .. tokens choose rows of a large table, `heads` of each number of tokens; their embeddings lie side by
// side.
//
// With e of them, a key k[i] of each of S streams s[i] and a value v, both linear functions of e, RMSNorms n of
// streams' width with weights of their own, and g = n(k[i]) . n(s[i]) / sqrt(hidden):
//   u[i] = sigmoid(sign(g) sqrt(max(|g|, 1e-6))) v
//   s[i] += u[i] + silu(convolution of n(u[i]) over the tokens), whose taps are as far apart as tokens are hashed
// The hash of the tokens t[0], the row's own, t[1], the one before, .. is the xor of t[j] * multipliers[j], modulo the
// head's rows. From a token that ends a text on, that token stands for all before. The tokens before, and the
// convolution's rows, are a state of the sequence.
#pragma once
#include <vector>

#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class NgramEmbeddings {
 public:
  static constexpr int64_t kPhases = 2;  // rows and multiplication

  // All arguments must outlive this. Throws std::invalid_argument if a matrix is missing or has a wrong size.
  NgramEmbeddings(const Weights& weights, const States& states, Step& step);

  // Adds a layer's embeddings to all streams; ends with a barrier.
  void add(StepWalk& w, size_t layer);

 private:
  struct LayerMatrices {
    const Linear *table = nullptr, *in = nullptr;  // null: the layer has none
  };
  const NgramKind& kind(size_t layer) const { return *step_.config.layers[layer].ngrams; }
  int64_t all_streams() const { return streams_ * step_.config.hidden; }

  void look_up(size_t layer, int64_t sequence, int64_t row) const;
  int32_t token_before(size_t layer, int64_t sequence, int64_t row, int64_t distance) const;
  void gate(const StepWalk& w, size_t layer, int64_t row) const;
  void normalize(const float* x, const float* weight, float* out) const;
  void convolve(size_t layer, int64_t sequence, int64_t stream, Range columns) const;
  void keep(size_t layer, int64_t sequence, Range channels, bool tokens) const;
  float* stream(int64_t i, int64_t row) const;

  const Weights& weights_;
  const States& states_;
  Step& step_;
  const int64_t streams_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
