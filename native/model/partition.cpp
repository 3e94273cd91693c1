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

HeadUnits::HeadUnits(const Config& c)
    : unit_heads_(std::lcm(kPanel, c.head_dim) / c.head_dim), unit_columns_(unit_heads_ * c.head_dim) {
  const QkvColumns at(c);
  add_units(c.heads, c.head_dim, false);
  const int64_t first_kv = count();
  add_units(c.kv_heads, c.head_dim, true);
  sections_ = {{{0, at.key}, 0}, {{at.key, at.value}, first_kv}, {{at.value, at.gate}, first_kv}};
}

// The last unit includes the padding of its section.
void HeadUnits::add_units(int64_t heads, int64_t head_dim, bool kv) {
  const int64_t section = round_up(heads * head_dim, kPanel);
  for (int64_t begin = 0; begin < heads; begin += unit_heads_) {
    const Range range{begin, std::min(begin + unit_heads_, heads)}, none{0, 0};
    const int64_t columns = std::min(unit_columns_, section - begin * head_dim);
    units_.push_back(kv ? HeadUnit{none, range, 2 * columns} : HeadUnit{range, none, columns});
  }
}

}  // namespace forearm
