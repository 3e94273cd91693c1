// Multi-head latent attention as a mixer (DeepSeek-AI 2024, arXiv:2405.04434): keys and values of all heads are linear
// functions of one latent, which is all that the cache keeps beside a rotated key that the heads share.
//
// It is computed absorbed: q . (W_K c) = (q W_K) . c, so each head's query is multiplied with its W_K, all heads attend
// to the latents as if these were the keys and values of one head, and each head's weighted latent is multiplied with
// its W_V. A token of a prompt is computed in this way too, not with expanded keys and values: same request, same
// tokens, whether a token comes in a prompt's chunk or alone. For DeepSeek's sizes (rank 512, 64 rotated, 128 plain and
// value numbers) each visible key takes 1088 multiply-adds a head instead of 320; the two products take 131 k a head
// and token, as expanding does. At 1000 visible keys that is 0.47 G a token of V2-Lite instead of 0.14 G, beside
// the 2.4 G of its active weights.
#pragma once
#include <vector>

#include "model/mixers/attention.h"

namespace forearm {

class LatentAttention {
 public:
  // Phases handed out task by task: rows and multiplication three times, products of heads twice, and attention.
  static constexpr int64_t kPhases = 9;

  // All arguments must outlive this. `attention` has the step's plan, rotary angles and slots. Throws
  // std::invalid_argument if a layer's matrix is missing or has a wrong size.
  LatentAttention(const Weights& weights, const KvBlocks& kv, const Attention& attention, Step& step);

  // See Attention::mix.
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear *in = nullptr, *q = nullptr, *k_up = nullptr, *v_up = nullptr, *o = nullptr;  // q: of a latent
  };
  const LatentKind& kind(size_t layer) const { return *config_.layers[layer].mixer_as<LatentKind>(); }

  void store_latents(const StepWalk& w, size_t layer);
  void project_queries(StepWalk& w, size_t layer);
  void absorb(StepWalk& w, size_t layer);
  void attend(StepWalk& w, size_t layer);
  void weigh(StepWalk& w, size_t layer);
  template <class Piece>
  void each_head(StepWalk& w, const Linear& heads, const Piece& piece);
  void multiply_head(int member, const Linear& heads, int64_t head, Range columns, const Operand& in, int64_t rows,
                     const Operand& out) const;

  const Config& config_;
  const Weights& weights_;
  const KvBlocks& kv_;
  const Attention& attention_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
};

}  // namespace forearm
