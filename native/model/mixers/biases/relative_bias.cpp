#include "model/mixers/biases/relative_bias.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/pack.h"

namespace forearm {
namespace {

// What attention reads before the first distance, and of keys behind a query, which it does not see.
constexpr int64_t kBefore = 16, kBehind = 2 * kBlockTokens + 16;

const AttentionKind* biased(const Config& c, size_t layer) {
  const auto* own = c.layers[layer].mixer_as<AttentionKind>();
  return own && own->bias_dim ? own : nullptr;
}

int64_t layer_floats(const AttentionKind& kind) { return packed_elements(kind.bias_reach, kind.bias_dim, 4); }

int64_t stride_of(const AttentionKind& kind) { return kBefore + round_up(kind.bias_reach, kPanel); }

}  // namespace

RelativeBias::RelativeBias(const Weights& weights, Step& step)
    : config_(step.config), weights_(weights), step_(step), packed_(config_.layers.size()) {
  float* next = step.scratch.distances;
  for (size_t i = 0; i < packed_.size(); ++i)
    if (const AttentionKind* own = biased(config_, i)) {
      packed_[i] = next;
      next += layer_floats(*own);
    }
}

void RelativeBias::check(const Config& c) {
  constexpr int64_t kMostNumbers = 4096, kFarthest = int64_t{1} << 20;
  for (const LayerKind& layer : c.layers) {
    const auto* own = layer.mixer_as<AttentionKind>();
    if (!own || (own->bias_dim == 0 && own->bias_reach == 0)) continue;
    if (own->bias_dim < 4 || own->bias_dim > kMostNumbers || own->bias_dim % 4 != 0 || own->bias_reach < 1 ||
        own->bias_reach > kFarthest)
      throw std::invalid_argument("a bias by distance is made of " + std::to_string(own->bias_dim) + " numbers for " +
                                  std::to_string(own->bias_reach) +
                                  " distances; these are a multiple of 4 up to 4096, and 1 to 1048576");
    if (own->shared_from || own->keys_as_values || own->blocks || c.bidirectional || c.modules || !c.slopes.empty() ||
        !c.distance_buckets.empty())
      throw std::invalid_argument(
          "queries make a bias by distance in layers with keys and values of their own, without other biases");
  }
}

int64_t RelativeBias::kept_floats(const Config& c) {
  int64_t floats = 0;
  for (size_t i = 0; i < c.layers.size(); ++i)
    if (const AttentionKind* own = biased(c, i)) floats += layer_floats(*own);
  return floats;
}

int64_t RelativeBias::scratch_floats(const Config& c) {
  int64_t most = 0;
  for (size_t i = 0; i < c.layers.size(); ++i)
    if (const AttentionKind* own = biased(c, i))
      most = std::max(most, kItemTokens * c.head_shape(i).group() * stride_of(*own) + kBehind);
  return most;
}

void RelativeBias::pack() {
  if (ready_) return;
  ready_ = true;
  const int64_t quantum = step_.kernel.layout[static_cast<int>(DType::f32)].quantum;
  std::vector<float> rows;
  for (size_t i = 0; i < packed_.size(); ++i) {
    if (!packed_[i]) continue;
    const int64_t dim = kind(i).bias_dim, reach = kind(i).bias_reach;
    const std::vector<float>& profiles = weights_.relative_bias(i);
    rows.resize(static_cast<size_t>(reach * dim));
    for (int64_t n = 0; n < reach; ++n)
      for (int64_t d = 0; d < dim; ++d)
        rows[static_cast<size_t>(n * dim + d)] = profiles[static_cast<size_t>((d + 1) * reach - 1 - n)];
    pack_rows(rows.data(), DType::f32, reach, {packed_[i], DType::f32, quantum, dim}, 0);
  }
}

KeyBias RelativeBias::values(int member, size_t layer, const AttentionItem& item, Range keys) const {
  const int64_t dim = kind(layer).bias_dim, reach = kind(layer).bias_reach, stride = stride_of(kind(layer));
  if (keys.end <= item.first_position - reach + 1) return {};
  const HeadShape shape = config_.head_shape(layer);
  const int64_t column = QkvColumns(shape).bias + (item.kv_head * shape.group() + item.head) * dim;
  float* rows = step_.scratch.mixer(member);
  for (int64_t r = 0; r < item.tokens * item.heads; ++r) std::fill_n(rows + r * stride, kBefore, 0.0f);
  GemmTask task{};
  task.row_end = item.tokens;
  task.w = {packed_[layer], DType::f32, reach, dim};
  task.n_end = reach;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  for (int64_t h = 0; h < item.heads; ++h) {
    task.a = {step_.scratch.mixer_at(item.row, column + h * dim), step_.scratch.mixer_in.stride, Form::f32_rows};
    task.out = {rows + h * stride + kBefore, item.heads * stride, Form::f32_rows};
    step_.kernel.gemm(task);
  }
  return {rows, stride, 0, reach};
}

}  // namespace forearm
