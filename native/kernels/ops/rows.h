// Statistics and passes over one row of logits, for sampling.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/lanes.h"

namespace forearm {
namespace {

// Lowest index at or after `from` that holds `wanted`.
inline int64_t find_value(const float* x, int64_t n, float wanted) {
  const F16 target = broadcast(wanted);
  int64_t found = n;
  for (int64_t i = 0; i < n && found == n; i += 16) {
    const int64_t lanes = n - i < 16 ? n - i : 16;
    const uint32_t equal = bitmask(less_equal(target, load_lanes(x + i, lanes))) & ((1u << lanes) - 1u);
    if (equal) found = i + __builtin_ctz(equal);
  }
  return found;
}

inline RowMax row_max(const float* x, int64_t n) {
  const F16 lowest = broadcast(-__builtin_inff());
  F16 best = lowest;
  M16 nan = less(lowest, lowest);  // none
  for_columns(n, [&](int64_t i, int64_t lanes) {
    const F16 v = only_lanes(load_lanes(x + i, lanes), lanes, -__builtin_inff());
    nan = either(nan, is_nan(v));
    best = max(v, best);
  });
  if (bitmask(nan)) return {__builtin_nanf(""), 0, true};
  const float value = reduce_max(best);
  return {value, static_cast<int32_t>(find_value(x, n, value)), false};
}

inline float row_exp_sum(const float* x, int64_t n, float max_value, float inverse_temperature, float* out) {
  const F16 top = broadcast(max_value), inverse = broadcast(inverse_temperature);
  F16 sum = zero();
  for_columns(n, [&](int64_t i, int64_t lanes) {
    const F16 term = only_lanes(exp(mul(sub(load_lanes(x + i, lanes), top), inverse)), lanes, 0.0f);
    sum = add(sum, term);
    if (out) store_lanes(out + i, term, lanes);
  });
  return reduce_add(sum);
}

inline int64_t row_collect(const float* x, int64_t n, float threshold, int32_t* index, float* value, int64_t room) {
  const F16 bound = broadcast(threshold);
  int64_t count = 0;
  for_columns(n, [&](int64_t i, int64_t lanes) {
    uint32_t hits = bitmask(less_equal(bound, load_lanes(x + i, lanes))) & ((1u << lanes) - 1u);
    for (; hits; hits &= hits - 1) {
      const int64_t at = i + __builtin_ctz(hits);
      if (count < room) {
        index[count] = static_cast<int32_t>(at);
        value[count] = x[at];
      }
      ++count;
    }
  });
  return count;
}

}  // namespace
}  // namespace forearm
