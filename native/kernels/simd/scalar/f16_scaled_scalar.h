// Products of f16_scaled in plain C++, as kernels.h defines them, for tiers without 16-bit arithmetic: they get such
// matrices only from tests.
#pragma once
#include <stdint.h>

#include "kernels/kernels.h"

namespace forearm {
namespace {

inline uint64_t bits_of(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, 8);
  return bits;
}
inline double double_of(uint64_t bits) {
  double x;
  __builtin_memcpy(&x, &bits, 8);
  return x;
}

// Rounds to f16, to nearest even: to 11 bits, or to multiples of 2^-24 for denormals. Codes never reach the largest
// f16.
inline double round_half(double x) {
  constexpr double kDenormals = 0x1.8p28;  // whose last place is 2^-24
  constexpr int kCut = 52 - 10;
  if (__builtin_fabs(x) < 0x1p-14) return __builtin_copysign((x + kDenormals) - kDenormals, x);
  const uint64_t bits = bits_of(x);
  if (!(x - x == 0)) return x;  // infinity, NaN
  const uint64_t rounded = bits + ((uint64_t{1} << (kCut - 1)) - 1) + (bits >> kCut & 1);
  return double_of(rounded >> kCut << kCut);
}

// x + y rounded to odd, so that rounding once more gives what rounding the exact sum would: Boldo and Melquiond, IEEE
// Transactions on Computers 57 (2008). The error of a sum is Knuth's, TAOCP 2, 4.2.2, theorem B.
inline double add_to_odd(double x, double y) {
  const double sum = x + y, of_y = sum - x;
  const double error = (x - (sum - of_y)) + (y - of_y);
  const uint64_t bits = bits_of(sum);
  if (error == 0 || error != error || bits & 1) return sum;
  return double_of((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

inline double widen_half(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  const double magnitude = exponent == 0
                               ? fraction * 0x1p-24
                               : (1024 + fraction) * double_of(static_cast<uint64_t>(exponent - 25 + 1023) << 52);
  return h & 0x8000 ? -magnitude : magnitude;
}

struct F16Scaled {
  static constexpr int kRows = 4;

  // sums[r * stride + i] += the products of `blocks` blocks, for rows a[0 .. Rows) and 16 columns i.
  template <int Rows>
  static void add_blocks(const uint16_t* const (&a)[Rows], const uint16_t* w, int64_t blocks, float* sums,
                         int64_t stride) {
    for (int r = 0; r < Rows; ++r) {
      for (int64_t b = 0; b < blocks; ++b) {
        for (int i = 0; i < kPanel; ++i)
          sums[r * stride + i] += static_cast<float>(block(a[r] + b * kScaledBlock, w + b * kScaledBlock * kPanel + i));
      }
    }
  }

 private:
  static double block(const uint16_t* a, const uint16_t* w) {
    double chain[kScaledBlock / 4];
    for (int c = 0; c < kScaledBlock / 4; ++c) {
      chain[c] = round_half(product(a, w, 4 * c));
      for (int k = 4 * c + 1; k < 4 * c + 4; ++k) chain[c] = round_half(add_to_odd(product(a, w, k), chain[c]));
    }
    for (int count = kScaledBlock / 8; count > 0; count /= 2) {
      for (int c = 0; c < count; ++c) chain[c] = round_half(chain[2 * c] + chain[2 * c + 1]);
    }
    return chain[0];
  }
  static double product(const uint16_t* a, const uint16_t* w, int k) {
    return widen_half(a[k]) * widen_half(w[k * kPanel]);  // exact
  }
};

}  // namespace
}  // namespace forearm
