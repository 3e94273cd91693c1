#include "model/partition.h"

#include <numeric>

namespace forearm {
namespace {

// The busiest member may have this much more than the average before columns are divided without regard to heads.
constexpr double kImbalance = 1.25;

// Heads [units.begin * per_unit, units.end * per_unit), as far as there are heads.
Range heads_of(Range units, int64_t per_unit, int64_t heads) {
  return {std::min(units.begin * per_unit, heads), std::min(units.end * per_unit, heads)};
}

// Columns of these heads in a section; the last head takes the section's padding along.
Range columns_of(Range heads, int64_t all_heads, int64_t head_dim, int64_t section, int64_t section_end) {
  if (heads.size() == 0) return {section, section};
  return {section + heads.begin * head_dim, heads.end == all_heads ? section_end : section + heads.end * head_dim};
}

}  // namespace

HeadPlan plan_heads(const Config& c, int threads) {
  // So many heads end where a panel ends.
  const int64_t per_unit = std::lcm(kPanel, c.head_dim) / c.head_dim;
  const int64_t query_units = (c.heads + per_unit - 1) / per_unit, kv_units = (c.kv_heads + per_unit - 1) / per_unit;
  const int64_t work = query_units + 2 * kv_units;  // in units of columns
  const QkvColumns at(c);

  HeadPlan plan{{}, c.qk_norm != QkNorm::full, {}};
  // Cut where a member's share of the work ends; a key and value unit counts double and goes to where its middle is.
  const auto query_cut = [&](int64_t m) { return std::min(m * work / threads, query_units); };
  const auto kv_cut = [&](int64_t m) {
    return m == threads ? kv_units : std::clamp<int64_t>((m * work / threads - query_units + 1) / 2, 0, kv_units);
  };
  for (int m = 0; m < threads; ++m) {
    const Range query{query_cut(m), query_cut(m + 1)}, kv{kv_cut(m), kv_cut(m + 1)};
    const double mine = static_cast<double>(query.size() + 2 * kv.size());
    if (mine * threads > kImbalance * static_cast<double>(work)) plan.fused = false;
    plan.shares.push_back({heads_of(query, per_unit, c.heads), heads_of(kv, per_unit, c.kv_heads)});
  }
  if (!plan.fused) {
    plan.columns = split_columns(at.end, kPanel, threads);
    return plan;
  }
  for (const HeadShare& share : plan.shares)
    plan.columns.push_back({columns_of(share.query, c.heads, c.head_dim, 0, at.key),
                            columns_of(share.kv, c.kv_heads, c.head_dim, at.key, at.value),
                            columns_of(share.kv, c.kv_heads, c.head_dim, at.value, at.end)});
  return plan;
}

}  // namespace forearm
