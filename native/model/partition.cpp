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
    : unit_heads_(
          std::lcm(std::lcm(kPanel, s.head_dim) / s.head_dim, std::lcm(kPanel, s.value_dim()) / s.value_dim())) {
  const QkvColumns at(s);
  add_section({0, std::min(at.key, at.projected)}, s.heads, s.head_dim, false, false);
  if (s.keys) add_section({at.key, at.value}, s.kv_heads, s.head_dim, true, false);
  if (s.values) add_section({at.value, at.bias}, s.kv_heads, s.value_dim(), true, true);
}

// The last unit includes the padding of its section.
void HeadUnits::add_section(Range columns, int64_t heads, int64_t dim, bool kv, bool with_last) {
  const int64_t first = with_last ? sections_.back().first_unit : count(), width = unit_heads_ * dim;
  sections_.push_back({columns, first, width});
  for (int64_t begin = 0; begin < heads; begin += unit_heads_) {
    const Range range{begin, std::min(begin + unit_heads_, heads)}, none{0, 0};
    const int64_t own = std::min(width, columns.size() - begin * dim);
    if (with_last)
      units_[static_cast<size_t>(first + begin / unit_heads_)].columns += own;
    else
      units_.push_back(kv ? HeadUnit{none, range, own} : HeadUnit{range, none, own});
  }
}

int64_t mixer_columns(const Config& c) {
  int64_t most = 0;
  for (const LayerKind& layer : c.layers) {
    if (const auto* mamba = layer.mixer_as<Mamba2Kind>()) most = std::max(most, Mamba2Columns(*mamba).end);
    if (const auto* delta = layer.mixer_as<GatedDeltaKind>()) most = std::max(most, DeltaColumns(*delta).end);
    if (const auto* own = layer.mixer_as<LightningKind>()) most = std::max(most, LightningColumns(*own).end);
    if (const auto* own = layer.mixer_as<SelectiveScanKind>()) most = std::max(most, SelectiveScanColumns(*own).end);
    if (const auto* own = layer.mixer_as<RgLruKind>()) most = std::max(most, RgLruColumns(*own).end);
    if (const auto* own = layer.mixer_as<Rwkv7Kind>()) most = std::max(most, Rwkv7Columns(*own).end);
    if (layer.mixer_as<ShortConvKind>()) most = std::max(most, ShortConvColumns(c).end);
    if (const auto* latent = layer.mixer_as<LatentKind>()) most = std::max(most, LatentColumns(*latent, c).end);
    if (const auto* own = layer.mixer_as<CompressedKind>())
      most = std::max(most, CompressedColumns(*own, c.head_dim).end);
  }
  for (const HeadShape& shape : c.head_shapes())
    if (!shape.latent) most = std::max(most, QkvColumns(shape).end);
  return most;
}

}  // namespace forearm
