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
  // Copies logits [rows, vocab_size] to the scratch, with their maxima; at most step_logit_rows rows.
  void take_logits(const float* logits, int64_t rows);

  int64_t tokens() const { return step_.batch().tokens; }

 private:
  template <class Work>
  void run(int64_t rows, const Work& work);

  const Weights& weights_;
  const KvBlocks& kv_;
  Step step_;
  AttentionPlan plan_;
  Batch batch_{};
  std::vector<int32_t> position_, start_, block_start_, block_;
  size_t calls_ = 0;
};

}  // namespace forearm
