// The time mixing of RWKV-7 as a mixer (Peng et al. 2025, arXiv:2503.14456): projects the normed residual, mixed with
// that of the token before, to r, k and v, makes decays, rates, gates and the part of the first layer's values of it by
// pairs of low-rank matrices, moves each head's matrix by them, and projects what it reads back to the residual.
#pragma once
#include <array>
#include <vector>

#include "model/cache/states.h"
#include "model/mixers/recurrent/rwkv/token_shift.h"
#include "model/step/step.h"

namespace forearm {

class Rwkv7 {
 public:
  // Phases handed out task by task: rows and multiplication of three matrices, four pairs, heads, and the last matrix.
  static constexpr int64_t kPhases = 2 * 3 + 4 * 4 + 1 + 2;

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  Rwkv7(const Weights& weights, const States& states, TokenShift& token_shift, Step& step);

  // See Attention::mix; in the last layer, too, all rows have a result, because the feed-forward reads them.
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

  // Floats that a member needs to compute rows of a head.
  static int64_t scratch_floats(const Rwkv7Kind& kind);

 private:
  // A pair of low-rank matrices, and where their results are in Scratch::mixer_in.
  struct Pair {
    const Linear *down = nullptr, *up = nullptr;  // null: the layer has no such pair
    Squash squash = Squash::none;
    int64_t latent = 0, column = 0;
  };
  struct LayerMatrices {
    std::array<const Linear*, 3> in{};  // r, k, v; null: another mixer
    std::array<Pair, 4> pairs;          // w, a, v, g
    const Linear* out = nullptr;
  };
  const Rwkv7Kind& kind(size_t layer) const { return *step_.config.layers[layer].mixer_as<Rwkv7Kind>(); }

  void shift(const StepWalk& w, size_t layer);
  void project(StepWalk& w, size_t layer);
  void squash(const StepWalk& w, size_t layer);
  void compute_head(const StepWalk& w, size_t layer, int64_t head, int64_t sequence);
  Operand columns(int64_t column) const {
    return {step_.scratch.mixer_at(0, column), step_.scratch.mixer_in.stride, Form::f32_rows};
  }

  const Weights& weights_;
  const States& states_;
  TokenShift& token_shift_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
