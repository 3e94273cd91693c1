// Integer products by SMMLA: an instruction takes two rows by two columns by eight k, exact in int32 (mma_int.h names
// the members).
#pragma once
#include "kernels/simd/arm/mma_neon_rows.h"
#include "kernels/simd/arm/unpack_nibbles_neon.h"
#include "kernels/simd/unroll.h"

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

// The number of a group's steps that are multiplied without a branch between. Each unit's rows have a pointer that
// compilers cannot decompose: gcc 12 computed it anew at each step, 48 instructions for 24 SMMLA; now they are 87 for
// 48, and LLVM's model of a V2 that is six wide does 70 % of the SMMLA rate at groups of 128 instead of 63
// (bench/results/arm-loops.txt).
constexpr int kStepsInARow = 4;
inline const char* advanced(const char* at, int64_t bytes) {
  at += bytes;
  __asm__("" : "+r"(at));
  return at;
}
template <int kUnitsOfTile>
struct UnitPointers {
  const char* a[kUnitsOfTile];

  UnitPointers(const char* first, int64_t unit_bytes) {
    UNROLLED_FOR (u, kUnitsOfTile) a[u] = first + u * unit_bytes;
  }
  void advance() {
    UNROLLED_FOR (u, kUnitsOfTile) a[u] = advanced(a[u], 16 * kStepsInARow);
  }
};

// With short groups the work after each group matters: a group of 32 k is only four SMMLA a sum. Float sums stay in
// registers too: half a panel at a time, twelve int32 and twelve float sums of six rows. Int32 sums start at the bits
// of 1.5 * 2^23, loaded, because a copy would take a multiplication's place; as floats they are that much larger, and
// exact while they stay below 2^22. One subtraction, one multiplication and one FMLA a sum are then enough, where SCVTF
// would make it five instructions.
//
// Of two digits, a unit is one row: float sums are four columns a register, of two blocks.
template <int kUnitsOfTile, int kDigits>
struct GroupTile {
  static constexpr int kBlocks = 4;  // of half a panel
  float32x4_t acc[kUnitsOfTile][kBlocks];
  int32x4_t sums[kUnitsOfTile][kBlocks];

  void start() {
    UNROLLED_FOR (u, kUnitsOfTile) {
      UNROLLED_FOR (b, kBlocks) sums[u][b] = load_start();
    }
  }
  // a: of each unit; at: of its eight k, 16 bytes; w: the same k of the panel
  void step(const char* const (&a)[kUnitsOfTile], int64_t at, const char* w) {
    int8x16_t pairs[kUnitsOfTile];
    UNROLLED_FOR (u, kUnitsOfTile) pairs[u] = load_here<int8x16_t>(a[u] + at);
    UNROLLED_FOR (b, kBlocks) {
      const int8x16_t codes = load_here<int8x16_t>(w + 16 * b);
      UNROLLED_FOR (u, kUnitsOfTile) sums[u][b] = vmmlaq_s32(sums[u][b], pairs[u], codes);
    }
  }
  // rows: for each unit its scales by row, [2][4] floats of which the second are for offsets.
  template <bool kOffsets>
  void fold(const float* rows, const float* factors) {
    const float32x4_t start = vreinterpretq_f32_s32(vdupq_n_s32(kStart[0]));
    float32x4_t scales[kUnitsOfTile];
    UNROLLED_FOR (u, kUnitsOfTile) scales[u] = vld1q_f32(rows + 8 * u);
    UNROLLED_FOR (b, kBlocks / kDigits) {
      const float32x4_t s = columns_at(factors, b);
      UNROLLED_FOR (u, kUnitsOfTile) {
        float32x4_t sum = vsubq_f32(vreinterpretq_f32_s32(sums[u][b * kDigits]), start);
        if constexpr (kDigits == 2) {
          const float32x4_t next = vsubq_f32(vreinterpretq_f32_s32(sums[u][2 * b + 1]), start);
          sum = vfmaq_f32(halves<true>(sum, next), halves<false>(sum, next), vdupq_n_f32(kDigitBase));
        }
        acc[u][b] = vfmaq_f32(acc[u][b], vmulq_f32(sum, scales[u]), s);
      }
      if constexpr (kOffsets) {
        const float32x4_t o = columns_at(factors + 2 * kPanel, b);
        UNROLLED_FOR (u, kUnitsOfTile) acc[u][b] = vfmaq_f32(acc[u][b], vld1q_f32(rows + 8 * u + 4), o);
      }
    }
  }

  void store(float* out, int64_t stride) const {
    UNROLLED_FOR (u, kUnitsOfTile) {
      if constexpr (kDigits == 2) {
        vst1q_f32(out + u * stride, acc[u][0]);
        vst1q_f32(out + u * stride + 4, acc[u][1]);
        continue;
      }
      UNROLLED_FOR (b, kBlocks) {
        vst1_f32(out + 2 * u * stride + 2 * b, vget_low_f32(acc[u][b]));
        vst1_f32(out + (2 * u + 1) * stride + 2 * b, vget_high_f32(acc[u][b]));
      }
    }
  }

  // The low or high halves of two registers: columns of four from pairs, a row's of two blocks.
  template <bool kHigh>
  static float32x4_t halves(float32x4_t x, float32x4_t y) {
    const float64x2_t a = vreinterpretq_f64_f32(x), b = vreinterpretq_f64_f32(y);
    return vreinterpretq_f32_f64(kHigh ? vzip2q_f64(a, b) : vzip1q_f64(a, b));
  }
  // The factors of acc[..][b].
  static float32x4_t columns_at(const float* factors, int b) {
    if constexpr (kDigits == 1) return vld1q_f32(factors + 4 * b);
    return halves<false>(vld1q_f32(factors + 8 * b), vld1q_f32(factors + 8 * b + 4));
  }

  // Opaque to the compilers, which would copy a known constant.
  static int32x4_t load_start() {
    int32x4_t v;
    __asm__ volatile("ldr %q0, [%1]" : "=w"(v) : "r"(kStart), "m"(kStart));
    return v;
  }

  alignas(16) static constexpr int32_t kStart[4] = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};
};

// Sums of a pair of rows by a panel are eight blocks of 2 x 2, as in mma_neon_mm.h. A step of nibbles is sixteen k;
// their sums are sixteen times too large (unpack_nibbles_neon.h), which the conversion to float undoes.
template <CodePacking kFormat>
struct PairsIntMma {
  static constexpr bool kNibbles = in_nibbles(kFormat);
  static constexpr int kRows = 2, kQuantum = 8;
  static constexpr Form kForm = Form::i8_pairs;
  static constexpr int kBias = 0, kNibbleBias = 0;
  using SixBits = forearm::SixBits;
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
    UNROLLED_FOR (u, Units) {
      UNROLLED_FOR (c, kChunks) pairs[u][c] = vld1q_s8(reinterpret_cast<const int8_t*>(a + u * unit_bytes) + 16 * c);
    }
    UNROLLED_FOR (p, Panels) {
      UNROLLED_FOR (b, 8) {
        const int8x16_t codes = load_here<int8x16_t>(w + p * panel_bytes + 16 * b);
        const int8x16_t first = kNibbles ? low_codes<kFormat>(codes) : codes;
        UNROLLED_FOR (u, Units) sums[u][p].block[b] = vmmlaq_s32(sums[u][p].block[b], pairs[u][0], first);
        if constexpr (kNibbles) {
          const int8x16_t second = high_codes<kFormat>(codes);
          UNROLLED_FOR (u, Units) sums[u][p].block[b] = vmmlaq_s32(sums[u][p].block[b], pairs[u][1], second);
        }
      }
    }
  }

  template <int kRow>
  static F16 row(const Sums& sums) {
    return {columns<kRow>(sums, 0), columns<kRow>(sums, 2), columns<kRow>(sums, 4), columns<kRow>(sums, 6)};
  }
  static void fold(const Sums& sums, const float* a_scales, int64_t groups, const Scales& s, float* acc) {
    const float32x4_t rows = by_row(a_scales[0], a_scales[groups]);
    UNROLLED_FOR (b, 8) {
      const float32x4_t sum = vmulq_f32(float_of<kSixteenfold<kFormat>>(sums.block[b]), rows);
      vst1q_f32(acc + 4 * b, vfmaq_f32(vld1q_f32(acc + 4 * b), sum, s.pair[b]));
    }
  }
  static void fold_offsets(const int32_t* sums, const float* a_scales, int64_t groups, const Scales& o, float* acc) {
    const float32x4_t rows =
        by_row(static_cast<float>(sums[0]) * a_scales[0], static_cast<float>(sums[groups]) * a_scales[groups]);
    UNROLLED_FOR (b, 8) vst1q_f32(acc + 4 * b, vfmaq_f32(vld1q_f32(acc + 4 * b), rows, o.pair[b]));
  }
  // 127 * 128 * 256 < 2^22 (GroupTile); groups are multiples of kGroupSteps.
  static constexpr int kLongestGroup = kNibbles ? 0 : 256, kGroupSteps = kStepsInARow;
  static constexpr int kRoomFloats = 8 * kUnits;
  static void spread(F16 x, float* to) {
    const ByColumn columns = by_column(x);
    UNROLLED_FOR (b, 8) vst1q_f32(to + 4 * b, columns.pair[b]);
  }
  template <int Units, typename Walk>
  static void multiply_groups(const Walk& walk, float* out, int64_t stride) {
    const bool offsets = walk.weights->zeros || walk.weights->offsets;
    if (walk.digits == 1) {
      offsets ? multiply_halves<Units, 1, true>(walk, out, stride)
              : multiply_halves<Units, 1, false>(walk, out, stride);
    } else {
      offsets ? multiply_halves<Units, 2, true>(walk, out, stride)
              : multiply_halves<Units, 2, false>(walk, out, stride);
    }
  }

  static void store(const float* acc, float* out, int64_t stride) {
    UNROLLED_FOR (b, 8) {
      vst1_f32(out + 2 * b, vld1_f32(acc + 4 * b));
      vst1_f32(out + stride + 2 * b, vld1_f32(acc + 4 * b + 2));
    }
  }

 protected:
  // A row's four columns of blocks b and b + 1.
  template <int kRow>
  static float32x4_t columns(const Sums& sums, int b) {
    const int64x2_t x = vreinterpretq_s64_s32(sums.block[b]), y = vreinterpretq_s64_s32(sums.block[b + 1]);
    return float_of<kSixteenfold<kFormat>>(vreinterpretq_s32_s64(kRow == 0 ? vzip1q_s64(x, y) : vzip2q_s64(x, y)));
  }

  // The scales of the tile's rows as GroupTile takes them, for all groups.
  template <int Units, typename Walk>
  static void lay_out_rows(const Walk& walk) {
    float* to = walk.room;
    for (int64_t group = 0; group < walk.groups; ++group) {
      for (int u = 0; u < Units; ++u, to += 8) {
        const int64_t first = 2 * u * walk.groups + group, second = first + walk.groups;
        const int32_t sum0 = walk.a_sums[first], sum1 = walk.a_sums[second];
        const float a0 = walk.a_scales[first], a1 = walk.a_scales[second];
        if (walk.digits == 2) {
          vst1q_f32(to, vdupq_n_f32(a1));
          vst1q_f32(to + 4, vdupq_n_f32(sum_of_digits(sum0, sum1) * a1));
        } else {
          vst1q_f32(to, by_row(a0, a1));
          vst1q_f32(to + 4, by_row(static_cast<float>(sum0) * a0, static_cast<float>(sum1) * a1));
        }
      }
    }
  }

  template <int Units, int kDigits, bool kOffsets, typename Walk>
  __attribute__((noinline)) static void multiply_halves(const Walk& walk, float* out, int64_t stride) {
    lay_out_rows<Units>(walk);
    for (int half = 0; half < 2; ++half) {
      GroupTile<Units, kDigits> tile = {};
      UnitPointers<Units> units(walk.a, walk.unit_bytes);
      const char* w = walk.w + 64 * half;
      const float* rows = walk.room;
      const float* factors = walk.factors + 16 * half;
      for (int64_t left = walk.steps; left > 0; left -= walk.group_steps, rows += 8 * Units, factors += 4 * kPanel) {
        tile.start();
        const int64_t steps = left < walk.group_steps ? left : walk.group_steps;
        for (int64_t s = 0; s < steps; s += kGroupSteps, units.advance(), w = advanced(w, kGroupSteps * kStepBytes)) {
          UNROLLED_FOR (i, kGroupSteps) {
            __builtin_prefetch(w + 1024 + i * kStepBytes);
            tile.step(units.a, 16 * i, w + i * kStepBytes);
          }
        }
        tile.template fold<kOffsets>(rows, factors);
      }
      tile.store(out + 8 * half, stride);
    }
  }
};

template <CodePacking kFormat>
inline void unpack(const char* nibbles, char* to, int64_t steps) {
  unpack_chunks<kFormat, 8>(nibbles, to, steps);
}

}  // namespace
}  // namespace forearm
