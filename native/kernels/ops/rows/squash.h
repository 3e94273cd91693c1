// Rows with a function of each number, such as the latents of low-rank matrices have (RWKV-7).
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/simd/math.h"

namespace forearm {
namespace {

inline void squash(const SquashTask& t) {
  for (int64_t row = t.row_begin; row < t.row_end; ++row) {
    for_columns(t.dim, [&](int64_t column, int64_t lanes) {
      F16 x = load_lanes(t.x + row * t.stride + column, lanes);
      if (t.squash == Squash::tanh) x = tanh(x);
      if (t.squash == Squash::sigmoid) x = sigmoid(x);
      store_operand(t.out, row, column, x, lanes);
    });
  }
}

}  // namespace
}  // namespace forearm
