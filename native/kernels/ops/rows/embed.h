// Rows of a packed matrix, widened: the embedding of tokens, whose table may be the packed output head as well.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/gemm.h"
#include "kernels/ops/gemm/scales.h"
#include "kernels/ops/with_dtype.h"

namespace forearm {
namespace {

// A row's values are one step (16 x quantum elements) apart: each cache line has one of them, two for 16-bit types.
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

// A code of 8 bits or less, of column `lane` of a panel. The dtype is not known to the compiler: one function for all.
inline uint8_t integer_code(DType dtype, Layout layout, const uint8_t* panel, int64_t lane, int64_t k) {
  const int64_t quantum = layout.quantum, chunk = k / quantum, in_chunk = lane * quantum + k % quantum;
  if (has_six_bits(dtype)) {
    const uint8_t* step = panel + k / kSixBitK * kSixBitBytes;
    return static_cast<uint8_t>(six_bit_code(step, place_in_step(lane, k % kSixBitK, quantum)));
  }
  if (!has_nibbles(dtype)) return static_cast<uint8_t>(panel[chunk * kPanel * quantum + in_chunk] - layout.bias);
  const int nibble = panel[chunk / 2 * kPanel * quantum + in_chunk] >> chunk % 2 * 4 & 15;
  return static_cast<uint8_t>(layout.bias ? nibble - layout.bias : nibble_code(dtype, nibble));
}

// A row of quantized weights, D int8 for all integers. 16 k at a time, which belong to one group, with the row's scale
// and offset in it.
template <DType D>
__attribute__((noinline)) void embed_codes(const EmbedTask& task, int64_t token, float* out) {
  const PackedWeights& w = task.w;
  const Layout layout = mma_layout(w.dtype);
  const int64_t groups = groups_of(w.k, w.group), panel = token / kPanel, lane = token % kPanel;
  const auto* bytes = static_cast<const uint8_t*>(w.data) + packed_bytes(w.dtype, kPanel, w.k, layout.quantum) * panel;
  for (int64_t k = 0; k < w.k; k += 16) {
    const int64_t count = w.k - k < 16 ? w.k - k : 16;
    uint8_t codes[16] = {};
    for (int64_t i = 0; i < count; ++i) codes[i] = integer_code(w.dtype, layout, bytes, lane, k + i);
    float s[16], o[16];
    const int64_t at = (panel * groups + k / w.group) * kPanel;
    store(s, load_scales(w, at));
    store(o, load_offsets(w, at, load(s)));
    const F16 code = load_code<D>(codes);
    const F16 wide = fma(broadcast(s[lane]), code, broadcast(o[lane]));
    store_first(out + k, mul(broadcast(task.scale), wide), count);
  }
}

inline void embed_scaled(const EmbedTask& task, int64_t token, float* out) {
  float s[16];
  store(s, load_scales(task.w, token / kPanel * kPanel));
  const F16 scale = broadcast(s[token % kPanel]);
  const auto* row = static_cast<const uint16_t*>(task.w.data) + token / kPanel * kPanel * task.w.k + token % kPanel;
  for (int64_t k = 0; k < task.w.k; k += 16) {
    const int64_t count = task.w.k - k < 16 ? task.w.k - k : 16;
    uint16_t values[16] = {};
    for (int64_t i = 0; i < count; ++i) values[i] = row[(k + i) * kPanel];
    store_first(out + k, mul(broadcast(task.scale), mul(scale, load_f16(values))), count);
  }
}

inline void embed(const EmbedTask& task) {
  with_dtype(task.w.dtype, [&task]<DType D>() {
    for (int64_t r = 0; r < task.rows; ++r) {
      float* out = task.out + r * task.out_stride;
      if constexpr (D == DType::f32) {
        embed_row<D, float>(task, task.tokens[r], out);
      } else if constexpr (is_float(D)) {
        embed_row<D, uint16_t>(task, task.tokens[r], out);
      } else if constexpr (D == DType::f16_scaled) {
        embed_scaled(task, task.tokens[r], out);
      } else {
        embed_codes<is_fp8(D) ? D : DType::int8>(task, task.tokens[r], out);
      }
    }
  });
}

}  // namespace
}  // namespace forearm
