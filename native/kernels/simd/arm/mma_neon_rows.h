// Tiles of NEON's fused multiply-add by element: up to 6 rows by 16 columns, 24 of the 32 registers.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/arm/vec_neon.h"

namespace forearm {
namespace {

using Factor = float;
inline Factor load_factor(const float* a) { return *a; }
inline F16 multiply_add(Factor a, F16 b, F16 sums) {
  return {vfmaq_n_f32(sums.a, b.a, a), vfmaq_n_f32(sums.b, b.b, a), vfmaq_n_f32(sums.c, b.c, a),
          vfmaq_n_f32(sums.d, b.d, a)};
}

// A quarter of a step of a 16-bit panel: four columns, each one's pair of k in its 32-bit lane, the even k below.
template <int I>
inline float32x4_t widen_bf16(const uint16_t* pairs) {
  const uint32x4_t v = vreinterpretq_u32_u16(vld1q_u16(pairs));
  return vreinterpretq_f32_u32(I == 0 ? vshlq_n_u32(v, 16) : vandq_u32(v, vdupq_n_u32(0xffff0000u)));
}
template <int I>
inline float16x8_t even_or_odd(const uint16_t* pairs) {
  const uint16x8_t low = vld1q_u16(pairs), high = vld1q_u16(pairs + 8);
  return vreinterpretq_f16_u16(I == 0 ? vuzp1q_u16(low, high) : vuzp2q_u16(low, high));
}

template <DType W, int I>
inline F16 columns(const char* step) {
  if constexpr (W == DType::f32) return load(reinterpret_cast<const float*>(step));
  const uint16_t* pairs = reinterpret_cast<const uint16_t*>(step);
  if constexpr (W == DType::bf16) {
    return {widen_bf16<I>(pairs), widen_bf16<I>(pairs + 8), widen_bf16<I>(pairs + 16), widen_bf16<I>(pairs + 24)};
  }
  const float16x8_t low = even_or_odd<I>(pairs), high = even_or_odd<I>(pairs + 16);
  return {vcvt_f32_f16(vget_low_f16(low)), vcvt_f32_f16(vget_high_f16(low)), vcvt_f32_f16(vget_low_f16(high)),
          vcvt_f32_f16(vget_high_f16(high))};
}

constexpr int kColumnRegisters = 4;
constexpr int kTileUnits = 6;
constexpr int tile_panels(int units) { return units == 1 ? 4 : units == 2 ? 3 : units == 3 ? 2 : 1; }
constexpr int kFetchedRows = 4;
constexpr int kNearLevel = 0;

}  // namespace
}  // namespace forearm

#include "kernels/simd/mma_rows.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// A load that compilers do not move. 24 sums and the rows' factors leave two registers free: compilers that load the
// next columns early spill sums, while the core reorders loads by itself.
template <typename Vector>
inline Vector load_here(const char* from) {
#ifdef __clang__
  return *reinterpret_cast<const Vector*>(from);
#else
  Vector v;
  __asm__ volatile("ldr %q0, %1" : "=w"(v) : "m"(*reinterpret_cast<const Vector*>(from)));
  return v;
#endif
}

// vfmaq_laneq_f32 in assembly: gcc makes a DUP and a FMLA of it, and the copy takes registers that sums need.
template <int Element>
inline void multiply_add_element(float32x4_t& sums, float32x4_t columns, float32x4_t row) {
  __asm__("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(sums) : "w"(columns), "w"(row), "i"(Element));
}

// 16-bit floats that are widened in the tile, again for each 6 rows, reach 77 % (bf16) and 64 % (f16) of N1's rate by
// llvm-mca (gcc; clang spills sums: 44 and 54 %). Strips of float32, widened for many rows at once in 15 and 19 cycles
// for two k, are multiplied at 99 %.
template <DType W>
struct HalvesMma : RowsMma<W> {
  static constexpr int64_t kWidenedRows = 18;
};

// float32: four k of a row are one register, whose elements multiply 16 columns one after another. Loads of one float
// each took 41 of the 99 micro-ops of two k on N1, which starts four a cycle: 88 % of its rate, now 99 (tools/arm).
struct ElementsMma : RowsMma<DType::f32> {
  static constexpr int kTogether = 4;  // steps that `steps` takes

  template <int Units, int Panels>
  static void step(F16 (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    float32x4_t rows[Units];
    UNROLLED_FOR (u, Units) rows[u] = vld1q_dup_f32(reinterpret_cast<const float*>(a + u * unit_bytes));
    add_products<0>(sums, rows, w, panel_bytes);
  }

  template <int Units, int Panels>
  static void steps(F16 (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    float32x4_t rows[Units];
    UNROLLED_FOR (u, Units) rows[u] = vld1q_f32(reinterpret_cast<const float*>(a + u * unit_bytes));
    add_products<0>(sums, rows, w, panel_bytes);
    add_products<1>(sums, rows, w + kStepBytes, panel_bytes);
    add_products<2>(sums, rows, w + 2 * kStepBytes, panel_bytes);
    add_products<3>(sums, rows, w + 3 * kStepBytes, panel_bytes);
  }

 private:
  template <int Element, int Units, int Panels>
  static void add_products(F16 (&sums)[Units][Panels], const float32x4_t (&rows)[Units], const char* w,
                           int64_t panel_bytes) {
    UNROLLED_FOR (p, Panels) {
      add_quarter<Element, &F16::a>(sums, rows, p, load_here<float32x4_t>(w + p * panel_bytes));
      add_quarter<Element, &F16::b>(sums, rows, p, load_here<float32x4_t>(w + p * panel_bytes + 16));
      add_quarter<Element, &F16::c>(sums, rows, p, load_here<float32x4_t>(w + p * panel_bytes + 32));
      add_quarter<Element, &F16::d>(sums, rows, p, load_here<float32x4_t>(w + p * panel_bytes + 48));
    }
  }
  template <int Element, float32x4_t F16::* kQuarter, int Units, int Panels>
  static void add_quarter(F16 (&sums)[Units][Panels], const float32x4_t (&rows)[Units], int p, float32x4_t columns) {
    UNROLLED_FOR (u, Units) multiply_add_element<Element>(sums[u][p].*kQuarter, columns, rows[u]);
  }
};

}  // namespace
}  // namespace forearm
