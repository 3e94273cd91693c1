// The operations that modules computed elsewhere (by torch) call within a step: products with packed weights and
// attention over the paged KV cache. Each call enters the team once.
#pragma once
#include <string>
#include <vector>

#include "model/mixers/attention_plan.h"
#include "model/step/step.h"

namespace forearm {

// Float arrays of all tokens of the step, C-contiguous: q [tokens, heads, head_dim], k and v [tokens, kv_heads,
// head_dim], out as q.
struct ModuleAttention {
  const float *q, *k, *v;
  float scale, softcap;
  int64_t window;      // 0: none
  const float* sinks;  // [heads], or null
  float* out;
};

// Heads [tokens, heads, head_dim] of floats, one value beside the next within a head; strides in floats.
struct ModuleHeads {
  const float* x;
  int64_t token_stride, head_stride;
};

// Half a layer of Llama's code: out [tokens, width] = x + last(... first(RMSNorm(x))). All are C-contiguous, and out
// may be x.
struct ModuleHalf {
  const float *x, *norm;
  float eps;
  const Linear *first, *last;
  float* out;
};

class Modules {
 public:
  // All arguments must outlive this.
  Modules(const Config& config, const Ranks& ranks, const Weights& weights, const KvBlocks& kv, Scratch& scratch,
          Pool& pool);

  // Copies and plans the step's checked batch and clears the blocks that it begins.
  void begin(const Batch& batch);
  // Stores keys and values in the cache of `layer` and attends.
  void attend(size_t layer, const ModuleAttention& in);
  // The packed matrix of this name, and its bias. Throws std::invalid_argument if there is none.
  const Linear& linear(const std::string& name) const { return weights_.linear(name); }
  // out [rows, n] = x [rows, k] times the matrix, plus its bias; at most step_tokens rows. gate: the panels of the
  // matrix are gates and ups by turns, and out [rows, n / 2] = gate(x gates) * (x ups); none: they are not.
  void multiply(const Linear& linear, const float* x, int64_t rows, Activation gate, float* out);
  // Normalizes rows, from and to floats. A few rows are not divided among the team.
  void norm(const NormTask& task);
  // Copies heads to the C-contiguous task.x and rotates them there. A few rows are not divided among the team.
  void rope(const ModuleHeads& in, const RopeTask& task);
  // The half of a layer that attends: q, k and v of its `first` stand side by side, all heads of q and k are rotated by
  // cos and sin [tokens, head_dim / 2]. in: of layer, scale and window alone.
  void mix(const ModuleHalf& half, size_t layer, const float* cos, const float* sin, const ModuleAttention& in);
  // The half that treats each token alone: `first` as in multiply.
  void feed_forward(const ModuleHalf& half, Activation gate);
  // Copies logits [rows, vocab_size] to the scratch, with their maxima; at most step_logit_rows rows.
  void take_logits(const float* logits, int64_t rows);

  int64_t tokens() const { return step_.batch().tokens; }

 private:
  template <class Work>
  void run(int64_t rows, const Work& work);
  void write_kv(const StepWalk& w, size_t layer, const float* k, const float* v, int64_t stride);
  AttendTask attend_task(const ModuleAttention& in) const;
  void product(StepWalk& w, const Linear& linear, const Operand& a, Epilogue epilogue, Activation gate,
               const Operand& out);
  Operand begin_half(StepWalk& w, const ModuleHalf& half);
  void end_half(StepWalk& w, const ModuleHalf& half);

  const Weights& weights_;
  const KvBlocks& kv_;
  Step step_;
  AttentionPlan plan_;
  Batch batch_{};
  std::vector<int32_t> position_, start_, block_start_, block_;
  size_t calls_ = 0;
};

}  // namespace forearm
