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

// Half a layer of Llama's code: x + last(... first(RMSNorm(x))), x [tokens, width].
// gate: none in the half that attends, where q, k and v of `first` stand side by side, and all heads of q and k are
// rotated; else `first` is as in multiply, and each token is treated alone.
struct ModuleHalf {
  const float* norm;
  float eps;
  const Linear *first, *last;
  Activation gate;
  float scale;     // of the half that attends, as is the window
  int64_t window;  // 0: none

  bool attends() const { return gate == Activation::none; }
  int64_t width() const { return first->matrix.k; }
};

// What halves one after the other compute: out [tokens, width] of x; out may not be x. cos, sin: [tokens, head_dim /
// 2].
struct ModuleRows {
  const float *x, *cos, *sin;
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
  // Keeps half a layer for compute(), after those before; what it points at must outlive this. Returns its number.
  size_t add(const ModuleHalf& half);
  const std::vector<ModuleHalf>& halves() const { return halves_; }
  // Computes the halves begin <= i < end one after the other. layer: of the KV cache, of the first one that attends.
  void compute(size_t begin, size_t end, size_t layer, const ModuleRows& rows);
  // Copies logits [rows, vocab_size] to the scratch, with their maxima; at most step_logit_rows rows.
  void take_logits(const float* logits, int64_t rows);

  int64_t tokens() const { return step_.batch().tokens; }

 private:
  template <class Work>
  void run(int64_t rows, const Work& work);
  void write_kv(const StepWalk& w, size_t layer, const float* k, const float* v, int64_t stride);
  void product(StepWalk& w, const Linear& linear, const Operand& a, Epilogue epilogue, Activation gate,
               const Operand& out);
  void mix(StepWalk& w, const ModuleHalf& half, size_t layer, const ModuleRows& rows);
  void feed_forward(StepWalk& w, const ModuleHalf& half, const ModuleRows& rows);
  Operand begin_half(StepWalk& w, const ModuleHalf& half, const ModuleRows& rows);
  void end_half(StepWalk& w, const ModuleHalf& half, const ModuleRows& rows);

  const Weights& weights_;
  const KvBlocks& kv_;
  Step step_;
  AttentionPlan plan_;
  Batch batch_{};
  std::vector<int32_t> position_, start_, block_start_, block_;
  std::vector<ModuleHalf> halves_;
  size_t calls_ = 0;
};

}  // namespace forearm
