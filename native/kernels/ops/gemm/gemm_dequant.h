// fp8: strips of W are dequantized to `wide` in the scratch and multiplied as a matrix of that dtype is.
//
// A strip is as long as keeps it in the first-level cache; the sums of up to kStripRows rows go on from strip to strip,
// so that each is the same chain of additions as without strips and widening is shared by many rows.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/attention/kv_quantized.h"
#include "kernels/ops/gemm/epilogue.h"
#include "kernels/ops/gemm/gemm_amx.h"
#include "kernels/ops/gemm/scales.h"
#include "kernels/ops/gemm/tile.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

constexpr int64_t kStripBytes = 16 << 10;
constexpr int64_t kStripRows = 96;
constexpr int64_t kDequantScratchBytes = kStripBytes + kStripRows * 2 * kPanel * 4 + kTileFloats * 4;

constexpr int64_t kQuantumBytes = kPanel * Mma<kWide>::kQuantum * dtype_bytes(kWide);  // bytes of a quantum, widened
constexpr int64_t kNextStrip = 1024;

// fp8 is packed in the order of the wide dtype: 16 codes at a time in that order, each times the scale of its column.
template <DType D, typename Wide = Mma<kWide>>
inline char* dequantize_fp8(const char* codes, int64_t k, int64_t end, F16 s, char* to) {
  constexpr int kQuantum = Mma<kWide>::kQuantum;
  float of_column[16], of_element[kQuantum * 16];
  store(of_column, s);
  for (int i = 0; i < kQuantum * 16; ++i) of_element[i] = of_column[i / kQuantum];
  for (; k < end; k += kQuantum, to += kQuantumBytes) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(codes) + k * kPanel;
    __builtin_prefetch(bytes + kNextStrip);
    F16 wide[kQuantum];
    UNROLLED_FOR (q, kQuantum) wide[q] = fma(load(of_element + q * 16), load_code<D>(bytes + q * 16), zero());
    if constexpr (requires { Wide::kStoresPairs; }) {
      Wide::store_both(wide[0], wide[1], to);
      continue;
    }
    UNROLLED_FOR (q, kQuantum) {
      auto* out = reinterpret_cast<uint16_t*>(to) + q * 16;
      if constexpr (kWide == DType::f32) store(reinterpret_cast<float*>(to), wide[0]);
      if constexpr (kWide == DType::f16) store_f16(out, wide[q]);
      if constexpr (kWide == DType::bf16) store_bf16(out, wide[q]);
    }
  }
  return to;
}

// k [begin, end) of a panel; begin is a multiple of 16, end another or k rounded up to the wide quantum.
template <DType D>
inline void dequantize_panel(const PackedWeights& w, int64_t panel, int64_t begin, int64_t end, char* to) {
  const char* codes = static_cast<const char*>(w.data) + panel * packed_bytes(D, kPanel, w.k, Mma<kWide>::kQuantum);
  const int64_t groups = groups_of(w.k, w.group);
  for (int64_t k = begin; k < end;) {
    const int64_t group = k / w.group;
    const int64_t group_end = (group + 1) * w.group < end ? (group + 1) * w.group : end;
    to = dequantize_fp8<D>(codes, k, group_end, load_scales(w, (panel * groups + group) * kPanel), to);
    k = group_end;
  }
}

// Widens a matrix of 16-bit floats to float32: two k a step.
template <DType D>
inline void widen_halves(const PackedWeights& w, int64_t panel, int64_t begin, int64_t end, char* to) {
  const char* step = static_cast<const char*>(w.data) + panel * packed_bytes(D, kPanel, w.k, 2) + begin * 32;
  auto* out = reinterpret_cast<float*>(to);
  for (int64_t k = begin; k < end; k += 2, step += 64, out += 32) {
    store(out, columns<D, 0>(step));
    if (k + 1 < end) store(out + 16, columns<D, 1>(step));
  }
}

constexpr bool is_half(DType d) { return d == DType::f16 || d == DType::bf16; }
// The dtype that a matrix is dequantized to; 16-bit floats become float32, as their operand is.
template <DType D>
constexpr DType kDequantized = is_half(D) ? DType::f32 : kWide;

// Strips are in the first-level cache, where several panels are read as fast as one, and several sums wait less for
// each other.
template <DType W>
struct NotStreamed : Mma<W> {
  static constexpr int kStreamedUnits = 0;
};
template <DType W, bool kStreams = requires { Mma<W>::kStreamedUnits; }>
struct Strip {
  using type = Mma<W>;
};
template <DType W>
struct Strip<W, true> {
  using type = NotStreamed<W>;
};
constexpr int64_t kFewRows = 4, kFewPanels = 4;  // few rows: as many panels as the hardware fetches side by side

// Panels of W and rows of A whose sums are finished together; the strip holds dequantized weights.
struct DequantBlock {
  TileRows cut;
  int64_t panel, panels;
  char* strip;
  float* sums;  // [rows][panels * 16]
};

// k [k, end) of the block's panels, one after the other `apart` bytes.
template <DType D>
inline void dequantize_strip(const GemmTask& task, const DequantBlock& block, int64_t k, int64_t end, int64_t apart) {
  for (int64_t p = 0; p < block.panels; ++p) {
    if constexpr (is_half(D)) {
      widen_halves<D>(task.w, block.panel + p, k, end, block.strip + p * apart);
    } else {
      dequantize_panel<D>(task.w, block.panel + p, k, end, block.strip + p * apart);
    }
  }
}

template <DType D>
inline void add_block_products(const GemmTask& task, const DequantBlock& block) {
  using Wide = Mma<kDequantized<D>>;
  constexpr int64_t kElement = dtype_bytes(kDequantized<D>);
  const int64_t padded = (task.w.k + Wide::kQuantum - 1) / Wide::kQuantum * Wide::kQuantum;
  const int64_t length = kStripBytes / (block.panels * kPanel * kElement) / 16 * 16;
  Walk walk;
  walk.w = block.strip;
  walk.unit_bytes = task.a.stride * Wide::kRows * kElement;
  for (int64_t k = 0; k < padded; k += length) {
    const int64_t end = k + length < padded ? k + length : padded;
    walk.panel_bytes = (end - k) * kPanel * kElement;
    walk.steps = (end - k) / Wide::kQuantum;
    walk.resume = k > 0;
    dequantize_strip<D>(task, block, k, end, walk.panel_bytes);
    for (int64_t tile = 0; tile < block.cut.tiles; ++tile) {
      const int64_t unit = block.cut.begin(tile), units = block.cut.begin(tile + 1) - unit;
      walk.a = static_cast<const char*>(task.a.data) + unit * walk.unit_bytes + k * Wide::kRows * kElement;
      float* sums = block.sums + (unit - block.cut.first_unit) * Wide::kRows * block.panels * kPanel;
      tile_product<typename Strip<kDequantized<D>>::type>(walk, units, block.panels, sums, block.panels * kPanel);
    }
  }
  const int64_t first = block.cut.first_unit * Wide::kRows;
  finish(task, {block.sums, first, first + block.cut.units * Wide::kRows, block.panel, block.panels});
}

// The sums of some of the block's rows go on with one strip, by AMX tiles.
template <typename Wide>
inline void accumulate_strip_amx(const GemmTask& task, const DequantBlock& block, const RowPairs& pairs, int64_t k,
                                 int64_t end) {
  if (pairs.rows == 0) return;
  const int64_t stride = task.a.stride * 2, steps = (end - k) / kTileHalves;
  const typename Wide::Tiles tiles(static_cast<int>(pairs.height()), pairs.tiles() > 1);
  for (int64_t pair = 0; pair < pairs.count(); ++pair) {
    const RowPair rows = pairs[pair];
    const char* a = static_cast<const char*>(task.a.data) + rows.begin * stride + k * 2;
    float* sums = block.sums + (rows.begin - block.cut.first_unit) * block.panels * kPanel;
    with_shape(rows.is_two(), block.panels, [&]<bool kTwo, int Panels>() {
      accumulate_amx<Wide, kTwo, Panels>({a, stride, rows.second - rows.begin}, steps, sums, k > 0,
                                         packed_tiles(block.strip, steps * kTileBytes), [] {});
    });
  }
}

// The same by AMX tiles, k being of whole steps. The last rows go by tiles of their own height: one that began earlier
// would add a strip twice.
template <DType D>
inline void add_block_products_amx(const GemmTask& task, const DequantBlock& block) {
  using Wide = Mma<kDequantized<D>>;
  constexpr int64_t kLength = kStripBytes / (2 * kPanel * 2);
  const int64_t first = block.cut.first_unit, whole = block.cut.units / kTileRows * kTileRows;
  for (int64_t k = 0; k < task.w.k; k += kLength) {
    const int64_t end = k + kLength < task.w.k ? k + kLength : task.w.k;
    dequantize_strip<D>(task, block, k, end, (end - k) * kPanel * 2);
    accumulate_strip_amx<Wide>(task, block, {first, whole}, k, end);
    accumulate_strip_amx<Wide>(task, block, {first + whole, block.cut.units - whole}, k, end);
  }
  finish(task, {block.sums, first, first + block.cut.units, block.panel, block.panels});
}

template <DType D>
inline void gemm_dequant_from(const GemmTask& task) {
  using Wide = Mma<kDequantized<D>>;
  char* scratch = static_cast<char*>(task.scratch);
  const int64_t end = (task.n_end + kPanel - 1) / kPanel;
  const int64_t fits = cut_rows<Wide>(task.row_begin, task.row_end, task.epilogue).panels;
  int64_t most = task.row_end - task.row_begin <= kFewRows && fits > kFewPanels ? kFewPanels : fits;
  if (kHasTiles<Wide>) most = 2;
  for (int64_t panel = task.n_begin / kPanel; panel < end; panel += most) {
    const int64_t panels = end - panel < most ? end - panel : most;
    for (int64_t row = task.row_begin; row < task.row_end;) {
      const int64_t block_end = row / kStripRows * kStripRows + kStripRows;
      const int64_t row_end = block_end < task.row_end ? block_end : task.row_end;
      const TileRows cut = cut_rows<Wide>(row, row_end, task.epilogue);
      const DequantBlock block = {cut, panel, panels, scratch, reinterpret_cast<float*>(scratch + kStripBytes)};
      if constexpr (kHasTiles<Wide>) {
        add_block_products_amx<D>(task, block);
      } else {
        add_block_products<D>(task, block);
      }
      row = row_end;
    }
  }
}

// Returns whether it multiplied 16-bit floats as float32: where at least Mma::kWidenedRows rows make widening once pay.
// The scratch is its own, because a float matrix gets none from the caller.
template <DType D>
inline bool gemm_halves_as_f32(const GemmTask& task) {
  if constexpr (requires { Mma<D>::kWidenedRows; }) {
    if (task.row_end - task.row_begin < Mma<D>::kWidenedRows) return false;
    alignas(64) char scratch[kDequantScratchBytes];
    GemmTask widened = task;
    widened.scratch = scratch;
    gemm_dequant_from<D>(widened);
    return true;
  }
  return false;
}

template <DType D>
inline void gemm_dequant(const GemmTask& task) {
  using Wide = Mma<kDequantized<D>>;
  if constexpr (kHasTiles<Wide>) {
    if (task.w.k % kTileHalves != 0) return Wide::kWithoutTiles.gemm(task);
  }
  gemm_dequant_from<D>(task);
}

}  // namespace
}  // namespace forearm
