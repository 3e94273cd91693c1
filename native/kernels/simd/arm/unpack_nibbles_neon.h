// Nibbles on NEON: two codes of four bits in a byte, signed integers or E2M1's bits.
#pragma once
#include <arm_neon.h>

#include "kernels/simd/arm/vec_neon.h"
#include "kernels/simd/mma_int.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// One instruction each: the code is moved to the upper half of its byte, which multiplies it by 16. Sums stay exact: 16
// * 8 * 127 is no more than 8-bit codes give.
inline int8x16_t low_sixteenfold(int8x16_t codes) { return vshlq_n_s8(codes, 4); }
inline int8x16_t high_sixteenfold(int8x16_t codes) { return vandq_s8(codes, vdupq_n_s8(-16)); }

// Codes of E2M1's bits are looked up, once: TBL gives 0 for what is above 15.
inline int8x16_t e2m1_codes(uint8x16_t bits) { return vqtbl1q_s8(vld1q_s8(kE2m1Codes), bits); }

// The codes of a byte's halves as steps multiply them: of int4 sixteenfold.
template <CodePacking kFormat>
constexpr bool kSixteenfold = kFormat == CodePacking::nibbles;
template <CodePacking kFormat>
inline int8x16_t low_codes(int8x16_t bytes) {
  if constexpr (kFormat == CodePacking::e2m1) return e2m1_codes(vandq_u8(vreinterpretq_u8_s8(bytes), vdupq_n_u8(15)));
  return low_sixteenfold(bytes);
}
template <CodePacking kFormat>
inline int8x16_t high_codes(int8x16_t bytes) {
  if constexpr (kFormat == CodePacking::e2m1) return e2m1_codes(vshrq_n_u8(vreinterpretq_u8_s8(bytes), 4));
  return high_sixteenfold(bytes);
}

// An int32 sum as a float; a sixteenfold one is divided in the same instruction, exactly.
template <bool kSixteenfold>
inline float32x4_t float_of(int32x4_t sum) {
  if constexpr (kSixteenfold) return vcvtq_n_f32_s32(sum, 4);
  return vcvtq_f32_s32(sum);
}

// A panel of nibbles as codes of one byte: the low nibbles of a chunk of kQuantum k, then the high ones.
template <CodePacking kFormat, int kQuantum>
inline void unpack_chunks(const char* nibbles, char* to, int64_t steps) {
  constexpr int kChunk = kPanel * kQuantum;
  const auto* from = reinterpret_cast<const int8_t*>(nibbles);
  auto* out = reinterpret_cast<int8_t*>(to);
  for (int64_t s = 0; s < steps; ++s, from += kChunk, out += 2 * kChunk) {
    for (int i = 0; i < kChunk; i += 16) {
      const int8x16_t codes = vld1q_s8(from + i);
      const int8x16_t low = low_codes<kFormat>(codes), high = high_codes<kFormat>(codes);
      vst1q_s8(out + i, kSixteenfold<kFormat> ? vshrq_n_s8(low, 4) : low);
      vst1q_s8(out + kChunk + i, kSixteenfold<kFormat> ? vshrq_n_s8(high, 4) : high);
    }
  }
}

// Six-bit codes, a quarter of a step each (kernels.h, Layout), minus kSixBitBias. With its upper bit flipped, a code's
// high pair is a signed number, which an arithmetic shift extends; the low four bits are inserted below it by one
// instruction: twelve for 64 codes.
struct SixBits {
  static void unpack(const uint8_t* from, uint8_t* to) {
    static_assert(kSixBitBias == 32);
    const uint8x16_t low = vdupq_n_u8(15);
    UNROLLED_FOR (i, 4) {
      const uint8x16_t first = vld1q_u8(from + 16 * i), second = vld1q_u8(from + 64 + 16 * i);
      const int8x16_t high = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from + 128 + 16 * i), vdupq_n_u8(0xaa)));
      vst1q_u8(to + 16 * i, vbslq_u8(low, first, extended(vshlq_n_s8(high, 6))));
      vst1q_u8(to + 64 + 16 * i, vsriq_n_u8(extended(vshlq_n_s8(high, 4)), first, 4));
      vst1q_u8(to + 128 + 16 * i, vbslq_u8(low, second, extended(vshlq_n_s8(high, 2))));
      vst1q_u8(to + 192 + 16 * i, vsriq_n_u8(extended(high), second, 4));
    }
  }

 private:
  static uint8x16_t extended(int8x16_t pairs) { return vreinterpretq_u8_s8(vshrq_n_s8(pairs, 2)); }
};

}  // namespace
}  // namespace forearm
