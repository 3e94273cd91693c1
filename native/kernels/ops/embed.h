// Rows of a packed matrix, widened: the embedding of tokens, whose table may be the packed output head as well.
#pragma once
#include "kernels/kernels.h"

namespace forearm {
namespace {

// A row's values lie one step apart, 16 x quantum elements: one of them in each cache line, for 16-bit types two.
template <DType W, typename Element>
inline void embed_row(const EmbedTask& task, int64_t token, float* out) {
  constexpr int64_t kQuantum = Mma<W>::kQuantum;
  const int64_t steps = (task.w.k + kQuantum - 1) / kQuantum;
  const Element* row =
      static_cast<const Element*>(task.w.data) + (token / kPanel * steps * kPanel + token % kPanel) * kQuantum;
  for (int64_t k = 0; k < task.w.k; k += 16) {
    const int64_t count = task.w.k - k < 16 ? task.w.k - k : 16;
    Element values[16] = {};
    for (int64_t i = 0; i < count; ++i) {
      values[i] = row[(k + i) / kQuantum * kPanel * kQuantum + (k + i) % kQuantum];
    }
    F16 wide;
    if constexpr (W == DType::f32) wide = load(values);
    if constexpr (W == DType::f16) wide = load_f16(values);
    if constexpr (W == DType::bf16) wide = load_bf16(values);
    store_first(out + k, mul(broadcast(task.scale), wide), count);
  }
}

inline void embed(const EmbedTask& task) {
  for (int64_t r = 0; r < task.rows; ++r) {
    float* out = task.out + r * task.out_stride;
    switch (task.w.dtype) {
      case DType::f32:
        embed_row<DType::f32, float>(task, task.tokens[r], out);
        break;
      case DType::f16:
        embed_row<DType::f16, uint16_t>(task, task.tokens[r], out);
        break;
      case DType::bf16:
        embed_row<DType::bf16, uint16_t>(task, task.tokens[r], out);
        break;
      default:
        __builtin_unreachable();  // codes: not yet
    }
  }
}

}  // namespace
}  // namespace forearm
