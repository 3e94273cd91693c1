// Scales and offsets of quantized weights (PackedWeights in kernels.h), and 8-bit floats.
#pragma once
#include "kernels/kernels.h"

namespace forearm {
namespace {

constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits

constexpr int64_t groups_of(int64_t k, int64_t group) { return (k + group - 1) / group; }

// top / largest; 0 where that or the largest is not finite.
inline float inverse_of(float largest, float top) {
  return largest >= 0x1p-119f && largest <= 0x1.fffffep127f ? top / largest : 0.0f;
}

// The scales of one panel and group, and what is added to s * code.
inline F16 load_scales(const PackedWeights& w, int64_t at) {
  if (w.scale_dtype == DType::f32) return load(static_cast<const float*>(w.scales) + at);
  const uint16_t* half = static_cast<const uint16_t*>(w.scales) + at;
  return w.scale_dtype == DType::f16 ? load_f16(half) : load_bf16(half);
}
inline bool has_offsets(const PackedWeights& w) { return w.zeros || w.offsets; }
inline F16 load_offsets(const PackedWeights& w, int64_t at, F16 scales) {
  if (w.offsets) return load(w.offsets + at);
  return w.zeros ? sub(zero(), mul(scales, load_i8(w.zeros + at))) : zero();
}

// 16 numbers of 8 bits. E4M3's exponent and fraction, read as a float's, are 2^120 too small, denormals as well;
// E5M2 is the upper half of an f16.
inline F16 load_fp8(const uint8_t* p, DType dtype) {
  uint16_t half[16];
  float lanes[16];
  if (dtype == DType::fp8_e5m2) {
    for (int i = 0; i < 16; ++i) half[i] = static_cast<uint16_t>(p[i] << 8);
    return load_f16(half);
  }
  for (int i = 0; i < 16; ++i) {
    const uint32_t sign = static_cast<uint32_t>(p[i] & 0x80) << 24, magnitude = p[i] & 0x7f;
    const uint32_t bits = sign | (magnitude == 0x7f ? 0x7fc00000u : magnitude << 20);
    __builtin_memcpy(&lanes[i], &bits, 4);
  }
  return mul(load(lanes), broadcast(0x1p120f));
}

}  // namespace
}  // namespace forearm
