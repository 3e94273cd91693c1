// The real-gated linear recurrent unit (De et al. 2024, arXiv:2402.19427), 16 channels to a vector, row by row: rows
// are read in their order, and the states of all channels, 4 bytes each, stay in the first-level cache. What it costs
// are the four exponentials of a channel and token.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/simd/math.h"

namespace forearm {
namespace {

// Moves `lanes` channels on by a row. Where a decay is near 1, as those of long memories are, 1 - decay^2 would keep
// few of its digits; decay - 1 has all of them.
inline void rg_lru_channels(const RgLruTask& t, int64_t row, int64_t channel, int64_t lanes) {
  const int64_t at = row * t.stride + channel;
  const F16 one = broadcast(1.0f), recurrence = sigmoid(load_lanes(t.r + at, lanes));
  const Exponential e = split_exp(mul(load_lanes(t.rate + channel, lanes), recurrence));
  const F16 decay = fma(e.power, e.rest, e.power), minus_one = fma(e.power, e.rest, sub(e.power, one));
  const F16 root = sqrt(mul(sub(zero(), minus_one), add(broadcast(2.0f), minus_one)));
  const F16 added = mul(sigmoid(load_lanes(t.i + at, lanes)), load_lanes(t.x + row * t.x_stride + channel, lanes));
  const F16 h = fma(decay, load(t.state + channel), t.begins && row == 0 ? added : mul(root, added));
  store(t.state + channel, h);
  if (row < t.first_output) return;
  const F16 y = mul(h, gelu_tanh(load_lanes(t.y + at, lanes)));
  store_operand(t.out, t.out_row + row - t.first_output, channel, y, lanes);
}

inline void rg_lru(const RgLruTask& t) {
  for (int64_t row = 0; row < t.rows; ++row) {
    for_columns(t.channel_end - t.channel_begin,
                [&](int64_t i, int64_t lanes) { rg_lru_channels(t, row, t.channel_begin + i, lanes); });
  }
}

}  // namespace
}  // namespace forearm
