// Norms with gates, before mixers and experts: y sigmoid(W_up silu(W_down y)) with y = norm(x) and few numbers between
// both matrices (A.X K2: AXK2GatedRMSNorm of transformers 5.23).
#pragma once
#include <vector>

#include "model/step/step.h"

namespace forearm {

class GatedNorms {
 public:
  enum class Half { mixer, experts };
  static constexpr int64_t kPhases = 4;  // rows and multiplication, twice

  // All arguments must outlive this. Throws std::invalid_argument if a matrix is missing or has a wrong size.
  GatedNorms(const Weights& weights, Step& step);

  // Writes what stands behind the norm before a half of a layer to Scratch::gated. add: norm of the projection before,
  // which is not yet added to the residual. Returns null: it is added now.
  const Norm* apply(StepWalk& w, size_t layer, Half half, const Norm* add);

 private:
  struct Gate {
    const Linear *down = nullptr, *up = nullptr;
  };
  void multiply_gates(const StepWalk& w, const Norm& norm, Range rows) const;

  const Weights& weights_;
  Step& step_;
  std::vector<Gate> mixers_, experts_;  // by layer
};

}  // namespace forearm
