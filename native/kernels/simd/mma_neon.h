// Tiles of the tiers neon and neon_dot.
#pragma once
#include "kernels/simd/mma_neon_rows.h"

namespace forearm {
namespace {
template <DType W>
struct Mma : HalvesMma<W> {};
template <>
struct Mma<DType::f32> : ElementsMma {};
constexpr DType kWide = DType::f32;  // what codes are widened to

}  // namespace
}  // namespace forearm
