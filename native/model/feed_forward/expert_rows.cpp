#include "model/feed_forward/expert_rows.h"

#include <algorithm>

namespace forearm {

void RowsByExpert::sort(const Scratch::Routes& routes, const ExpertsKind& kind, int64_t rows, int64_t unit, Range own) {
  const int64_t slots = kind.slots();
  const auto each_slot = [&](const auto& visit) {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = row * slots; i < row * slots + kind.active; ++i)
        if (routes.chosen[i] < kind.count) visit(row, i, next_[static_cast<size_t>(routes.chosen[i])]);
  };
  std::fill_n(next_.begin(), kind.count, 0);
  each_slot([](int64_t, int64_t, int64_t& count) { ++count; });
  experts_.clear();
  positions_ = 0;
  for (int64_t expert = 0; expert < kind.count; ++expert) {
    int64_t& next = next_[static_cast<size_t>(expert)];
    if (next > 0) experts_.push_back({expert, positions_, next});
    const int64_t begin = positions_;
    positions_ = round_up(begin + next, unit);
    next = begin;
  }
  each_slot([&](int64_t row, int64_t i, int64_t& next) {
    if (row >= own.begin && row < own.end) routes.place[i] = static_cast<int32_t>(next);
    ++next;
  });
  for (int64_t row = own.begin; row < own.end; ++row)
    for (int64_t i = row * slots; i < (row + 1) * slots; ++i)
      if (i - row * slots == kind.active || routes.chosen[i] >= kind.count)
        routes.place[i] = static_cast<int32_t>(positions_ + row);
}

}  // namespace forearm
