// The selective scan of Mamba (Gu and Dao 2023, arXiv:2312.00752), 16 channels to a vector. What it costs are the
// powers, one for each number of the state and token: 18 cycles for 16 of them on a Zen 4, of which loads and stores
// are few.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/simd/math.h"

namespace forearm {
namespace {

// Moves the panel of `lanes` channels from `channel` on by rows [begin, end).
inline void selective_scan_rows(const SelectiveScanTask& t, int64_t channel, int64_t lanes, int64_t begin,
                                int64_t end) {
  const int64_t panel = channel * t.state_dim;
  const F16 d = load_lanes(t.d + channel, lanes);
  for (int64_t row = begin; row < end; ++row) {
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
}

// Rows that all panels go through before the next ones. States and `a` of 4096 channels are 512 KiB, which stream from
// the second-level cache, and rows are read in their order. 512 rows of 8192 channels take 44 us a row so, 63 us with 8
// rows, 70 us with 16, and 113 us if a panel goes through all rows, whose lines lie in as many pages (Zen 4).
constexpr int64_t kScanRows = 2;

inline void selective_scan(const SelectiveScanTask& t) {
  for (int64_t row = 0; row < t.rows; row += kScanRows) {
    const int64_t end = row + kScanRows < t.rows ? row + kScanRows : t.rows;
    for (int64_t channel = t.channel_begin; channel < t.channel_end; channel += kPanel) {
      const int64_t left = t.channel_end - channel;
      selective_scan_rows(t, channel, left < kPanel ? left : kPanel, row, end);
    }
  }
}

}  // namespace
}  // namespace forearm
