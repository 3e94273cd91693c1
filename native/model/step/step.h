// One step of the model as the team computes it: who takes which piece of a phase, and what all layers are made of,
// rows that become the left side of a multiplication (rows.cpp) and multiplications (multiply.h).
//
// The team enters once and walks all phases together, with barriers where data crosses threads.
#pragma once
#include <atomic>
#include <memory>

#include "model/batch.h"
#include "model/partition.h"
#include "model/scratch.h"
#include "model/weights/weights.h"
#include "threads/pool.h"

namespace forearm {

// One member on its way through the step.
struct StepWalk {
  int member;
  int64_t rows;       // that go on: all of the step; after the last layer's mixer those that want logits
  int64_t phase = 0;  // the next one that is handed out task by task; every member counts the same
};

class Step {
 public:
  static constexpr int64_t kRowBlocksPerThread = 8;  // at most: row_blocks

  // layer_phases: most phases of a layer that are handed out task by task. Everything must outlive this.
  Step(const Config& config, const Ranks& ranks, Scratch& scratch, Pool& pool, int64_t layer_phases);

  // The next step is of this checked batch, which must stay until it is done.
  void begin(const Batch& batch) { batch_ = &batch; }
  const Batch& batch() const { return *batch_; }
  // Counters of even and odd layers alternate: nobody is in the layer before any more, nor in the next one yet.
  void enter_layer(StepWalk& w, size_t layer);
  void clear_counters(int member, int64_t first_phase);

  // The residual stream, normalised if there is a norm.
  Operand stream(StepWalk& w, const Norm* add, const Norm& norm, const Matrix& matrix);
  // What a mixer or the first half of a feed-forward has written.
  Operand output(StepWalk& w, const Site& site, const Matrix& matrix);
  // The residual stream as `matrix` takes it. add: norm of the projection before, which the residual has yet to get;
  // norm: null: none.
  Operand prepare_stream(StepWalk& w, const Norm* add, const Norm* norm, const Matrix& matrix) {
    return prepare(w, {scratch.stream, w.rows, add, norm}, matrix);
  }
  void normalise(const Norm& norm, const float* x, Range rows, const Operand& out);
  void add_projected(const Norm& norm, Range rows);

  // The whole multiplication that `task` describes but for the matrix and the columns, divided among the members.
  // done(rows, row block, columns) after each piece.
  template <class Done>
  void multiply(StepWalk& w, const Linear& linear, GemmTask task, const Done& done);
  void multiply(StepWalk& w, const Linear& linear, const GemmTask& task);
  // residual += scale * (in W^T + bias), or, where a norm follows, projected = in W^T + bias, which is normed and added
  // when the residual is read next.
  void project_back(StepWalk& w, const Operand& in, const Linear& linear, bool normed);

  // work(rank, piece) for the pieces 0 .. count(rank) - 1 of each rank, once: a member has those of its own rank first,
  // whose data are on its node, then what other ranks have not come to.
  template <class Count, class Work>
  void hand_out(const StepWalk& w, const Count& count, const Work& work) {
    for (int i = 0; i < ranks.count(); ++i) {
      const int rank = (ranks.of(w.member) + i) % ranks.count(), from = static_cast<int>(ranks.members(rank).begin);
      const int64_t pieces = count(rank);
      for (int64_t piece = take(w.phase, from); piece < pieces; piece = take(w.phase, from)) work(rank, piece);
    }
  }
  void barrier(const StepWalk& w) { pool.barrier(w.member); }
  Range mine(const StepWalk& w, int64_t rows) const { return share(rows, 2, w.member, pool.threads()); }
  float* residual_row(int64_t row) const { return row_of(scratch.residual, row); }
  float* projected_row(int64_t row) const { return row_of(scratch.projected, row); }

  const Config& config;
  const Ranks& ranks;
  Scratch& scratch;
  Pool& pool;
  const Kernels& kernel;  // of the tier in use

 private:
  struct alignas(128) Counter {
    std::atomic<int64_t> value{0};
  };
  // Rows that are still to become the left side of a multiplication.
  struct Source {
    const Site& site;  // its raw rows
    int64_t rows;
    const Norm* add = nullptr;
    const Norm* norm = nullptr;
  };

  static float* row_of(const Operand& rows, int64_t row) { return static_cast<float*>(rows.data) + row * rows.stride; }
  Operand prepare(StepWalk& w, const Source& source, const Matrix& matrix);
  void make_rows(const StepWalk& w, const Source& source, Range rows, const Matrix& matrix, const Operand& out);
  template <class Done>
  void multiply_few(const StepWalk& w, const Matrix& matrix, GemmTask& task, const Done& done);
  template <class Done>
  void multiply_many(const StepWalk& w, const Matrix& matrix, GemmTask& task, const Done& done);
  int64_t row_blocks(int64_t rows, int64_t row_bytes, int64_t column_blocks) const;
  static int64_t piece_columns(int64_t rows);

  std::atomic<int64_t>& counter(int64_t phase, int member) {
    return counters_[static_cast<size_t>(phase * (pool.threads() + 1) + member)].value;
  }
  std::atomic<int64_t>& ready(int64_t phase) { return counter(phase, pool.threads()); }
  int64_t take(int64_t phase, int member) { return counter(phase, member).fetch_add(1, std::memory_order_relaxed); }
  int64_t next(const StepWalk& w) { return take(w.phase, 0); }  // of a phase that is handed out to all from one counter

  const int64_t layer_phases_;
  // By phase of the layer before, this one or the next; and by member, who clears its own; the last is the ready count.
  std::unique_ptr<Counter[]> counters_;
  const Batch* batch_ = nullptr;
};

}  // namespace forearm
