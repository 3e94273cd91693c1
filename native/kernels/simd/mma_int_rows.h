// Plain multiplication of codes for tiers that take rows, four k to a quantum.
#pragma once
#include "kernels/simd/mma_int_scalar.h"

namespace forearm {
namespace {

template <Codes kCodes>
using IntMma = PlainIntMma<kCodes, 1, 4>;
inline void unpack(const char* nibbles, char* to, int64_t steps) { plain_unpack<4>(nibbles, to, steps); }
template <DType D>
inline F16 code_columns(const char* panel, int64_t k) {
  return plain_columns<D, 4>(panel, k);
}

}  // namespace
}  // namespace forearm
