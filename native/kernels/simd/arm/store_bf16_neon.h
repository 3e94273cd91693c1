// store_bf16 by BFCVTN, where there is FEAT_BF16: the bits that integers give (mma_neon.h), denormals and NaN too, by 4
// instructions for 16 numbers in place of 34.
#pragma once
#include "kernels/simd/arm/vec_neon.h"

namespace forearm {
namespace {

inline void store_bf16(uint16_t* p, F16 x) {
  auto* to = reinterpret_cast<bfloat16_t*>(p);
  vst1q_bf16(to, vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x.a), x.b));
  vst1q_bf16(to + 8, vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x.c), x.d));
}

}  // namespace
}  // namespace forearm
