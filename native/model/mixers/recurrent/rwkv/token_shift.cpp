#include "model/mixers/recurrent/rwkv/token_shift.h"

namespace forearm {

float* TokenShift::row_of_state(size_t layer, int64_t sequence, Half half) const {
  const int64_t row = half == Half::mixer ? 0 : 1;
  return states_.at(layer, step_.batch().state[sequence]).tail + row * step_.config.hidden;
}

void TokenShift::normalize(const StepWalk& w, const Norm* add, const Norm& norm) {
  const Range rows = step_.mine(w, w.rows);
  if (add) step_.add_projected(*add, rows);
  step_.normalize(norm, step_.residual_row(0), rows, step_.scratch.convolved);
}

void TokenShift::mix(const StepWalk& w, size_t layer, Half half, const float* mix, const Operand& out,
                     bool logits_alone) {
  const Batch& batch = step_.batch();
  const Operand& x = step_.scratch.convolved;
  const auto row = [&x](int64_t r) { return static_cast<const float*>(x.data) + r * x.stride; };
  const Range own = columns(w);
  TokenShiftTask task{};
  task.stride = x.stride;
  task.mix = mix;
  task.column_begin = own.begin;
  task.column_end = own.end;
  task.out = out;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t begin = batch.start[s];
    const float* kept = batch.position[begin] == 0 ? nullptr : row_of_state(layer, s, half);
    batch.for_rows_of(s, logits_alone, [&](Range rows, int64_t first_output, int64_t out_row) {
      task.x = row(rows.begin);
      task.before = rows.begin == begin ? kept : row(rows.begin - 1);
      task.rows = rows.size();
      task.first_output = first_output;
      task.out_row = out_row;
      step_.kernel.token_shift(task);
    });
  }
}

void TokenShift::keep(const StepWalk& w, size_t layer, Half half) {
  const Batch& batch = step_.batch();
  const Range own = columns(w);
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const Operand& x = step_.scratch.convolved;
    const float* last = static_cast<const float*>(x.data) + (batch.start[s + 1] - 1) * x.stride;
    std::copy(last + own.begin, last + own.end, row_of_state(layer, s, half) + own.begin);
  }
}

}  // namespace forearm
