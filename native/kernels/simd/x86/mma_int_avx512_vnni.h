// Codes by VPDPBUSD, however many rows there are.
#pragma once
#include "kernels/simd/x86/mma_int_avx512_dot.h"

namespace forearm {
namespace {

template <Codes kCodes>
struct IntMma : DotIntMma<kCodes> {};

}  // namespace
}  // namespace forearm
