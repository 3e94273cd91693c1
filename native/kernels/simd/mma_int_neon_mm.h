// Codes by SMMLA: two rows by two columns by eight k an instruction, exact in int32 (mma_int_scalar.h names the
// members).
#pragma once
#include "kernels/simd/mma_int_neon_nibbles.h"
#include "kernels/simd/mma_neon_rows.h"

namespace forearm {
namespace {

// {x0, x0, x1, x1}: what the four sums of a block of two rows by two columns are multiplied with, by row.
inline float32x4_t by_row(float x0, float x1) { return vcombine_f32(vdup_n_f32(x0), vdup_n_f32(x1)); }
// {x0, x1, x0, x1}, by column, of eight pairs of columns.
struct ByColumn {
  float32x4_t pair[8];
};
inline void spread(float32x4_t x, float32x4_t* pairs) {
  pairs[0] = vcombine_f32(vget_low_f32(x), vget_low_f32(x));
  pairs[1] = vcombine_f32(vget_high_f32(x), vget_high_f32(x));
}
inline ByColumn by_column(F16 x) {
  ByColumn columns;
  spread(x.a, columns.pair);
  spread(x.b, columns.pair + 2);
  spread(x.c, columns.pair + 4);
  spread(x.d, columns.pair + 6);
  return columns;
}

// Sums of a pair of rows by a panel are eight blocks of 2 x 2, as in mma_neon_mm.h. A step of nibbles is sixteen k;
// their sums are sixteen times too large (mma_int_neon_nibbles.h), which the conversion takes back.
template <Codes kCodes>
struct PairsIntMma {
  static constexpr bool kNibbles = kCodes == Codes::nibbles;
  static constexpr int kRows = 2, kQuantum = 8;
  static constexpr Form kForm = Form::i8_pairs;
  static constexpr int kBias = 0, kNibbleBias = 0;
  static constexpr int kStepK = kNibbles ? 16 : 8;
  static constexpr int kStepBytes = kPanel * kQuantum;
  static constexpr int kUnits = kNibbles ? 2 : 3;
  static constexpr int panels(int units) { return units == 1 ? 3 : 1; }
  struct Sums {
    int32x4_t block[8];
  };
  using Scales = ByColumn;

  static Sums start(const int32_t*, int64_t) {
    const int32x4_t v = vdupq_n_s32(0);
    return {{v, v, v, v, v, v, v, v}};
  }
  static Scales scales(F16 s) { return by_column(s); }

  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    constexpr int kChunks = kNibbles ? 2 : 1;
    int8x16_t pairs[Units][kChunks];
#pragma GCC unroll 8
    for (int u = 0; u < Units; ++u) {
#pragma GCC unroll 2
      for (int c = 0; c < kChunks; ++c)
        pairs[u][c] = vld1q_s8(reinterpret_cast<const int8_t*>(a + u * unit_bytes) + 16 * c);
    }
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 8
      for (int b = 0; b < 8; ++b) {
        const int8x16_t codes = load_here<int8x16_t>(w + p * panel_bytes + 16 * b);
        const int8x16_t first = kNibbles ? low_sixteenfold(codes) : codes;
#pragma GCC unroll 8
        for (int u = 0; u < Units; ++u) sums[u][p].block[b] = vmmlaq_s32(sums[u][p].block[b], pairs[u][0], first);
        if constexpr (kNibbles) {
          const int8x16_t second = high_sixteenfold(codes);
#pragma GCC unroll 8
          for (int u = 0; u < Units; ++u) sums[u][p].block[b] = vmmlaq_s32(sums[u][p].block[b], pairs[u][1], second);
        }
      }
    }
  }

  static void fold(const Sums& sums, const float* a_scales, int64_t groups, const Scales& s, float* acc) {
    const float32x4_t rows = by_row(a_scales[0], a_scales[groups]);
#pragma GCC unroll 8
    for (int b = 0; b < 8; ++b) {
      const float32x4_t sum = vmulq_f32(float_of<kNibbles>(sums.block[b]), rows);
      vst1q_f32(acc + 4 * b, vfmaq_f32(vld1q_f32(acc + 4 * b), sum, s.pair[b]));
    }
  }
  static void fold_offsets(const int32_t* sums, const float* a_scales, int64_t groups, const Scales& o, float* acc) {
    const float32x4_t rows =
        by_row(static_cast<float>(sums[0]) * a_scales[0], static_cast<float>(sums[groups]) * a_scales[groups]);
#pragma GCC unroll 8
    for (int b = 0; b < 8; ++b) vst1q_f32(acc + 4 * b, vfmaq_f32(vld1q_f32(acc + 4 * b), rows, o.pair[b]));
  }
  static void store(const float* acc, float* out, int64_t stride) {
#pragma GCC unroll 8
    for (int b = 0; b < 8; ++b) {
      vst1_f32(out + 2 * b, vld1_f32(acc + 4 * b));
      vst1_f32(out + stride + 2 * b, vld1_f32(acc + 4 * b + 2));
    }
  }
};

template <Codes kCodes>
using IntMma = PairsIntMma<kCodes>;
inline void unpack(const char* nibbles, char* to, int64_t steps) { unpack_chunks<8>(nibbles, to, steps); }
template <DType D>
inline F16 code_columns(const char* panel, int64_t k) {
  return plain_columns<D, 8>(panel, k);
}

}  // namespace
}  // namespace forearm
