// Tiles of AVX-512's fused multiply-add: up to 12 rows by 32 columns, 24 of the 32 registers.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/x86/vec_avx512.h"

namespace forearm {
namespace {

using Factor = F16;
inline Factor load_factor(const float* a) { return broadcast(*a); }
inline F16 multiply_add(Factor a, F16 b, F16 sums) { return fma(a, b, sums); }

// A step of a 16-bit panel is one register: column i's pair of k in its 32-bit lane i, the even k below.
template <DType W, int I>
inline F16 columns(const char* step) {
  if constexpr (W == DType::f32) return load(reinterpret_cast<const float*>(step));
  const __m512i pairs = _mm512_loadu_si512(step);
  if constexpr (W == DType::bf16) {
    return float_of(I == 0 ? _mm512_slli_epi32(pairs, 16)
                           : _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(I == 0 ? pairs : _mm512_srli_epi32(pairs, 16)))};
}

constexpr int kColumnRegisters = 1;
constexpr int kTileUnits = 12;
// Few rows take more panels: then enough sums are in flight that none is waited for, and several streams of W are
// fetched.
constexpr int tile_panels(int units) { return units <= 3 ? 8 : units <= 4 ? 6 : units <= 6 ? 4 : units <= 8 ? 3 : 2; }

}  // namespace
}  // namespace forearm

#include "kernels/simd/mma_rows.h"
