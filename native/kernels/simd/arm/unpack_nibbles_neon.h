// Nibbles on NEON: two codes of four bits in a byte, signed integers or E2M1's bits.
#pragma once
#include <arm_neon.h>

#include "kernels/simd/arm/vec_neon.h"
#include "kernels/simd/mma_int.h"

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

// The words of four columns that hold k of them: of kQuantum 8 every second one.
template <int kQuantum>
inline uint32x4_t words_of(const char* columns, int64_t k) {
  const auto* words = reinterpret_cast<const uint32_t*>(columns);
  if constexpr (kQuantum == 4) return vld1q_u32(words);
  const uint32x4_t first = vld1q_u32(words), second = vld1q_u32(words + 4);
  return k % 8 < 4 ? vuzp1q_u32(first, second) : vuzp2q_u32(first, second);
}

// The codes (int8, int4) of 16 columns at k as floats: each moved to the top of its word, then down with its sign. Bits
// of E2M1 go to the bottom, alone, to be looked up: TBL has 0 for the word's other bytes.
template <DType D, int kQuantum>
inline F16 columns_of(const char* panel, int64_t k) {
  constexpr int kBits = dtype_bits(D), kFour = 4 * kQuantum;  // bytes of four columns
  constexpr int64_t kChunkK = has_nibbles(D) ? 2 * kQuantum : kQuantum;
  const char* chunk = panel + k / kChunkK * 4 * kFour;
  const auto nibble = static_cast<int>(has_nibbles(D) ? k / kQuantum % 2 : 0);
  const int32x4_t up = vdupq_n_s32(32 - kBits - 4 * nibble - 8 * static_cast<int>(k % 4));
  const auto code = [&](int four) {
    uint32x4_t words = words_of<kQuantum>(chunk + four * kFour, k);
    if constexpr (D == DType::fp4_e2m1) {
      const uint32x4_t bits = vshrq_n_u32(vshlq_u32(words, up), 28);
      words = vreinterpretq_u32_s8(e2m1_codes(vreinterpretq_u8_u32(bits)));
      return vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_u32(vshlq_n_u32(words, 24)), 24));
    }
    return vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_u32(vshlq_u32(words, up)), 32 - kBits));
  };
  return {code(0), code(1), code(2), code(3)};
}

}  // namespace
}  // namespace forearm
