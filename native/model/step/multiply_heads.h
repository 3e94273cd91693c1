// Multiplication of each head's, or group of heads', part of rows with a matrix of its own; included by the mixers that
// do so.
#pragma once
#include <algorithm>

#include "model/step/step.h"

namespace forearm {

// Columns of a head's matrix that are multiplied at once.
constexpr int64_t kHeadColumns = 16 * kPanel;

// The rows from `row` on and the columns from `column` on; of a form in pairs an even row and a multiple of 4.
inline Operand part_of(Operand rows, int64_t row, int64_t column) {
  const int64_t wide = rows.form == Form::bf16_pairs ? 2 : 1;
  rows.data = static_cast<char*>(rows.data) + (row * rows.stride + wide * column) * form_bytes(rows.form);
  return rows;
}
inline float* floats_at(const Operand& rows, int64_t row, int64_t column) {
  return static_cast<float*>(part_of(rows, row, column).data);
}

// Calls piece(head, rows, columns) for pieces of all rows by all heads' matrices, handed out to the team: one phase.
template <class Piece>
void each_head(StepWalk& w, Step& step, const Matrix& matrix, const Piece& piece) {
  const int64_t blocks = (w.rows + kHeadRows - 1) / kHeadRows;
  const auto columns_of = [&](int rank) { return matrix.columns_of(step.ranks.members(rank)); };
  const auto pieces_of = [&](int rank) { return (columns_of(rank).size() + kHeadColumns - 1) / kHeadColumns; };
  step.hand_out(
      w, [&](int rank) { return matrix.experts * pieces_of(rank) * blocks; },
      [&](int rank, int64_t i) {
        const Range columns = columns_of(rank);
        const int64_t pieces = pieces_of(rank), first = columns.begin + i % pieces * kHeadColumns;
        const int64_t row = i / pieces % blocks * kHeadRows;
        piece(i / pieces / blocks, Range{row, std::min(row + kHeadRows, w.rows)},
              Range{first, std::min(first + kHeadColumns, columns.end)});
      });
  ++w.phase;
}

// out = in W^T + bias of some columns of a head's matrix; in: `rows` rows of floats; bias: the head's, or null.
inline void multiply_head(int member, const Step& step, const Matrix& matrix, int64_t head, Range columns,
                          const Operand& in, int64_t rows, const Operand& out, const float* bias = nullptr) {
  GemmTask task{};
  task.a = step.scratch.by_head.own[static_cast<size_t>(member)].operand(matrix);
  step.kernel.quantize({static_cast<const float*>(in.data), in.stride, 0, rows, matrix.k, nullptr, task.a});
  task.row_end = rows;
  task.w = matrix.weights(head);
  task.n_begin = columns.begin;
  task.n_end = columns.end;
  task.bias = bias;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.out = out;
  task.scratch = step.scratch.gemm(member);
  step.kernel.gemm(task);
}

}  // namespace forearm
