// Integer products by TDPBSUD and TDPBSSD where many rows share a tile register, else by VPDPBUSD: both give the same
// integers.
#pragma once
#include "kernels/simd/unroll.h"
#include "kernels/simd/x86/mma_int_avx512_dot.h"
#include "kernels/simd/x86/tiles_amx.h"

namespace forearm {
extern const Kernels avx512_vnni_tier;
namespace {

template <CodePacking kFormat>
struct IntMma : DotIntMma<kFormat> {
  using Tiles = TileRegisters;
  static constexpr const Kernels& kWithoutTiles = avx512_vnni_tier;
  // With fewer rows, one tile of VPDPBUSD reads W as fast or faster: 12 rows of int8 at 35 GB/s instead of 33, 8 of
  // int4 at 29 by both, 10 at 24 instead of 29 (k 8960, two cores, bench/kernels/kernels.cpp).
  static constexpr int64_t kFewestRows = kFormat == CodePacking::bytes ? 13 : 9;

  template <int kSums, int kA, int kW>
  static void add_tile() {
    if constexpr (kFormat == CodePacking::bytes) {
      Tiles::add_codes<kSums, kA, kW>();
    } else {
      Tiles::add_signed<kSums, kA, kW>();
    }
  }

  // Unpacks the 64 k of a tile of W from eight steps of nibbles to one code a byte. The bias is subtracted here, once
  // for all rows, and not from each row's sums for each group.
  static void unpack_tile(const char* nibbles, char* to) {
    const __m512i low = _mm512_set1_epi8(15), bias = _mm512_set1_epi8(DotIntMma<kFormat>::kNibbleBias);
    const __m512i codes = _mm512_broadcast_i32x4(e2m1_codes<0>());
    const auto code_of = [&](__m512i nibble) {
      if constexpr (kFormat == CodePacking::e2m1) return _mm512_shuffle_epi8(codes, nibble);
      return _mm512_sub_epi8(nibble, bias);
    };
    UNROLL(8)
    for (int step = 0; step < 8; ++step, nibbles += 64, to += 128) {
      const __m512i both = _mm512_loadu_si512(nibbles);
      _mm512_store_si512(to, code_of(_mm512_and_si512(both, low)));
      _mm512_store_si512(to + 64, code_of(_mm512_and_si512(_mm512_srli_epi16(both, 4), low)));
    }
  }

  // Returns 16 sums of a row without W's bias; a_sum is the sum of the row's codes.
  static __m512i sums_of(const int32_t* sums, const int32_t* a_sum) {
    const __m512i as_stored = _mm512_load_si512(sums);
    if constexpr (in_nibbles(kFormat)) return as_stored;
    return _mm512_sub_epi32(as_stored, _mm512_set1_epi32(*a_sum * DotIntMma<kFormat>::kBias));
  }
};

}  // namespace
}  // namespace forearm
