// Integer products by SVE's SMMLA: an instruction of 256 bits takes two rows by four columns by eight k. Layout,
// nibbles and groups are handled as in neon_mm (mma_int_neon_mm.h). mma_int.h names the members.
#pragma once
#include "kernels/simd/arm/mma_int_neon_mm.h"
#include "kernels/simd/arm/mma_sve256.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

using Ints8 __attribute__((arm_sve_vector_bits(256))) = svint32_t;
using Codes32 __attribute__((arm_sve_vector_bits(256))) = svint8_t;

inline Codes32 codes_at(const char* from) { return svld1(svptrue_b8(), reinterpret_cast<const int8_t*>(from)); }
inline Codes32 pair_at(const char* from) { return svld1rq(svptrue_b8(), reinterpret_cast<const int8_t*>(from)); }
inline Floats8 floats_at(const float* from) { return svld1(svptrue_b32(), from); }

// acc + x * s, multiplied once and fused once; `rows` are the rows' scales, twice {a0 a0 a1 a1}.
inline Floats8 scaled_sum(Floats8 acc, Floats8 sum, Floats8 rows, Floats8 columns) {
  return svmla_x(svptrue_b32(), acc, svmul_x(svptrue_b32(), sum, rows), columns);
}

// As GroupTile, a whole panel at a time: SVE's registers hold twice as much.
template <int kUnitsOfTile, int kDigits>
struct WideGroupTile {
  static constexpr int kBlocks = 4;
  Floats8 acc[kUnitsOfTile][kBlocks];
  Ints8 sums[kUnitsOfTile][kBlocks];

  void start() {
    UNROLLED_FOR (u, kUnitsOfTile) {
      UNROLLED_FOR (b, kBlocks) sums[u][b] = load_start();
    }
  }
  void step(const char* a, int64_t unit_bytes, const char* w) {
    Codes32 pairs[kUnitsOfTile];
    UNROLLED_FOR (u, kUnitsOfTile) pairs[u] = pair_at(a + u * unit_bytes);
    UNROLLED_FOR (b, kBlocks) {
      const Codes32 codes = codes_at(w + 32 * b);
      UNROLLED_FOR (u, kUnitsOfTile) sums[u][b] = svmmla(sums[u][b], pairs[u], codes);
    }
  }
  template <bool kOffsets>
  void fold(const float* rows, const float* factors) {
    const svbool_t all = svptrue_b32();
    const Floats8 start = svdup_f32(12582912.0f);  // 0x4b400000: 1.5 * 2^23
    Floats8 scales[kUnitsOfTile];
    UNROLLED_FOR (u, kUnitsOfTile) scales[u] = svld1rq(all, rows + 8 * u);
    UNROLLED_FOR (b, kBlocks / kDigits) {
      const Floats8 s = columns_at(factors, b);
      UNROLLED_FOR (u, kUnitsOfTile) {
        Floats8 sum = svsub_x(all, svreinterpret_f32_s32(sums[u][b * kDigits]), start);
        if constexpr (kDigits == 2) {
          const Floats8 next = svsub_x(all, svreinterpret_f32_s32(sums[u][2 * b + 1]), start);
          sum = svmla_x(all, of_row<1>(sum, next), of_row<0>(sum, next), kDigitBase);
        }
        acc[u][b] = scaled_sum(acc[u][b], sum, scales[u], s);
      }
      if constexpr (kOffsets) {
        const Floats8 o = columns_at(factors + 2 * kPanel, b);
        UNROLLED_FOR (u, kUnitsOfTile) {
          acc[u][b] = svmla_x(all, acc[u][b], svld1rq(all, rows + 8 * u + 4), o);
        }
      }
    }
  }
  // Opaque, and from memory, as in GroupTile.
  static Ints8 load_start() {
    svint32_t v;  // clang gives the registers of assembly to types without a length
    __asm__ volatile("ldr %0, [%1]" : "=w"(v) : "r"(kStart), "m"(kStart));
    return v;
  }
  void clear() {
    UNROLLED_FOR (u, kUnitsOfTile) {
      UNROLLED_FOR (b, kBlocks) acc[u][b] = svdup_f32(0);
    }
  }
  // Eight columns of a row from two registers, of two rows each, and the factors of acc[..][b].
  template <int kRow>
  static Floats8 of_row(Floats8 low, Floats8 high) {
    const svfloat64_t l = svreinterpret_f64_f32(low), h = svreinterpret_f64_f32(high);
    return svreinterpret_f32_f64(kRow == 0 ? svuzp1(l, h) : svuzp2(l, h));
  }
  static Floats8 columns_at(const float* factors, int b) {
    if constexpr (kDigits == 1) return floats_at(factors + 8 * b);
    return of_row<0>(floats_at(factors + 16 * b), floats_at(factors + 16 * b + 8));
  }
  void store(float* out, int64_t stride) const {
    UNROLLED_FOR (u, kUnitsOfTile) {
      if constexpr (kDigits == 2) {
        svst1(svptrue_b32(), out + u * stride, acc[u][0]);
        svst1(svptrue_b32(), out + u * stride + 8, acc[u][1]);
        continue;
      }
      store_rows(acc[u][0], acc[u][1], out + 2 * u * stride, stride);
      store_rows(acc[u][2], acc[u][3], out + 2 * u * stride + 8, stride);
    }
  }

  static constexpr int32_t kBits = 0x4b400000;
  alignas(32) static constexpr int32_t kStart[8] = {kBits, kBits, kBits, kBits, kBits, kBits, kBits, kBits};
};

// Float sums in memory, their factors and what is stored are neon_mm's; a register is two of its blocks.
template <CodePacking kFormat>
struct QuadsIntMma : PairsIntMma<kFormat> {
  using Pairs = PairsIntMma<kFormat>;
  static constexpr bool kNibbles = in_nibbles(kFormat);
  static constexpr int panels(int units) { return units == 1 ? 4 : units == 2 && !kNibbles ? 3 : 2; }
  struct Sums {
    Ints8 block[4];
  };

  static Sums start(const int32_t*, int64_t) {
    const Ints8 v = svdup_s32(0);
    return {{v, v, v, v}};
  }

  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    constexpr int kChunks = kNibbles ? 2 : 1;
    Codes32 pairs[Units][kChunks];
    UNROLLED_FOR (u, Units) {
      UNROLLED_FOR (c, kChunks) pairs[u][c] = pair_at(a + u * unit_bytes + 16 * c);
    }
    UNROLLED_FOR (p, Panels) {
      UNROLLED_FOR (b, 4) {
        const Codes32 codes = codes_at(w + p * panel_bytes + 32 * b);
        const Codes32 first = kNibbles ? low_of(codes) : codes;
        UNROLLED_FOR (u, Units) sums[u][p].block[b] = svmmla(sums[u][p].block[b], pairs[u][0], first);
        if constexpr (kNibbles) {
          const Codes32 second = high_of(codes);
          UNROLLED_FOR (u, Units) sums[u][p].block[b] = svmmla(sums[u][p].block[b], pairs[u][1], second);
        }
      }
    }
  }

  template <int kRow>
  static F16 row(const Sums& sums) {
    typename Pairs::Sums blocks;
    __builtin_memcpy(&blocks, &sums, sizeof blocks);
    return Pairs::template row<kRow>(blocks);
  }
  static void fold(const Sums& sums, const float* a_scales, int64_t groups, const ByColumn& s, float* acc) {
    const svbool_t all = svptrue_b32();
    const Floats8 rows = svdupq_f32(a_scales[0], a_scales[0], a_scales[groups], a_scales[groups]);
    const auto* columns = reinterpret_cast<const float*>(s.pair);
    UNROLLED_FOR (b, 4) {
      Floats8 sum = svcvt_f32_x(all, sums.block[b]);
      if constexpr (kSixteenfold<kFormat>) sum = svmul_x(all, sum, 0.0625f);
      svst1(all, acc + 8 * b, scaled_sum(floats_at(acc + 8 * b), sum, rows, floats_at(columns + 8 * b)));
    }
  }

  template <int Units, typename Walk>
  static void multiply_groups(const Walk& walk, float* out, int64_t stride) {
    const bool offsets = walk.weights->zeros || walk.weights->offsets;
    if (walk.digits == 1) {
      offsets ? multiply_panel<Units, 1, true>(walk, out, stride) : multiply_panel<Units, 1, false>(walk, out, stride);
    } else {
      offsets ? multiply_panel<Units, 2, true>(walk, out, stride) : multiply_panel<Units, 2, false>(walk, out, stride);
    }
  }

 private:
  // As low_codes and high_codes.
  static Codes32 looked_up(svuint8_t bits) {
    const int8_t* codes = kE2m1Codes;
    asm("" : "+r"(codes));  // gcc 13 fails (internal error in fold_vec_perm) where it sees the table's values
    return svtbl(svld1rq(svptrue_b8(), codes), bits);
  }
  static Codes32 low_of(Codes32 bytes) {
    if constexpr (kSixteenfold<kFormat>) return svlsl_n_s8_x(svptrue_b8(), bytes, 4);
    return looked_up(svand_n_u8_x(svptrue_b8(), svreinterpret_u8_s8(bytes), 15));
  }
  static Codes32 high_of(Codes32 bytes) {
    if constexpr (kSixteenfold<kFormat>) return svand_n_s8_x(svptrue_b8(), bytes, -16);
    return looked_up(svlsr_n_u8_x(svptrue_b8(), svreinterpret_u8_s8(bytes), 4));
  }

  template <int Units, int kDigits, bool kOffsets, typename Walk>
  __attribute__((noinline)) static void multiply_panel(const Walk& walk, float* out, int64_t stride) {
    Pairs::template lay_out_rows<Units>(walk);
    WideGroupTile<Units, kDigits> tile;
    tile.clear();
    const char* a = walk.a;
    const char* w = walk.w;
    const float* rows = walk.room;
    const float* factors = walk.factors;
    for (int64_t left = walk.steps; left > 0; left -= walk.group_steps, rows += 8 * Units, factors += 4 * kPanel) {
      tile.start();
      const int64_t steps = left < walk.group_steps ? left : walk.group_steps;
      for (int64_t s = 0; s < steps; s += 2, a += 32, w += 2 * Pairs::kStepBytes) {
        tile.step(a, walk.unit_bytes, w);
        tile.step(a + 16, walk.unit_bytes, w + Pairs::kStepBytes);
      }
      tile.template fold<kOffsets>(rows, factors);
    }
    tile.store(out, stride);
  }
};

}  // namespace
}  // namespace forearm
