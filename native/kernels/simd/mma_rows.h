// Multiplication of a tile by the vector unit's fused multiply-add: one row of A at a time, 16 columns of W at once.
//
// An Mma<dtype> of W gives gemm.h what it multiplies tiles with:
//   kRows, kQuantum, kForm   rows that go together (a unit), the layout's quantum, the form of A
//   kUnits, panels(units)    the most units of a tile, and how many panels so many units take
//   kStreamedUnits           (may be left out) up to so many units take one panel at a time: memory alone bounds them
//   Sums                     the sums of one unit by one panel, in registers
//   step                     adds one step of kQuantum k to the sums of Units x Panels
//   store                    the sums as floats, row r of the unit at out + r * stride
//   load                     the other way round; rows of one need none
// mma_<isa>.h gives this file kTileUnits, tile_panels, Factor, load_factor, multiply_add, columns<dtype, i> (the 16
// columns of the i-th k of a step) and kColumnRegisters that these take; and tile.h kFetchedRows: tiles of so many rows
// and more fetch W ahead, and kNearLevel: into which level of its cache a tile of all rows does, 0: as the others.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

template <DType W>
struct RowsMma {
  static constexpr int kRows = 1;
  static constexpr int kQuantum = W == DType::f32 ? 1 : 2;
  static constexpr int kStepBytes = kPanel * kQuantum * dtype_bytes(W);  // of a panel
  static constexpr Form kForm = Form::f32_rows;
  static constexpr int kUnits = kTileUnits;
  static constexpr int panels(int units) { return tile_panels(units); }
  using Sums = F16;

  static Sums none() { return zero(); }
  static void store(Sums sums, float* out, int64_t) { forearm::store(out, sums); }

  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    step_k<0>(sums, a, unit_bytes, w, panel_bytes);
    if constexpr (kQuantum == 2) {
      // The second k reads W again, from the first-level cache: held in registers it would not leave room for the sums.
      __asm__("" : "+r"(w));
      step_k<1>(sums, a, unit_bytes, w, panel_bytes);
    }
  }

 private:
  // Registers hold whichever takes fewer: the factors of all rows beside one panel, or the columns of all panels beside
  // one factor.
  template <int I, int Units, int Panels>
  static void step_k(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w,
                     int64_t panel_bytes) {
    if constexpr (Units + kColumnRegisters <= Panels * kColumnRegisters + 1) {
      Factor factors[Units];
      UNROLLED_FOR (u, Units) factors[u] = factor<I>(a + u * unit_bytes);
      UNROLLED_FOR (p, Panels) {
        const F16 b = columns<W, I>(w + p * panel_bytes);
        UNROLLED_FOR (u, Units) sums[u][p] = multiply_add(factors[u], b, sums[u][p]);
      }
    } else {
      F16 b[Panels];
      UNROLLED_FOR (p, Panels) b[p] = columns<W, I>(w + p * panel_bytes);
      UNROLLED_FOR (u, Units) {
        const Factor row = factor<I>(a + u * unit_bytes);
        UNROLLED_FOR (p, Panels) sums[u][p] = multiply_add(row, b[p], sums[u][p]);
      }
    }
  }

  template <int I>
  static Factor factor(const char* row) {
    return load_factor(reinterpret_cast<const float*>(row) + I);
  }
};

}  // namespace
}  // namespace forearm
