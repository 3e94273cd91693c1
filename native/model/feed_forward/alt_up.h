// Alternating updates (Baykal et al. 2023, arXiv:2301.13310): several residual streams, of which layers compute the
// first, and a path of low rank beside attention (Laurel: Menghani et al. 2024, arXiv:2411.07501). Gemma 3n has both.
//
// With streams s[i], m(x) = tanh(W_router norm(x) / hidden), and matrices P [streams * streams, streams] and
// C [streams, streams] of a layer:
//   p[i] = s[i] + sum over j of (P m(s[0]))[i * streams + j] * s[j]          before the layer, whose residual is p[0]
//   x = p[0] + attention(norm(p[0])) + laurel(norm(p[0])), over sqrt(2); laurel(y) = y + norm(W_right W_left y)
//   s[i] = p[i] + (1 + (C m(x))[i]) * (x - p[0])                             after its feed-forward
//   s[i] += the embedding of the layer, gated by scale * s[0], for i > 0
// The embedded row x makes the first streams, s[0] = x and s[i] = W_i x, and the last ones make the row that the final
// norm takes, the mean of s[0] and U_i s[i]; W_i x and U_i s[i] are scaled to the size of s[0].
#pragma once
#include <vector>

#include "model/step/step.h"

namespace forearm {

class AltUp {
 public:
  static constexpr int64_t kPhases = 4;  // phases handed out task by task: Laurel's rows and multiplication, twice

  // Both arguments must outlive this. Throws std::invalid_argument if a matrix is missing or has a wrong size.
  AltUp(const Weights& weights, Step& step);

  // Makes the streams of the embedded rows, and the residual that the first layer reads; ends with a barrier.
  void begin(StepWalk& w);
  // Adds Laurel's result to the residual that attention has read; ends with a barrier.
  void add_laurel(StepWalk& w, size_t layer);
  // Adds the feed-forward's result to the residual, corrects all streams by it, and leaves the row that gates the
  // layer's embedding in the residual; ends with a barrier. Returns null: nothing is left to be added.
  const Norm* correct(StepWalk& w, size_t layer, const Norm& add);
  // Adds the layer's embedding to the streams, and makes the residual that the next layer reads; ends with a barrier.
  const Norm* go_on(StepWalk& w, size_t layer, const Norm& add);
  // Makes the residual that the final norm reads; ends with a barrier.
  void finish(StepWalk& w);

 private:
  struct LayerMatrices {
    const Linear &laurel_left, &laurel_right;
  };

  Operand stream(int64_t i) const;
  float* stream_row(int64_t i, int64_t row) const;
  void route(int member, size_t layer, const float* x, float* modalities) const;
  void predict(int member, size_t layer, int64_t row) const;
  void keep_logit_rows(const StepWalk& w) const;
  float root_mean_square(const float* x) const;

  const Weights& weights_;
  Step& step_;
  const int64_t streams_, hidden_, stride_;  // stride_: columns of a stream
  const Linear* in_ = nullptr;
  std::vector<const Linear*> out_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
