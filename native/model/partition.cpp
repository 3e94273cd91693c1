#include "model/partition.h"

#include <numeric>
#include <stdexcept>
#include <string>

namespace forearm {

Ranks::Ranks(const std::vector<int>& threads) {
  for (const int count : threads) {
    if (count < 1) throw std::invalid_argument("a rank has " + std::to_string(count) + " threads; it needs 1");
    const int64_t begin = this->threads();
    members_.push_back({begin, begin + count});
    rank_.insert(rank_.end(), static_cast<size_t>(count), this->count() - 1);
  }
  if (threads.empty()) throw std::invalid_argument("there is no rank; a team has at least one");
}

HeadUnits::HeadUnits(const HeadShape& s)
    : unit_heads_(std::lcm(kPanel, s.head_dim) / s.head_dim), unit_columns_(unit_heads_ * s.head_dim) {
  const QkvColumns at(s);
  add_units(s.heads, s.head_dim, std::min(at.key, at.projected), false, 1);
  const int64_t first_kv = count();
  sections_ = {{{0, at.key}, 0}};
  if (!s.keys) return;
  add_units(s.kv_heads, s.head_dim, at.value - at.key, true, s.values ? 2 : 1);
  sections_.push_back({{at.key, at.value}, first_kv});
  if (s.values) sections_.push_back({{at.value, at.gate}, first_kv});
}

// The last unit includes the padding of its section.
void HeadUnits::add_units(int64_t heads, int64_t head_dim, int64_t columns, bool kv, int64_t sections) {
  for (int64_t begin = 0; begin < heads; begin += unit_heads_) {
    const Range range{begin, std::min(begin + unit_heads_, heads)}, none{0, 0};
    const int64_t own = sections * std::min(unit_columns_, columns - begin * head_dim);
    units_.push_back(kv ? HeadUnit{none, range, own} : HeadUnit{range, none, own});
  }
}

}  // namespace forearm
