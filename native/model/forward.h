// The transformer: one step, from token ids to logits, or to the rows that are pooled.
//
// Reading order: forward.cpp (run, walk, embedding, projections, head), forward_rows.cpp (what is multiplied),
// forward_multiply.h, forward_attention.cpp.
#pragma once
#include <atomic>
#include <memory>

#include "model/attention_plan.h"
#include "model/batch.h"
#include "model/kv_cache.h"
#include "model/partition.h"
#include "model/scratch.h"
#include "model/weights.h"
#include "threads/pool.h"

namespace forearm {

inline const float* or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

class Forward {
 public:
  // Everything must outlive this.
  Forward(const Config& config, const Ranks& ranks, const Weights& weights, const KvBlocks& kv, Scratch& scratch,
          Pool& pool);

  // Computes a checked batch: writes its keys and values, and the logits of its logit rows to the scratch. The team
  // enters once and walks all phases, with barriers where data crosses threads: five a layer.
  void run(const Batch& batch);

 private:
  // One member on its way through the step.
  struct Walk {
    int member;
    int64_t rows;       // that go on: all of the step; after the last layer's attention those that want logits
    int64_t phase = 0;  // the next one that is handed out task by task; every member counts the same
  };
  static constexpr int64_t kRowBlocksPerThread = 8;  // at most: row_blocks
  struct alignas(128) Counter {
    std::atomic<int64_t> value{0};
  };
  // Rows that are still to become the left side of a multiplication.
  struct Source {
    const Site& site;  // its raw rows
    int64_t rows;
    const Norm* add = nullptr;   // norm of the projection before, which the residual has yet to get
    const Norm* norm = nullptr;  // null: none
  };

  void walk(Walk w);
  void enter_layer(Walk& w, size_t layer);
  void begin(const Walk& w);
  template <class Visit>
  void each_slot(Range rows, const Visit& visit) const;
  void angles(Range rows);
  void embed(Range rows);
  void project_back(Walk& w, const Operand& in, const Matrix& matrix, const std::vector<float>& bias, bool normed);
  void project_up(Walk& w, const LayerWeights& weights, const Operand& in);
  void head(Walk& w, const Norm* add);
  void find_maxima(Range rows, Range columns);
  void hidden(const Walk& w, const Norm* add);

  Operand stream(Walk& w, const Norm* add, const Norm& norm, const Matrix& matrix);
  Operand output(Walk& w, const Site& site, const Matrix& matrix);
  Operand prepare(Walk& w, const Source& source, const Matrix& matrix);
  void make_rows(const Walk& w, const Source& source, Range rows, const Matrix& matrix, const Operand& out);
  void normalise(const Norm& norm, const float* x, Range rows, const Operand& out);
  void add_projected(const Norm& norm, Range rows);

  // done(rows, row block, columns) after each piece.
  template <class Done>
  void multiply(Walk& w, const Matrix& matrix, const std::vector<float>& bias, GemmTask task, const Done& done);
  void multiply(Walk& w, const Matrix& matrix, const std::vector<float>& bias, const GemmTask& task);
  template <class Done>
  void multiply_few(const Walk& w, const Matrix& matrix, GemmTask& task, const Done& done);
  template <class Done>
  void multiply_many(const Walk& w, const Matrix& matrix, GemmTask& task, const Done& done);
  int64_t row_blocks(int64_t rows, int64_t row_bytes, int64_t column_blocks) const;
  static int64_t piece_columns(int64_t rows);

  void project_qkv(Walk& w, size_t layer, const Operand& in);
  void finish_columns(size_t layer, Range rows, int64_t row_block, Range columns);
  void finish_heads(size_t layer, Range rows, Range query, Range kv);
  void normalise_heads(const LayerWeights& weights, Range rows, Range query, Range kv);
  void rotate(size_t rope, Range rows, int64_t column, int64_t heads);
  void attend(Walk& w, size_t layer);
  void attend_one(int member, size_t layer, const AttentionPlan& plan, const AttentionWork& work);
  void keep_logit_rows(Walk& w);

  std::atomic<int64_t>& counter(int64_t phase, int member) {
    return counters_[static_cast<size_t>(phase * (pool_.threads() + 1) + member)].value;
  }
  std::atomic<int64_t>& ready(int64_t phase) { return counter(phase, pool_.threads()); }
  int64_t take(int64_t phase, int member) { return counter(phase, member).fetch_add(1, std::memory_order_relaxed); }
  int64_t next(const Walk& w) { return take(w.phase, 0); }  // of a phase that is handed out to all from one counter
  // work(rank, piece) for the pieces 0 .. count(rank) - 1 of each rank, once: a member has those of its own rank first,
  // whose data are on its node, then what other ranks have not come to.
  template <class Count, class Work>
  void hand_out(const Walk& w, const Count& count, const Work& work) {
    for (int i = 0; i < ranks_.count(); ++i) {
      const int rank = (ranks_.of(w.member) + i) % ranks_.count(), from = static_cast<int>(ranks_.members(rank).begin);
      const int64_t pieces = count(rank);
      for (int64_t piece = take(w.phase, from); piece < pieces; piece = take(w.phase, from)) work(rank, piece);
    }
  }
  void clear_counters(int member, int64_t first_phase);
  void barrier(const Walk& w) { pool_.barrier(w.member); }
  Range mine(const Walk& w, int64_t rows) const { return share(rows, 2, w.member, pool_.threads()); }
  float* residual_row(int64_t row) const { return static_cast<float*>(s_.residual.data) + row * s_.residual.stride; }
  float* projected_row(int64_t row) const { return static_cast<float*>(s_.projected.data) + row * s_.projected.stride; }
  float* qkv_at(int64_t row, int64_t column) const {
    return static_cast<float*>(s_.qkv.data) + row * s_.qkv.stride + column;
  }

  const Config& c_;
  const Ranks& ranks_;
  const Weights& weights_;
  const KvBlocks& kv_;
  Scratch& s_;
  Pool& pool_;
  const Kernels& k_;
  const QkvColumns at_;
  const HeadUnits units_;
  AttentionPlan plan_, last_plan_;  // of all layers but the last, and of the last one
  // By phase of the layer before, this one or the next; and by member, who clears its own; the last is the ready count.
  std::unique_ptr<Counter[]> counters_;
  std::unique_ptr<std::atomic<int64_t>[]> finished_;  // by row block and unit: columns that are there
  const Batch* batch_ = nullptr;
};

}  // namespace forearm
