// Tiles of the tiers neon and neon_dot, whose store_bf16 rounds by integers.
#pragma once
#include "kernels/simd/arm/mma_neon_rows.h"

namespace forearm {
namespace {

inline uint16x4_t narrow_bf16(float32x4_t x) {
  const uint32x4_t u = vreinterpretq_u32_f32(x), upper = vshrq_n_u32(u, 16);
  const uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
  const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd), 16);
  const uint32x4_t quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
  return vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet));
}
inline void store_bf16(uint16_t* p, F16 x) {
  vst1q_u16(p, vcombine_u16(narrow_bf16(x.a), narrow_bf16(x.b)));
  vst1q_u16(p + 8, vcombine_u16(narrow_bf16(x.c), narrow_bf16(x.d)));
}

template <DType W>
struct Mma : HalvesMma<W> {};
template <>
struct Mma<DType::f32> : ElementsMma {};
constexpr DType kWide = DType::f32;  // what codes are widened to

}  // namespace
}  // namespace forearm
