// Token shift (Peng et al. 2023, arXiv:2305.13048): what a half of an RWKV layer reads of a token, its normalized
// residual, is mixed with that of the token before. The last token's of both halves are rows of the layer's state.
#pragma once
#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class TokenShift {
 public:
  enum class Half { mixer, feed_forward };  // their rows of the state

  // All arguments must outlive this.
  TokenShift(const States& states, Step& step) : states_(states), step_(step) {}

  // Normalizes the member's rows to Scratch::convolved; add: see Attention::mix. A barrier must follow.
  void normalize(const StepWalk& w, const Norm* add, const Norm& norm);
  // Mixes the member's columns of all rows, or of those that need logits alone, with `mix`, [hidden].
  void mix(const StepWalk& w, size_t layer, Half half, const float* mix, const Operand& out, bool logits_alone);
  // Keeps the member's columns of each sequence's last row, after all of them have been mixed.
  void keep(const StepWalk& w, size_t layer, Half half);

 private:
  Range columns(const StepWalk& w) const { return share(step_.config.hidden, kPanel, w.member, step_.pool.threads()); }
  float* row_of_state(size_t layer, int64_t sequence, Half half) const;

  const States& states_;
  Step& step_;
};

}  // namespace forearm
