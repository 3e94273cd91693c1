// out = epilogue(A W^T): the tiles of mma_<isa>.h walked over a slice.
//
// A tile keeps all of its sums in registers over the whole of k, so that an output element is one chain of additions,
// whatever tile it falls into. Tiles walk down the rows of A first: the panels they multiply with stay in the
// second-level cache (two of 16 columns by 1536 k in bf16: 96 KiB), and W is read from memory once.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/borrow.h"
#include "kernels/ops/gemm/epilogue.h"
#include "kernels/ops/gemm/gemm_bf16_amx.h"
#include "kernels/ops/gemm/gemm_dequant.h"
#include "kernels/ops/gemm/gemm_f16_scaled.h"
#include "kernels/ops/gemm/gemm_int8.h"
#include "kernels/ops/gemm/gemm_int8_amx.h"
#include "kernels/ops/gemm/tile.h"
#include "kernels/ops/with_dtype.h"

namespace forearm {
namespace {

template <typename Mma>
inline void gemm_float(const GemmTask& task) {
  const TileRows cut = cut_rows<Mma>(task.row_begin, task.row_end, task.epilogue);
  Walk walk;
  walk.steps = (task.w.k + Mma::kQuantum - 1) / Mma::kQuantum;
  walk.unit_bytes = task.a.stride * Mma::kRows * (Mma::kForm == Form::f32_rows ? 4 : 2);
  walk.panel_bytes = walk.steps * Mma::kStepBytes;
  const int64_t end = (task.n_end + kPanel - 1) / kPanel;
  for (int64_t panel = task.n_begin / kPanel; panel < end; panel += cut.panels) {
    const int64_t panels = end - panel < cut.panels ? end - panel : cut.panels;
    walk.w = static_cast<const char*>(task.w.data) + panel * walk.panel_bytes;
    for (int64_t tile = 0; tile < cut.tiles; ++tile) {
      const int64_t unit = cut.begin(tile), unit_end = cut.begin(tile + 1);
      alignas(64) float sums[kTileFloats];
      walk.a = static_cast<const char*>(task.a.data) + unit * walk.unit_bytes;
      walk.part = {tile, cut.tiles};
      tile_product<Mma>(walk, unit_end - unit, panels, sums, panels * kPanel);
      finish(task, {sums, unit * Mma::kRows, unit_end * Mma::kRows, panel, panels});
    }
  }
}

template <DType W>
inline void gemm_by(const GemmTask& task) {
  if constexpr (kBorrowsWeights<W>) {
    kWeightsLender<W>->gemm(task);
  } else if constexpr (W == DType::f16_scaled) {
    gemm_f16_scaled(task);
  } else if constexpr (is_fp8(W)) {
    gemm_dequant<W>(task);
  } else if constexpr (kHasTiles<Mma<W>>) {
    gemm_bf16_amx<Mma<W>>(task);
  } else {
    if (!gemm_halves_as_f32<W>(task)) gemm_float<Mma<W>>(task);
  }
}

inline void gemm(const GemmTask& task) {
  if (task.row_begin >= task.row_end || task.n_begin >= task.n_end) return;
  if (is_integer(task.w.dtype)) return gemm_quantized(task);
  with_dtype(task.w.dtype, [&task]<DType W>() {
    if constexpr (!is_integer(W)) gemm_by<W>(task);
  });
}

inline int64_t gemm_scratch_bytes(int64_t k) {
  const int64_t quantized = int8_scratch_bytes(k);
  return quantized > kDequantScratchBytes ? quantized : kDequantScratchBytes;
}

template <typename Mma>
constexpr Layout layout_of() {
  return {Mma::kQuantum, Mma::kForm};
}
constexpr Layout mma_layout(DType dtype) {
  using Bytes = IntMma<CodePacking::bytes>;
  if (packing_of(dtype) == CodePacking::e2m1) return {Bytes::kQuantum, Bytes::kForm};
  if (has_six_bits(dtype)) return {Bytes::kQuantum, Bytes::kForm, kSixBitBias};
  if (is_integer(dtype)) return {Bytes::kQuantum, Bytes::kForm, has_nibbles(dtype) ? Bytes::kNibbleBias : Bytes::kBias};
  switch (dtype) {
    case DType::f32:
      return layout_of<Mma<DType::f32>>();
    case DType::f16:
      return layout_of<Mma<DType::f16>>();
    case DType::bf16:
      return layout_of<Mma<DType::bf16>>();
    case DType::f16_scaled:
      return {1, Form::f16_scaled};
    default:
      return layout_of<Mma<kWide>>();
  }
}

}  // namespace
}  // namespace forearm
