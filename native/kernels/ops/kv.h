// Writing keys and values into their blocks, packed as the matrices that attention multiplies with (KvCache).
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/lanes.h"

namespace forearm {
namespace {

// Where element (n, k) of a matrix W [n, depth] stands in its packed form.
inline int64_t packed_at(int64_t n, int64_t k, int64_t depth, int64_t quantum) {
  return n / kPanel * kPanel * depth + k / quantum * quantum * kPanel + n % kPanel * quantum + k % quantum;
}

// One vector in a cache's own dtype, as raw elements.
union KvElements {
  float f32[16];
  uint16_t half[16];
};
inline KvElements narrow(F16 x, DType dtype) {
  KvElements e;
  if (dtype == DType::f32) {
    store(e.f32, x);
  } else if (dtype == DType::f16) {
    store_f16(e.half, x);
  } else {
    store_bf16(e.half, x);
  }
  return e;
}

// Elements first .. first + lanes of the key of one token: column `token` of W [32, head_dim], so k runs over them.
// The value: row `token` of W [head_dim, 32], so n runs over them.
template <typename Element>
inline void scatter_key(Element* block, const Element* from, int64_t token, int64_t first, int64_t lanes, int64_t dim,
                        int64_t quantum) {
  for (int64_t i = 0; i < lanes; ++i) block[packed_at(token, first + i, dim, quantum)] = from[i];
}
template <typename Element>
inline void scatter_value(Element* block, const Element* from, int64_t token, int64_t first, int64_t lanes,
                          int64_t quantum) {
  Element* to = block + packed_at(first, token, kBlockTokens, quantum);
  for (int64_t i = 0; i < lanes; ++i) to[i * quantum] = from[i];
}

inline void write_token(const KvWriteTask& t, int64_t row, int64_t quantum) {
  const int64_t slot = t.slots[row], token = slot % kBlockTokens, dim = t.cache.head_dim;
  const int64_t head_at = slot / kBlockTokens * t.cache.block_bytes + t.kv_head * t.cache.head_bytes;
  for_columns(t.head_dim, [&](int64_t at, int64_t lanes) {
    const KvElements key = narrow(load_lanes(t.k + row * t.stride + at, lanes), t.cache.dtype);
    const KvElements value = narrow(load_lanes(t.v + row * t.stride + at, lanes), t.cache.dtype);
    if (t.cache.dtype == DType::f32) {
      scatter_key(reinterpret_cast<float*>(t.cache.keys + head_at), key.f32, token, at, lanes, dim, quantum);
      scatter_value(reinterpret_cast<float*>(t.cache.values + head_at), value.f32, token, at, lanes, quantum);
    } else {
      scatter_key(reinterpret_cast<uint16_t*>(t.cache.keys + head_at), key.half, token, at, lanes, dim, quantum);
      scatter_value(reinterpret_cast<uint16_t*>(t.cache.values + head_at), value.half, token, at, lanes, quantum);
    }
  });
}

inline void write_kv(const KvWriteTask& t) {
  const int64_t quantum = mma_layout(t.cache.dtype).quantum;
  for (int64_t row = 0; row < t.rows; ++row) write_token(t, row, quantum);
}

}  // namespace
}  // namespace forearm
