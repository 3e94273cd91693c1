// The weighted sum of the results of a token's experts.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/lanes.h"

namespace forearm {
namespace {

inline void combine(const CombineTask& t) {
  const F16 scale = broadcast(t.scale);
  for (int64_t row = t.row_begin; row < t.row_end; ++row) {
    const float* weights = t.weights + row * t.slots;
    const int32_t* place = t.place + row * t.slots;
    float* out = float_row(t.out, row) + t.column_begin;
    for_columns(t.column_end - t.column_begin, [&](int64_t i, int64_t lanes) {
      F16 sum = zero();
      for (int64_t j = 0; j < t.slots; ++j)
        sum = fma(broadcast(weights[j]), load_lanes(t.y + place[j] * t.y_stride + i, lanes), sum);
      const F16 value = t.add ? fma(scale, sum, load_lanes(out + i, lanes)) : mul(scale, sum);
      store_lanes(out + i, value, lanes);
    });
  }
}

}  // namespace
}  // namespace forearm
