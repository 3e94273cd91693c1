// Quantization of activations: rows in the form that the next matrix product reads; i8 and i16 forms have one scale for
// each row and group (Operand).
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/gemm/scales.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// A row in its own order, and one with its columns in act-order.
struct InPlace {
  const float* x;
  F16 operator()(int64_t column, int64_t lanes) const { return load_lanes(x + column, lanes); }
};
struct Ordered {
  const float* x;
  const int32_t* order;
  F16 operator()(int64_t column, int64_t lanes) const {
    float gathered[16] = {};
    for (int64_t i = 0; i < lanes; ++i) gathered[i] = x[order[column + i]];
    return load(gathered);
  }
};

// Multiplies vectors with Hadamard's matrix, lane by lane. Differences are multiply-adds, which Zen 4 computes beside
// additions: 2,048 columns are turned in 417 ns, with subtractions in 494.
template <int kCount>
inline void hadamard(F16 (&x)[kCount]) {
  const F16 minus = broadcast(-1.0f);
  UNROLL(3)
  for (int half = 1; half < kCount; half *= 2) {
    UNROLLED_FOR (i, kCount) {
      if (i & half) continue;
      const F16 sum = add(x[i], x[i + half]);
      x[i + half] = fma(minus, x[i + half], x[i]);
      x[i] = sum;
    }
  }
}

// Multiplies each 64 columns with Hadamard's matrix. The result of column 16 i + 4 q + l stands in column 16 q + 4 l +
// i.
inline void mix_columns(const float* x, int64_t count, float* to) {
  for (int64_t at = 0; at < count; at += 64) {
    F16 own[4];
    UNROLLED_FOR (i, 4) own[i] = load(x + at + 16 * i);
    hadamard(own);
    transpose_fours(own);
    hadamard(own);
    transpose_vectors(own);
    hadamard(own);
    UNROLLED_FOR (i, 4) store(to + at + 16 * i, own[i]);
  }
}

// Multiplies each kRows rows of 16 columns that are `stride` rows apart with Hadamard's matrix.
template <int kRows>
inline void mix_even(float* x, int64_t rows, int64_t stride) {
  for (int64_t block = 0; block < rows; block += kRows * stride) {
    for (int64_t first = block; first < block + stride; ++first) {
      F16 own[kRows];
      UNROLLED_FOR (i, kRows) own[i] = load(x + 16 * (first + i * stride));
      hadamard(own);
      UNROLLED_FOR (i, kRows) store(x + 16 * (first + i * stride), own[i]);
    }
  }
}

// Returns cos(x) + sin(x) at x = 2 pi i / count, by 30 terms of their series: the last is below 1e-17.
constexpr float hartley(int count, int i) {
  const double x = 6.283185307179586 / count * (2 * i > count ? i - count : i);
  double term = 1, sum = 0;
  for (int n = 1; n <= 30; term *= x / n, ++n) sum += n % 4 == 1 || n % 4 == 2 ? term : -term;
  return static_cast<float>(sum);
}
template <int kCount>
struct Hartley {
  float values[kCount];
  constexpr Hartley() : values() {
    for (int i = 0; i < kCount; ++i) values[i] = hartley(kCount, i);
  }
};

// The same with Hartley's matrix of `odd` rows, cos(x) + sin(x) at x = 2 pi / odd * row * column. kOdd: odd, or 0.
template <int kOdd>
inline void mix_odd(float* x, int64_t rows, int64_t stride, int odd) {
  const int count = kOdd ? kOdd : odd;
  F16 factors[kOdd ? kOdd : kMostOddRows], own[kOdd ? kOdd : kMostOddRows];
  if constexpr (kOdd) {
    constexpr Hartley<kOdd> kFactors;
    UNROLLED_FOR (i, kOdd) factors[i] = broadcast(kFactors.values[i]);
  } else {
    for (int i = 0; i < count; ++i) factors[i] = broadcast(hartley(count, i));
  }
  for (int64_t block = 0; block < rows; block += count * stride) {
    for (int64_t first = block; first < block + stride; ++first) {
      UNROLL(8)
      for (int i = 0; i < count; ++i) own[i] = load(x + 16 * (first + i * stride));
      UNROLL(8)
      for (int i = 0; i < count; ++i) {
        F16 sum = own[0];
        UNROLL(8)
        for (int j = 1, at = i; j < count; ++j) {
          sum = fma(factors[at], own[j], sum);
          at += at + i < count ? i : i - count;
        }
        store(x + 16 * (first + i * stride), sum);
      }
    }
  }
}

// Turns `count` columns of a group (QuantizeTask) factor by factor. A call: the code stands once for all forms.
__attribute__((noinline)) void turn(const float* x, int64_t count, float* to) {
  mix_columns(x, count, to);
  const int64_t rows = count / 16;
  int64_t stride = 4;
  for (; rows / stride % 8 == 0; stride *= 8) mix_even<8>(to, rows, stride);
  for (; rows / stride % 4 == 0; stride *= 4) mix_even<4>(to, rows, stride);
  for (; rows / stride % 2 == 0; stride *= 2) mix_even<2>(to, rows, stride);
  for (int odd = 3; stride < rows; odd += 2) {
    for (; rows / stride % odd == 0; stride *= odd) {
      if (odd == 3) {
        mix_odd<3>(to, rows, stride, odd);
      } else if (odd == 5) {
        mix_odd<5>(to, rows, stride, odd);
      } else if (odd == 7) {
        mix_odd<7>(to, rows, stride, odd);
      } else {
        mix_odd<0>(to, rows, stride, odd);
      }
    }
  }
}

// Largest magnitude of columns [begin, begin + count) by its bits: NaN above infinity above all numbers.
template <typename Row>
inline float largest_magnitude(const Row& row, int64_t begin, int64_t count) {
  F16 best = zero();
  M16 nan = less(best, best);  // none
  for_columns(count, [&](int64_t at, int64_t lanes) {
    const F16 v = row(begin + at, lanes);
    nan = either(nan, is_nan(v));
    best = max(abs(v), best);
  });
  return bitmask(nan) ? __builtin_nanf("") : reduce_max(best);
}

// The address of element (row, column) of an i8 form. The row's next elements follow; in pairs, eight at a time.
inline int8_t* code_at(const Operand& o, int64_t row, int64_t column) {
  int8_t* first = static_cast<int8_t*>(o.data);
  if (o.form == Form::i8_rows) return first + row * o.stride + column;
  return first + row / 2 * 2 * o.stride + column / 8 * 16 + row % 2 * 8 + column % 8;
}

inline void store_codes(const Operand& o, int64_t row, int64_t column, F16 shifted, int64_t lanes) {
  int8_t codes[16];
  int8_t* to = code_at(o, row, column);
  if (lanes == 16 && o.form == Form::i8_rows) return store_low_bytes(to, shifted);
  store_low_bytes(codes, shifted);
  if (lanes == 16 && column % 8 == 0) {
    __builtin_memcpy(to, codes, 8);
    __builtin_memcpy(to + 16, codes + 8, 8);
    return;
  }
  for (int64_t i = 0; i < lanes; ++i) *code_at(o, row, column + i) = codes[i];
}

// Stores codes x * inverse of columns [begin, begin + count); returns their sum. An inverse of 0 gives zeros, whatever
// x is.
template <typename Row>
inline int32_t round_group(const Operand& out, int64_t to, const Row& row, int64_t begin, int64_t count,
                           float inverse) {
  F16 sum = zero();  // of integers below 2^24: exact
  const F16 factor = broadcast(inverse), round = broadcast(kRound);
  for_columns(count, [&](int64_t at, int64_t lanes) {
    const F16 shifted = inverse == 0.0f ? round : add(mul(row(begin + at, lanes), factor), round);
    sum = add(sum, sub(shifted, round));
    store_codes(out, to, begin + at, shifted, lanes);
  });
  return static_cast<int32_t>(reduce_add(sum));
}

// As round_group, of 16 bits: the digits go to rows 2 * to and 2 * to + 1 of the i8 form; `sums` are those rows' sums
// of the group, `groups` apart.
template <typename Row>
inline void split_group(const Operand& digits, int64_t to, const Row& row, int64_t begin, int64_t count, float inverse,
                        int32_t* sums, int64_t groups) {
  F16 high_sum = zero(), low_sum = zero();
  const F16 factor = broadcast(inverse), round = broadcast(kRound);
  for_columns(count, [&](int64_t at, int64_t lanes) {
    const F16 q = inverse == 0.0f ? zero() : sub(add(mul(row(begin + at, lanes), factor), round), round);
    const F16 shifted = add(mul(q, broadcast(1.0f / kDigitBase)), round), high = sub(shifted, round);
    const F16 low = fma(broadcast(-kDigitBase), high, q);
    high_sum = add(high_sum, high);
    low_sum = add(low_sum, low);
    store_codes(digits, 2 * to, begin + at, shifted, lanes);
    store_codes(digits, 2 * to + 1, begin + at, add(low, round), lanes);
  });
  sums[0] = static_cast<int32_t>(reduce_add(high_sum));
  sums[groups] = static_cast<int32_t>(reduce_add(low_sum));
}

// The scale of a row of f16_scaled, and its inverse: powers of two.
struct RowScale {
  float scale, inverse;
};
inline RowScale row_scale(float largest) {
  uint32_t bits;
  __builtin_memcpy(&bits, &largest, 4);
  int exponent = static_cast<int>(bits >> 23) - 127;  // of a magnitude
  if (exponent == 128) return {__builtin_nanf(""), 0.0f};
  if (exponent < kLeastExponent) exponent = kLeastExponent;
  const auto power = [](int of) {
    const uint32_t shifted = static_cast<uint32_t>(of + 127) << 23;
    float x;
    __builtin_memcpy(&x, &shifted, 4);
    return x;
  };
  return {power(exponent - kScaledTop), power(kScaledTop - exponent)};
}

template <typename Row>
inline void scale_row(const QuantizeTask& t, int64_t to, const Row& row) {
  const RowScale s = row_scale(largest_magnitude(row, 0, t.dim));
  t.out.scales[to] = s.scale;
  const F16 factor = broadcast(s.inverse);
  uint16_t* out = half_row(t.out, to);
  for_columns(t.dim, [&](int64_t at, int64_t lanes) {
    uint16_t codes[16];
    store_f16(codes, s.inverse == 0.0f ? zero() : mul(row(at, lanes), factor));
    __builtin_memcpy(out + at, codes, static_cast<uint64_t>(lanes) * 2);
  });
  for (int64_t at = t.dim; at % kScaledBlock != 0; ++at) out[at] = 0;
}

// Quantizes group g of a row to the i8 or i16 form; `codes` is the form of its digits.
template <typename Row>
inline void convert_group(const QuantizeTask& t, const Operand& codes, int64_t to, const Row& row, int64_t g) {
  const int64_t groups = groups_of(t.dim, t.out.group), digits = digits_of(t.out.form), begin = g * t.out.group;
  const int64_t count = t.dim - begin < t.out.group ? t.dim - begin : t.out.group;
  const float largest = largest_magnitude(row, begin, count);
  float* scales = t.out.scales + digits * to * groups + g;
  int32_t* sums = t.out.sums + digits * to * groups + g;
  if (digits == 2) {
    scales[groups] = largest / kDigitsTop;
    scales[0] = kDigitBase * scales[groups];
    split_group(codes, to, row, begin, count, inverse_of(largest, kDigitsTop), sums, groups);
  } else {
    *scales = largest / 127.0f;
    *sums = round_group(codes, to, row, begin, count, inverse_of(largest, 127.0f));
  }
}

template <typename Row>
inline void convert_row(const QuantizeTask& t, int64_t to, const Row& row) {
  if (t.out.form == Form::f16_scaled) return scale_row(t, to, row);
  if (!is_quantized(t.out.form)) {
    return for_columns(t.dim, [&](int64_t at, int64_t lanes) { store_operand(t.out, to, at, row(at, lanes), lanes); });
  }
  Operand codes = t.out;
  codes.form = digit_form(t.out.form);
  const int64_t groups = groups_of(t.dim, t.out.group), digits = digits_of(t.out.form);
  for (int64_t g = 0; g < groups; ++g) {
    if (t.turned) {
      const int64_t begin = g * t.out.group, left = t.dim - begin;
      turn(row.x + begin, left < t.out.group ? left : t.out.group, t.turned + begin);
      convert_group(t, codes, to, InPlace{t.turned}, g);
    } else {
      convert_group(t, codes, to, row, g);
    }
  }
  for (int64_t r = digits * to; r < digits * to + digits; ++r) {
    for (int64_t column = t.dim; column % 64 != 0; ++column) *code_at(codes, r, column) = 0;
  }
}

inline void quantize(const QuantizeTask& t) {
  for (int64_t row = t.row_begin; row < t.row_end; ++row) {
    const float* x = t.x + row * t.x_stride;
    if (t.order) {
      convert_row(t, row, Ordered{x, t.order});
    } else {
      convert_row(t, row, InPlace{x});
    }
  }
}

}  // namespace
}  // namespace forearm
