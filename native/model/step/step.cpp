#include "model/step/step.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "model/step/multiply.h"

namespace forearm {

void angles_at(const Rope& rope, int64_t position, float* cosines, float* sines) {
  for (size_t p = 0; p < rope.inv_freq.size(); ++p) {
    const float angle = static_cast<float>(position) * rope.inv_freq[p];
    cosines[p] = static_cast<float>(std::cos(static_cast<double>(angle))) * rope.scale;
    sines[p] = static_cast<float>(std::sin(static_cast<double>(angle))) * rope.scale;
  }
}

Step::Step(const Config& c, const Ranks& r, Scratch& s, Pool& p, int64_t layer_phases)
    : config(c),
      ranks(r),
      scratch(s),
      pool(p),
      kernel(kernels()),
      layer_phases_(layer_phases),
      counters_(std::make_unique<Counter[]>(static_cast<size_t>(2 * layer_phases * (p.threads() + 1)))) {}

void Step::enter_layer(StepWalk& w, size_t layer) {
  w.phase = layer % 2 ? layer_phases_ : 0;
  clear_counters(w.member, layer % 2 ? 0 : layer_phases_);
}

void Step::enter_step(StepWalk& w) {
  w.phase = layer_phases_;
  clear_counters(w.member, 0);
  clear_counters(w.member, layer_phases_);
}

void Step::clear_counters(int member, int64_t first_phase) {
  for (int64_t phase = first_phase; phase < first_phase + layer_phases_; ++phase) {
    counter(phase, member).store(0, std::memory_order_relaxed);
    if (member == 0) ready(phase).store(0, std::memory_order_relaxed);
  }
}

const std::vector<float>& Step::inputs(const Matrix& matrix) const {
  static const std::vector<float> kNone;
  const auto found = inputs_.find(&matrix);
  return found == inputs_.end() ? kNone : found->second;
}

// Rows are complete here, and stay as they are until a barrier after the multiplication.
void Step::record(const StepWalk& w, const Matrix& matrix, const Operand& rows, int64_t count) {
  if (!recording_ || w.member != 0) return;
  assert(rows.form == Form::f32_rows);
  std::vector<float>& kept = inputs_[&matrix];
  kept.resize(static_cast<size_t>(count * matrix.k));
  for (int64_t r = 0; r < count; ++r) std::copy_n(row_of(rows, r), matrix.k, kept.data() + r * matrix.k);
}

void Step::record_expert(const StepWalk& w, const Matrix& matrix, int64_t expert, const Operand& rows, int64_t count) {
  if (!recording_ || w.member != 0) return;
  assert(rows.form == Form::f32_rows);
  std::vector<float>& kept = inputs_[&matrix];
  kept.resize(static_cast<size_t>(matrix.experts * matrix.k));
  float* sums = kept.data() + expert * matrix.k;
  for (int64_t r = 0; r < count; ++r)
    std::transform(row_of(rows, r), row_of(rows, r) + matrix.k, sums, sums,
                   [](float x, float sum) { return sum + x * x; });
}

// Ascending, so that a row is read before it is overwritten.
void Step::keep_logit_rows(StepWalk& w) {
  w.rows = batch().logits;
  const auto keep = [&](const Operand& rows, int64_t width) {
    const Range columns = share(width, kPanel, w.member, pool.threads());
    for (int64_t i = 0; i < w.rows; ++i) {
      if (batch().logit_row[i] == i) continue;
      const float* from = row_of(rows, batch().logit_row[i]);
      std::copy(from + columns.begin, from + columns.end, row_of(rows, i) + columns.begin);
    }
  };
  keep(scratch.residual, config.hidden);
  if (config.adds_later()) keep(scratch.projected, config.hidden);
  if (const auto& experts = config.layers.back().experts; experts && experts->ahead)
    keep(scratch.router, experts->count);
  if (const auto& experts = config.layers.back().experts; experts && experts->router_rank)
    keep(scratch.router_state, experts->router_rank);
}

void Step::gate(const StepWalk& w, GatedNormTask task, bool logits_alone) const {
  const Range rows = mine(w, w.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    task.row_begin = logits_alone ? batch().logit_row[row] : row;
    task.row_end = task.row_begin + 1;
    task.out_row = row;
    kernel.gated_norm(task);
  }
}

void Step::multiply(StepWalk& w, const Linear& linear, const GemmTask& task) {
  multiply(w, linear, task, [](Range, int64_t, Range) {});
}

void Step::multiply(StepWalk& w, const Linear& linear, const Operand& rows, const Operand& out) {
  GemmTask task{};
  task.a = rows;
  task.row_end = w.rows;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.out = out;
  multiply(w, linear, task);
}

void Step::project_back(StepWalk& w, const Operand& in, const Linear& linear, bool normed, float scale) {
  GemmTask task{};
  task.a = in;
  task.row_end = w.rows;
  task.epilogue = normed ? Epilogue::store : Epilogue::add;
  task.scale = normed ? scale : scale * config.residual_scale;
  task.out = normed ? scratch.projected : scratch.residual;
  multiply(w, linear, task);
}

}  // namespace forearm
