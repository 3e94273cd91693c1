// Tiles of the scalar tier.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/scalar/vec_scalar.h"

namespace forearm {
namespace {

using Factor = float;
inline Factor load_factor(const float* a) { return *a; }
inline F16 multiply_add(Factor a, F16 b, F16 sums) { return fma(broadcast(a), b, sums); }

template <DType W, int I>
inline F16 columns(const char* step) {
  return each_lane([&](int lane) {
    if constexpr (W == DType::f32) return reinterpret_cast<const float*>(step)[lane];
    const uint16_t value = reinterpret_cast<const uint16_t*>(step)[lane * 2 + I];
    return W == DType::bf16 ? widen_bf16(value) : widen_f16(value);
  });
}

constexpr int kColumnRegisters = 16;
constexpr int kTileUnits = 4;
constexpr int tile_panels(int) { return 1; }
constexpr int kFetchedRows = 4;
constexpr int kNearLevel = 0;

}  // namespace
}  // namespace forearm

#include "kernels/simd/mma_rows.h"

namespace forearm {
namespace {
template <DType W>
using Mma = RowsMma<W>;
constexpr DType kWide = DType::f32;  // what codes are widened to

}  // namespace
}  // namespace forearm
