// Tiles of AVX512_BF16; f16 and f32 as in avx512.
#pragma once
#include "kernels/simd/x86/mma_avx512_dot.h"

namespace forearm {
namespace {

// Prefetching W from 3 rows on: 3 rows of int4 went from 62-83 to 93-96 % of the limit (three shapes, Zen 4); 2 rows of
// int8 would lose 4 to 10 points. Tiles of int4 that take one panel after another fetch W anyway (tile.h, kStreamed).
constexpr int kFetchedRows = 3;
// Prefetching into the second-level cache. Into the first level 8 and 12 rows of bf16 reach 85-88 and 76-80 % instead
// of 94-97 and 89-94, of int8 89 and 70-81 instead of 90-97 and 84-92, 4 rows of int4 81-94 instead of 94-97; 10 or 16
// KiB ahead rather than 6, 4 rows lose 4 to 8 points (Zen 4). Zen 5 was measured with the first level alone: 8 rows of
// int4 reach 84-90 % with these prefetches and 80 without.
constexpr int kNearLevel = 2;

template <DType W>
struct Mma : RowsMma<W> {};
template <>
struct Mma<DType::bf16> : DotMma<DType::bf16> {};
template <DType W>
  requires(dtype_bits(W) == 8)
struct Mma<W> : WeightOnlyMma<W> {};

}  // namespace
}  // namespace forearm
