// The recurrence of Mamba2 (Dao and Gu 2024, arXiv:2405.21060, equation 1) and the norm behind it.
//
// Prefill goes through a head's tokens four at a time: each value of the state is loaded and stored once for four
// tokens, in registers between, and sees the same operations in the same order as one token at a time. So a cut between
// any rows changes no bit. It costs 3 multiply-adds for each value of the state and token; the form in matrix products
// of chunks (section 6) costs about 2 + chunk * (1 / head_dim + 1 / state_dim), but its products are those that matrix
// units are made for.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/norm.h"
#include "kernels/simd/math.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// The steps and decays of some rows of one head.
constexpr int64_t kStepRows = 16;
struct Mamba2Steps {
  float dt[kStepRows], decay[kStepRows];
};

inline void mamba2_steps(const Mamba2Task& t, int64_t head, int64_t row, int64_t rows, Mamba2Steps& steps) {
  float raw[kStepRows] = {};
  for (int64_t i = 0; i < rows; ++i) raw[i] = t.dt[(row + i) * t.dt_stride + head];
  const F16 moved = fma(load(raw), broadcast(t.dt_scale), broadcast(t.dt_bias[head]));
  const F16 dt = min(broadcast(t.dt_most), max(broadcast(t.dt_least), softplus(moved)));
  store(steps.dt, dt);
  store(steps.decay, exp(sub(zero(), mul(dt, exp(broadcast(t.a_log[head]))))));
}

// Moves kPanels panels of a head's state by kTokens tokens, from column `column` of the head on.
template <int kPanels, int kTokens>
inline void mamba2_pass(const Mamba2Task& t, int64_t head, int64_t row, int64_t column, const Mamba2Steps& steps,
                        int64_t step) {
  const int64_t size = t.state_dim * kPanel, group = head / (t.heads / t.groups) * t.state_dim;
  float* state = t.state + (head * mamba2_panels(t.head_dim) + column / kPanel) * size;
  const float *b[kTokens], *c[kTokens];
  float* x[kTokens];
  F16 moved[kTokens][kPanels], decay[kTokens], y[kTokens][kPanels];
  const auto lanes_of = [&](int panel) {
    const int64_t left = t.head_dim - column - panel * kPanel;
    return left < kPanel ? left : kPanel;
  };
  UNROLLED_FOR (i, kTokens) {
    b[i] = t.b + (row + i) * t.stride + group;
    c[i] = t.c + (row + i) * t.stride + group;
    x[i] = t.x + (row + i) * t.stride + head * t.head_dim + column;
    decay[i] = broadcast(steps.decay[step + i]);
    UNROLLED_FOR (p, kPanels) {
      moved[i][p] = mul(load_lanes(x[i] + p * kPanel, lanes_of(p)), broadcast(steps.dt[step + i]));
      y[i][p] = zero();
    }
  }
  for (int64_t n = 0; n < t.state_dim; ++n) {
    UNROLLED_FOR (p, kPanels) {
      float* at = state + p * size + n * kPanel;
      F16 s = load(at);
      UNROLLED_FOR (i, kTokens) {
        s = fma(decay[i], s, mul(broadcast(b[i][n]), moved[i][p]));
        y[i][p] = fma(broadcast(c[i][n]), s, y[i][p]);
      }
      store(at, s);
    }
  }
  const F16 d = broadcast(t.d[head]);
  UNROLLED_FOR (i, kTokens) {
    UNROLLED_FOR (p, kPanels) {
      float* out = x[i] + p * kPanel;
      store_lanes(out, fma(d, load_lanes(out, lanes_of(p)), y[i][p]), lanes_of(p));
    }
  }
}

// Passes that go through all columns of a head, two panels at a time as far as there are two.
template <int kTokens>
inline void mamba2_tokens(const Mamba2Task& t, int64_t head, int64_t row, const Mamba2Steps& steps, int64_t step) {
  constexpr int kPanels = kTokens == 1 ? 2 : 1;  // as many sums as registers hold
  int64_t column = 0;
  for (; column + (kPanels - 1) * kPanel < t.head_dim; column += kPanels * kPanel)
    mamba2_pass<kPanels, kTokens>(t, head, row, column, steps, step);
  if (column < t.head_dim) mamba2_pass<1, kTokens>(t, head, row, column, steps, step);
}

inline void mamba2(const Mamba2Task& t) {
  Mamba2Steps steps;
  for (int64_t head = t.head_begin; head < t.head_end; ++head) {
    for (int64_t first = 0; first < t.rows; first += kStepRows) {
      const int64_t rows = t.rows - first < kStepRows ? t.rows - first : kStepRows;
      mamba2_steps(t, head, first, rows, steps);
      int64_t step = 0;
      for (; step + 4 <= rows; step += 4) mamba2_tokens<4>(t, head, first + step, steps, step);
      for (; step < rows; ++step) mamba2_tokens<1>(t, head, first + step, steps, step);
    }
  }
}

inline void gated_norm(const GatedNormTask& t) {
  const int64_t size = t.dim / t.groups;
  const F16 scale = broadcast(t.z_scale);
  const auto gated = [&](F16 y, const float* z, int64_t lanes) {
    return mul(y, activate<Activation::silu>(mul(load_lanes(z, lanes), scale)));
  };
  for (int64_t row = t.row_begin; row < t.row_end; ++row) {
    const int64_t out = t.out_row + row - t.row_begin;
    for (int64_t first = 0; first < t.dim; first += size) {
      float* y = t.y + row * t.y_stride + first;
      const float* z = t.z + row * t.z_stride + first;
      if (t.gate_first || !t.weight)
        for_columns(size, [&](int64_t i, int64_t lanes) {
          store_lanes(y + i, gated(load_lanes(y + i, lanes), z + i, lanes), lanes);
        });
      const F16 factor = broadcast(t.weight ? moments(y, size, t.eps, false).factor : 1.0f);
      for_columns(size, [&](int64_t i, int64_t lanes) {
        F16 v = load_lanes(y + i, lanes);
        if (t.weight) v = mul(mul(v, factor), load_lanes(t.weight + first + i, lanes));
        if (t.weight && !t.gate_first) v = gated(v, z + i, lanes);
        store_operand(t.out, out, t.out_column + first + i, v, lanes);
      });
    }
  }
}

}  // namespace
}  // namespace forearm
