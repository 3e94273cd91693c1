// Scales and offsets of quantized weights (PackedWeights in kernels.h), and codes of 8 bits as floats.
#pragma once
#include "kernels/kernels.h"

namespace forearm {
namespace {

constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits

constexpr int64_t groups_of(int64_t k, int64_t group) { return (k + group - 1) / group; }

// top / largest; 0 where that or the largest is not finite.
inline float inverse_of(float largest, float top) {
  return largest >= 0x1p-112f && largest <= 0x1.fffffep127f ? top / largest : 0.0f;
}

// 16 powers of two, 2^(byte - 128): the byte is the exponent of a float that is twice as large, but for 0, whose power
// is a denormal.
inline F16 load_e8m0(const uint8_t* p) {
  uint32_t bits[16];
  float lanes[16];
  for (int i = 0; i < 16; ++i) {
    const uint32_t power = static_cast<uint32_t>(p[i]) << 23;
    bits[i] = power > 0x00400000u ? power : 0x00400000u;
  }
  __builtin_memcpy(lanes, bits, sizeof lanes);
  return mul(load(lanes), broadcast(0.5f));
}

// The scales of one panel and group, and what is added to s * code.
inline F16 load_scales(const PackedWeights& w, int64_t at) {
  if (w.scale_dtype == DType::f32) return load(static_cast<const float*>(w.scales) + at);
  if (w.scale_dtype == DType::e8m0) return load_e8m0(static_cast<const uint8_t*>(w.scales) + at);
  const uint16_t* half = static_cast<const uint16_t*>(w.scales) + at;
  return w.scale_dtype == DType::f16 ? load_f16(half) : load_bf16(half);
}
inline bool has_offsets(const PackedWeights& w) { return w.zeros || w.offsets; }
inline F16 load_offsets(const PackedWeights& w, int64_t at, F16 scales) {
  if (w.offsets) return load_f16(w.offsets + at);
  return w.zeros ? sub(zero(), mul(scales, load_i8(w.zeros + at))) : zero();
}

// 16 codes of 8 bits as floats.
template <DType C>
inline F16 load_code(const uint8_t* p) {
  if constexpr (C == DType::int8) return load_i8(reinterpret_cast<const int8_t*>(p));
  if constexpr (C == DType::fp8_e4m3) return load_e4m3(p);
  if constexpr (C == DType::fp8_e5m2) return load_e5m2(p);
}

}  // namespace
}  // namespace forearm
