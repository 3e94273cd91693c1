// Tiles of the AVX-512 tier.
#pragma once
#include "kernels/simd/x86/mma_avx512_rows.h"

namespace forearm {
namespace {
template <DType W>
using Mma = RowsMma<W>;
// Sapphire Rapids' prefetchers do not reach the read bandwidth even for one row. With prefetches of our own bf16 goes
// from 88 to 97 % of it, int8 from 84-92 to 100 %, int4 from 62 to 92 % (avx512_vnni, two cores, 8 panels at once,
// bench/kernels/kernels.cpp).
constexpr int kFetchedRows = 1;
constexpr int kNearLevel = 1;
constexpr DType kWide = DType::f32;  // what codes are widened to

}  // namespace
}  // namespace forearm
