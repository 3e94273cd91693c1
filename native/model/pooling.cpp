#include "model/pooling.h"

#include <algorithm>
#include <map>
#include <string>

namespace forearm {

Pooling::Pooling(const Config& config, const Weights& weights, int threads)
    : c_(config), weights_(weights), width_(round_up(config.hidden, kPanel)) {
  std::map<int64_t, int64_t> widths;  // of the vectors behind the layers so far, by head
  for (size_t i = 0; i < c_.dense.size(); ++i) {
    const int64_t outputs = c_.dense[i].outputs;
    int64_t& k = widths.try_emplace(c_.dense[i].head, c_.hidden).first->second;
    layers_.push_back(&weights.linear("dense." + std::to_string(i), outputs, k));
    width_ = std::max(width_, round_up(outputs, kPanel));
    k = outputs;
  }
  if (c_.pooled) rooms_.assign(static_cast<size_t>(threads), std::vector<float>(static_cast<size_t>(2 * width_)));
}

void Pooling::pool(int member, const Operand& rows, Range part, int64_t head, float* out) {
  std::vector<float>& room = rooms_[static_cast<size_t>(member)];
  float *from = room.data(), *to = from + width_;
  for (int64_t first = 0; first < c_.hidden; first += kPanel) {
    const int64_t count = std::min(kPanel, c_.hidden - first);
    double sums[kPanel] = {};
    for (int64_t r = part.begin; r < part.end; ++r) {
      const float* row = static_cast<const float*>(rows.data) + r * rows.stride + first;
      for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(row[i]);
    }
    for (int64_t i = 0; i < count; ++i)
      from[first + i] = static_cast<float>(sums[i] / static_cast<double>(part.size()));
  }
  for (size_t layer = 0; layer < c_.dense.size(); ++layer) {
    if (c_.dense[layer].head != head) continue;
    std::fill(to, to + width_, 0.0f);
    apply(layer, from, to);
    std::swap(from, to);
  }
  std::copy_n(from, c_.pooled_columns(head), out);
  std::fill(room.begin(), room.end(), 0.0f);
}

void Pooling::apply(size_t layer, float* from, float* to) const {
  const DenseKind& kind = c_.dense[layer];
  const Linear& dense = *layers_[layer];
  const Operand out{to, width_, Form::f32_rows};
  GemmTask task{};
  task.a = {from, width_, Form::f32_rows};
  task.row_end = 1;
  task.w = dense.matrix.weights();
  task.n_end = dense.matrix.n;
  task.bias = or_null(dense.bias);
  task.epilogue = kind.tanh ? Epilogue::softcap : Epilogue::activate;  // softcap with a cap of 1 is tanh
  task.activation = kind.activation;
  task.scale = task.softcap = 1.0f;
  task.out = out;
  kernels().gemm(task);
  if (!kind.norm) return;
  const Norm& norm = weights_.pooler_norm(layer);
  kernels().norm({to, width_, 0, 1, kind.outputs, norm.weight.data(), or_null(norm.bias), c_.norm_eps, true, out});
}

}  // namespace forearm
