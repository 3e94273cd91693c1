// Tiles of the tier sve256: bf16 by SVE's BFMMLA, two rows by four columns by four k an instruction of 256 bits, on
// neon_mm's layout. Everything else is as in neon_mm.
#pragma once
#include <arm_sve.h>

#include "kernels/simd/arm/mma_neon_rows.h"
#include "kernels/simd/arm/store_bf16_neon.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// Fixed-length types (-msve-vector-bits=256), which can stand in arrays: GCC's manual, "AArch64 Options".
using Floats8 __attribute__((arm_sve_vector_bits(256))) = svfloat32_t;
using Bf16s16 __attribute__((arm_sve_vector_bits(256))) = svbfloat16_t;

// A register of sums is two blocks of 2 x 2: {r0c0 r0c1 r1c0 r1c1 r0c2 r0c3 r1c2 r1c3}. These are 8 columns of two
// rows.
inline void store_rows(Floats8 low, Floats8 high, float* out, int64_t stride) {
  const svfloat64_t l = svreinterpret_f64_f32(low), h = svreinterpret_f64_f32(high);
  svst1(svptrue_b32(), out, svreinterpret_f32_f64(svuzp1(l, h)));
  svst1(svptrue_b32(), out + stride, svreinterpret_f32_f64(svuzp2(l, h)));
}

// A unit is a pair of rows; its sums by a panel are four registers. Three pairs by two panels make 24.
struct QuadsMma {
  static constexpr int kRows = 2;
  static constexpr int kQuantum = 4;
  static constexpr int kStepBytes = kPanel * kQuantum * 2;
  static constexpr Form kForm = Form::bf16_pairs;
  static constexpr int kUnits = 3;
  static constexpr int panels(int units) { return units == 1 ? 4 : units == 2 ? 3 : 2; }
  struct Sums {
    Floats8 block[4];
  };

  static Sums none() {
    const Floats8 v = svdup_f32(0);
    return {{v, v, v, v}};
  }
  static Sums load(const float* from, int64_t stride) {
    Sums sums;
    UNROLLED_FOR (i, 2) {
      const svfloat64_t first = svreinterpret_f64_f32(svld1(svptrue_b32(), from + 8 * i));
      const svfloat64_t second = svreinterpret_f64_f32(svld1(svptrue_b32(), from + stride + 8 * i));
      sums.block[2 * i] = svreinterpret_f32_f64(svzip1(first, second));
      sums.block[2 * i + 1] = svreinterpret_f32_f64(svzip2(first, second));
    }
    return sums;
  }
  static void store(const Sums& sums, float* out, int64_t stride) {
    store_rows(sums.block[0], sums.block[1], out, stride);
    store_rows(sums.block[2], sums.block[3], out + 8, stride);
  }

  static void multiply_ones(Sums& sums) {
    const Bf16s16 ones = svreinterpret_bf16_u16(svdup_u16(0x3f80));
    UNROLLED_FOR (b, 4) sums.block[b] = svbfmmla(sums.block[b], ones, ones);
  }

  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    const svbool_t all = svptrue_b16();
    Bf16s16 pair[Units];
    UNROLLED_FOR (u, Units) pair[u] = svld1rq(all, reinterpret_cast<const bfloat16_t*>(a + u * unit_bytes));
    UNROLLED_FOR (p, Panels) {
      UNROLLED_FOR (b, 4) {
        const Bf16s16 columns = svld1(all, reinterpret_cast<const bfloat16_t*>(w + p * panel_bytes) + 16 * b);
        UNROLLED_FOR (u, Units) sums[u][p].block[b] = svbfmmla(sums[u][p].block[b], pair[u], columns);
      }
    }
  }
};

constexpr DType kWide = DType::bf16;  // what codes are widened to

template <DType W>
struct Mma : HalvesMma<W> {};
template <>
struct Mma<DType::f32> : ElementsMma {};
template <>
struct Mma<DType::bf16> : QuadsMma {};

}  // namespace
}  // namespace forearm
