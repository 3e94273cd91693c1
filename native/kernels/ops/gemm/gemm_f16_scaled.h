// f16_scaled by f16_scaled: tiles of the tier's F16Scaled over strips of W, with the scales of rows and columns applied
// at the end.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/epilogue.h"
#include "kernels/ops/gemm/scales.h"

namespace forearm {
namespace {

constexpr int64_t kScaledRows = 96;  // whose sums are finished together
constexpr int64_t kScaledK = 512;    // of a strip: 16 KiB of a panel, in the first-level cache for all these rows

// Sums [rows][stride] of one panel, for rows that stand `a_stride` apart.
struct ScaledPanel {
  const uint16_t* a;
  int64_t a_stride, rows;
  const uint16_t* w;
  float* sums;
  int64_t stride;
};

// Adds a strip of whole blocks. A tile that lacks rows repeats its last one: those sums have memory and are not read.
inline void add_strip(const ScaledPanel& p, int64_t k, const uint16_t* w, int64_t blocks) {
  if (p.rows == 1) {
    const uint16_t* const one[1] = {p.a + k};
    return F16Scaled::add_blocks(one, w, blocks, p.sums, p.stride);
  }
  for (int64_t row = 0; row < p.rows; row += F16Scaled::kRows) {
    const uint16_t* rows[F16Scaled::kRows];
    for (int r = 0; r < F16Scaled::kRows; ++r) {
      const int64_t at = row + r < p.rows ? row + r : p.rows - 1;
      rows[r] = p.a + at * p.a_stride + k;
    }
    F16Scaled::add_blocks<F16Scaled::kRows>(rows, w, blocks, p.sums + row * p.stride, p.stride);
  }
}

inline void accumulate_panel(const ScaledPanel& p, int64_t k_end) {
  const int64_t whole = k_end / kScaledBlock * kScaledBlock;
  for (int64_t k = 0; k < whole; k += kScaledK) {
    const int64_t length = whole - k < kScaledK ? whole - k : kScaledK;
    add_strip(p, k, p.w + k * kPanel, length / kScaledBlock);
  }
  if (whole == k_end) return;
  alignas(64) uint16_t last[kScaledBlock * kPanel] = {};
  __builtin_memcpy(last, p.w + whole * kPanel, static_cast<uint64_t>((k_end - whole) * kPanel) * 2);
  add_strip(p, whole, last, 1);
}

inline void scale_sums(const GemmTask& task, const ScaledPanel& p, int64_t row, int64_t panel) {
  const F16 s = load_scales(task.w, panel * kPanel);
  for (int64_t r = 0; r < p.rows; ++r) {
    float* sums = p.sums + r * p.stride;
    store(sums, mul(mul(load(sums), broadcast(task.a.scales[row + r])), s));
  }
}

inline void gemm_f16_scaled(const GemmTask& task) {
  const int64_t most = task.epilogue == Epilogue::gated ? 2 : 1, k = task.w.k;
  const int64_t end = (task.n_end + kPanel - 1) / kPanel;
  for (int64_t panel = task.n_begin / kPanel; panel < end; panel += most) {
    for (int64_t row = task.row_begin; row < task.row_end; row += kScaledRows) {
      const int64_t rows = task.row_end - row < kScaledRows ? task.row_end - row : kScaledRows;
      alignas(64) float sums[kScaledRows * 2 * kPanel];
      __builtin_memset(sums, 0, static_cast<uint64_t>((rows + 3) / 4 * 4 * most * kPanel) * 4);
      for (int64_t p = 0; p < most; ++p) {
        const auto* w = static_cast<const uint16_t*>(task.w.data) + (panel + p) * kPanel * k;
        const ScaledPanel one = {half_row(task.a, row), task.a.stride, rows, w, sums + p * kPanel, most * kPanel};
        accumulate_panel(one, k);
        scale_sums(task, one, row, panel + p);
      }
      finish(task, {sums, row, row + rows, panel, most});
    }
  }
}

}  // namespace
}  // namespace forearm
