// Token shift (Peng et al. 2023, arXiv:2305.13048): each row is mixed with the one before it.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/lanes.h"

namespace forearm {
namespace {

inline void token_shift(const TokenShiftTask& t) {
  for (int64_t row = t.first_output; row < t.rows; ++row) {
    const float *x = t.x + row * t.stride, *before = row > 0 ? x - t.stride : t.before;
    for_columns(t.column_end - t.column_begin, [&](int64_t i, int64_t lanes) {
      const int64_t column = t.column_begin + i;
      const F16 own = load_lanes(x + column, lanes), last = before ? load_lanes(before + column, lanes) : zero();
      const F16 mixed = fma(load_lanes(t.mix + column, lanes), sub(last, own), own);
      store_operand(t.out, t.out_row + row - t.first_output, column, mixed, lanes);
    });
  }
}

}  // namespace
}  // namespace forearm
