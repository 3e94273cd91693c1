// Tiles of the tier neon_mm: bf16 by BFMMLA, two rows by two columns by four k an instruction; f16 and f32 as in neon.
#pragma once
#include "kernels/simd/arm/mma_neon_rows.h"
#include "kernels/simd/arm/store_bf16_neon.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// A unit is a pair of rows; sums of a pair by a panel are eight blocks of 2 x 2. Three pairs make 24 registers.
//
// Without FEAT_EBF16 (Graviton3 and 4) BFMMLA adds two products to each other, then to the sum, and then the other two,
// every result rounded to odd and denormals flushed: Arm Architecture Reference Manual, pseudocode of BFMatMulAdd.
struct PairsMma {
  static constexpr int kRows = 2;
  static constexpr int kQuantum = 4;
  static constexpr int kStepBytes = kPanel * kQuantum * 2;
  static constexpr Form kForm = Form::bf16_pairs;
  static constexpr int kUnits = 3;
  static constexpr int panels(int units) { return units == 1 ? 3 : 1; }
  struct Sums {
    float32x4_t block[8];
  };

  static Sums none() {
    const float32x4_t v = vdupq_n_f32(0);
    return {{v, v, v, v, v, v, v, v}};
  }

  static Sums load(const float* from, int64_t stride) {
    Sums sums;
    UNROLLED_FOR (b, 8) {
      sums.block[b] = vcombine_f32(vld1_f32(from + 2 * b), vld1_f32(from + stride + 2 * b));
    }
    return sums;
  }
  static void store(const Sums& sums, float* out, int64_t stride) {
    UNROLLED_FOR (b, 8) {
      vst1_f32(out + 2 * b, vget_low_f32(sums.block[b]));
      vst1_f32(out + stride + 2 * b, vget_high_f32(sums.block[b]));
    }
  }

  static void multiply_ones(Sums& sums) {
    const bfloat16x8_t ones = vreinterpretq_bf16_u16(vdupq_n_u16(0x3f80));
    UNROLLED_FOR (b, 8) sums.block[b] = vbfmmlaq_f32(sums.block[b], ones, ones);
  }

  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    bfloat16x8_t pair[Units];
    UNROLLED_FOR (u, Units) pair[u] = vld1q_bf16(reinterpret_cast<const bfloat16_t*>(a + u * unit_bytes));
    UNROLLED_FOR (p, Panels) {
      UNROLLED_FOR (b, 8) {
        const bfloat16x8_t two_columns = vld1q_bf16(reinterpret_cast<const bfloat16_t*>(w + p * panel_bytes) + 8 * b);
        UNROLLED_FOR (u, Units) {
          sums[u][p].block[b] = vbfmmlaq_f32(sums[u][p].block[b], pair[u], two_columns);
        }
      }
    }
  }
};

template <DType W>
struct Mma : HalvesMma<W> {};
template <>
struct Mma<DType::f32> : ElementsMma {};
template <>
struct Mma<DType::bf16> : PairsMma {};
constexpr DType kWide = DType::bf16;  // what codes are widened to

}  // namespace
}  // namespace forearm
