// The peak of this CPU with this tier's instructions: what bench/engine.py and `forearm doctor` compare with.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/gemm_amx.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// Four streams side by side, as a matrix product reads its panels: one alone leaves prefetchers idle.
inline float read_all(const void* data, int64_t bytes) {
  constexpr int kStreams = 4;
  const int64_t floats = bytes / 4 / kStreams;
  const float* p = static_cast<const float*>(data);
  F16 sums[kStreams] = {zero(), zero(), zero(), zero()};
  for (int64_t i = 0; i < floats; i += 16) {
    UNROLLED_FOR (s, kStreams) sums[s] = max(sums[s], load(p + s * floats + i));
  }
  return reduce_max(max(max(sums[0], sums[1]), max(sums[2], sums[3])));
}

// Uses as many sums as the largest tile keeps in registers, so that none is waited for.
inline float fma_rounds(int64_t rounds, int64_t* operations) {
  using Tile = Mma<DType::f32>;
  constexpr int kSums = Tile::kUnits * Tile::panels(Tile::kUnits);
  F16 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = zero();
  const F16 a = broadcast(0.5f), b = iota();
  for (int64_t r = 0; r < rounds; ++r) {
    UNROLLED_FOR (i, kSums) sums[i] = fma(sums[i], a, b);
  }
  *operations += rounds * kSums * 16 * 2;
  F16 all = zero();
  for (int i = 0; i < kSums; ++i) all = add(all, sums[i]);
  return reduce_add(all);
}

// The same with the instruction of a tile that multiplies another form.
template <typename Tile>
inline float tile_rounds(int64_t rounds, int64_t* operations) {
  constexpr int kSums = Tile::kUnits * Tile::panels(Tile::kUnits);
  typename Tile::Sums sums[kSums];
  UNROLLED_FOR (i, kSums) sums[i] = Tile::none();
  for (int64_t r = 0; r < rounds; ++r) {
    UNROLLED_FOR (i, kSums) Tile::multiply_ones(sums[i]);
  }
  *operations += rounds * kSums * Tile::kRows * Tile::kQuantum * kPanel * 2;
  float total = 0;
  UNROLLED_FOR (i, kSums) {
    float out[Tile::kRows * kPanel];
    Tile::store(sums[i], out, kPanel);
    total += out[0];
  }
  return total;
}

// The same for int8. A tier without multiply_ones reads its operands from the first-level cache.
template <typename Tile>
inline float int8_rounds(int64_t rounds, int64_t* operations) {
  constexpr int kUnits = Tile::kUnits, kPanels = Tile::panels(kUnits);
  constexpr bool kInRegisters = requires(typename Tile::Sums s) { Tile::multiply_ones(s); };
  const int32_t none[2] = {};
  typename Tile::Sums sums[kUnits][kPanels];
  UNROLLED_FOR (i, kUnits * kPanels) sums[i / kPanels][i % kPanels] = Tile::start(none, 0);
  alignas(64) char operand[(kUnits * Tile::kRows + kPanels) * 512] = {};
  for (int64_t r = 0; r < rounds; ++r) {
    if constexpr (kInRegisters) {
      UNROLLED_FOR (i, kUnits * kPanels) Tile::multiply_ones(sums[i / kPanels][i % kPanels]);
    } else {
      __asm__ volatile("" : : "r"(operand) : "memory");
      Tile::step(sums, operand, 64, operand, Tile::kStepBytes);
    }
  }
  *operations += rounds * kUnits * kPanels * Tile::kRows * (kInRegisters ? Tile::kQuantum : Tile::kStepK) * kPanel * 2;
  const float one[2] = {1.0f, 1.0f};
  float total[Tile::kRows * kPanel] = {};
  UNROLLED_FOR (i, kUnits * kPanels) {
    Tile::fold(sums[i / kPanels][i % kPanels], one, 0, Tile::scales(broadcast(1.0f)), total);
  }
  return total[0];
}

// The same for AMX: four products of tile registers, kStepK k each.
template <typename Mma, int64_t kStepK>
inline float amx_rounds(int64_t rounds, int64_t* operations) {
  const typename Mma::Tiles tiles(kTileRows, true);
  alignas(64) float sums[kTileRows * kPanel] = {};
  for (int64_t r = 0; r < rounds; ++r) {
    Mma::template add_tile<0, 4, 6>();
    Mma::template add_tile<1, 4, 7>();
    Mma::template add_tile<2, 5, 6>();
    Mma::template add_tile<3, 5, 7>();
  }
  *operations += rounds * 4 * kTileRows * kPanel * kStepK * 2;
  Mma::Tiles::template store<0>(sums, kPanel * 4);
  return sums[0];
}

// The same for a tile of f16_scaled by a block that is in the first-level cache.
inline float f16_scaled_rounds(int64_t rounds, int64_t* operations) {
  alignas(64) uint16_t operand[kScaledBlock * kPanel] = {};
  float sums[F16Scaled::kRows * kPanel] = {};
  const uint16_t* const rows[F16Scaled::kRows] = {operand, operand, operand, operand};
  for (int64_t r = 0; r < rounds; ++r) {
    __asm__ volatile("" : : "r"(operand) : "memory");
    F16Scaled::add_blocks<F16Scaled::kRows>(rows, operand, 1, sums, kPanel);
  }
  *operations += rounds * F16Scaled::kRows * kScaledBlock * kPanel * 2;
  return sums[0];
}

inline float multiply_rounds(Form form, int64_t rounds, int64_t* operations) {
  if (form == Form::f16_scaled) return f16_scaled_rounds(rounds, operations);
  using Bytes = IntMma<CodePacking::bytes>;
  using Bf16 = Mma<DType::bf16>;
  if constexpr (kHasTiles<Bytes>) {
    if (is_quantized(form)) return amx_rounds<Bytes, kTileStep>(rounds, operations);
  }
  if constexpr (kHasTiles<Bf16>) {
    if (form == Bf16::kForm) return amx_rounds<Bf16, kTileHalves>(rounds, operations);
  }
  if (is_quantized(form)) return int8_rounds<Bytes>(rounds, operations);
  if constexpr (Bf16::kForm != Form::f32_rows) {
    if (form == Bf16::kForm) return tile_rounds<Bf16>(rounds, operations);
  }
  return fma_rounds(rounds, operations);
}

}  // namespace
}  // namespace forearm
