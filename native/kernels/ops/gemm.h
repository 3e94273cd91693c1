// out = epilogue(A W^T): the tiles of mma_<isa>.h walked over a slice.
//
// A tile keeps all of its sums in registers over the whole of k, so that an output element is one chain of additions,
// whatever tile it falls into. Tiles walk down the rows of A first: the panels they multiply with stay in the
// second-level cache (two of 16 columns by 1536 k in bf16: 96 KiB), and W is read from memory once.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/epilogue.h"

namespace forearm {
namespace {

// What one thread multiplies, in bytes and units of the Mma.
struct Walk {
  const char* a;  // first unit of A
  int64_t unit_bytes;
  const char* w;  // first panel of W
  int64_t panel_bytes;
  int64_t steps;  // along k
};

// Tiles of many rows spend so long on a line of W that the hardware does not fetch far enough ahead: 1 KiB made 512
// rows of bf16 in AVX2 go from 76 to 95 % of the peak, 12 rows from 54 to 86 % (bench/kernels.cpp, Zen 4). Tiles of few
// rows, which the memory bounds, lose by it.
template <int Panels, int64_t kStepBytes>
inline void fetch_ahead(const char* w, int64_t panel_bytes) {
#pragma GCC unroll 8
  for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 2
    for (int64_t line = 0; line < kStepBytes; line += 64) __builtin_prefetch(w + p * panel_bytes + 1024 + line);
  }
}

// A function of its own: inlined wherever tiles are multiplied it would be there many times.
template <typename Mma, int Units, int Panels>
__attribute__((noinline)) void multiply_tile(const Walk& walk, float* sums, int64_t stride) {
  typename Mma::Sums acc[Units][Panels];
#pragma GCC unroll 16
  for (int u = 0; u < Units; ++u)
#pragma GCC unroll 16
    for (int p = 0; p < Panels; ++p) acc[u][p] = Mma::none();

  constexpr int64_t kStepA = Mma::kQuantum * Mma::kRows * (Mma::kForm == Form::f32_rows ? 4 : 2);
  constexpr int64_t kStepW = Mma::kStepBytes;
  const char* a = walk.a;
  const char* w = walk.w;
#pragma GCC unroll 2
  for (int64_t s = 0; s < walk.steps; ++s, a += kStepA, w += kStepW) {
    if constexpr (Units * Mma::kRows >= 4) fetch_ahead<Panels, kStepW>(w, walk.panel_bytes);
    Mma::step(acc, a, walk.unit_bytes, w, walk.panel_bytes);
  }

#pragma GCC unroll 16
  for (int u = 0; u < Units; ++u)
#pragma GCC unroll 16
    for (int p = 0; p < Panels; ++p) Mma::store(acc[u][p], sums + u * Mma::kRows * stride + p * kPanel, stride);
}

// `panels` panels side by side, as many at once as registers hold, then one by one.
template <typename Mma, int Units, int Panels>
inline void multiply_panels(Walk walk, int64_t panels, float* sums, int64_t stride) {
  for (; panels >= Panels; panels -= Panels, sums += Panels * kPanel, walk.w += Panels * walk.panel_bytes) {
    multiply_tile<Mma, Units, Panels>(walk, sums, stride);
  }
  if constexpr (Panels > 1) {
    if (panels > 0) multiply_panels<Mma, Units, 1>(walk, panels, sums, stride);
  }
}

template <typename Mma, int Units = Mma::kUnits>
inline void multiply_units(const Walk& walk, int64_t units, int64_t panels, float* sums, int64_t stride) {
  if constexpr (Units > 1) {
    if (units < Units) return multiply_units<Mma, Units - 1>(walk, units, panels, sums, stride);
  }
  multiply_panels<Mma, Units, Mma::panels(Units)>(walk, panels, sums, stride);
}

template <typename Mma>
inline void multiply(const GemmTask& task) {
  const int64_t first_unit = task.row_begin / Mma::kRows;
  const int64_t units = (task.row_end + Mma::kRows - 1) / Mma::kRows - first_unit;
  const int64_t row_tiles = (units + Mma::kUnits - 1) / Mma::kUnits;
  const int64_t tallest = (units + row_tiles - 1) / row_tiles;
  int64_t group = Mma::panels(static_cast<int>(tallest));  // panels whose sums are finished together
  if (task.epilogue == Epilogue::gated) group = group < 2 ? 2 : group / 2 * 2;

  Walk walk;
  walk.steps = (task.w.k + Mma::kQuantum - 1) / Mma::kQuantum;
  walk.unit_bytes = task.a.stride * Mma::kRows * (Mma::kForm == Form::f32_rows ? 4 : 2);
  walk.panel_bytes = walk.steps * Mma::kStepBytes;
  const int64_t end = (task.n_end + kPanel - 1) / kPanel;
  for (int64_t panel = task.n_begin / kPanel; panel < end; panel += group) {
    const int64_t panels = end - panel < group ? end - panel : group;
    walk.w = static_cast<const char*>(task.w.data) + panel * walk.panel_bytes;
    for (int64_t tile = 0; tile < row_tiles; ++tile) {
      const int64_t unit = units * tile / row_tiles, unit_end = units * (tile + 1) / row_tiles;
      alignas(64) float sums[kTileFloats];
      walk.a = static_cast<const char*>(task.a.data) + (first_unit + unit) * walk.unit_bytes;
      multiply_units<Mma>(walk, unit_end - unit, panels, sums, panels * kPanel);
      finish(task, {sums, (first_unit + unit) * Mma::kRows, (first_unit + unit_end) * Mma::kRows, panel, panels});
    }
  }
}

inline void gemm(const GemmTask& task) {
  if (task.row_begin >= task.row_end || task.n_begin >= task.n_end) return;
  switch (task.w.dtype) {
    case DType::f32:
      return multiply<Mma<DType::f32>>(task);
    case DType::f16:
      return multiply<Mma<DType::f16>>(task);
    case DType::bf16:
      return multiply<Mma<DType::bf16>>(task);
    default:
      __builtin_unreachable();  // codes: not yet
  }
}

constexpr Layout mma_layout(DType dtype) {
  if (dtype == DType::f32) return {Mma<DType::f32>::kQuantum, Mma<DType::f32>::kForm};
  if (!is_float(dtype)) return {0, Form::f32_rows};
  if (dtype == DType::f16) return {Mma<DType::f16>::kQuantum, Mma<DType::f16>::kForm};
  return {Mma<DType::bf16>::kQuantum, Mma<DType::bf16>::kForm};
}

}  // namespace
}  // namespace forearm
