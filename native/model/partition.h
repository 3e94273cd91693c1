// Who computes which columns: each member of the team has fixed columns of every matrix, so that the pages it packed
// are the ones that it reads. The division never changes a result, only who computes it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/config.h"

namespace forearm {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Part `index` of `parts` of 0 .. count - 1, cut at multiples of `unit`.
inline Range share(int64_t count, int64_t unit, int64_t index, int64_t parts) {
  const int64_t units = (count + unit - 1) / unit;
  return {std::min(units * index / parts * unit, count), std::min(units * (index + 1) / parts * unit, count)};
}

// Packed columns of each member.
using Partition = std::vector<std::vector<Range>>;

inline Partition split_columns(int64_t columns, int64_t unit, int threads) {
  Partition partition;
  for (int member = 0; member < threads; ++member) partition.push_back({share(columns, unit, member, threads)});
  return partition;
}

// Columns of the joint query, key and value matrix: three sections, each padded to whole panels.
struct QkvColumns {
  int64_t key, value, end;  // the queries start at 0

  explicit QkvColumns(const Config& c)
      : key(round_up(c.heads * c.head_dim, kPanel)),
        value(key + round_up(c.kv_heads * c.head_dim, kPanel)),
        end(value + round_up(c.kv_heads * c.head_dim, kPanel)) {}
};

// Heads of each member after the QKV multiplication: a key head and its value head stay together.
struct HeadShare {
  Range query, kv;
};
struct HeadPlan {
  std::vector<HeadShare> shares;
  // Members multiply just the columns of their heads and go on to rotate and store them: no barrier between. Where
  // that would leave some with much more work than others, columns are divided evenly instead, and heads afterwards.
  bool fused;
  Partition columns;
};
HeadPlan plan_heads(const Config& config, int threads);

}  // namespace forearm
