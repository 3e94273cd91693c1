// Tiles of AVX512_BF16; f16 and f32 as in avx512.
#pragma once
#include "kernels/simd/mma_avx512_dot.h"

namespace forearm {
namespace {

constexpr int kFetchedRows = 4;   // fewer lose by it (Zen 4)
constexpr bool kAsksNear = true;  // 8 rows of int4: 80, 80 and 81 -> 84, 90 and 85 % of the limit (Zen 5, three shapes)

template <DType W>
struct Mma : RowsMma<W> {};
template <>
struct Mma<DType::bf16> : DotMma<DType::bf16> {};
template <>
struct Mma<DType::int8> : CodesMma<DType::int8> {};
template <>
struct Mma<DType::fp8_e4m3> : CodesMma<DType::fp8_e4m3> {};
template <>
struct Mma<DType::fp8_e5m2> : CodesMma<DType::fp8_e5m2> {};

}  // namespace
}  // namespace forearm
