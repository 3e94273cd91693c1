// Writing keys and values into their blocks, packed as the matrices that attention multiplies with (KvCache).
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/attention/kv_quantized.h"
#include "kernels/ops/gemm/gemm.h"
#include "kernels/ops/load/quantize_activations.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/simd/transpose.h"

namespace forearm {
namespace {

// The index of element (n, k) of a matrix W [n, depth] in its packed form.
inline int64_t packed_at(int64_t n, int64_t k, int64_t depth, int64_t quantum) {
  return n / kPanel * kPanel * depth + k / quantum * quantum * kPanel + n % kPanel * quantum + k % quantum;
}

// One vector in the dtype of the cache, as raw elements.
union KvElements {
  float f32[16];
  uint16_t half[16];
  uint8_t code[16];
};
inline KvElements narrow(F16 x, DType dtype, float inverse) {
  KvElements e;
  if (dtype == DType::f32) {
    store(e.f32, x);
  } else if (dtype == DType::f16) {
    store_f16(e.half, x);
  } else if (dtype == DType::bf16) {
    store_bf16(e.half, x);
  } else {
    quantize_kv(dtype, x, inverse, e.code);
  }
  return e;
}

// One token of one kv head: its place in the block, and the block's layout.
struct KvSlot {
  char* block;
  DType dtype;
  int64_t token, dim, quantum;
  bool by_token = false;  // KvCache's
  int64_t block_keys = kBlockTokens;
};

// Elements first .. first + lanes of the key of one token: column `token` of W [32, head_dim], so k runs over them.
// The value: row `token` of W [head_dim, 32], so n runs over them.
template <typename Element>
inline void scatter_key(const KvSlot& slot, const Element* from, int64_t first, int64_t lanes) {
  Element* block = reinterpret_cast<Element*>(slot.block);
  for (int64_t i = 0; i < lanes; ++i) block[packed_at(slot.token, first + i, slot.dim, slot.quantum)] = from[i];
}
template <typename Element>
inline void scatter_value(const KvSlot& slot, const Element* from, int64_t first, int64_t lanes) {
  Element* to = reinterpret_cast<Element*>(slot.block) + packed_at(first, slot.token, kBlockTokens, slot.quantum);
  for (int64_t i = 0; i < lanes; ++i) to[i * slot.quantum] = from[i];
}
template <typename Element>
inline void scatter(const KvSlot& slot, const Element* from, int64_t first, int64_t lanes, bool is_key) {
  if (slot.by_token) {
    __builtin_memcpy(reinterpret_cast<Element*>(slot.block) + slot.token * slot.dim + first, from,
                     static_cast<uint64_t>(lanes) * sizeof(Element));
  } else if (is_key) {
    scatter_key(slot, from, first, lanes);
  } else {
    scatter_value(slot, from, first, lanes);
  }
}

inline void write_row(const KvSlot& slot, const float* x, int64_t head_dim, bool is_key) {
  float inverse = 1.0f;
  if (has_scales(slot.dtype)) {
    const float largest = largest_magnitude(InPlace{x}, 0, head_dim);
    inverse = inverse_of(largest, cache_top(slot.dtype));
    reinterpret_cast<float*>(slot.block + slot.block_keys * slot.dim)[slot.token] = largest / cache_top(slot.dtype);
  }
  for_columns(head_dim, [&](int64_t at, int64_t lanes) {
    const KvElements e = narrow(load_lanes(x + at, lanes), slot.dtype, inverse);
    if (slot.dtype == DType::f32) {
      scatter(slot, e.f32, at, lanes, is_key);
    } else if (is_float(slot.dtype)) {
      scatter(slot, e.half, at, lanes, is_key);
    } else {
      scatter(slot, e.code, at, lanes, is_key);
    }
  });
}

// Stores 16 numbers in a float dtype of the cache.
template <typename Element>
inline void store_narrow(DType dtype, Element* to, F16 x) {
  if constexpr (sizeof(Element) == 4) {
    store(to, x);
  } else {
    narrow_to(dtype == DType::f16 ? Form::f16_rows : Form::bf16_rows, to, x);
  }
}

// Keys of 16 tokens that are the columns of a panel: floats or pairs of halves are turned 16 by 16, of four halves each
// is copied whole. One store an element, 64 bytes apart, takes longer than the attention of a text of 32 tokens to
// itself.
template <typename Element, int64_t kQuantum>
inline void write_key_panel(const KvSlot& slot, const float* x, int64_t stride, int64_t head_dim) {
  constexpr int64_t kTogether = 16 * kQuantum, kUnit = kQuantum * static_cast<int64_t>(sizeof(Element));
  Element rows[16 * kTogether] = {};
  for (int64_t first = 0; first < head_dim; first += kTogether) {
    Element* to = reinterpret_cast<Element*>(slot.block) + packed_at(slot.token, first, slot.dim, kQuantum);
    const int64_t columns = head_dim - first < kTogether ? head_dim - first : kTogether;
    for (int64_t t = 0; t < 16; ++t)
      for_columns(columns, [&](int64_t at, int64_t lanes) {
        store_narrow(slot.dtype, rows + t * kTogether + at, load_lanes(x + t * stride + first + at, lanes));
      });
    if (kUnit == 4 && columns == kTogether) {
      transpose_panel<1>(reinterpret_cast<const float*>(rows), reinterpret_cast<float*>(to));
      continue;
    }
    for (int64_t t = 0; t < 16; ++t)
      for (int64_t k = 0; k < columns; k += kQuantum)
        __builtin_memcpy(to + (k * 16 + t * kQuantum), rows + t * kTogether + k, kUnit);
  }
}

// Values of 16 tokens: those of kQuantum tokens are neighbours.
template <typename Element, int64_t kQuantum>
inline void write_value_panel(const KvSlot& slot, const float* x, int64_t stride, int64_t head_dim) {
  Element* block = reinterpret_cast<Element*>(slot.block);
  for (int64_t t = 0; t < 16; t += kQuantum)
    for_columns(head_dim, [&](int64_t at, int64_t lanes) {
      Element rows[kQuantum][16], units[16 * kQuantum];
      for (int64_t q = 0; q < kQuantum; ++q)
        store_narrow(slot.dtype, rows[q], load_lanes(x + (t + q) * stride + at, lanes));
      for (int64_t i = 0; i < 16; ++i)
        for (int64_t q = 0; q < kQuantum; ++q) units[i * kQuantum + q] = rows[q][i];
      __builtin_memcpy(block + packed_at(at, slot.token + t, kBlockTokens, kQuantum), units, sizeof units);
    });
}

template <typename Element, int64_t kQuantum>
inline void write_panel(const KvSlot& slot, const float* x, int64_t stride, int64_t head_dim, bool is_key) {
  if (is_key) return write_key_panel<Element, kQuantum>(slot, x, stride, head_dim);
  write_value_panel<Element, kQuantum>(slot, x, stride, head_dim);
}

inline void write_kv(const KvWriteTask& t) {
  const DType dtype = t.cache.dtype;
  constexpr int64_t kF16 = mma_layout(DType::f16).quantum, kBf16 = mma_layout(DType::bf16).quantum;
  const int64_t quantum = mma_layout(is_float(dtype) ? dtype : kWide).quantum;
  int64_t count = 1;
  for (int64_t row = 0; row < t.rows; row += count) {
    const int64_t slot = t.slots[row], token = slot % kBlockTokens;
    const int64_t at = slot / kBlockTokens * t.cache.block_bytes + t.kv_head * t.cache.head_bytes;
    const bool whole = !t.cache.by_token && token % kPanel == 0 && row + kPanel <= t.rows &&
                       t.slots[row + kPanel - 1] == slot + kPanel - 1;
    count = is_float(dtype) && whole ? kPanel : 1;
    const auto write = [&](char* block, DType narrow, const float* from, int64_t dim, bool is_key) {
      const KvSlot to{block + at, narrow, token, t.cache.head_dim, quantum, t.cache.by_token, t.cache.block_keys};
      if (count == 1) return write_row(to, from + row * t.stride, dim, is_key);
      const auto halves = dtype == DType::f16 ? write_panel<uint16_t, kF16> : write_panel<uint16_t, kBf16>;
      const auto panel = dtype == DType::f32 ? write_panel<float, mma_layout(DType::f32).quantum> : halves;
      panel(to, from + row * t.stride, t.stride, dim, is_key);
    };
    write(t.cache.keys, key_dtype(dtype), t.k, t.head_dim, true);
    if (!t.cache.latent) write(t.cache.values, dtype, t.v, t.cache.value ? t.cache.value : t.head_dim, false);
  }
}

}  // namespace
}  // namespace forearm
