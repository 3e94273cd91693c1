// Tiles of integer products by VPDPBUSD, four k an instruction: up to 12 rows by 32 columns, 24 of the 32 registers.
//
// It multiplies unsigned by signed bytes: codes of W are stored with a bias, for which the sums start at -bias * the
// sum of the row's codes. 255 * 127 * 4 fits an int32 sum, so nothing saturates.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/mma_int.h"
#include "kernels/simd/unroll.h"
#include "kernels/simd/x86/e2m1_codes.h"
#include "kernels/simd/x86/vec_avx512.h"

namespace forearm {
namespace {

template <CodePacking kFormat>
struct DotIntMma {
  static constexpr int kRows = 1, kQuantum = 4;
  static constexpr Form kForm = Form::i8_rows;
  static constexpr int kBias = 128, kNibbleBias = 8;
  // What is added to a code where it is multiplied.
  static constexpr int kAdded = kFormat == CodePacking::bytes ? kBias : kFormat == CodePacking::e2m1 ? 12 : kNibbleBias;
  static constexpr bool kNibbles = in_nibbles(kFormat);
  static constexpr int kStepK = kNibbles ? 8 : 4;
  static constexpr int kStepBytes = 64;
  static constexpr bool kInPlace = true, kFetchesOut = true, kLongStep = kNibbles;
  static constexpr int kUnits = 12;
  static constexpr int panels(int units) {
    return units <= 3 ? 8 : units <= 4 ? 6 : units <= 6 ? 4 : units <= 8 ? 3 : 2;
  }
  // As in DotMma, unless even one row prefetches: of the read bandwidth int8 went from 82 to 90 %, int4 from 74 to 85 %
  // (one row, Zen 4); of the limit int8 from 78-95 to 88-98 % (4 to 12 rows, Zen 5), int4 from 70-76 to 82-88 (2 rows)
  // and 74-80 to 94-97 % (4 rows). From 8 rows on int4 has more to multiply than to wait for.
  static constexpr int kStreamedUnits = kFetchedRows == 1 ? 0 : kNibbles ? 6 : 12;
  using Sums = __m512i;
  using Scales = F16;

  static Sums start(const int32_t* sums, int64_t) {
    __m512i start = _mm512_set1_epi32(*sums * -kAdded);
    // A separate value for each panel: gcc 12 merges equal ones, copies the value in the loop and spills.
    __asm__ volatile("" : "+v"(start));
    return start;
  }
  static Scales scales(F16 s) { return s; }

  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    add_chunk<0>(sums, a, unit_bytes, w, panel_bytes);
    // W is read again, from the first-level cache: both nibbles of all panels would not leave room for the sums, nor
    // would two steps at once (kLongStep). Without gcc's moves and spills, GFLOP/s of int4 went from 94, 84, 90 to 98,
    // 90, 93 for 1 row and from 373, 396, 377 to 391, 407, 389 for 12 rows; 512 rows gained 1 %, 2 rows lost 0 to 4 %
    // (Zen 4, one thread).
    if constexpr (kNibbles) add_chunk<1>(sums, a + 4, unit_bytes, w, panel_bytes);
  }

  template <int>
  static F16 row(Sums sums) {
    return {_mm512_cvtepi32_ps(sums)};
  }
  static void fold(Sums sums, const float* a_scales, int64_t, Scales s, float* acc) {
    forearm::store(acc, fma(mul(row<0>(sums), broadcast(*a_scales)), s, load(acc)));
  }
  static void fold_offsets(const int32_t* sums, const float* a_scales, int64_t, Scales o, float* acc) {
    forearm::store(acc, fma(broadcast(static_cast<float>(*sums) * *a_scales), o, load(acc)));
  }
  static void store(const float* acc, float* out, int64_t) { forearm::store(out, load(acc)); }
  static void multiply_ones(Sums& sums) { add_dot(sums, _mm512_set1_epi8(1), _mm512_set1_epi8(1)); }

 private:
  // In assembly, because gcc 12 moves the sums of a tile to other registers and spills them.
  static void add_dot(Sums& sums, __m512i a, __m512i w) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(w), "v"(a));
  }

  static __m512i quad_of(const char* row) {
    int32_t quad;
    __builtin_memcpy(&quad, row, 4);
    return _mm512_set1_epi32(quad);
  }

  // Nibbles in assembly, because gcc 12 keeps the loaded bytes for both of them and then has no registers left for the
  // sums.
  template <int I>
  static __m512i columns_of(const char* step) {
    if constexpr (!kNibbles) return _mm512_loadu_si512(step);
    const __m512i low = _mm512_set1_epi8(15);
    const auto& codes = *reinterpret_cast<const char(*)[64]>(step);
    __m512i columns;
    if constexpr (I == 0) {
      __asm__("vpandd %1, %2, %0" : "=v"(columns) : "m"(codes), "v"(low));
    } else {
      __asm__("vpsrlw $4, %1, %0\n\tvpandd %2, %0, %0" : "=&v"(columns) : "m"(codes), "v"(low));
    }
    if constexpr (kFormat == CodePacking::e2m1)
      return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(e2m1_codes<kAdded>()), columns);
    return columns;
  }

  // Registers hold whichever takes fewer: four k of all rows, or the columns of all panels.
  template <int I, int Units, int Panels>
  static void add_chunk(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w,
                        int64_t panel_bytes) {
    if constexpr (Units < Panels) {
      __m512i quads[Units];
      UNROLLED_FOR (u, Units) quads[u] = quad_of(a + u * unit_bytes);
      UNROLLED_FOR (p, Panels) {
        const __m512i columns = columns_of<I>(w + p * panel_bytes);
        UNROLLED_FOR (u, Units) add_dot(sums[u][p], quads[u], columns);
      }
    } else {
      __m512i columns[Panels];
      UNROLLED_FOR (p, Panels) columns[p] = columns_of<I>(w + p * panel_bytes);
      UNROLLED_FOR (u, Units) {
        const __m512i quad = quad_of(a + u * unit_bytes);
        UNROLLED_FOR (p, Panels) add_dot(sums[u][p], quad, columns[p]);
      }
    }
  }
};

}  // namespace
}  // namespace forearm
