// The division of a multiplication among the members of the team; included by the files that multiply.
#pragma once
#include "model/step/step.h"

namespace forearm {

// Up to this number of rows a step is bound by reading the weights, and every member multiplies its own columns first.
// Beyond it, blocks of rows and columns are handed out to free members, those of their own rank first.
constexpr int64_t kStaticRows = 32;
constexpr int kHelped = 3;  // members to help: each look at another's counter is a cache miss
constexpr int64_t kBlockColumns = 4 * kPanel;
constexpr int64_t kBlockRows = 48;  // a multiple of every tile's height
// Bytes of a block of rows: a quarter of 2 MiB. 256 KiB or 1 MiB, 96 or 384 rows are the same within 1 % (2048 rows, a
// Xeon).
constexpr int64_t kNearBytes = 512 << 10, kLeastRows = 192;

template <class Done>
void Step::multiply(StepWalk& w, const Linear& linear, GemmTask task, const Done& done) {
  const Matrix& matrix = linear.matrix;
  record(w, matrix, task.a, task.row_end);
  task.w = matrix.weights();
  task.bias = or_null(linear.bias);
  task.scratch = scratch.gemm(w.member);
  if (task.row_end <= kStaticRows)
    multiply_few(w, matrix, task, done);
  else
    multiply_many(w, matrix, task, done);
  ++w.phase;
}

template <class Count, class Work>
void Step::take_own(const StepWalk& w, const Count& count, const Work& work) {
  const int64_t mates = ranks.members(ranks.of(w.member)).size();
  for (int i = 0; i <= std::min<int64_t>(kHelped, mates - 1); ++i) {
    const int owner = ranks.mate(w.member, i);
    const int64_t pieces = count(owner);
    for (int64_t piece = take(w.phase, owner); piece < pieces; piece = take(w.phase, owner)) work(owner, piece);
  }
}

template <class Work>
void Step::take_own_columns(const StepWalk& w, const Matrix& matrix, int64_t piece, const Work& work) {
  const auto columns_of = [&](int owner) { return matrix.partition[static_cast<size_t>(owner)]; };
  take_own(
      w, [&](int owner) { return (columns_of(owner).size() + piece - 1) / piece; },
      [&](int owner, int64_t i) {
        const Range columns = columns_of(owner);
        const int64_t first = columns.begin + i * piece;
        work(Range{first, std::min(first + piece, columns.end)});
      });
}

template <class Done>
void Step::multiply_few(const StepWalk& w, const Matrix& matrix, GemmTask& task, const Done& done) {
  take_own_columns(w, matrix, piece_columns(task.row_end * digits_of(task.a.form)), [&](Range columns) {
    task.n_begin = columns.begin;
    task.n_end = columns.end;
    kernel.gemm(task);
    done({0, task.row_end}, 0, columns);
  });
}

template <class Done>
void Step::multiply_many(const StepWalk& w, const Matrix& matrix, GemmTask& task, const Done& done) {
  const auto column_blocks = [](int64_t columns) { return (columns + kBlockColumns - 1) / kBlockColumns; };
  const auto columns_of = [&](int rank) { return matrix.columns_of(ranks.members(rank)); };
  const int64_t rows = task.row_end, row_bytes = task.a.stride * form_bytes(task.a.form);
  const int64_t blocks = row_blocks(rows, row_bytes, column_blocks(matrix.n));
  hand_out(
      w, [&](int rank) { return column_blocks(columns_of(rank).size()) * blocks; },
      [&](int rank, int64_t i) {
        const Range columns = columns_of(rank);
        const int64_t in_block = column_blocks(columns.size());
        const Range part = share(rows, kBlockRows, i / in_block, blocks);
        task.row_begin = part.begin;
        task.row_end = part.end;
        task.n_begin = columns.begin + i % in_block * kBlockColumns;
        task.n_end = std::min(task.n_begin + kBlockColumns, columns.end);
        kernel.gemm(task);
        done(part, i / in_block, {task.n_begin, task.n_end});
      });
}

// Columns that a member takes at once: whole tiles, so that prefetched columns are those that it takes next.
// Up to three rows have tiles of up to eight panels, more of 6, 4, 3 or 2. With twelve panels instead of eight a step
// of eight rows takes 2 to 4 % less (int8, three panels a tile), one of four 5 to 12 % (int4, six; AVX-512, a Xeon).
inline int64_t Step::piece_columns(int64_t rows) {
  constexpr int64_t kFew = 8 * kPanel, kMore = 12 * kPanel;
  static_assert(kFew % kMaximumLogits == 0 && kMore % kMaximumLogits == 0, "maxima of the head are of whole pieces");
  return rows <= 3 ? kFew : kMore;
}

// Number of blocks of rows: a block stays in a core's second-level cache while all columns are multiplied with it, and
// there are enough to keep all members busy. Each block reads the weights again.
inline int64_t Step::row_blocks(int64_t rows, int64_t row_bytes, int64_t column_blocks) const {
  const int64_t near_rows = std::max(kNearBytes / row_bytes, kLeastRows);
  int64_t blocks = std::min<int64_t>((rows + near_rows - 1) / near_rows, kRowBlocksPerThread * pool.threads());
  while (column_blocks * blocks < 4 * pool.threads() && rows > 2 * blocks * kBlockRows) blocks *= 2;
  return blocks;
}

}  // namespace forearm
