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
  if (is_key) {
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
    reinterpret_cast<float*>(slot.block + kBlockTokens * slot.dim)[slot.token] = largest / cache_top(slot.dtype);
  }
  for_columns(head_dim, [&](int64_t at, int64_t lanes) {
    if (slot.dtype == DType::f32 && slot.quantum == 1 && !is_key && lanes == 16)
      return store(reinterpret_cast<float*>(slot.block) + packed_at(at, slot.token, kBlockTokens, 1), load(x + at));
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

// Keys of 16 tokens that are the columns of a panel, in floats. Turned 16 dimensions at a time: one store an element,
// 64 bytes apart, takes longer than the attention of a text of 32 tokens to itself.
inline void write_key_panel(const KvSlot& slot, const float* x, int64_t stride, int64_t head_dim) {
  for_columns(head_dim, [&](int64_t at, int64_t lanes) {
    if (lanes < 16) {
      for (int64_t t = 0; t < 16; ++t)
        scatter_key({slot.block, slot.dtype, slot.token + t, slot.dim, 1}, x + t * stride + at, at, lanes);
      return;
    }
    float rows[16 * 16];
    for (int64_t t = 0; t < 16; ++t) store(rows + 16 * t, load(x + t * stride + at));
    transpose_panel<1>(rows, reinterpret_cast<float*>(slot.block) + packed_at(slot.token, at, slot.dim, 1));
  });
}

inline void write_kv(const KvWriteTask& t) {
  const DType dtype = t.cache.dtype;
  const int64_t quantum = mma_layout(is_float(dtype) ? dtype : kWide).quantum;
  int64_t turned = 0;  // rows whose keys were written as a panel
  for (int64_t row = 0; row < t.rows; ++row) {
    const int64_t slot = t.slots[row], token = slot % kBlockTokens;
    const int64_t at = slot / kBlockTokens * t.cache.block_bytes + t.kv_head * t.cache.head_bytes;
    const KvSlot keys{t.cache.keys + at, key_dtype(dtype), token, t.cache.head_dim, quantum};
    const bool whole = token % kPanel == 0 && row + kPanel <= t.rows && t.slots[row + kPanel - 1] == slot + kPanel - 1;
    if (row >= turned && dtype == DType::f32 && quantum == 1 && whole) {
      write_key_panel(keys, t.k + row * t.stride, t.stride, t.head_dim);
      turned = row + kPanel;
    }
    if (row >= turned) write_row(keys, t.k + row * t.stride, t.head_dim, true);
    if (t.cache.latent) continue;
    write_row({t.cache.values + at, dtype, token, t.cache.head_dim, quantum}, t.v + row * t.stride, t.head_dim, false);
  }
}

}  // namespace
}  // namespace forearm
