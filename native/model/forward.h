// The transformer: one step from token ids to logits, or to the rows that are pooled.
//
// Reading order: forward.cpp (the walk over layers, embedding, head), mixers/ and feed_forward/ (the halves of a
// layer), step/ (their building blocks: preparing rows and multiplying, divided among the team).
#pragma once
#include "model/cache/kv_cache.h"
#include "model/cache/states.h"
#include "model/feed_forward/alt_up.h"
#include "model/feed_forward/experts.h"
#include "model/feed_forward/feed_forward.h"
#include "model/feed_forward/gated_norms.h"
#include "model/feed_forward/hyper_connections.h"
#include "model/feed_forward/per_layer_embedding.h"
#include "model/mixers/attention.h"
#include "model/mixers/compressed_attention.h"
#include "model/mixers/latent_attention.h"
#include "model/mixers/recurrent/gated_delta.h"
#include "model/mixers/recurrent/lightning.h"
#include "model/mixers/recurrent/mamba2.h"
#include "model/mixers/recurrent/rg_lru.h"
#include "model/mixers/recurrent/rwkv/rwkv7.h"
#include "model/mixers/recurrent/selective_scan.h"
#include "model/mixers/recurrent/short_conv.h"
#include "model/mixers/side_block.h"
#include "model/partition.h"
#include "model/scratch.h"
#include "model/step/batch.h"
#include "model/step/step.h"
#include "model/weights/weights.h"
#include "threads/pool.h"

namespace forearm {

class Forward {
 public:
  // All arguments must outlive this. Throws std::invalid_argument if a matrix is missing or has a wrong size.
  Forward(const Config& config, const Ranks& ranks, const Weights& weights, const KvBlocks& kv, const States& states,
          Scratch& scratch, Pool& pool);

  // Computes a checked batch: writes its keys and values to the KV cache, its states to their slots, and the logits of
  // its logit rows to the scratch. The team enters once and walks all phases, with barriers where data crosses threads:
  // five a layer, with experts six to eight, with Mamba2 or an embedding of each layer two, with an RG-LRU one,
  // with RWKV-7's time mixing five, with a token shift before the feed-forward two, with Mamba three or four, with each
  // gated norm three more, with four convolutions four more.
  void run(const Batch& batch);
  // See Executor.
  void record_inputs() { step_.record_inputs(); }
  const std::vector<float>& inputs(const Matrix& matrix) const { return step_.inputs(matrix); }

 private:
  void walk(StepWalk w);
  const Norm* mix(StepWalk& w, size_t layer, const Norm* add);
  void embed(Range rows);
  void fuse(StepWalk& w);
  const Norm* keep_hidden(StepWalk& w, const Norm* add);
  void project_embedding(StepWalk& w, Range rows);
  void drop(Range rows);
  void head(StepWalk& w, const Norm* add);
  Operand head_rows(StepWalk& w, const Norm* add);
  void find_maxima(Range rows, Range columns);
  void hidden(const StepWalk& w, const Norm* add);

  const Config& c_;
  const Norm &final_norm_, &embed_norm_, &hidden_out_norm_;
  const Linear &embed_, *positions_, *types_, *fuse_, *embed_in_, &head_, *head_dense_;  // null: none
  const Norm &hidden_norm_, &head_norm_;
  const std::vector<float>& embed_merge_;
  Scratch& s_;
  Step step_;
  LayerConvolutions convolutions_;
  Attention attention_;
  LatentAttention latent_attention_;
  CompressedAttention compressed_attention_;
  ShortConv short_conv_;
  Mamba2 mamba2_;
  Lightning lightning_;
  SelectiveScan selective_scan_;
  RgLru rg_lru_;
  TokenShift token_shift_;
  Rwkv7 rwkv7_;
  GatedDelta gated_delta_;
  FeedForward feed_forward_;
  Experts experts_;
  SideBlock side_;
  PerLayerEmbedding per_layer_;
  AltUp alt_up_;
  HyperConnections hyper_;
  GatedNorms gated_norms_;
};

}  // namespace forearm
