// The gated delta rule (Yang et al. 2024, arXiv:2412.06464), token by token, and its gates.
//
// Columns of the state, one for each dimension of the values, depend on the row's key and query alone and not on each
// other. A few panels of columns are therefore taken through all rows of the task at once: with 128 dimensions of the
// keys they are 16 KiB, which stay in the first-level cache. A row reads and writes them once: while it writes the
// state, it sums up its own result and what the state holds for the next row's key.
//
// Cost: three multiply-adds for each value of the state and row. A product of matrices over a chunk of C rows (the same
// paper, section 3.3) needs as many, and C (1 / key_dim + 1 / value_dim) within the chunk: one more with C = 64 and
// heads of 128 x 128. It would pay by matrix units alone, but these multiply bfloat16, of which a float32 state needs
// three and so six products, at two to four times the rate of float32. Its bits depend on how a prompt is cut, too,
// unless a slot keeps the rows since its chunk's start, which each decoded token would read beside the state.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/ops/state/scaled_state.h"
#include "kernels/simd/math.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// Panels of columns that are computed together: three sums and a broadcast each must fit the registers. Of an F16 in
// one register a panel alone waits for its two sums of a multiply-add each (on Zen 5, by value of the state: 2.0 times
// as long as two panels together, 2.6 times as long as three, 1.8 times as long as four, whose stores are the limit);
// of an F16 in four registers more than one panel would not fit.
constexpr int kDeltaPanels = kVectorRegisters == 1 ? 3 : kVectorRegisters == 2 ? 2 : 1;

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

template <int kPanels>
struct DeltaSums {
  F16 told[kPanels];  // what is kept for the next row's key
  F16 out[kPanels];
};

// Adds key * change to what is kept in kPanels panels; first multiplies that with `scale` if kRescales.
template <int kPanels, bool kRescales>
inline DeltaSums<kPanels> delta_update(float* kept, int64_t key_dim, const float* key, const F16* change, float scale,
                                       const float* query, const float* next_key) {
  DeltaSums<kPanels> sums;
  UNROLLED_FOR (p, kPanels) sums.told[p] = sums.out[p] = zero();
  for (int64_t i = 0; i < key_dim; ++i) {
    const F16 k = broadcast(key[i]), q = broadcast(query[i]), next = broadcast(next_key[i]);
    float* at = kept + i * kPanel;
    F16 s[kPanels];
    UNROLLED_FOR (p, kPanels) {
      const F16 before = load(at + p * panel_floats(key_dim));
      s[p] = fma(k, change[p], kRescales ? mul(broadcast(scale), before) : before);
    }
    UNROLLED_FOR (p, kPanels) {
      store(at + p * panel_floats(key_dim), s[p]);
      sums.out[p] = fma(q, s[p], sums.out[p]);
      sums.told[p] = fma(next, s[p], sums.told[p]);
    }
  }
  return sums;
}

// Moves kPanels panels, of columns from `column` on, by all rows.
template <int kPanels>
inline void delta_columns(const DeltaRuleTask& t, int64_t column) {
  const int64_t panel = panel_floats(t.key_dim);
  float *kept = t.state + column / kPanel * panel, scale = kept[panel - kPanel];
  const auto lanes_of = [&](int panel) {
    const int64_t left = t.value_dim - column - panel * kPanel;
    return left < kPanel ? left : kPanel;
  };
  DeltaSums<kPanels> sums;
  UNROLLED_FOR (p, kPanels) sums.told[p] = zero();
  for (int64_t i = 0; i < t.key_dim; ++i) {
    UNROLLED_FOR (p, kPanels) sums.told[p] = fma(broadcast(t.k[i]), load(kept + p * panel + i * kPanel), sums.told[p]);
  }
  for (int64_t row = 0; row < t.rows; ++row) {
    const float *q = t.q + row * t.qk_stride, *k = t.k + row * t.qk_stride, *v = t.v + row * t.v_stride + column;
    const float* next = row + 1 < t.rows ? k + t.qk_stride : k;  // after the last row the sum is of no use
    const Forgetting gate(scale, t.decay[row * t.gate_stride]);
    scale = gate.scale;
    const F16 gain = broadcast(t.beta[row * t.gate_stride] / scale), decayed = broadcast(gate.decayed);
    F16 change[kPanels];
    UNROLLED_FOR (p, kPanels)
      change[p] = mul(gain, sub(load_lanes(v + p * kPanel, lanes_of(p)), mul(decayed, sums.told[p])));
    sums = gate.rescales ? delta_update<kPanels, true>(kept, t.key_dim, k, change, gate.decayed, q, next)
                         : delta_update<kPanels, false>(kept, t.key_dim, k, change, 1.0f, q, next);
    UNROLLED_FOR (p, kPanels)
      store_lanes(t.out + row * t.out_stride + column + p * kPanel, mul(broadcast(scale), sums.out[p]), lanes_of(p));
  }
  UNROLLED_FOR (p, kPanels) kept[(p + 1) * panel - kPanel] = scale;
}

inline void delta_rule(const DeltaRuleTask& t) {
  int64_t column = 0;
  const auto left = [&] { return state_panels(t.value_dim - column); };
  if constexpr (kDeltaPanels > 2)  // four are twice two: one alone is slow
    for (; left() == 3 || left() > 4; column += 3 * kPanel) delta_columns<3>(t, column);
  if constexpr (kDeltaPanels > 1)
    for (; left() >= 2; column += 2 * kPanel) delta_columns<2>(t, column);
  for (; left() >= 1; column += kPanel) delta_columns<1>(t, column);
}

}  // namespace
}  // namespace forearm
