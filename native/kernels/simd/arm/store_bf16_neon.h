// store_bf16 by BFCVTN (FEAT_BF16): the same bits as the integer version in mma_neon.h, also for denormals and NaN, in
// 4 instructions for 16 numbers instead of 34.
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
