// Rows sorted by expert, and their division into pieces of work of about the same cost.
#pragma once
#include <vector>

#include "model/config.h"
#include "model/partition.h"
#include "model/scratch.h"

namespace forearm {

// Rows of one expert: positions [begin, begin + rows) of the operands that are sorted by expert.
struct ExpertRows {
  int64_t expert, begin, rows;
};

// The rows of a block by expert, ascending, and of an expert by row. Every member sorts for itself.
class RowsByExpert {
 public:
  explicit RowsByExpert(int64_t count) : next_(static_cast<size_t>(count)) { experts_.reserve(next_.size()); }

  // Sorts rows 0 .. rows - 1. unit: each expert's rows begin at a multiple of it. Writes the places of rows `own`:
  // of a shared feed-forward, and of experts that pass the row on, behind those of all others, at the row's number.
  void sort(const Scratch::Routes& routes, const ExpertsKind& kind, int64_t rows, int64_t unit, Range own);

  const std::vector<ExpertRows>& experts() const { return experts_; }
  // Positions, with those that only fill up a unit.
  int64_t positions() const { return positions_; }

  // Calls work(rows of an expert, units of columns) for piece `index` of `pieces` of about the same cost, where every
  // expert's rows are multiplied with `units` units of columns. More than near_rows rows are cut.
  template <class Work>
  void piece(int64_t index, int64_t pieces, int64_t units, int64_t near_rows, const Work& work) const {
    int64_t total = 0;
    each_block(near_rows, [&](const ExpertRows& block) { total += units * cost(block.rows); });
    const int64_t from = total * index / pieces, to = total * (index + 1) / pieces;
    int64_t at = 0;
    each_block(near_rows, [&](const ExpertRows& block) {
      const int64_t each = cost(block.rows);
      // A unit belongs to the piece that its cost begins in.
      const auto first_at = [&](int64_t bound) {
        return std::clamp<int64_t>((bound - at + each - 1) / each, 0, units);
      };
      const Range part{from > at ? first_at(from) : 0, to > at ? first_at(to) : 0};
      if (part.size() > 0) work(block, part);
      at += units * each;
    });
  }

 private:
  // What a unit of columns costs: below kReadRows rows, as much as reading its weights.
  static constexpr int64_t kReadRows = 16, kCutRows = 48;
  static int64_t cost(int64_t rows) { return std::max(rows, kReadRows); }

  template <class Visit>
  void each_block(int64_t near_rows, const Visit& visit) const {
    for (const ExpertRows& all : experts_) {
      const int64_t blocks = (all.rows + near_rows - 1) / near_rows;
      for (int64_t i = 0; i < blocks; ++i) {
        const Range part = share(all.rows, kCutRows, i, blocks);
        visit(ExpertRows{all.expert, all.begin + part.begin, part.size()});
      }
    }
  }

  std::vector<ExpertRows> experts_;  // those with rows
  std::vector<int64_t> next_;        // by expert
  int64_t positions_ = 0;
};

}  // namespace forearm
