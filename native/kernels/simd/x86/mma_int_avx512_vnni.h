// Integer products by VPDPBUSD for any number of rows.
#pragma once
#include "kernels/simd/x86/mma_int_avx512_dot.h"

namespace forearm {
namespace {

template <CodePacking kFormat>
struct IntMma : DotIntMma<kFormat> {};

}  // namespace
}  // namespace forearm
