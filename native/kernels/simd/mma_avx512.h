// Tiles of the AVX-512 tier.
#pragma once
#include "kernels/simd/mma_avx512_rows.h"

namespace forearm {
namespace {
template <DType W>
using Mma = RowsMma<W>;
}  // namespace
}  // namespace forearm
