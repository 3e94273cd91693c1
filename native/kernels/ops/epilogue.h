// What happens to a tile of sums before it leaves the first-level cache (Epilogue in kernels.h).
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/operand.h"

namespace forearm {
namespace {

constexpr int64_t kTileFloats = 24 * kPanel;

// Sums of rows [row_begin, row_end) by `panels` panels of W from `panel` on; a row is panels * 16 floats.
// Units of two rows may begin before the task's first row and end after its last.
struct SumTile {
  const float* sums;
  int64_t row_begin, row_end;
  int64_t panel, panels;
};

inline F16 with_bias(const GemmTask& task, F16 sums, int64_t column, int64_t count) {
  return task.bias ? add(sums, load_first(task.bias + column, count)) : sums;
}

template <Activation kind>
inline void finish_gated(const GemmTask& task, const float* sums, int64_t row, int64_t column, int64_t) {
  const int64_t out_column = column / 2, left = task.w.n / 2 - out_column, count = left < kPanel ? left : kPanel;
  const F16 gate = with_bias(task, load(sums), column, count);
  const F16 up = with_bias(task, load(sums + kPanel), column + kPanel, count);
  store_operand(task.out, row, out_column, mul(activate<kind>(gate), up), count);
}

template <Epilogue epilogue, Activation kind>
inline void finish_panel(const GemmTask& task, const float* sums, int64_t row, int64_t column, int64_t count) {
  if constexpr (epilogue == Epilogue::gated) return finish_gated<kind>(task, sums, row, column, count);
  const F16 value = with_bias(task, load(sums), column, count);
  const F16 scale = broadcast(task.scale);
  if constexpr (epilogue == Epilogue::store) store_operand(task.out, row, column, mul(scale, value), count);
  if constexpr (epilogue == Epilogue::activate) store_operand(task.out, row, column, activate<kind>(value), count);
  if constexpr (epilogue == Epilogue::add) {
    float* out = float_row(task.out, row) + column;
    store_first(out, fma(scale, value, load_first(out, count)), count);
  }
  if constexpr (epilogue == Epilogue::softcap) {
    const F16 inner = tanh(mul(value, broadcast(task.scale / task.softcap)));
    store_operand(task.out, row, column, mul(broadcast(task.softcap), inner), count);
  }
}

template <Epilogue epilogue, Activation kind = Activation::none>
inline void finish_rows(const GemmTask& task, const SumTile& tile) {
  constexpr int64_t kTogether = epilogue == Epilogue::gated ? 2 : 1;  // panels that make one of the output
  for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    if (row < task.row_begin || row >= task.row_end) continue;
    const float* sums = tile.sums + (row - tile.row_begin) * tile.panels * kPanel;
    for (int64_t p = 0; p < tile.panels; p += kTogether) {
      const int64_t column = (tile.panel + p) * kPanel, left = task.n_end - column;
      finish_panel<epilogue, kind>(task, sums + p * kPanel, row, column, left < kPanel ? left : kPanel);
    }
  }
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
  }
}

// What finish() will write of a tile: one place in each line of 16 columns.
struct OutLines {
  const char* at[kTileFloats / kPanel];
  int64_t count = 0;

  void find(const GemmTask& task, const SumTile& tile) {
    const int gated = task.epilogue == Epilogue::gated;
    for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
      if (row < task.row_begin || row >= task.row_end) continue;
      for (int64_t p = tile.panel >> gated; p < (tile.panel + tile.panels) >> gated; ++p)
        at[count++] = place_of(task.out, row, p * kPanel);
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
