// Integer products by SDOT: an instruction takes four columns by four k, the row's four k from one element (mma_int.h
// names the members).
#pragma once
#include "kernels/simd/arm/mma_neon_rows.h"
#include "kernels/simd/arm/unpack_nibbles_neon.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// The int32 sums of a row by 16 columns.
struct I16 {
  int32x4_t a, b, c, d;
};

// vdotq_laneq_s32, opaque like load_here: compilers move it and then spill sums.
template <int kElement>
inline void add_dots(int32x4_t& sums, int8x16_t columns, int8x16_t row) {
  __asm__("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sums) : "w"(columns), "w"(row), "i"(kElement));
}

// Sixteen k of a row are one register. Sums of nibbles are sixteen times too large, which the conversion to float
// undoes. The functions that add products are always inlined: gcc 12 stops inlining some when the file grows, and then
// keeps the sums in memory (33 % of N1's SDOT rate instead of 99, tools/arm/price_loops.py).
template <CodePacking kFormat>
struct RowsIntMma {
  static constexpr bool kNibbles = in_nibbles(kFormat);
  static constexpr int kRows = 1, kQuantum = 4;
  static constexpr Form kForm = Form::i8_rows;
  static constexpr int kBias = 0, kNibbleBias = 0;
  using SixBits = forearm::SixBits;
  static constexpr int kStepK = kNibbles ? 8 : 4;
  static constexpr int kStepBytes = kPanel * kQuantum;
  static constexpr int kTogether = 16 / kStepK;  // steps that `steps` takes
  static constexpr int kUnits = kNibbles ? 5 : 6;
  static constexpr int panels(int units) { return units == 1 ? 4 : units == 2 ? 3 : units == 3 ? 2 : 1; }
  using Sums = I16;
  using Scales = F16;

  static Sums start(const int32_t*, int64_t) {
    const int32x4_t v = vdupq_n_s32(0);
    return {v, v, v, v};
  }
  static Scales scales(F16 s) { return s; }

  template <int Units, int Panels>
  __attribute__((always_inline)) static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes,
                                                  const char* w, int64_t panel_bytes) {
    int8x16_t rows[Units];
    UNROLLED_FOR (u, Units) {
      if constexpr (kNibbles) {
        rows[u] = vcombine_s8(vld1_s8(reinterpret_cast<const int8_t*>(a + u * unit_bytes)), vdup_n_s8(0));
      } else {
        rows[u] = vreinterpretq_s8_s32(vld1q_dup_s32(reinterpret_cast<const int32_t*>(a + u * unit_bytes)));
      }
    }
    add_products<0>(sums, rows, w, panel_bytes);
  }

  template <int Units, int Panels>
  __attribute__((always_inline)) static void steps(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes,
                                                   const char* w, int64_t panel_bytes) {
    int8x16_t rows[Units];
    UNROLLED_FOR (u, Units) rows[u] = vld1q_s8(reinterpret_cast<const int8_t*>(a + u * unit_bytes));
    add_products<0>(sums, rows, w, panel_bytes);
    add_products<kStepK / 4>(sums, rows, w + kStepBytes, panel_bytes);
    if constexpr (kTogether == 4) {
      add_products<2>(sums, rows, w + 2 * kStepBytes, panel_bytes);
      add_products<3>(sums, rows, w + 3 * kStepBytes, panel_bytes);
    }
  }

  template <int>
  static F16 row(const Sums& sums) {
    return {float_of<kSixteenfold<kFormat>>(sums.a), float_of<kSixteenfold<kFormat>>(sums.b),
            float_of<kSixteenfold<kFormat>>(sums.c), float_of<kSixteenfold<kFormat>>(sums.d)};
  }
  static void fold(const Sums& sums, const float* a_scales, int64_t, Scales s, float* acc) {
    forearm::store(acc, fma(mul(row<0>(sums), broadcast(*a_scales)), s, load(acc)));
  }
  static void fold_offsets(const int32_t* sums, const float* a_scales, int64_t, Scales o, float* acc) {
    forearm::store(acc, fma(broadcast(static_cast<float>(*sums) * *a_scales), o, load(acc)));
  }
  static void store(const float* acc, float* out, int64_t) { forearm::store(out, load(acc)); }

 private:
  // Products of one step: kElement is the first of the row's elements that it takes, one or, of nibbles, two.
  template <int kElement, int Units, int Panels>
  __attribute__((always_inline)) static void add_products(Sums (&sums)[Units][Panels], const int8x16_t (&rows)[Units],
                                                          const char* w, int64_t panel_bytes) {
    UNROLLED_FOR (p, Panels) {
      const char* columns = w + p * panel_bytes;
      add_quarter<kElement, &I16::a>(sums, rows, p, load_here<int8x16_t>(columns));
      add_quarter<kElement, &I16::b>(sums, rows, p, load_here<int8x16_t>(columns + 16));
      add_quarter<kElement, &I16::c>(sums, rows, p, load_here<int8x16_t>(columns + 32));
      add_quarter<kElement, &I16::d>(sums, rows, p, load_here<int8x16_t>(columns + 48));
    }
  }

  template <int kElement, int32x4_t I16::* kQuarter, int Units, int Panels>
  __attribute__((always_inline)) static void add_quarter(Sums (&sums)[Units][Panels], const int8x16_t (&rows)[Units],
                                                         int p, int8x16_t codes) {
    const int8x16_t first = kNibbles ? low_codes<kFormat>(codes) : codes;
    UNROLLED_FOR (u, Units) {
      add_dots<kElement>(sums[u][p].*kQuarter, first, rows[u]);
    }
    if constexpr (kNibbles) {
      const int8x16_t second = high_codes<kFormat>(codes);
      UNROLLED_FOR (u, Units) {
        add_dots<kElement + 1>(sums[u][p].*kQuarter, second, rows[u]);
      }
    }
  }
};

template <CodePacking kFormat>
using IntMma = RowsIntMma<kFormat>;
template <CodePacking kFormat>
inline void unpack(const char* nibbles, char* to, int64_t steps) {
  unpack_chunks<kFormat, 4>(nibbles, to, steps);
}

}  // namespace
}  // namespace forearm
