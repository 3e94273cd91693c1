// The transformer: one step, from token ids to logits.
#pragma once
#include <atomic>
#include <memory>

#include "model/attention_plan.h"
#include "model/batch.h"
#include "model/kv_cache.h"
#include "model/scratch.h"
#include "model/weights.h"
#include "threads/pool.h"

namespace forearm {

class Forward {
 public:
  // Everything must outlive this.
  Forward(const Config& config, const Weights& weights, const KvBlocks& kv, Scratch& scratch, Pool& pool);

  // Computes a checked batch: writes its keys and values, and the logits of its logit rows to the scratch. The team
  // enters once and walks all phases, with barriers where data crosses threads.
  void run(const Batch& batch);

 private:
  // One member on its way through the step.
  struct Walk {
    int member;
    int phase = 0;  // phases that were handed out task by task so far; every member counts the same
  };
  struct alignas(128) Counter {
    std::atomic<int64_t> next{0};
  };

  void walk(Walk w);
  void prepare(const Walk& w);
  void angles(Range rows);
  void embed(Range rows);

  Operand input(const Walk& w, const Norm& norm);
  void project_qkv(Walk& w, size_t layer, const Operand& in);
  void finish_heads(size_t layer, Range rows, Range query, Range kv);
  void normalise_heads(const LayerWeights& weights, Range rows, Range query, Range kv);
  void rotate(size_t rope, Range rows, int64_t column, int64_t heads);
  void attend(Walk& w, size_t layer);
  void attend_one(int member, size_t layer, const AttentionWork& work);
  void project_back(Walk& w, const Operand& in, const Matrix& matrix, const std::vector<float>& bias, const Norm& norm);
  void project_up(Walk& w, const LayerWeights& weights, const Operand& in);
  void head(Walk& w);

  void multiply(Walk& w, const Matrix& matrix, const std::vector<float>& bias, GemmTask task);
  void multiply_columns(const Walk& w, const Matrix& matrix, GemmTask task);
  void multiply_piece(GemmTask& task, Range columns);
  void normalise(const Norm& norm, const float* x, Range rows, const Operand& out);
  std::atomic<int64_t>& counter(int phase, int member) { return counters_[phase * pool_.threads() + member].next; }
  int64_t take(int phase, int member) { return counter(phase, member).fetch_add(1, std::memory_order_relaxed); }
  int64_t next(const Walk& w) { return take(w.phase, 0); }  // of a phase that is handed out to all from one counter
  void barrier(const Walk& w) { pool_.barrier(w.member); }
  Range mine(const Walk& w, int64_t rows) const { return share(rows, 2, w.member, pool_.threads()); }
  float* residual_row(int64_t row) const { return static_cast<float*>(s_.residual.data) + row * s_.residual.stride; }
  float* qkv_at(int64_t row, int64_t column) const {
    return static_cast<float*>(s_.qkv.data) + row * s_.qkv.stride + column;
  }

  const Config& c_;
  const Weights& weights_;
  const KvBlocks& kv_;
  Scratch& s_;
  Pool& pool_;
  const Kernels& k_;
  const QkvColumns at_;
  AttentionPlan plan_;
  int64_t phases_;
  std::unique_ptr<Counter[]> counters_;  // by phase and member; each member clears its own
  const Batch* batch_ = nullptr;
};

}  // namespace forearm
