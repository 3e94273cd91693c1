// Statistics and passes over one row of logits, for sampling.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/simd/unroll.h"

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

// The mask of logits i .. i + 15; i is a multiple of 16.
inline uint32_t mask_at(const LogitRow& row, int64_t i) { return row.mask[i / 32] >> i % 32 & 0xffffu; }

// Returns the largest of logits [begin, begin + size) that the mask allows; NaN if one of them is NaN.
template <bool kMasked>
__attribute__((always_inline)) inline float largest_of(const LogitRow& row, int64_t begin, int64_t size) {
  const F16 lowest = broadcast(-__builtin_inff());
  F16 best = lowest;
  M16 nan = less(lowest, lowest);  // none
  UNROLL(4)
  for (int64_t i = 0; i < size; i += 16) {
    const int64_t lanes = size - i < 16 ? size - i : 16;
    F16 v = only_lanes(load_lanes(row.x + begin + i, lanes), lanes, -__builtin_inff());
    if constexpr (kMasked) v = select(truths(mask_at(row, begin + i)), v, lowest);
    nan = either(nan, is_nan(v));
    best = max(v, best);
  }
  return any(nan) ? __builtin_nanf("") : reduce_max(best);
}

template <bool kMasked>
inline void find_maxima(const LogitRow& row, float* maxima) {
  int64_t i = 0;
  for (; i + kMaximumLogits <= row.n; i += kMaximumLogits) *maxima++ = largest_of<kMasked>(row, i, kMaximumLogits);
  if (i < row.n) *maxima = largest_of<kMasked>(row, i, row.n - i);
}

inline void row_maxima(const LogitRow& row, float* maxima) {
  row.mask ? find_maxima<true>(row, maxima) : find_maxima<false>(row, maxima);
}

template <bool kMasked>
inline float exp_sum(const LogitRow& row, float max_value, float inverse_temperature, float* out) {
  const F16 top = broadcast(max_value), inverse = broadcast(inverse_temperature);
  F16 sum = zero();
  for_columns(row.n, [&](int64_t i, int64_t lanes) {
    const uint32_t mask = kMasked ? mask_at(row, i) : 0xffffu;
    if (kMasked && !mask && !out) return;
    F16 term = only_lanes(exp(mul(sub(load_lanes(row.x + i, lanes), top), inverse)), lanes, 0.0f);
    if constexpr (kMasked) term = select(truths(mask), term, zero());
    sum = add(sum, term);
    if (out) store_lanes(out + i, term, lanes);
  });
  return reduce_add(sum);
}

inline float row_exp_sum(const LogitRow& row, float max_value, float inverse_temperature, float* out) {
  return row.mask ? exp_sum<true>(row, max_value, inverse_temperature, out)
                  : exp_sum<false>(row, max_value, inverse_temperature, out);
}

template <bool kMasked>
inline int64_t collect(const LogitRow& row, const float* maxima, float threshold, int32_t* index, float* value,
                       int64_t room) {
  const F16 bound = broadcast(threshold);
  int64_t count = 0;
  const auto collect_at = [&](int64_t i, int64_t lanes) {
    uint32_t hits = bitmask(less_equal(bound, load_lanes(row.x + i, lanes))) & ((1u << lanes) - 1u);
    if constexpr (kMasked) hits &= mask_at(row, i);
    if (!hits) return;
    if (count + 16 <= room) {
      count += store_hits(row.x, i, hits, index + count, value + count);
      return;
    }
    for (; hits; hits &= hits - 1, ++count)
      if (count < room) store_hits(row.x, i, hits & -hits, index + count, value + count);
  };
  for_columns(maxima_of(row.n), [&](int64_t first, int64_t lanes) {
    uint32_t reach = (1u << lanes) - 1u;
    if (maxima) reach &= ~bitmask(less(load_lanes(maxima + first, lanes), bound));
    for (; reach; reach &= reach - 1) {
      const int64_t begin = (first + __builtin_ctz(reach)) * kMaximumLogits, left = row.n - begin;
      for_columns(left < kMaximumLogits ? left : kMaximumLogits,
                  [&](int64_t i, int64_t lanes) { collect_at(begin + i, lanes); });
    }
  });
  return count;
}

inline int64_t row_collect(const LogitRow& row, const float* maxima, float threshold, int32_t* index, float* value,
                           int64_t room) {
  return row.mask ? collect<true>(row, maxima, threshold, index, value, room)
                  : collect<false>(row, maxima, threshold, index, value, room);
}

}  // namespace
}  // namespace forearm
