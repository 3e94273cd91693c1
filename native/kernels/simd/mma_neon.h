// Tiles of the tiers neon and neon_dot.
#pragma once
#include "kernels/simd/mma_neon_rows.h"

namespace forearm {
namespace {
template <DType W>
using Mma = RowsMma<W>;
}  // namespace
}  // namespace forearm
