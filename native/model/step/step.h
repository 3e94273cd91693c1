// One step of the model, computed by the team: the division of each phase into pieces, and the building blocks of all
// layers, which are preparing rows as the left side of a multiplication (rows.cpp) and multiplying (multiply.h).
//
// The team enters once and walks all phases together, with barriers where data crosses threads.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "model/partition.h"
#include "model/scratch.h"
#include "model/step/batch.h"
#include "model/weights/weights.h"
#include "threads/pool.h"

namespace forearm {

// Writes the cosines and sines of a rope's pairs at a position, float [rotary_dim / 2]. The angle is the same float32
// product as in transformers; its cosine and sine are computed in double.
void angles_at(const Rope& rope, int64_t position, float* cosines, float* sines);

// The state of one member on its way through the step.
struct StepWalk {
  int member;
  int64_t rows;       // rows to compute: all of the step; after the last layer's mixer those that need logits
  int64_t phase = 0;  // the next phase that is handed out task by task; the same in every member
};

class Step {
 public:
  static constexpr int64_t kRowBlocksPerThread = 8;  // upper bound of row_blocks

  // layer_phases: the largest number of phases of a layer that are handed out task by task. All arguments must outlive
  // this.
  Step(const Config& config, const Ranks& ranks, Scratch& scratch, Pool& pool, int64_t layer_phases);

  // Sets the checked batch of the next step; it must live until the step is done.
  void begin(const Batch& batch) { batch_ = &batch; }
  const Batch& batch() const { return *batch_; }
  // Where the keys and values of the step's tokens go in the blocks of a group of layers (KvGroups).
  int32_t* slots(int64_t group) const { return scratch.slots + group * batch_->tokens; }
  // Selects the layer's counters and clears the other ones: even and odd layers alternate, and here no member is still
  // in the layer before or already in the next one.
  void enter_layer(StepWalk& w, size_t layer);
  // Clears all counters, and selects those of an odd layer for the phases before the first layer, which begin after a
  // barrier.
  void enter_step(StepWalk& w);

  // Returns the residual stream in the form that `matrix` takes, normalized if there is a norm.
  Operand stream(StepWalk& w, const Norm* add, const Norm& norm, const Matrix& matrix);
  // Returns the same rows for another matrix behind `before`, whose rows are `ready`.
  Operand stream_again(StepWalk& w, const Norm& norm, const Matrix& matrix, const Matrix& before, const Operand& ready);
  // Returns the output of a mixer or of the first half of a feed-forward, in the form that `matrix` takes, normalized
  // if there is a norm: then it was written as Site::target says.
  Operand output(StepWalk& w, const Site& site, const Matrix& matrix, const Norm* norm = nullptr);
  // As output, of an operation that wrote Site::raw whatever the form of `matrix` is.
  Operand raw_output(StepWalk& w, const Site& site, const Matrix& matrix);
  // Returns the same rows for another matrix behind `before`, whose rows are `ready`. Rows of the same form would take
  // their place, so no member may still multiply with them: the step then waits.
  Operand output_again(StepWalk& w, const Site& site, const Matrix& matrix, const Matrix& before, const Operand& ready);
  // Calls make(range) for ranges of rows, divided among the members, and returns when all rows are made.
  template <class Make>
  void make_together(StepWalk& w, int64_t rows, const Make& make) {
    const int64_t eighth = rows / (8 * pool.threads()), unit = std::max<int64_t>(1, round_up(eighth, 2));
    for (int64_t first = unit * next(w); first < rows; first = unit * next(w)) {
      const Range part{first, std::min(first + unit, rows)};
      make(part);
      pool.add(ready(w.phase), part.size());
    }
    pool.wait_for(ready(w.phase), rows);
    ++w.phase;
  }
  // Returns the residual stream in the form that `matrix` takes. add: norm of the projection before, which is not yet
  // added to the residual. norm: null: none. Rows behind a gated norm are those that it has written.
  Operand prepare_stream(StepWalk& w, const Norm* add, const Norm* norm, const Matrix& matrix) {
    if (norm && norm->gated) return rows_of(w, scratch.stream, scratch.gated, matrix);
    return prepare(w, {scratch.stream, scratch.stream.raw, w.rows, add, norm}, matrix);
  }
  // Returns float rows [rows, k] in the form that `matrix`, which takes rows of `site`, takes.
  Operand rows_of(StepWalk& w, const Site& site, const Operand& raw, const Matrix& matrix) {
    return prepare(w, {site, raw, w.rows}, matrix);
  }
  // Returns float rows [rows, hidden], of the walk's number, normalized, in the form that `matrix` takes.
  Operand normed_rows(StepWalk& w, const Operand& raw, const Norm& norm, const Matrix& matrix) {
    return prepare(w, {scratch.stream, raw, w.rows, nullptr, &norm}, matrix);
  }
  // Normalizes rows that are as far apart as those of the residual.
  void normalize(const Norm& norm, const float* x, Range rows, const Operand& out) {
    normalize(norm, x, scratch.residual.stride, rows, out);
  }
  // Normalizes rows that are `stride` numbers apart.
  void normalize(const Norm& norm, const float* x, int64_t stride, Range rows, const Operand& out);
  void add_projected(const Norm& norm, Range rows);

  // Multiplies with all columns of the matrix, divided among the members; `task` holds all but matrix and columns.
  // done(rows, row block, columns) is called after each piece.
  template <class Done>
  void multiply(StepWalk& w, const Linear& linear, GemmTask task, const Done& done);
  void multiply(StepWalk& w, const Linear& linear, const GemmTask& task);
  // Writes the rows of the step, multiplied with all columns of the matrix, to `out`.
  void multiply(StepWalk& w, const Linear& linear, const Operand& rows, const Operand& out);
  // Calls work(owner, piece) for the pieces 0 .. count(owner) - 1 of this member, then for those that others of its
  // rank have not begun: a core that is delayed by other work (HTTP on a small machine, a hypervisor) does not delay
  // the step.
  template <class Count, class Work>
  void take_own(const StepWalk& w, const Count& count, const Work& work);
  // Calls work(columns) for the matrix's columns in pieces of `piece`, this member's own first (take_own).
  template <class Work>
  void take_own_columns(const StepWalk& w, const Matrix& matrix, int64_t piece, const Work& work);
  // Columns that a member takes at once when it multiplies few rows.
  static int64_t piece_columns(int64_t rows);
  // Gates and normalizes the member's rows of a recurrence's results; `task` has all but rows. logits_alone: after
  // keep_logit_rows.
  void gate(const StepWalk& w, GatedNormTask task, bool logits_alone) const;
  // From now on the step has only the rows that need logits: moves their residual, what is added to it later, and by
  // what experts were chosen ahead, to the first rows, in the member's columns. In the last layer, between its mixer,
  // whose result has these rows alone, and a barrier.
  void keep_logit_rows(StepWalk& w);
  // Computes residual += residual_scale * scale * (in W^T + bias). If a norm follows, it computes projected = scale *
  // (in W^T + bias) instead, which is normalized and added when the residual is read next.
  void project_back(StepWalk& w, const Operand& in, const Linear& linear, bool normed, float scale = 1.0f);

  // From now on keeps the rows that each matrix is multiplied with, until the next step; before matrices of experts,
  // the sums of the squares of all rows' columns.
  void record_inputs() { recording_ = true; }
  // Returns the last step's rows before `matrix`, [rows, k], or the sums, [experts, k]; empty: it was not multiplied.
  const std::vector<float>& inputs(const Matrix& matrix) const;
  // Keeps what a matrix is about to be multiplied with, where inputs are recorded: all rows, or an expert's.
  void record(const StepWalk& w, const Matrix& matrix, const Operand& rows, int64_t count);
  void record_expert(const StepWalk& w, const Matrix& matrix, int64_t expert, const Operand& rows, int64_t count);

  // Calls work(rank, piece) once for each piece 0 .. count(rank) - 1 of each rank. A member takes pieces of its own
  // rank first, whose data are on its node, then those that other ranks have not begun.
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
  const Kernels& kernel;  // kernels of the tier in use

 private:
  struct alignas(128) Counter {
    std::atomic<int64_t> value{0};
  };
  // Rows that are to be prepared as the left side of a multiplication.
  struct Source {
    const Site& site;  // of their forms
    Operand raw;       // f32_rows
    int64_t rows;
    const Norm* add = nullptr;
    const Norm* norm = nullptr;
  };

  void clear_counters(int member, int64_t first_phase);
  void merge_projected(const float* merge, Range rows);
  static float* row_of(const Operand& rows, int64_t row) { return static_cast<float*>(rows.data) + row * rows.stride; }
  Operand prepare(StepWalk& w, const Source& source, const Matrix& matrix);
  void make_rows(const StepWalk& w, const Source& source, Range rows, const Matrix& matrix, const Operand& out);
  template <class Done>
  void multiply_few(const StepWalk& w, const Matrix& matrix, GemmTask& task, const Done& done);
  template <class Done>
  void multiply_many(const StepWalk& w, const Matrix& matrix, GemmTask& task, const Done& done);
  int64_t row_blocks(int64_t rows, int64_t row_bytes, int64_t column_blocks) const;

  std::atomic<int64_t>& counter(int64_t phase, int member) {
    return counters_[static_cast<size_t>(phase * (pool.threads() + 1) + member)].value;
  }
  std::atomic<int64_t>& ready(int64_t phase) { return counter(phase, pool.threads()); }
  int64_t take(int64_t phase, int member) { return counter(phase, member).fetch_add(1, std::memory_order_relaxed); }
  int64_t next(const StepWalk& w) { return take(w.phase, 0); }  // task of a phase with one counter

  const int64_t layer_phases_;
  // Indexed by phase, for this layer and its neighbours, and by member, which clears its own; the last is the ready
  // count.
  std::unique_ptr<Counter[]> counters_;
  const Batch* batch_ = nullptr;
  bool recording_ = false;
  std::map<const Matrix*, std::vector<float>> inputs_;  // by matrix, if recording
};

}  // namespace forearm
