// Products of f16_scaled by FMLA of eight f16, twice the rate of float32 (Armv8.2 with FEAT_FP16).
//
// Widening a sum costs N1 three micro-ops for four columns, two of them FCVTL's on one pipe (Arm's optimization guide
// of N1, as LLVM 19 has it): a block of 32 k pays it once, and float sums stay in registers, which leaves room for 4
// rows by 8 columns: 1.35 times the float32 tile's rate (tools/arm/price_loops.py). A block of 16 k would give 1.33 at
// best.
#pragma once
#include <arm_neon.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// Two chains of four k, added, for four rows by eight columns. As assembly, with registers of its own: compilers load
// ahead, and spill.
struct FourRows {
  float16x8_t row[4];
};
#define FOREARM_COLUMNS(k) "ldr q4, [%8, #" #k " * 32]\n\t"
#define FOREARM_FIRST(op, k)                                                                                        \
  FOREARM_COLUMNS(k)                                                                                                \
  op " %0.8h, v4.8h, v0.h[" #k "]\n\t" op " %1.8h, v4.8h, v1.h[" #k "]\n\t" op " %2.8h, v4.8h, v2.h[" #k "]\n\t" op \
     " %3.8h, v4.8h, v3.h[" #k "]\n\t"
#define FOREARM_SECOND(op, k)                                                                                       \
  FOREARM_COLUMNS(k)                                                                                                \
  op " v5.8h, v4.8h, v0.h[" #k "]\n\t" op " v6.8h, v4.8h, v1.h[" #k "]\n\t" op " v7.8h, v4.8h, v2.h[" #k "]\n\t" op \
     " v16.8h, v4.8h, v3.h[" #k "]\n\t"
inline FourRows eight_k(const uint16_t* const (&a)[4], const uint16_t* w) {
  FourRows s;
  __asm__ volatile(
      "ldr q0, [%4]\n\tldr q1, [%5]\n\tldr q2, [%6]\n\tldr q3, [%7]\n\t"  //
      FOREARM_FIRST("fmul", 0) FOREARM_FIRST("fmla", 1) FOREARM_FIRST("fmla", 2) FOREARM_FIRST("fmla", 3)
          FOREARM_SECOND("fmul", 4) FOREARM_SECOND("fmla", 5) FOREARM_SECOND("fmla", 6) FOREARM_SECOND("fmla", 7)  //
      "fadd %0.8h, %0.8h, v5.8h\n\tfadd %1.8h, %1.8h, v6.8h\n\tfadd %2.8h, %2.8h, v7.8h\n\tfadd %3.8h, %3.8h, v16.8h"
      : "=&w"(s.row[0]), "=&w"(s.row[1]), "=&w"(s.row[2]), "=&w"(s.row[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(w)
      : "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16");
  return s;
}
#undef FOREARM_COLUMNS
#undef FOREARM_FIRST
#undef FOREARM_SECOND
inline void add_to(FourRows& x, const FourRows& y) {  // volatile as well: moved down it would hold y longer
  __asm__ volatile(
      "fadd %0.8h, %0.8h, %4.8h\n\tfadd %1.8h, %1.8h, %5.8h\n\tfadd %2.8h, %2.8h, %6.8h\n\tfadd %3.8h, %3.8h, %7.8h"
      : "+w"(x.row[0]), "+w"(x.row[1]), "+w"(x.row[2]), "+w"(x.row[3])
      : "w"(y.row[0]), "w"(y.row[1]), "w"(y.row[2]), "w"(y.row[3]));
}

// The same for one row by 16 columns.
struct OneRow {
  float16x8_t low, high;
};
inline void add_to(OneRow& x, OneRow y) {
  x.low = vaddq_f16(x.low, y.low);
  x.high = vaddq_f16(x.high, y.high);
}
template <int Element>
inline void multiply_add_half(float16x8_t& sums, float16x8_t columns, float16x8_t row) {
  __asm__("fmla %0.8h, %1.8h, %2.h[%3]" : "+w"(sums) : "w"(columns), "x"(row), "i"(Element));
}
inline float16x8_t load_halves(const uint16_t* p) { return vreinterpretq_f16_u16(vld1q_u16(p)); }
template <int First>
inline OneRow chain(float16x8_t row, const uint16_t* w) {
  OneRow s = {vmulq_laneq_f16(load_halves(w), row, First), vmulq_laneq_f16(load_halves(w + 8), row, First)};
  multiply_add_half<First + 1>(s.low, load_halves(w + 16), row);
  multiply_add_half<First + 1>(s.high, load_halves(w + 24), row);
  multiply_add_half<First + 2>(s.low, load_halves(w + 32), row);
  multiply_add_half<First + 2>(s.high, load_halves(w + 40), row);
  multiply_add_half<First + 3>(s.low, load_halves(w + 48), row);
  multiply_add_half<First + 3>(s.high, load_halves(w + 56), row);
  return s;
}
inline OneRow eight_k(const uint16_t* const (&a)[1], const uint16_t* w) {
  const float16x8_t row = load_halves(a[0]);
  OneRow s = chain<0>(row, w);
  add_to(s, chain<4>(row, w + 4 * kPanel));
  return s;
}

// A block: eights by eights.
template <int Rows>
inline auto block_of(const uint16_t* const (&a)[Rows], const uint16_t* w) {
  const uint16_t* at[Rows];
  const auto eight = [&](int k) {
    UNROLLED_FOR (r, Rows) at[r] = a[r] + k;
    return eight_k(at, w + k * kPanel);
  };
  auto first = eight(0);
  add_to(first, eight(8));
  auto second = eight(16);
  add_to(second, eight(24));
  add_to(first, second);
  return first;
}

inline void fold(float32x4_t& low, float32x4_t& high, float16x8_t block) {
  low = vaddq_f32(low, vcvt_f32_f16(vget_low_f16(block)));
  high = vaddq_f32(high, vcvt_high_f32_f16(block));
}

struct F16Scaled {
  static constexpr int kRows = 4;

  template <int Rows>
  static void add_blocks(const uint16_t* const (&a)[Rows], const uint16_t* w, int64_t blocks, float* sums,
                         int64_t stride) {
    if constexpr (Rows == 1) {
      add_row(a[0], w, blocks, sums);
    } else {
      add_rows(a, w, blocks, sums, stride);
      add_rows(a, w + 8, blocks, sums + 8, stride);
    }
  }

 private:
  __attribute__((noinline)) static void add_row(const uint16_t* row, const uint16_t* w, int64_t blocks, float* sums) {
    float32x4_t acc[4] = {vld1q_f32(sums), vld1q_f32(sums + 4), vld1q_f32(sums + 8), vld1q_f32(sums + 12)};
    for (; blocks > 0; --blocks, row += kScaledBlock, w += kScaledBlock * kPanel) {
      const uint16_t* const a[1] = {row};
      const OneRow block = block_of(a, w);
      fold(acc[0], acc[1], block.low);
      fold(acc[2], acc[3], block.high);
    }
    UNROLLED_FOR (i, 4) vst1q_f32(sums + 4 * i, acc[i]);
  }

  __attribute__((noinline)) static void add_rows(const uint16_t* const (&rows)[4], const uint16_t* w, int64_t blocks,
                                                 float* sums, int64_t stride) {
    const uint16_t* a[4] = {rows[0], rows[1], rows[2], rows[3]};
    float32x4_t low[4], high[4];
    UNROLLED_FOR (r, 4) {
      low[r] = vld1q_f32(sums + r * stride);
      high[r] = vld1q_f32(sums + r * stride + 4);
    }
    UNROLL(1)
    for (; blocks > 0; --blocks, w += kScaledBlock * kPanel) {
      const FourRows block = block_of(a, w);
      UNROLLED_FOR (r, 4) {
        fold(low[r], high[r], block.row[r]);
        a[r] += kScaledBlock;
      }
    }
    UNROLLED_FOR (r, 4) {
      vst1q_f32(sums + r * stride, low[r]);
      vst1q_f32(sums + r * stride + 4, high[r]);
    }
  }
};

}  // namespace
}  // namespace forearm
