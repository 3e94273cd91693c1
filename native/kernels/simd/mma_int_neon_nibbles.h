// Nibbles on NEON: two signed codes of four bits in a byte.
#pragma once
#include <arm_neon.h>

#include "kernels/simd/mma_int_scalar.h"

namespace forearm {
namespace {

// One instruction each: the code in the upper half of its byte, sixteen times what it is. Sums stay exact: 16 * 8 * 127
// is what a code of eight bits comes to.
inline int8x16_t low_sixteenfold(int8x16_t codes) { return vshlq_n_s8(codes, 4); }
inline int8x16_t high_sixteenfold(int8x16_t codes) { return vandq_s8(codes, vdupq_n_s8(-16)); }

// An int32 sum as a float; a sixteenfold one is divided in the same instruction, exactly.
template <bool kSixteenfold>
inline float32x4_t float_of(int32x4_t sum) {
  if constexpr (kSixteenfold) return vcvtq_n_f32_s32(sum, 4);
  return vcvtq_f32_s32(sum);
}

// A panel of nibbles as codes of one byte: the low nibbles of a chunk of kQuantum k, then the high ones.
template <int kQuantum>
inline void unpack_chunks(const char* nibbles, char* to, int64_t steps) {
  constexpr int kChunk = kPanel * kQuantum;
  const auto* from = reinterpret_cast<const int8_t*>(nibbles);
  auto* out = reinterpret_cast<int8_t*>(to);
  for (int64_t s = 0; s < steps; ++s, from += kChunk, out += 2 * kChunk) {
    for (int i = 0; i < kChunk; i += 16) {
      const int8x16_t codes = vld1q_s8(from + i);
      vst1q_s8(out + i, vshrq_n_s8(vshlq_n_s8(codes, 4), 4));
      vst1q_s8(out + kChunk + i, vshrq_n_s8(codes, 4));
    }
  }
}

}  // namespace
}  // namespace forearm
