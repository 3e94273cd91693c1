// The gated delta rule (Yang et al. 2024, arXiv:2412.06464), token by token, and its gates: a head forgets by one
// decay, or each channel of its keys by one of its own (Kimi Team 2025, arXiv:2510.26692).
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
// Decays of channels cost one multiplication more. They can't be left to a scale, and a chunk would need products of
// them over its rows, whose quotients overflow: here a state is only ever multiplied with a decay, which is at most 1.
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

// What a token leaves of a head or channel. Not inlined: of whole and of last columns there is one copy in a tier.
__attribute__((noinline)) F16 decay_of(F16 x, F16 a_log, float least) {
  const F16 rate = exp(a_log);
  if (least != 0.0f) return exp(mul(broadcast(least), sigmoid(mul(rate, x))));
  return exp(sub(zero(), mul(rate, softplus(x))));
}

inline void delta_gates(const DeltaGatesTask& t) {
  const bool by_channel = t.channels > 1;
  const int64_t parts = by_channel ? t.heads : 1, columns = by_channel ? t.channels : t.heads;
  for (int64_t row = 0; row < t.rows; ++row) {
    const float *a = t.a + row * t.stride, *b = t.b + row * t.stride;
    float* out = t.decay + row * t.heads * t.channels;
    for_columns(t.heads, [&](int64_t head, int64_t lanes) {
      const F16 beta = mul(broadcast(t.beta_scale), sigmoid(load_lanes(b + head, lanes)));
      store_lanes(t.beta + row * t.heads + head, beta, lanes);
    });
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = part * columns;
      for_columns(columns, [&](int64_t i, int64_t lanes) {
        const F16 x = add(load_lanes(a + first + i, lanes), load_lanes(t.dt_bias + first + i, lanes));
        const F16 a_log = by_channel ? broadcast(t.a_log[part]) : load_lanes(t.a_log + i, lanes);
        store_lanes(out + first + i, decay_of(x, a_log, t.least), lanes);
      });
    }
  }
}

template <int kPanels>
struct DeltaSums {
  F16 told[kPanels];  // what is kept for the next row's key
  F16 out[kPanels];
};

// What a state is multiplied with: nothing, one decay before the change, or one of each channel after the sum of the
// row's result, as the next row has it.
enum class Decays { none, all, next };

// Adds key * change to what is kept in kPanels panels.
template <int kPanels, Decays kDecays>
inline DeltaSums<kPanels> delta_update(float* kept, int64_t key_dim, const float* key, const F16* change,
                                       const float* decay, const float* query, const float* next_key) {
  DeltaSums<kPanels> sums;
  UNROLLED_FOR (p, kPanels) sums.told[p] = sums.out[p] = zero();
  const F16 scale = kDecays == Decays::all ? broadcast(*decay) : zero();
  for (int64_t i = 0; i < key_dim; ++i) {
    const F16 k = broadcast(key[i]), q = broadcast(query[i]), next = broadcast(next_key[i]);
    float* at = kept + i * kPanel;
    F16 s[kPanels];
    UNROLLED_FOR (p, kPanels) {
      const F16 before = load(at + p * panel_floats(key_dim));
      s[p] = fma(k, change[p], kDecays == Decays::all ? mul(scale, before) : before);
    }
    UNROLLED_FOR (p, kPanels) {
      sums.out[p] = fma(q, s[p], sums.out[p]);
      if constexpr (kDecays == Decays::next) s[p] = mul(broadcast(decay[i]), s[p]);
      store(at + p * panel_floats(key_dim), s[p]);
      sums.told[p] = fma(next, s[p], sums.told[p]);
    }
  }
  return sums;
}

// Columns of the panel at `column`.
inline int64_t delta_lanes(const DeltaRuleTask& t, int64_t column) {
  const int64_t left = t.value_dim - column;
  return left < kPanel ? left : kPanel;
}

// Moves kPanels panels, of columns from `column` on, by all rows.
template <int kPanels>
inline void delta_columns(const DeltaRuleTask& t, int64_t column) {
  const int64_t panel = panel_floats(t.key_dim);
  float *kept = t.state + column / kPanel * panel, scale = kept[panel - kPanel];
  const auto lanes_of = [&](int panel) { return delta_lanes(t, column + panel * kPanel); };
  DeltaSums<kPanels> sums;
  UNROLLED_FOR (p, kPanels) sums.told[p] = zero();
  for (int64_t i = 0; i < t.key_dim; ++i) {
    UNROLLED_FOR (p, kPanels) sums.told[p] = fma(broadcast(t.k[i]), load(kept + p * panel + i * kPanel), sums.told[p]);
  }
  for (int64_t row = 0; row < t.rows; ++row) {
    const float *q = t.q + row * t.qk_stride, *k = t.k + row * t.qk_stride, *v = t.v + row * t.v_stride + column;
    const float* next = row + 1 < t.rows ? k + t.qk_stride : k;  // after the last row the sum is of no use
    const Forgetting gate(scale, t.decay[row * t.decay_stride]);
    scale = gate.scale;
    const F16 gain = broadcast(t.beta[row * t.beta_stride] / scale), decayed = broadcast(gate.decayed);
    F16 change[kPanels];
    UNROLLED_FOR (p, kPanels)
      change[p] = mul(gain, sub(load_lanes(v + p * kPanel, lanes_of(p)), mul(decayed, sums.told[p])));
    sums = gate.rescales ? delta_update<kPanels, Decays::all>(kept, t.key_dim, k, change, &gate.decayed, q, next)
                         : delta_update<kPanels, Decays::none>(kept, t.key_dim, k, change, nullptr, q, next);
    UNROLLED_FOR (p, kPanels)
      store_lanes(t.out + row * t.out_stride + column + p * kPanel, mul(broadcast(scale), sums.out[p]), lanes_of(p));
  }
  UNROLLED_FOR (p, kPanels) kept[(p + 1) * panel - kPanel] = scale;
}

// Moves kPanels panels by all rows, with a decay for each channel of the keys. Between two rows what is kept is
// multiplied with the later one's decays already, so that it is loaded and stored once for a row.
template <int kPanels>
inline void delta_channels(const DeltaRuleTask& t, int64_t column) {
  const int64_t panel = panel_floats(t.key_dim);
  float* kept = t.state + column / kPanel * panel;
  const auto lanes_of = [&](int panel) { return delta_lanes(t, column + panel * kPanel); };
  DeltaSums<kPanels> sums;
  UNROLLED_FOR (p, kPanels) sums.told[p] = zero();
  for (int64_t i = 0; i < t.key_dim; ++i) {
    UNROLLED_FOR (p, kPanels) {
      float* at = kept + p * panel + i * kPanel;
      const F16 s = mul(broadcast(t.decay[i]), load(at));
      store(at, s);
      sums.told[p] = fma(broadcast(t.k[i]), s, sums.told[p]);
    }
  }
  for (int64_t row = 0; row < t.rows; ++row) {
    const float *q = t.q + row * t.qk_stride, *k = t.k + row * t.qk_stride, *v = t.v + row * t.v_stride + column;
    const float* next_decay = t.decay + (row + 1) * t.decay_stride;
    const F16 beta = broadcast(t.beta[row * t.beta_stride]);
    F16 change[kPanels];
    UNROLLED_FOR (p, kPanels) change[p] = mul(beta, sub(load_lanes(v + p * kPanel, lanes_of(p)), sums.told[p]));
    sums = row + 1 < t.rows
               ? delta_update<kPanels, Decays::next>(kept, t.key_dim, k, change, next_decay, q, k + t.qk_stride)
               : delta_update<kPanels, Decays::none>(kept, t.key_dim, k, change, nullptr, q, k);
    UNROLLED_FOR (p, kPanels) store_lanes(t.out + row * t.out_stride + column + p * kPanel, sums.out[p], lanes_of(p));
  }
  UNROLLED_FOR (p, kPanels) kept[(p + 1) * panel - kPanel] = 1.0f;
}

template <int kPanels>
inline void delta_panels(const DeltaRuleTask& t, int64_t column) {
  t.by_channel ? delta_channels<kPanels>(t, column) : delta_columns<kPanels>(t, column);
}

inline void delta_rule(const DeltaRuleTask& t) {
  int64_t column = 0;
  const auto left = [&] { return state_panels(t.value_dim - column); };
  if constexpr (kDeltaPanels > 2)  // four are twice two: one alone is slow
    for (; left() == 3 || left() > 4; column += 3 * kPanel) delta_panels<3>(t, column);
  if constexpr (kDeltaPanels > 1)
    for (; left() >= 2; column += 2 * kPanel) delta_panels<2>(t, column);
  for (; left() >= 1; column += kPanel) delta_panels<1>(t, column);
}

}  // namespace
}  // namespace forearm
