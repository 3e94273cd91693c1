// Epilogues: bias, activation, gating and scaling of a tile of sums while it is in the first-level cache (kernels.h).
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/activation.h"

namespace forearm {
namespace {

constexpr int64_t kTileFloats = 24 * kPanel;

// Sums of rows [row_begin, row_end) by `panels` panels of W from `panel` on; a row is panels * 16 floats. Units of two
// rows may begin before the task's first row and end after its last.
struct SumTile {
  float* sums;
  int64_t row_begin, row_end;
  int64_t panel, panels;
};

// Whether every value of the tile belongs to the task and goes to float32: then no row, column or form is checked one
// by one. This took 512 rows by k 896 from 80 to 85 % of the peak in int8 and from 68 to 72 in int4 (VPDPBUSD on a
// Xeon, bench/kernels/kernels.cpp).
inline bool is_whole(const GemmTask& task, const SumTile& tile) {
  const int64_t end = (tile.panel + tile.panels) * kPanel;
  return task.out.form == Form::f32_rows && tile.row_begin >= task.row_begin && tile.row_end <= task.row_end &&
         end <= task.n_end && end <= task.w.n;
}

// Load and store a panel's row: `count` values, or all 16 of a whole tile.
template <bool kWhole>
inline F16 with_bias(const GemmTask& task, F16 sums, int64_t column, int64_t count) {
  if (!task.bias) return sums;
  return add(sums, kWhole ? load(task.bias + column) : load_first(task.bias + column, count));
}
template <bool kWhole>
inline void store_panel(const Operand& out, int64_t row, int64_t column, F16 value, int64_t count) {
  if constexpr (kWhole) return store(float_row(out, row) + column, value);
  store_operand(out, row, column, value, count);
}

template <bool kWhole, Activation kind>
inline void finish_gated(const GemmTask& task, const float* sums, int64_t row, int64_t column) {
  const int64_t out_column = column / 2, left = task.w.n / 2 - out_column, count = left < kPanel ? left : kPanel;
  const F16 limit = broadcast(task.limit), least = broadcast(-task.limit);
  const F16 scaled = mul(broadcast(task.scale), with_bias<kWhole>(task, load(sums), column, count));
  const F16 gate = min(broadcast(task.gate_limit), scaled);
  const F16 up = max(least, min(limit, with_bias<kWhole>(task, load(sums + kPanel), column + kPanel, count)));
  store_panel<kWhole>(task.out, row, out_column, activate_gated<kind>(gate, up), count);
}

template <bool kWhole, Epilogue epilogue, Activation kind>
inline void finish_panel(const GemmTask& task, const float* sums, int64_t row, int64_t column) {
  if constexpr (epilogue == Epilogue::gated) return finish_gated<kWhole, kind>(task, sums, row, column);
  const int64_t left = task.n_end - column, count = left < kPanel ? left : kPanel;
  const F16 value = with_bias<kWhole>(task, load(sums), column, count);
  const F16 scale = broadcast(task.scale);
  if constexpr (epilogue == Epilogue::store) store_panel<kWhole>(task.out, row, column, mul(scale, value), count);
  if constexpr (epilogue == Epilogue::activate) {
    F16 activated = activate<kind>(value);
    if constexpr (kind == Activation::xielu) activated = xielu(value, *task.xielu);
    store_panel<kWhole>(task.out, row, column, activated, count);
  }
  if constexpr (epilogue == Epilogue::add) {
    float* out = float_row(task.out, row) + column;
    if constexpr (kWhole) return store(out, fma(scale, value, load(out)));
    store_first(out, fma(scale, value, load_first(out, count)), count);
  }
  if constexpr (epilogue == Epilogue::softcap) {
    const F16 inner = tanh(mul(value, broadcast(task.scale / task.softcap)));
    store_panel<kWhole>(task.out, row, column, mul(broadcast(task.softcap), inner), count);
  }
}

template <bool kWhole, Epilogue epilogue, Activation kind>
inline void finish_some(const GemmTask& task, const SumTile& tile) {
  constexpr int64_t kTogether = epilogue == Epilogue::gated ? 2 : 1;  // panels that make one of the output
  for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    if (!kWhole && (row < task.row_begin || row >= task.row_end)) continue;
    const float* sums = tile.sums + (row - tile.row_begin) * tile.panels * kPanel;
    for (int64_t p = 0; p < tile.panels; p += kTogether)
      finish_panel<kWhole, epilogue, kind>(task, sums + p * kPanel, row, (tile.panel + p) * kPanel);
  }
}

template <Epilogue epilogue, Activation kind = Activation::none>
inline void finish_rows(const GemmTask& task, const SumTile& tile) {
  is_whole(task, tile) ? finish_some<true, epilogue, kind>(task, tile) : finish_some<false, epilogue, kind>(task, tile);
}

template <Epilogue epilogue>
inline void finish_activated(const GemmTask& task, const SumTile& tile) {
  switch (task.activation) {
    case Activation::none:
      return finish_rows<epilogue, Activation::none>(task, tile);
    case Activation::silu:
      return finish_rows<epilogue, Activation::silu>(task, tile);
    case Activation::gelu_tanh:
      return finish_rows<epilogue, Activation::gelu_tanh>(task, tile);
    case Activation::gelu_erf:
      return finish_rows<epilogue, Activation::gelu_erf>(task, tile);
    case Activation::relu:
      return finish_rows<epilogue, Activation::relu>(task, tile);
    case Activation::relu_squared:
      return finish_rows<epilogue, Activation::relu_squared>(task, tile);
    case Activation::swiglu_oai:
      if constexpr (epilogue == Epilogue::gated) finish_rows<epilogue, Activation::swiglu_oai>(task, tile);
      return;
    case Activation::xielu:
      if constexpr (epilogue == Epilogue::activate) finish_rows<epilogue, Activation::xielu>(task, tile);
      return;
  }
}

// The cache lines that finish() will write for a tile.
struct OutLines {
  const char* at[kTileFloats / kPanel];
  int64_t count = 0;

  void find(const GemmTask& task, const SumTile& tile) {
    const int gated = task.epilogue == Epilogue::gated;
    const int64_t first = tile.row_begin < task.row_begin ? task.row_begin : tile.row_begin;
    const int64_t end = tile.row_end < task.row_end ? tile.row_end : task.row_end;
    const int64_t column = (tile.panel >> gated) * kPanel, columns = (tile.panels >> gated) * kPanel;
    const char* row = place_of(task.out, first, column);
    const int64_t stride = place_of(task.out, first + 1, column) - row;
    const int64_t bytes = place_of(task.out, first, column + columns) - row;
    for (int64_t r = first; r < end; ++r, row += stride) {
      for (int64_t line = 0; line < bytes; line += 64) at[count++] = row + line;
    }
  }
};

inline void finish(const GemmTask& task, const SumTile& tile) {
  switch (task.epilogue) {
    case Epilogue::store:
      return finish_rows<Epilogue::store>(task, tile);
    case Epilogue::add:
      return finish_rows<Epilogue::add>(task, tile);
    case Epilogue::activate:
      return finish_activated<Epilogue::activate>(task, tile);
    case Epilogue::gated:
      return finish_activated<Epilogue::gated>(task, tile);
    case Epilogue::softcap:
      return finish_rows<Epilogue::softcap>(task, tile);
  }
}

}  // namespace
}  // namespace forearm
