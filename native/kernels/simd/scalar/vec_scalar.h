// The vector of 16 floats that every operation is written on: its definition, in plain C++.
//
// The other tiers' vec_<isa>.h give the same functions with the same results, bit for bit: each lane sees the same
// IEEE operations in the same order. Hence fma is always asked for by name and these files are compiled with
// -ffp-contract=off. Which NaN comes out of several is the one thing left open.
#pragma once
#include <math.h>
#include <stdint.h>

#include "kernels/simd/compress.h"

namespace forearm {
namespace {

constexpr int kVectorRegisters = 1;  // that hold an F16

struct F16 {
  float lane[16];
};
struct M16 {  // one truth a lane
  bool lane[16];
};

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

template <typename PerLane>
inline F16 each_lane(PerLane f) {
  F16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = f(i);
  return r;
}
template <typename PerLane>
inline M16 each_truth(PerLane f) {
  M16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = f(i);
  return r;
}

inline F16 broadcast(float x) {
  return each_lane([&](int) { return x; });
}
inline F16 zero() { return broadcast(0.0f); }
inline F16 iota() {  // 0, 1, ... 15
  return each_lane([&](int i) { return static_cast<float>(i); });
}

inline F16 load(const float* p) {
  return each_lane([&](int i) { return p[i]; });
}
inline void store(float* p, F16 a) {
  for (int i = 0; i < 16; ++i) p[i] = a.lane[i];
}
// The first n lanes, 0 <= n <= 16; the others are zero, and their memory is not touched.
inline F16 load_first(const float* p, int64_t n) {
  return each_lane([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store_first(float* p, F16 a, int64_t n) {
  for (int i = 0; i < n; ++i) p[i] = a.lane[i];
}

inline F16 add(F16 a, F16 b) {
  return each_lane([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline F16 sub(F16 a, F16 b) {
  return each_lane([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline F16 mul(F16 a, F16 b) {
  return each_lane([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline F16 div(F16 a, F16 b) {
  return each_lane([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline F16 sqrt(F16 a) {
  return each_lane([&](int i) { return sqrtf(a.lane[i]); });
}
// a * b + c, rounded once.
inline F16 fma(F16 a, F16 b, F16 c) {
  return each_lane([&](int i) { return fmaf(a.lane[i], b.lane[i], c.lane[i]); });
}
// a > b ? a : b, so that a NaN in b comes through and one in a does not; min likewise.
inline F16 max(F16 a, F16 b) {
  return each_lane([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline F16 min(F16 a, F16 b) {
  return each_lane([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline F16 abs(F16 a) {
  return each_lane([&](int i) { return float_of(bits_of(a.lane[i]) & 0x7fffffffu); });
}
inline F16 copysign(F16 magnitude, F16 sign) {
  return each_lane([&](int i) {
    return float_of((bits_of(magnitude.lane[i]) & 0x7fffffffu) | (bits_of(sign.lane[i]) & 0x80000000u));
  });
}
// 2^n for a lane that holds n + kExponent; -127 <= n <= 127, and 2^-127 is taken as 0.
inline F16 power_of_two(F16 shifted) {
  return each_lane([&](int i) { return float_of(bits_of(shifted.lane[i]) << 23); });
}

inline M16 less(F16 a, F16 b) {
  return each_truth([&](int i) { return a.lane[i] < b.lane[i]; });
}
inline M16 less_equal(F16 a, F16 b) {
  return each_truth([&](int i) { return a.lane[i] <= b.lane[i]; });
}
inline M16 is_nan(F16 a) {
  return each_truth([&](int i) { return a.lane[i] != a.lane[i]; });
}
inline M16 both(M16 a, M16 b) {
  return each_truth([&](int i) { return a.lane[i] && b.lane[i]; });
}
inline M16 either(M16 a, M16 b) {
  return each_truth([&](int i) { return a.lane[i] || b.lane[i]; });
}
inline F16 select(M16 m, F16 if_true, F16 if_false) {
  return each_lane([&](int i) { return m.lane[i] ? if_true.lane[i] : if_false.lane[i]; });
}
inline uint32_t bitmask(M16 m) {  // bit i is lane i
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<uint32_t>(m.lane[i]) << i;
  return bits;
}
inline M16 truths(uint32_t bits) {  // the other way round
  return each_truth([&](int i) { return bits >> i & 1u; });
}

// Folds by halves: lane i takes lane i + 8, then + 4, + 2, + 1.
inline float reduce_add(F16 a) {
  for (int half = 8; half >= 1; half /= 2)
    for (int i = 0; i < half; ++i) a.lane[i] = a.lane[i] + a.lane[i + half];
  return a.lane[0];
}
inline float reduce_max(F16 a) {
  for (int half = 8; half >= 1; half /= 2)
    for (int i = 0; i < half; ++i) a.lane[i] = a.lane[i] > a.lane[i + half] ? a.lane[i] : a.lane[i + half];
  return a.lane[0];
}

// 16-bit formats. Widening is exact; narrowing rounds to nearest even, and a NaN stays a (quiet) NaN.
inline float widen_bf16(uint16_t h) { return float_of(static_cast<uint32_t>(h) << 16); }
inline uint16_t narrow_bf16(float x) {
  const uint32_t u = bits_of(x);
  if (x != x) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline float widen_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u, fraction = h & 1023u;
  if (exponent == 31) return float_of(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0u));
  if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(fraction) * 0x1p-24f));
  return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
}
inline uint16_t narrow_f16(float x) {
  const uint32_t u = bits_of(x), magnitude = u & 0x7fffffffu;
  const uint32_t sign = (u >> 16) & 0x8000u;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((u >> 13) & 0x1ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and up round to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 puts the last place of a subnormal at that of the float
    return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13));
}
inline F16 load_bf16(const uint16_t* p) {
  return each_lane([&](int i) { return widen_bf16(p[i]); });
}
inline F16 load_f16(const uint16_t* p) {
  return each_lane([&](int i) { return widen_f16(p[i]); });
}
inline void store_bf16(uint16_t* p, F16 a) {
  for (int i = 0; i < 16; ++i) p[i] = narrow_bf16(a.lane[i]);
}
inline void store_f16(uint16_t* p, F16 a) {
  for (int i = 0; i < 16; ++i) p[i] = narrow_f16(a.lane[i]);
}

// Codes. The low byte of each lane's bits: x + 1.5 * 2^23 holds the integer nearest to x there.
inline F16 load_i8(const int8_t* p) {
  return each_lane([&](int i) { return static_cast<float>(p[i]); });
}
inline void store_low_bytes(int8_t* p, F16 a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(bits_of(a.lane[i]));
}

// Codes of 8 bits (DType). Widening is exact; E4M3's NaN is a NaN.
inline float widen_e5m2(uint8_t code) { return widen_f16(static_cast<uint16_t>(code << 8)); }
inline float widen_e4m3(uint8_t code) {  // as a float16 whose exponent is biased by 8 more
  const uint32_t magnitude = code & 0x7fu, sign = code & 0x80u;
  if (magnitude == 0x7f) return __builtin_nanf("");
  return widen_f16(static_cast<uint16_t>(sign << 8 | magnitude << 7)) * 256.0f;
}
inline F16 load_e4m3(const uint8_t* p) {
  return each_lane([&](int i) { return widen_e4m3(p[i]); });
}
inline F16 load_e5m2(const uint8_t* p) {
  return each_lane([&](int i) { return widen_e5m2(p[i]); });
}
// The upper 16 bits of each lane, 32 in all: exact for what bf16 can hold.
inline void store_upper(uint16_t* p, F16 a, F16 b) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint16_t>(bits_of(a.lane[i]) >> 16);
  for (int i = 0; i < 16; ++i) p[i + 16] = static_cast<uint16_t>(bits_of(b.lane[i]) >> 16);
}
// Four vectors are four rows of four fours of lanes. transpose_fours: lane 4 q + i of vector l becomes lane 4 q + l of
// vector i. transpose_vectors: the lanes from 4 q on of vector i become those from 4 i on of vector q.
inline void transpose_fours(F16 (&x)[4]) {
  for (int q = 0; q < 16; q += 4)
    for (int i = 0; i < 4; ++i)
      for (int l = 0; l < i; ++l) {
        const float other = x[l].lane[q + i];
        x[l].lane[q + i] = x[i].lane[q + l];
        x[i].lane[q + l] = other;
      }
}
inline void transpose_vectors(F16 (&x)[4]) {
  for (int i = 0; i < 4; ++i)
    for (int q = 0; q < i; ++q)
      for (int l = 0; l < 4; ++l) {
        const float other = x[q].lane[4 * i + l];
        x[q].lane[4 * i + l] = x[i].lane[4 * q + l];
        x[i].lane[4 * q + l] = other;
      }
}
inline bool any(M16 m) { return bitmask(m) != 0; }
// store_hits (compress.h): of x[at .. at + 15] those whose bit is set, and where they stand, one after the other;
// returns how many.

}  // namespace
}  // namespace forearm
