// Tiles of the AVX2 tier: up to 6 rows by 16 columns, 12 of the 16 registers.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/x86/vec_avx2.h"

namespace forearm {
namespace {

struct Factor {
  __m256 v;
};
inline Factor load_factor(const float* a) { return {_mm256_broadcast_ss(a)}; }
// In assembly, because gcc 12 chooses the form that overwrites a factor, moves the sums and spills them: 62 % of the
// peak instead of 90 (bench/kernels/kernels.cpp, 512 rows, bf16, Zen 4).
inline void add_product(__m256& sums, __m256 a, __m256 b) {
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(sums) : "x"(a), "x"(b));
}
inline F16 multiply_add(Factor a, F16 b, F16 sums) {
  add_product(sums.a, a.v, b.a);
  add_product(sums.b, a.v, b.b);
  return sums;
}

// Half of a step of a 16-bit panel: eight columns, each one's pair of k in its 32-bit lane, the even k below.
template <int I>
inline __m256i even_or_odd(__m256i pairs) {  // as the lower 16 bits of each lane
  return I == 0 ? _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff)) : _mm256_srli_epi32(pairs, 16);
}
template <int I>
inline __m256 widen_bf16(__m256i pairs) {
  return _mm256_castsi256_ps(I == 0 ? _mm256_slli_epi32(pairs, 16)
                                    : _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

template <DType W, int I>
inline F16 columns(const char* step) {
  if constexpr (W == DType::f32) return load(reinterpret_cast<const float*>(step));
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(step));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(step + 32));
  if constexpr (W == DType::bf16) return {widen_bf16<I>(low), widen_bf16<I>(high)};
  // Packing works within 128 bits: it gives columns 0-3, 8-11, 4-7, 12-15.
  const __m256i packed = _mm256_packus_epi32(even_or_odd<I>(low), even_or_odd<I>(high));
  const __m256i in_order = _mm256_permute4x64_epi64(packed, 0xd8);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(in_order)), _mm256_cvtph_ps(_mm256_extracti128_si256(in_order, 1))};
}

constexpr int kColumnRegisters = 2;
constexpr int kTileUnits = 6;
constexpr int tile_panels(int units) { return units == 1 ? 4 : units == 2 ? 2 : 1; }
constexpr int kFetchedRows = 4;
constexpr int kNearLevel = 0;

}  // namespace
}  // namespace forearm

#include "kernels/simd/mma_rows.h"

namespace forearm {
namespace {
template <DType W>
struct Mma : RowsMma<W> {};
// Widening two k of a float16 panel takes twelve instructions, repeated for each tile of 6 rows: 512 rows by 8960 x
// 1536 went from 62 to 81 % of the peak where strips are widened once for many rows (bench/kernels/kernels.cpp, Zen 4).
template <>
struct Mma<DType::f16> : RowsMma<DType::f16> {
  static constexpr int64_t kWidenedRows = 12;
};
constexpr DType kWide = DType::f32;  // what codes are widened to

}  // namespace
}  // namespace forearm
