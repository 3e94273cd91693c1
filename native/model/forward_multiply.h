// How a multiplication is divided among the members. Included by the parts of Forward that multiply.
#pragma once
#include "model/forward.h"

namespace forearm {

// Up to so many rows a step is bound by reading the weights, and every member multiplies its own columns first. Beyond,
// blocks of rows and columns are handed out to whoever is free, of its own rank first.
constexpr int64_t kStaticRows = 32;
constexpr int64_t kPieceColumns = 8 * kPanel;  // the widest tile of one row
constexpr int kHelped = 3;                     // neighbours: each look at another's counter is a cache miss
constexpr int64_t kBlockColumns = 4 * kPanel;
constexpr int64_t kBlockRows = 48;  // a multiple of every tile's height

// The whole multiplication that `task` describes but for the matrix and the columns, divided among the members.
template <class Done>
void Forward::multiply(Walk& w, const Matrix& matrix, const std::vector<float>& bias, GemmTask task, const Done& done) {
  task.w = matrix.weights();
  task.bias = or_null(bias);
  task.scratch = s_.gemm(w.member);
  if (task.row_end <= kStaticRows)
    multiply_few(w, matrix, task, done);
  else
    multiply_many(w, matrix, task, done);
  ++w.phase;
}

inline void Forward::multiply(Walk& w, const Matrix& matrix, const std::vector<float>& bias, const GemmTask& task) {
  multiply(w, matrix, bias, task, [](Range, int64_t, Range) {});
}

// A member's own columns piece by piece, then pieces that its mates have not come to yet: a core that other work
// holds up (HTTP on a small machine, a hypervisor) does not hold up the step.
template <class Done>
void Forward::multiply_few(const Walk& w, const Matrix& matrix, GemmTask& task, const Done& done) {
  const int64_t mates = ranks_.members(ranks_.of(w.member)).size();
  for (int i = 0; i <= std::min<int64_t>(kHelped, mates - 1); ++i) {
    const int owner = ranks_.mate(w.member, i);
    const Range columns = matrix.partition[static_cast<size_t>(owner)];
    for (;;) {
      task.n_begin = columns.begin + kPieceColumns * take(w.phase, owner);
      if (task.n_begin >= columns.end) break;
      task.n_end = std::min(task.n_begin + kPieceColumns, columns.end);
      k_.gemm(task);
      done({0, task.row_end}, 0, {task.n_begin, task.n_end});
    }
  }
}

template <class Done>
void Forward::multiply_many(const Walk& w, const Matrix& matrix, GemmTask& task, const Done& done) {
  const auto column_blocks = [](int64_t columns) { return (columns + kBlockColumns - 1) / kBlockColumns; };
  const auto columns_of = [&](int rank) { return matrix.columns_of(ranks_.members(rank)); };
  const int64_t rows = task.row_end, blocks = row_blocks(rows, column_blocks(matrix.n));
  hand_out(
      w, [&](int rank) { return column_blocks(columns_of(rank).size()) * blocks; },
      [&](int rank, int64_t i) {
        const Range columns = columns_of(rank), part = share(rows, kBlockRows, i % blocks, blocks);
        task.row_begin = part.begin;
        task.row_end = part.end;
        task.n_begin = columns.begin + i / blocks * kBlockColumns;
        task.n_end = std::min(task.n_begin + kBlockColumns, columns.end);
        k_.gemm(task);
        done(part, i % blocks, {task.n_begin, task.n_end});
      });
}

// As few as keep everybody busy: each one reads the weights again.
inline int64_t Forward::row_blocks(int64_t rows, int64_t column_blocks) const {
  int64_t blocks = 1;
  while (column_blocks * blocks < 4 * pool_.threads() && rows > 2 * blocks * kBlockRows) blocks *= 2;
  return blocks;
}

}  // namespace forearm
