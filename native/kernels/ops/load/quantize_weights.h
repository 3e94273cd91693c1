// Quantization of weights to integers of 8 and 4 bits while they are loaded (RoundTask).
//
// 4 bits: for each of kTries scales the codes q are taken and the scale that fits them best, sum(w q) / sum(q^2), which
// leaves an error of sum(w^2) - sum(w q)^2 / sum(q^2): the search of ggml's quants (make_qx_quants), wider to the side
// that clips the largest weight. All tries are taken at once, one in each lane. With importance, each square counts as
// often as its column says.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/scales.h"
#include "kernels/ops/load/quantize_activations.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

constexpr int kTries = 16, kTogether = 4;
// Where a try puts the largest weight: code -7 to -16.8. Beyond -8 it is clipped; over a whole row that pays (normal
// weights, 1024 of them: -27 % squared error; groups of 128: -12 %, of 32: -11 %; more tries give 0.4 % more).
struct TryCodes {
  float code[kTries];
};
constexpr TryCodes try_codes() {
  TryCodes tries{{-7.0f}};
  for (int i = 1; i < kTries; ++i) tries.code[i] = 1.06f * tries.code[i - 1];
  return tries;
}
constexpr TryCodes kTryCodes = try_codes();

inline float as_stored(float scale, DType dtype) {
  uint16_t half[16];
  if (dtype == DType::f32) return scale;
  float out[16];
  dtype == DType::f16 ? store_f16(half, broadcast(scale)) : store_bf16(half, broadcast(scale));
  store(out, dtype == DType::f16 ? load_f16(half) : load_bf16(half));
  return out[0];
}

struct CodeRange {
  float lowest, highest;
};
inline F16 nearest_code(F16 w, F16 inverse, CodeRange range) {
  const F16 clipped = max(broadcast(range.lowest), min(broadcast(range.highest), mul(w, inverse)));
  return add(clipped, broadcast(kRound));
}

inline void write_codes(const float* w, int64_t count, float scale, CodeRange range, int8_t* codes) {
  const bool usable = scale != 0.0f && scale - scale == 0.0f;  // else all codes are 0
  const F16 inverse = broadcast(usable ? 1.0f / scale : 0.0f);
  for_columns(count, [&](int64_t at, int64_t lanes) {
    const F16 code = usable ? nearest_code(load_lanes(w + at, lanes), inverse, range) : broadcast(kRound);
    if (lanes == 16) return store_low_bytes(codes + at, code);
    int8_t last[16];
    store_low_bytes(last, code);
    __builtin_memcpy(codes + at, last, static_cast<uint64_t>(lanes));
  });
}

// Returns the weight of the largest magnitude, with its sign; NaN if any weight is NaN.
inline float extreme_of(const float* w, int64_t count) {
  const float largest = largest_magnitude(InPlace{w}, 0, count);
  F16 highest = zero();
  for_columns(count, [&](int64_t at, int64_t lanes) { highest = max(highest, load_lanes(w + at, lanes)); });
  return reduce_max(highest) == largest ? largest : -largest;
}

// One weight in every lane, and its importance.
struct Weighed {
  F16 w, importance;
};

inline void add_try(Weighed x, F16 inverse, CodeRange range, F16 round, F16& products, F16& squares) {
  const F16 code = sub(nearest_code(x.w, inverse, range), round), weighed = mul(x.importance, code);
  products = fma(x.w, weighed, products);
  squares = fma(code, weighed, squares);
}

inline F16 fold_halves(F16 (&sums)[16]) {
  UNROLL(4)
  for (int half = 8; half > 0; half /= 2) {
    UNROLLED_FOR (i, half) sums[i] = add(sums[i], sums[i + half]);
  }
  return sums[0];
}

// A try lowers the squared error by product^2 / square; returns the scale of the first try that lowers it most.
inline float best_of(F16 products, F16 squares) {
  float scales[kTries], gains[kTries];
  const F16 scale = div(products, squares);
  store(scales, scale);
  store(gains, mul(products, scale));
  float best = 0.0f, gain = -1.0f;
  for (int i = 0; i < kTries; ++i) {
    if (gains[i] > gain) best = scales[i], gain = gains[i];
  }
  return best;
}

// Returns the scale that fits best. Each lane is a try, so no sum is folded across lanes; sums of the k that are equal
// modulo 16 are folded by halves, as reduce_add folds lanes of k.
inline float best_scale(const float* w, const float* importance, int64_t count, F16 inverse, CodeRange range) {
  F16 products[16], squares[16];
  const F16 round = broadcast(kRound);
  const auto weighed = [&](int64_t k) {
    return Weighed{broadcast(w[k]), broadcast(importance ? importance[k] : 1.0f)};
  };
  for (int64_t first = 0; first < 16; first += kTogether) {
    F16 product[kTogether], square[kTogether];
    UNROLLED_FOR (i, kTogether) product[i] = square[i] = zero();
    int64_t k = first;
    for (; k + kTogether <= count; k += 16) {
      UNROLLED_FOR (i, kTogether) add_try(weighed(k + i), inverse, range, round, product[i], square[i]);
    }
    for (int i = 0; k + i < count && i < kTogether; ++i) {
      add_try(weighed(k + i), inverse, range, round, product[i], square[i]);
    }
    UNROLLED_FOR (i, kTogether) products[first + i] = product[i], squares[first + i] = square[i];
  }
  return best_of(fold_halves(products), fold_halves(squares));
}

inline float searched_scale(const float* w, const float* importance, int64_t count, CodeRange range) {
  const float extreme = extreme_of(w, count);
  if (inverse_of(extreme < 0.0f ? -extreme : extreme, 1.0f) == 0.0f) return extreme - extreme;  // 0 or NaN
  float inverse[kTries];
  for (int i = 0; i < kTries; ++i) inverse[i] = kTryCodes.code[i] / extreme;
  return best_scale(w, importance, count, load(inverse), range);
}

inline CodeRange range_of(DType dtype) {
  const float largest = number_format(dtype).largest;
  return {-largest, has_nibbles(dtype) ? largest - 1 : largest};
}

// Returns the scale of the group that begins at column `begin`; w: the row.
inline float group_scale(const RoundTask& t, const float* w, int64_t begin) {
  const int64_t count = t.k - begin < t.group ? t.k - begin : t.group;
  const float* importance = t.importance ? t.importance + begin : nullptr;
  const CodeRange range = range_of(t.dtype);
  const float scale = has_nibbles(t.dtype) ? searched_scale(w + begin, importance, count, range)
                                           : largest_magnitude(InPlace{w + begin}, 0, count) / range.highest;
  return as_stored(scale, t.scale_dtype);
}

// Rounds rows [first, first + count) of at most 16, one in each lane, with feedback; their scales are known.
inline void round_with_feedback(const RoundTask& t, int64_t first, int64_t count) {
  const int64_t groups = groups_of(t.k, t.group);
  const CodeRange range = range_of(t.dtype);
  F16 errors[kFeedback];
  UNROLLED_FOR (i, kFeedback) errors[i] = zero();
  for (int64_t column = 0; column < t.k; column += 16) {
    float w[16][16] = {}, scales[16] = {}, inverses[16] = {};
    int8_t codes[16][16];
    const int64_t columns = t.k - column < 16 ? t.k - column : 16;
    for (int64_t r = 0; r < count; ++r) {
      const float scale = t.scales[(first + r) * groups + column / t.group];
      if (scale == 0.0f || scale - scale != 0.0f) continue;  // all codes are 0
      scales[r] = scale;
      inverses[r] = 1.0f / scale;
      for (int64_t c = 0; c < columns; ++c) w[c][r] = t.w[(first + r) * t.k + column + c];
    }
    const F16 scale = load(scales), inverse = load(inverses);
    for (int64_t c = 0; c < columns; ++c) {
      const float* a = t.feedback + (column + c) * kFeedback;
      const float* v = a + t.k * kFeedback;
      F16 parts[4] = {zero(), zero(), zero(), zero()};
      UNROLLED_FOR (i, kFeedback) parts[i % 4] = fma(broadcast(a[i]), errors[i], parts[i % 4]);
      const F16 exact = load(w[c]);
      const F16 wanted = sub(exact, add(add(parts[0], parts[1]), add(parts[2], parts[3])));
      const F16 shifted = nearest_code(wanted, inverse, range);
      store_low_bytes(codes[c], shifted);
      const F16 error = sub(mul(sub(shifted, broadcast(kRound)), scale), exact);
      UNROLLED_FOR (i, kFeedback) errors[i] = fma(broadcast(v[i]), error, errors[i]);
    }
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < columns; ++c) t.codes[(first + r) * t.k + column + c] = codes[c][r];
    }
  }
}

inline void round(const RoundTask& t) {
  const int64_t groups = groups_of(t.k, t.group);
  for (int64_t i = 0; i < t.rows * groups; ++i) {
    const int64_t begin = i % groups * t.group, count = t.k - begin < t.group ? t.k - begin : t.group;
    const float* w = t.w + i / groups * t.k;
    t.scales[i] = group_scale(t, w, begin);
    if (!t.feedback) write_codes(w + begin, count, t.scales[i], range_of(t.dtype), t.codes + i / groups * t.k + begin);
  }
  for (int64_t row = 0; t.feedback && row < t.rows; row += 16) {
    round_with_feedback(t, row, t.rows - row < 16 ? t.rows - row : 16);
  }
}

}  // namespace
}  // namespace forearm
