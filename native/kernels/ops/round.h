// Rounding weights to int8 and int4 while they are loaded (RoundTask).
//
// int4: for each of kTries scales the codes q are taken and the scale that fits them best, sum(w q) / sum(q^2), which
// leaves an error of sum(w^2) - sum(w q)^2 / sum(q^2): the search of ggml's quants (make_qx_quants), wider to the side
// that clips the largest weight. 16 k of all tries of a turn are in registers at once.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/codes.h"
#include "kernels/ops/lanes.h"
#include "kernels/ops/quantize.h"

namespace forearm {
namespace {

constexpr int kTries = 16, kTogether = 4;
// Where a try puts the largest weight: code -7 to -16.8. Beyond -8 it is clipped; over a whole row that pays (normal
// weights, 1024 of them: -27 % squared error; groups of 128: -12 %, of 32: -11 %; more tries give 0.4 % more).
constexpr float try_code(int i) { return i == 0 ? -7.0f : 1.06f * try_code(i - 1); }

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

// The weight of largest magnitude, with its sign; NaN where there is one.
inline float extreme_of(const float* w, int64_t count) {
  const float largest = largest_magnitude(InPlace{w}, 0, count);
  F16 highest = zero();
  for_columns(count, [&](int64_t at, int64_t lanes) { highest = max(highest, load_lanes(w + at, lanes)); });
  return reduce_max(highest) == largest ? largest : -largest;
}

struct Fit {
  float scale, gain;  // gain: by how much the squared error falls
};

// The best of tries [first, first + kTogether).
inline Fit best_of(const float* w, int64_t count, float extreme, int first, CodeRange range) {
  F16 inverse[kTogether], products[kTogether], squares[kTogether];
#pragma GCC unroll 4
  for (int i = 0; i < kTogether; ++i) {
    inverse[i] = broadcast(try_code(first + i) / extreme);
    products[i] = squares[i] = zero();
  }
  const F16 round = broadcast(kRound);
  for_columns(count, [&](int64_t at, int64_t lanes) {
    const F16 x = load_lanes(w + at, lanes);
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) {
      const F16 code = sub(nearest_code(x, inverse[i], range), round);
      products[i] = fma(x, code, products[i]);
      squares[i] = fma(code, code, squares[i]);
    }
  });
  Fit best{0.0f, -1.0f};
#pragma GCC unroll 4
  for (int i = 0; i < kTogether; ++i) {
    const float product = reduce_add(products[i]), scale = product / reduce_add(squares[i]);
    if (product * scale > best.gain) best = {scale, product * scale};
  }
  return best;
}

inline float int4_scale(const float* w, int64_t count, CodeRange range) {
  const float extreme = extreme_of(w, count);
  if (inverse_of(extreme < 0.0f ? -extreme : extreme, 1.0f) == 0.0f) return extreme - extreme;  // 0 or NaN
  Fit best{0.0f, -1.0f};
  for (int first = 0; first < kTries; first += kTogether) {
    const Fit fit = best_of(w, count, extreme, first, range);
    if (fit.gain > best.gain) best = fit;
  }
  return best.scale;
}

inline void round(const RoundTask& t) {
  const CodeRange range = t.dtype == DType::int4 ? CodeRange{-8.0f, 7.0f} : CodeRange{-127.0f, 127.0f};
  const int64_t groups = groups_of(t.k, t.group);
  for (int64_t i = 0; i < t.rows * groups; ++i) {
    const int64_t begin = i % groups * t.group, count = t.k - begin < t.group ? t.k - begin : t.group;
    const float* w = t.w + i / groups * t.k + begin;
    const float scale =
        t.dtype == DType::int4 ? int4_scale(w, count, range) : largest_magnitude(InPlace{w}, 0, count) / 127.0f;
    t.scales[i] = as_stored(scale, t.scale_dtype);
    write_codes(w, count, t.scales[i], range, t.codes + i / groups * t.k + begin);
  }
}

}  // namespace
}  // namespace forearm
