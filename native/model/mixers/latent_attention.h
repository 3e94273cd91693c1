// Multi-head latent attention as a mixer (DeepSeek-AI 2024, arXiv:2405.04434): keys and values of all heads are linear
// functions of one latent, which is all that the cache keeps beside a rotated key that the heads share.
//
// It is computed absorbed: q . (W_K c) = (q W_K) . c, so each head's query is multiplied with its W_K, all heads attend
// to the latents as if these were the keys and values of one head, and each head's weighted latent is multiplied with
// its W_V. That is so for prompts, too; the arithmetic, for DeepSeek's sizes (rank 512, 64 rotated, 128 plain and value
// numbers), in multiply-adds of a head, for m rows of a step that see n keys each:
//   absorbed   1088 m n + 131 k m    of each pair 576 + 512; W_K and W_V with each row
//   expanded    320 m n + 131 k n    of each pair 192 + 128; W_K and W_V with each latent of the context, in each step
// The expanded form takes fewer if m > 171 (n large), whatever n is: at 1000 keys 0.14 G instead of 0.47 G a token of
// V2-Lite, beside the 2.4 G of its active weights. But the two forms round differently, so which of them a token takes
// may depend only on what every step and request that computes it has in common, or same request, same tokens fails:
//   - on the rows of its step it may not: a prompt is cut into chunks by its company;
//   - on its position alone it may not: a generated token at that position would expand its whole context;
//   - on whether it was in the prompt or generated it may not: an answer's latents are kept by the prefix cache, and
//     are those of a prompt in the next turn of the chat, which computes them itself if the cache has dropped them.
// So one form serves all, and that is the one that decode needs. It keeps up with the multiplication of weights: a pair
// of blocks is turned into values once for up to 96 rows of all heads, and the pairs of 512 rows with contexts of 2048
// to 7600 keys are computed at 1.1 to 1.2 times the rate of the same step's weights, in float32 and bfloat16 (two
// layers of V2-Lite's shape, CPU time of one thread, avx512_bf16 on an EPYC).
#pragma once
#include <vector>

#include "model/mixers/attention.h"
#include "model/mixers/indexer.h"

namespace forearm {

class LatentAttention {
 public:
  // Phases handed out task by task: rows and multiplication three times, products of heads twice, and attention.
  static constexpr int64_t kPhases = 9 + Indexer::kPhases;

  // All arguments must outlive this. `attention` has the step's plan, rotary angles and slots. Throws
  // std::invalid_argument if a layer's matrix is missing or has a wrong size.
  LatentAttention(const Weights& weights, const KvBlocks& kv, const Attention& attention, Step& step);

  // Plans the step's batch; by one thread, before the walk.
  void plan() { indexer_.plan(); }

  // See Attention::mix.
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);

 private:
  struct LayerMatrices {
    const Linear *in = nullptr, *q = nullptr, *k_up = nullptr, *v_up = nullptr, *o = nullptr;  // q: of a latent
  };
  const LatentKind& kind(size_t layer) const { return *config_.layers[layer].mixer_as<LatentKind>(); }

  void store_latents(const StepWalk& w, size_t layer);
  void rotate(const LatentKind& k, const Operand& x, int64_t column, Range rows) const;
  void project_queries(StepWalk& w, size_t layer);
  void absorb(StepWalk& w, size_t layer);
  void grow(const StepWalk& w, const LatentKind& k) const;
  void attend(StepWalk& w, size_t layer);
  void weigh(StepWalk& w, size_t layer);
  void gate(size_t layer, int64_t head, Range rows, Range columns) const;

  const Config& config_;
  const Weights& weights_;
  const KvBlocks& kv_;
  const Attention& attention_;
  Step& step_;
  std::vector<LayerMatrices> layers_;
  Indexer indexer_;
};

}  // namespace forearm
