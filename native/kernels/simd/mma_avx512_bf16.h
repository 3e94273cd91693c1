// Tiles of AVX512_BF16: bf16 by VDPBF16PS, a pair of k an instruction; f16 and f32 as in avx512.
#pragma once
#include "kernels/simd/mma_avx512_rows.h"

namespace forearm {
namespace {

// sums += the odd k's products, then += the even k's, each rounded to nearest even, denormals flushed: Intel's manual,
// volume 2C, VDPBF16PS. As assembly, since gcc 12 moves the sums of a tile to other registers and spills them.
inline void add_dot(F16& sums, __m512i a, __m512i w) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums.v) : "v"(w), "v"(a));
}

// A step of a panel is one register: column i's pair of k in its 32-bit lane i. So is a row's pair, in every lane.
struct DotMma {
  static constexpr int kRows = 1;
  static constexpr int kQuantum = 2;
  static constexpr int kStepBytes = kPanel * kQuantum * 2;
  static constexpr Form kForm = Form::bf16_rows;
  static constexpr int kUnits = kTileUnits;
  static constexpr int panels(int units) { return tile_panels(units); }
  // So few rows are bound by the memory, which reads one panel after another faster than several at once: a row reached
  // 97 to 100 % of the read bandwidth in place of 82 to 87 % (bench/kernels.cpp, Zen 4).
  static constexpr int kStreamedUnits = 2;
  using Sums = F16;

  static Sums none() { return zero(); }
  static void store(Sums sums, float* out, int64_t) { forearm::store(out, sums); }

  // What takes fewer registers is held: the pairs of all rows, or the columns of all panels.
  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    if constexpr (Units < Panels) {
      __m512i pairs[Units];
#pragma GCC unroll 16
      for (int u = 0; u < Units; ++u) pairs[u] = pair_of(a + u * unit_bytes);
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) {
        const __m512i columns = _mm512_loadu_si512(w + p * panel_bytes);
#pragma GCC unroll 16
        for (int u = 0; u < Units; ++u) add_dot(sums[u][p], pairs[u], columns);
      }
    } else {
      __m512i columns[Panels];
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) columns[p] = _mm512_loadu_si512(w + p * panel_bytes);
#pragma GCC unroll 16
      for (int u = 0; u < Units; ++u) {
        const __m512i pair = pair_of(a + u * unit_bytes);
#pragma GCC unroll 16
        for (int p = 0; p < Panels; ++p) add_dot(sums[u][p], pair, columns[p]);
      }
    }
  }

  static void multiply_ones(Sums& sums) { add_dot(sums, _mm512_set1_epi32(0x3f803f80), _mm512_set1_epi32(0x3f803f80)); }

 private:
  static __m512i pair_of(const char* row) {
    int32_t pair;
    __builtin_memcpy(&pair, row, 4);
    return _mm512_set1_epi32(pair);
  }
};

template <DType W>
struct Mma : RowsMma<W> {};
template <>
struct Mma<DType::bf16> : DotMma {};
constexpr DType kWide = DType::bf16;  // what codes are widened to

}  // namespace
}  // namespace forearm
