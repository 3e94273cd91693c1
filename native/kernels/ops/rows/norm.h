// RMSNorm and LayerNorm of rows and heads, with and without adding to the residual. One pass over a row for each sum,
// all in cache.
#pragma once
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/lanes.h"

namespace forearm {
namespace {

// A row is normalized as (x - mean) * factor; the mean is 0 for RMSNorm.
struct Moments {
  float mean, factor;
};

inline float sum_of_squares(const float* x, int64_t dim, float mean) {
  const F16 centre = broadcast(mean);
  F16 sum = zero();
  for_columns(dim, [&](int64_t column, int64_t lanes) {
    const F16 d = only_lanes(sub(load_lanes(x + column, lanes), centre), lanes, 0.0f);
    sum = fma(d, d, sum);
  });
  return reduce_add(sum);
}

inline Moments moments(const float* x, int64_t dim, float eps, bool centred) {
  float mean = 0.0f;
  if (centred) {
    F16 sum = zero();
    for_columns(dim, [&](int64_t column, int64_t lanes) { sum = add(sum, load_lanes(x + column, lanes)); });
    mean = reduce_add(sum) / static_cast<float>(dim);
  }
  const float variance = sum_of_squares(x, dim, mean) / static_cast<float>(dim);
  return {mean, 1.0f / sqrtf(variance + eps)};
}

// Calls put(column, value, lanes) with each normalized vector of row x.
template <typename Put>
inline void normalize_row(const NormTask& t, const float* x, Put put) {
  const Moments m = moments(x, t.dim, t.eps, t.layer_norm);
  const F16 mean = broadcast(m.mean), factor = broadcast(m.factor);
  for_columns(t.dim, [&](int64_t column, int64_t lanes) {
    F16 y = mul(sub(load_lanes(x + column, lanes), mean), factor);
    if (t.weight) y = mul(y, load_lanes(t.weight + column, lanes));
    if (t.bias) y = add(y, load_lanes(t.bias + column, lanes));
    put(column, y, lanes);
  });
}

inline void norm(const NormTask& t) {
  for (int64_t row = t.row_begin; row < t.row_end; ++row) {
    normalize_row(t, t.x + row * t.x_stride,
                  [&](int64_t column, F16 y, int64_t lanes) { store_operand(t.out, row, column, y, lanes); });
  }
}

inline void add_norm(const AddNormTask& t) {
  const F16 scale = broadcast(t.scale);
  for (int64_t row = t.norm.row_begin; row < t.norm.row_end; ++row) {
    float* residual = float_row(t.norm.out, row);
    normalize_row(t.norm, t.norm.x + row * t.norm.x_stride, [&](int64_t column, F16 y, int64_t lanes) {
      store_lanes(residual + column, fma(scale, y, load_lanes(residual + column, lanes)), lanes);
    });
  }
}

inline void head_norm(const HeadNormTask& t) {
  const NormTask each{t.x, 0, 0, 1, t.head_dim, t.weight, nullptr, t.eps, false, {}};
  for (int64_t row = 0; row < t.rows; ++row) {
    for (int64_t head = 0; head < t.heads; ++head) {
      float* x = t.x + row * t.x_stride + head * t.head_dim;
      normalize_row(each, x, [&](int64_t column, F16 y, int64_t lanes) { store_lanes(x + column, y, lanes); });
    }
  }
}

}  // namespace
}  // namespace forearm
