// Integer products by SMULL, for cores without dot products: an instruction gives eight products of 16 bits; two
// results are added to each other and then, by SADALP, pairwise to int32 (mma_int.h names the members).
#pragma once
#include "kernels/simd/arm/unpack_nibbles_neon.h"
#include "kernels/simd/arm/vec_neon.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// Two columns share a register, two sums each. Nibbles are kept multiplied by 16; 16 bits have room for two such
// products: 2 * 128 * 127 = 32512.
template <CodePacking kFormat>
struct RowsIntMma {
  static constexpr bool kNibbles = in_nibbles(kFormat);
  static constexpr int kRows = 1, kQuantum = 4;
  static constexpr Form kForm = Form::i8_rows;
  static constexpr int kBias = 0, kNibbleBias = 0;
  using SixBits = forearm::SixBits;
  static constexpr int kStepK = kNibbles ? 8 : 4;
  static constexpr int kStepBytes = kPanel * kQuantum;
  static constexpr int kTogether = 2;  // steps that `steps` takes
  static constexpr int kUnits = 2;
  static constexpr int panels(int units) { return units == 1 ? 2 : 1; }
  struct Sums {
    int32x4_t of[8];
  };
  using Scales = F16;

  static Sums start(const int32_t*, int64_t) {
    const int32x4_t v = vdupq_n_s32(0);
    return {{v, v, v, v, v, v, v, v}};
  }
  static Scales scales(F16 s) { return s; }

  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    UNROLLED_FOR (p, Panels) {
      UNROLLED_FOR (q, 4) {
        const int8x16_t codes = vld1q_s8(reinterpret_cast<const int8_t*>(w + p * panel_bytes) + 16 * q);
        UNROLLED_FOR (u, Units) {
          const char* row = a + u * unit_bytes;
          if constexpr (kNibbles) {
            add_products(sums[u][p].of + 2 * q, low_codes<kFormat>(codes), four_k(row), high_codes<kFormat>(codes),
                         four_k(row + 4));
          } else {
            add_products(sums[u][p].of + 2 * q, codes, four_k(row), vdupq_n_s8(0), four_k(row));
          }
        }
      }
    }
  }

  template <int Units, int Panels>
  static void steps(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w,
                    int64_t panel_bytes) {
    if constexpr (kNibbles) {
      step(sums, a, unit_bytes, w, panel_bytes);
      return step(sums, a + kStepK, unit_bytes, w + kStepBytes, panel_bytes);
    }
    UNROLLED_FOR (p, Panels) {
      UNROLLED_FOR (q, 4) {
        const auto* codes = reinterpret_cast<const int8_t*>(w + p * panel_bytes) + 16 * q;
        const int8x16_t first = vld1q_s8(codes), second = vld1q_s8(codes + kStepBytes);
        UNROLLED_FOR (u, Units) {
          const char* row = a + u * unit_bytes;
          add_products(sums[u][p].of + 2 * q, first, four_k(row), second, four_k(row + 4));
        }
      }
    }
  }

  template <int>
  static F16 row(const Sums& sums) {
    return {columns(sums, 0), columns(sums, 2), columns(sums, 4), columns(sums, 6)};
  }
  static void fold(const Sums& sums, const float* a_scales, int64_t, Scales s, float* acc) {
    forearm::store(acc, fma(mul(row<0>(sums), broadcast(*a_scales)), s, load(acc)));
  }
  static void fold_offsets(const int32_t* sums, const float* a_scales, int64_t, Scales o, float* acc) {
    forearm::store(acc, fma(broadcast(static_cast<float>(*sums) * *a_scales), o, load(acc)));
  }
  static void store(const float* acc, float* out, int64_t) { forearm::store(out, load(acc)); }

 private:
  static int8x16_t four_k(const char* row) {
    return vreinterpretq_s8_s32(vld1q_dup_s32(reinterpret_cast<const int32_t*>(row)));
  }
  static void add_products(int32x4_t* sums, int8x16_t w0, int8x16_t a0, int8x16_t w1, int8x16_t a1) {
    const int16x8_t low = vmull_s8(vget_low_s8(w0), vget_low_s8(a0)), high = vmull_high_s8(w0, a0);
    sums[0] = vpadalq_s16(sums[0], vmlal_s8(low, vget_low_s8(w1), vget_low_s8(a1)));
    sums[1] = vpadalq_s16(sums[1], vmlal_high_s8(high, w1, a1));
  }
  static float32x4_t columns(const Sums& sums, int at) {
    return float_of<kSixteenfold<kFormat>>(vpaddq_s32(sums.of[at], sums.of[at + 1]));
  }
};

template <CodePacking kFormat>
using IntMma = RowsIntMma<kFormat>;
template <CodePacking kFormat>
inline void unpack(const char* nibbles, char* to, int64_t steps) {
  unpack_chunks<kFormat, 4>(nibbles, to, steps);
}

}  // namespace
}  // namespace forearm
