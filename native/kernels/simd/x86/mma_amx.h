// bf16, and therefore attention, by TDPBF16PS for any number of rows; f16 and f32 as in avx512.
#pragma once
#include "kernels/simd/x86/mma_avx512_dot.h"
#include "kernels/simd/x86/tiles_amx.h"

namespace forearm {
extern const Kernels avx512_bf16_tier;
namespace {

constexpr int kFetchedRows = 1;  // as avx512 has it
constexpr int kNearLevel = 1;

// A k that is no multiple of 32 is multiplied by VDPBF16PS from the first k on.
struct TileMma : DotMma<DType::bf16> {
  using Tiles = TileRegisters;
  static constexpr const Kernels& kWithoutTiles = avx512_bf16_tier;

  template <int kSums, int kA, int kW>
  static void add_tile() {
    Tiles::add_halves<kSums, kA, kW>();
  }
};

template <DType W>
struct Mma : RowsMma<W> {};
template <>
struct Mma<DType::bf16> : TileMma {};
template <DType W>
  requires(dtype_bits(W) == 8)
struct Mma<W> : WeightOnlyMma<W> {};

}  // namespace
}  // namespace forearm
