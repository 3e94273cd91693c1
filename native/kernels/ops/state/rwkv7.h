// The time mixing of RWKV-7 (Peng et al. 2025, arXiv:2503.14456), token by token: a delta rule that forgets by channel,
// removes what the state holds for one key and adds a value for another.
//
// As in delta_rule.h, columns of the state depend on the keys of a row alone and not on each other, so that a few
// panels go through all rows at once and each value of the state is loaded and stored once for a row: what the state
// holds for the next row's removal key is summed up while the row changes it. Cost: four multiply-adds and a product
// for each value of the state and row. The keys, decays and values of all rows are made before.
//
// Products of matrices over chunks of C rows (the WY form: Yang et al. 2024, arXiv:2412.06464, section 3.3) save
// almost no operation: with C = 8 and a head of 64 they are four multiply-adds for each value of the state and row,
// too, an eighth of a product, a half for the products of keys with each other and a quarter for the rows' changes in
// turn, 4.9 in place of 5; with C = 16, 5.6. The loop below starts 97 % of the multiplies that a core of Zen 4 can.
// Beside its 14.2 us a token and layer of 40 heads, chunks of 8 rows took 17.8 and of 16 rows 18.8 (AVX-512;
// AVX2: 14.6, 17.1 and 21.2), and a slot would keep a chunk's rows for the reason in delta_rule.h.
#pragma once
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/ops/rows/norm.h"
#include "kernels/simd/math.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// Panels of columns that are computed together: five broadcasts and, of each panel, five vectors. On x86 one, two and
// four take the same time within 4 % (bench/kernels/states.cpp); of an F16 in four registers two would not fit.
constexpr int kRwkv7Panels = kVectorRegisters <= 2 ? 2 : 1;

// A row of Rwkv7Task::room.
struct Rwkv7Row {
  float *decay, *removal, *replaced, *key, *value, *out;

  Rwkv7Row(const Rwkv7Task& t, int64_t row)
      : decay(t.room + row * rwkv7_room_floats(t.dim)),
        removal(decay + state_panels(t.dim) * kPanel),
        replaced(removal + state_panels(t.dim) * kPanel),
        key(replaced + state_panels(t.dim) * kPanel),
        value(key + state_panels(t.dim) * kPanel),
        out(value + state_panels(t.dim) * kPanel) {}
};

// Makes a row's keys, decays and values; those beyond `dim` are zeros.
inline void rwkv7_prepare(const Rwkv7Task& t, int64_t row) {
  const Rwkv7Row own(t, row);
  const F16 one = broadcast(1.0f);
  F16 squares = zero();
  for_columns(t.dim, [&](int64_t i, int64_t lanes) {
    const auto of = [&](const float* x) { return load_lanes(x + row * t.stride + i, lanes); };
    const F16 k = of(t.k), rate = sigmoid(of(t.a)), direction = mul(k, load_lanes(t.k_k + i, lanes));
    squares = fma(direction, direction, squares);
    store(own.removal + i, direction);
    store(own.replaced + i, rate);
    store(own.key + i, fma(mul(sub(rate, one), load_lanes(t.k_a + i, lanes)), k, k));
    store(own.decay + i, exp(mul(broadcast(-0.60653065971263342f), sigmoid(of(t.w)))));
    F16 v = of(t.v);
    if (t.mix) v = fma(sigmoid(of(t.mix)), sub(load_lanes(t.first + row * t.first_stride + i, lanes), v), v);
    store(own.value + i, v);
  });
  const float length = sqrtf(reduce_add(squares));
  const F16 factor = broadcast(1.0f / (length > 1e-12f ? length : 1e-12f));
  for (int64_t i = 0; i < t.dim; i += kPanel) {
    const F16 removal = mul(load(own.removal + i), factor);
    store(own.removal + i, removal);
    store(own.replaced + i, mul(load(own.replaced + i), removal));
  }
}

// Moves kPanels panels of the state, of columns from `column` on, by all rows.
template <int kPanels>
inline void rwkv7_columns(const Rwkv7Task& t, int64_t column) {
  float* state = t.state + column * t.dim;
  const int64_t panel = t.dim * kPanel;
  F16 told[kPanels];
  const Rwkv7Row first(t, 0);
  UNROLLED_FOR (p, kPanels) told[p] = zero();
  for (int64_t i = 0; i < t.dim; ++i) {
    UNROLLED_FOR (p, kPanels) told[p] = fma(broadcast(first.removal[i]), load(state + p * panel + i * kPanel), told[p]);
  }
  for (int64_t row = 0; row < t.rows; ++row) {
    const Rwkv7Row own(t, row);
    const float* next = row + 1 < t.rows ? own.removal + rwkv7_room_floats(t.dim) : own.removal;  // the last: of no use
    const float* r = t.r + row * t.stride;
    F16 removed[kPanels], value[kPanels], out[kPanels];
    UNROLLED_FOR (p, kPanels) {
      removed[p] = sub(zero(), told[p]);
      value[p] = load(own.value + column + p * kPanel);
      told[p] = out[p] = zero();
    }
    for (int64_t i = 0; i < t.dim; ++i) {
      const F16 decay = broadcast(own.decay[i]), replaced = broadcast(own.replaced[i]), key = broadcast(own.key[i]);
      const F16 read = broadcast(r[i]), removal = broadcast(next[i]);
      UNROLLED_FOR (p, kPanels) {
        float* at = state + p * panel + i * kPanel;
        const F16 s = fma(key, value[p], fma(replaced, removed[p], mul(decay, load(at))));
        store(at, s);
        out[p] = fma(read, s, out[p]);
        told[p] = fma(removal, s, told[p]);
      }
    }
    UNROLLED_FOR (p, kPanels) store(own.out + column + p * kPanel, out[p]);
  }
}

// Normalizes what a row has read, adds what it reads of itself, and stores it times its gate.
inline void rwkv7_store(const Rwkv7Task& t, int64_t row) {
  const Rwkv7Row own(t, row);
  const float *r = t.r + row * t.stride, *g = t.g + row * t.stride;
  F16 sum = zero();
  for_columns(t.dim, [&](int64_t i, int64_t lanes) {
    sum = fma(mul(load_lanes(r + i, lanes), load(own.key + i)), load_lanes(t.r_k + i, lanes), sum);
  });
  const F16 bonus = broadcast(reduce_add(sum));
  const Moments m = moments(own.out, t.dim, t.eps, true);
  const F16 mean = broadcast(m.mean), factor = broadcast(m.factor);
  for_columns(t.dim, [&](int64_t i, int64_t lanes) {
    F16 y = mul(mul(sub(load(own.out + i), mean), factor), load_lanes(t.norm + i, lanes));
    y = add(y, load_lanes(t.norm_bias + i, lanes));
    y = fma(bonus, load(own.value + i), y);
    y = mul(y, load_lanes(g + i, lanes));
    store_operand(t.out, t.out_row + row - t.first_output, t.out_column + i, y, lanes);
  });
}

inline void rwkv7(const Rwkv7Task& t) {
  for (int64_t row = 0; row < t.rows; ++row) rwkv7_prepare(t, row);
  int64_t column = 0;
  const auto left = [&] { return state_panels(t.dim - column); };
  if constexpr (kRwkv7Panels > 1)
    for (; left() >= 2; column += 2 * kPanel) rwkv7_columns<2>(t, column);
  for (; left() >= 1; column += kPanel) rwkv7_columns<1>(t, column);
  for (int64_t row = t.first_output; row < t.rows; ++row) rwkv7_store(t, row);
}

}  // namespace
}  // namespace forearm
