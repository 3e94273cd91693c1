// The quantized KV cache: rounding keys and values to 8 bits when they are stored, and dequantizing them before they
// are multiplied.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/scales.h"

namespace forearm {
namespace {

// Whether tiles of the tier dequantize in registers.
template <DType C>
constexpr bool kTakesCodes = !is_float(C) && requires { &Mma<C>::widen; };

// Dequantizes `count` codes, a multiple of 32, to kWide, which holds each of them exactly.
template <DType C>
inline void dequantize_kv(const uint8_t* from, int64_t count, void* to) {
  for (int64_t i = 0; i < count; i += 32) {
    if constexpr (kTakesCodes<C>) {
      Mma<C>::widen(from + i, static_cast<uint16_t*>(to) + i);
      continue;
    }
    const F16 low = load_code<C>(from + i), high = load_code<C>(from + i + 16);
    if constexpr (kWide == DType::f32) {
      store(static_cast<float*>(to) + i, low);
      store(static_cast<float*>(to) + i + 16, high);
    } else {
      store_upper(static_cast<uint16_t*>(to) + i, low, high);
    }
  }
}

inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

// An 8-bit float with `kFraction` bits of fraction and exponents biased by `kBias`: the one nearest to a number not
// above cache_top, ties to even (Micikevicius et al. 2022, arXiv:2209.05433).
template <int kFraction, int kBias>
inline uint8_t narrow_fp8(float x) {
  constexpr int kDropped = 23 - kFraction;
  constexpr uint32_t kLeastNormal = static_cast<uint32_t>(128 - kBias) << 23;  // 2^(1 - kBias)
  // A number whose last place is that of a subnormal, 2^(1 - kBias - kFraction): adding it rounds there.
  constexpr uint32_t kShift = static_cast<uint32_t>(128 - kBias + kDropped) << 23;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  const uint32_t u = bits_of_float(x), magnitude = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
  float value, shift;
  __builtin_memcpy(&value, &magnitude, 4);
  __builtin_memcpy(&shift, &kShift, 4);
  const uint32_t below_half = (1u << (kDropped - 1)) - 1u + (u >> kDropped & 1u);
  uint32_t code = (magnitude - kRebias + below_half) >> kDropped;
  if (magnitude < kLeastNormal) code = bits_of_float(value + shift) - kShift;
  return static_cast<uint8_t>(sign | code);
}

// Quantizes 16 floats: x * inverse to nearest even; zeros where `inverse` is 0.
inline void quantize_kv(DType dtype, F16 x, float inverse, uint8_t* to) {
  const F16 scaled = inverse != 0.0f ? mul(x, broadcast(inverse)) : zero();
  if (dtype == DType::int8) return store_low_bytes(reinterpret_cast<int8_t*>(to), add(scaled, broadcast(kRound)));
  float values[16];
  store(values, scaled);
  for (int i = 0; i < 16; ++i)
    to[i] = dtype == DType::fp8_e4m3 ? narrow_fp8<3, 7>(values[i]) : narrow_fp8<2, 15>(values[i]);
}

}  // namespace
}  // namespace forearm
