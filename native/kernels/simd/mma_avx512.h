// Tiles of the AVX-512 tier.
#pragma once
#include "kernels/simd/mma_avx512_rows.h"

namespace forearm {
namespace {
template <DType W>
using Mma = RowsMma<W>;
constexpr DType kWide = DType::f32;  // what codes are widened to

}  // namespace
}  // namespace forearm
