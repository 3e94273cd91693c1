// Integer matrix products, exact in int32: what a tier's mma_int_<isa>.h has.
//
// An IntMma<packing> gives gemm_int8.h the products of tiles of A (an i8 form) and W (quantized). The packing says how
// the codes of W are stored:
//   bytes             as packed: B[..][k / kQuantum][16][kQuantum], a byte is code + kBias
//   nibbles           as packed: a step is two chunks of kQuantum k, in low and high nibbles that are code + kNibbleBias
//   e2m1              as nibbles, but E2M1's bits: step looks the codes up (kE2m1Codes)
//   unpacked_nibbles  what unpack() makes of nibbles or e2m1: one code a byte in the order of bytes, code + kNibbleBias
//                     (or any other order, and any multiple of the code that fold() undoes exactly)
// Its members:
//   kRows, kQuantum, kForm  rows that go together (a unit: 1 of i8_rows, 2 of i8_pairs), the layout's quantum, A's form
//   kStepK, kStepBytes      k of a step, and the bytes of one panel that it takes
//   kUnits, panels(units)   the most units of a tile, and how many panels that many units take
//   kInPlace                (optional, of nibbles and e2m1) tiles take them as packed however many rows there are: none
//   is
//                           unpacked
//   kFetchesOut             (optional) tiles of several rows prefetch the lines that they will write; not measured on
//                           Arm, and absent there
//   kLongStep               (optional) a step is so long that steps are added one by one (tile.h)
//   Sums                    int32 sums of a unit by a panel, in registers, in any order (SMMLA: blocks of 2 x 2)
//   start                   the sums before a group's first step: -bias * the sum of the row's codes in the group;
//                           `sums` is that of the unit's first row, `groups` further is the second row's
//   step                    adds kStepK k to Units x Panels
//   Scales, scales          the scales of 16 columns, in the order of Sums
//   row<r>                  the 16 sums of a unit's row r as floats
//   fold                    acc = fma(float(i) * a_scale, s, acc); acc is kRows * 16 floats in the order of Sums,
//                           a_scales as `sums` above
//   fold_offsets            acc = fma(float(a_sum) * a_scale, o, acc)
//   store                   acc as floats, row r of the unit at out + r * stride
// Beside it there is unpack<packing>(nibbles, to, steps) for one panel (not where kInPlace is).
#pragma once
#include <stdint.h>

#include "kernels/kernels.h"

namespace forearm {
namespace {

enum class CodePacking { bytes, nibbles, unpacked_nibbles, e2m1 };
constexpr bool in_nibbles(CodePacking p) { return p == CodePacking::nibbles || p == CodePacking::e2m1; }
constexpr CodePacking packing_of(DType dtype) {
  if (dtype == DType::fp4_e2m1) return CodePacking::e2m1;
  return has_nibbles(dtype) ? CodePacking::nibbles : CodePacking::bytes;
}

// The sum of a row's codes of 16 bits from those of its digits.
inline float sum_of_digits(int32_t high, int32_t low) {
  return static_cast<float>(static_cast<int64_t>(kDigitBase) * high + low);
}

// Named, but never called, where kInPlace is.
template <CodePacking kFormat>
void unpack(const char* nibbles, char* to, int64_t steps);

}  // namespace
}  // namespace forearm
