// The gated delta rule as a mixer (Qwen3-Next, Qwen3.5, Kimi Linear): projects the normed residual to queries, keys,
// values and gates, convolves the first three over the last tokens, updates each value head's matrix of what was said
// about keys, reads it with the queries, and projects the normed, gated result back to the residual.
#pragma once
#include <vector>

#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class GatedDelta {
 public:
  // Phases handed out task by task: rows and multiplication five times, and heads.
  static constexpr int64_t kPhases = 11;

  // All arguments must outlive this. Throws std::invalid_argument if a layer's matrix is missing or has a wrong size.
  GatedDelta(const Weights& weights, const States& states, Step& step);

  // See Attention::mix.
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

  // Floats that a member needs to compute rows of a key head.
  static int64_t scratch_floats(const GatedDeltaKind& kind);

 private:
  struct LayerMatrices {
    const Linear *in = nullptr, *gates = nullptr, *out = nullptr;  // null: a layer with another mixer
    const Linear *z = nullptr, *a = nullptr;                       // of latents
    std::vector<float> query_scale, key_scale;                     // [key_dim]: weights of the norms
  };
  // A key head and its value heads in the rows of one sequence, or in some of them.
  struct HeadRows {
    size_t layer;
    int64_t head, sequence;
    Range rows;  // of the step
  };
  const GatedDeltaKind& kind(size_t layer) const { return *step_.config.layers[layer].mixer_as<GatedDeltaKind>(); }

  void project(StepWalk& w, size_t layer, const Norm* add);
  void project_latents(StepWalk& w, size_t layer);
  void compute_head(const StepWalk& w, HeadRows all);
  void compute_rows(const StepWalk& w, const HeadRows& own);
  void convolve(const HeadRows& own, int64_t column, int64_t channel, int64_t channels, float* out, int64_t stride);
  void store(const HeadRows& own, float* x, int64_t stride, int64_t value_head);

  const Weights& weights_;
  const States& states_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
