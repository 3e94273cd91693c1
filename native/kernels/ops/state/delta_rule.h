// The gated delta rule (Yang et al. 2024, arXiv:2412.06464), token by token, and its gates.
//
// Columns of the state, one for each dimension of the values, depend on the row's key and query alone and not on each
// other. A few vectors of columns are therefore taken through all rows of the task at once: with 128 dimensions of the
// keys they are 32 KiB at most, which stay in the first-level cache. A row reads and writes them once: while it writes
// the state, it sums up its own result and what the state holds for the next row's key.
//
// Cost: four vector operations for 16 elements of the state and row, where a product of matrices over a chunk of rows
// would need about half as many multiply-adds. In exchange the bits do not depend on how a prompt is cut, and for
// Qwen3.5's shapes these are 1 to 4 % of a layer's multiply-adds.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/simd/math.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// Vectors of columns that are computed together: three sums and a broadcast each must fit the registers.
constexpr int kDeltaVectors = kVectorRegisters == 1 ? 4 : 2;

inline void delta_gates(const DeltaGatesTask& t) {
  for (int64_t row = 0; row < t.rows; ++row) {
    for_columns(t.heads, [&](int64_t head, int64_t lanes) {
      const int64_t from = row * t.stride + head, to = row * t.heads + head;
      const F16 step = softplus(add(load_lanes(t.a + from, lanes), load_lanes(t.dt_bias + head, lanes)));
      const F16 rate = exp(load_lanes(t.a_log + head, lanes));
      store_lanes(t.decay + to, exp(sub(zero(), mul(rate, step))), lanes);
      store_lanes(t.beta + to, sigmoid(load_lanes(t.b + from, lanes)), lanes);
    });
  }
}

// Columns [column, column + 16 * kVectors), or the first `lanes` of 16.
template <int kVectors, bool kWhole>
inline void delta_columns(const DeltaRuleTask& t, int64_t column, int64_t lanes) {
  const auto get = [lanes](const float* p) { return kWhole ? load(p) : load_first(p, lanes); };
  const auto put = [lanes](float* p, F16 x) { kWhole ? store(p, x) : store_first(p, x, lanes); };
  F16 held[kVectors], change[kVectors], out[kVectors];  // held: what the state holds for the next row's key
  UNROLLED_FOR (v, kVectors) held[v] = zero();
  for (int64_t i = 0; i < t.key_dim; ++i) {
    const F16 key = broadcast(t.k[i]);
    const float* state = t.state + i * t.value_dim + column;
    UNROLLED_FOR (v, kVectors) held[v] = fma(key, get(state + 16 * v), held[v]);
  }
  for (int64_t row = 0; row < t.rows; ++row) {
    const float *q = t.q + row * t.qk_stride, *k = t.k + row * t.qk_stride;
    const float* next = row + 1 < t.rows ? k + t.qk_stride : k;  // after the last row the sum is of no use
    const F16 decay = broadcast(t.decay[row * t.gate_stride]), beta = broadcast(t.beta[row * t.gate_stride]);
    UNROLLED_FOR (v, kVectors) {
      const F16 value = get(t.v + row * t.v_stride + column + 16 * v);
      change[v] = mul(beta, sub(value, mul(decay, held[v])));
      held[v] = out[v] = zero();
    }
    for (int64_t i = 0; i < t.key_dim; ++i) {
      float* state = t.state + i * t.value_dim + column;
      const F16 key = broadcast(k[i]), query = broadcast(q[i]), next_key = broadcast(next[i]);
      UNROLLED_FOR (v, kVectors) {
        const F16 s = fma(key, change[v], mul(decay, get(state + 16 * v)));
        put(state + 16 * v, s);
        out[v] = fma(query, s, out[v]);
        held[v] = fma(next_key, s, held[v]);
      }
    }
    UNROLLED_FOR (v, kVectors) put(t.out + row * t.out_stride + column + 16 * v, out[v]);
  }
}

inline void delta_rule(const DeltaRuleTask& t) {
  int64_t column = 0;
  for (; column + 16 * kDeltaVectors <= t.value_dim; column += 16 * kDeltaVectors)
    delta_columns<kDeltaVectors, true>(t, column, 16);
  for (; column + 16 <= t.value_dim; column += 16) delta_columns<1, true>(t, column, 16);
  if (column < t.value_dim) delta_columns<1, false>(t, column, t.value_dim - column);
}

}  // namespace
}  // namespace forearm
