// The selective scan of Mamba (Gu and Dao 2023, arXiv:2312.00752), 16 channels at a time through all rows: a panel of
// 16 channels and 16 numbers of a state takes 1 KiB, and `a` as much, so both stay in the first-level cache. What it
// costs are the powers, one for each number of the state and token, so several tokens at once would gain nothing.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/simd/math.h"

namespace forearm {
namespace {

inline void selective_scan(const SelectiveScanTask& t) {
  for_columns(t.channel_end - t.channel_begin, [&](int64_t i, int64_t lanes) {
    const int64_t channel = t.channel_begin + i, panel = channel * t.state_dim;
    const F16 d = load_lanes(t.d + channel, lanes);
    for (int64_t row = 0; row < t.rows; ++row) {
      const float *b = t.b + row * t.stride, *c = t.c + row * t.stride;
      const F16 x = load_lanes(t.x + row * t.x_stride + channel, lanes);
      const F16 dt = softplus(load_lanes(t.dt + row * t.stride + channel, lanes)), added = mul(dt, x);
      F16 y = zero();
      for (int64_t n = 0; n < t.state_dim; ++n) {
        float* at = t.state + panel + n * kPanel;
        const F16 decay = exp2_of_negative(mul(dt, load(t.a + panel + n * kPanel)));
        const F16 h = fma(broadcast(b[n]), added, mul(decay, load(at)));
        store(at, h);
        y = fma(broadcast(c[n]), h, y);
      }
      if (row < t.first_output) continue;
      const F16 gate = activate<Activation::silu>(load_lanes(t.z + row * t.stride + channel, lanes));
      store_operand(t.out, t.out_row + row - t.first_output, channel, mul(fma(d, x, y), gate), lanes);
    }
  });
}

}  // namespace
}  // namespace forearm
