// Tiles of integer products by VPMADDUBSW, which multiplies unsigned by signed bytes and adds them in twos to 16 bits.
//
// int8: |w| by the row's code with the sign of w; 128 * 127 * 2 < 2^15, nothing saturates. int4 is stored with a bias
// of 8, so that nibbles are unsigned: four products, 15 * 127 * 4, are added in 16 bits before they are widened. So are
// codes of E2M1, to which 12 is added where they are looked up: 24 * 127 * 4.
// mma_int_<isa>.h gives this file I16 (16 int32), Bytes (16 columns of four bytes), load_bytes, nibbles<i>,
// looked_up<added> (of E2M1's nibbles), broadcast_quad, products (of unsigned bytes), signed_products, add_words,
// add_widened, kTileUnits and tile_panels of codes.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/mma_int.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

template <CodePacking kFormat>
struct IntMma {
  static constexpr int kRows = 1, kQuantum = 4;
  static constexpr Form kForm = Form::i8_rows;
  static constexpr int kBias = 0, kNibbleBias = 8;
  // What is added to a code where it is multiplied.
  static constexpr int kAdded = kFormat == CodePacking::bytes ? 0 : kFormat == CodePacking::e2m1 ? 12 : kNibbleBias;
  static constexpr int kStepK = in_nibbles(kFormat) ? 8 : 4;
  static constexpr int kStepBytes = 64;
  static constexpr bool kInPlace = true, kFetchesOut = true;
  static constexpr int kUnits = kCodeUnits;
  static constexpr int panels(int units) { return code_panels(units); }
  using Sums = I16;
  using Scales = F16;

  static Sums start(const int32_t* sums, int64_t) { return broadcast_int(*sums * -kAdded); }
  static Scales scales(F16 s) { return s; }

  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    UNROLLED_FOR (p, Panels) {
      const Bytes columns = load_bytes(w + p * panel_bytes);
      const auto signs = signs_of(columns);
      const Bytes first = codes_of<0>(columns), second = codes_of<1>(columns);
      UNROLLED_FOR (u, Units) {
        const Quad quad = broadcast_quad(a + u * unit_bytes);
        if constexpr (kFormat == CodePacking::bytes) {
          add_widened(sums[u][p], signed_products(columns, signs, quad));
        } else if constexpr (kFormat == CodePacking::unpacked_nibbles) {
          add_widened(sums[u][p], products(first, quad));
        } else {
          const Quad next = broadcast_quad(a + u * unit_bytes + 4);
          add_widened(sums[u][p], add_words(products(first, quad), products(second, next)));
        }
      }
    }
  }

  template <int>
  static F16 row(const Sums& sums) {
    return floats_of(sums);
  }
  static void fold(const Sums& sums, const float* a_scales, int64_t, Scales s, float* acc) {
    forearm::store(acc, fma(mul(row<0>(sums), broadcast(*a_scales)), s, load(acc)));
  }
  static void fold_offsets(const int32_t* sums, const float* a_scales, int64_t, Scales o, float* acc) {
    forearm::store(acc, fma(broadcast(static_cast<float>(*sums) * *a_scales), o, load(acc)));
  }
  static void store(const float* acc, float* out, int64_t) { forearm::store(out, load(acc)); }

 private:
  template <int I>
  static Bytes codes_of(const Bytes& columns) {
    if constexpr (kFormat == CodePacking::e2m1) return looked_up<kAdded>(nibbles<I>(columns));
    return kFormat == CodePacking::nibbles ? nibbles<I>(columns) : columns;
  }
};

}  // namespace
}  // namespace forearm
