// The recurrence of Mamba2 (Dao and Gu 2024, arXiv:2405.21060, equation 1) and the norm behind it.
//
// Prefill takes a few panels of a head's columns through sixteen rows at a time, while the panels stay in the
// first-level cache, and within them through a few tokens at a time: each value of the state is loaded and stored once
// for these tokens, in registers between, and sees the same operations in the same order as one token at a time. So a
// cut between any rows changes no bit. It costs two multiply-adds for each value of the state and token; the form in
// matrix products of chunks (section 6) costs as many, and about chunk / state_dim + chunk / head_dim more.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/norm.h"
#include "kernels/ops/state/scaled_state.h"
#include "kernels/simd/math.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// A head's next rows, of which each has what a token's x is multiplied with on its way to what is kept, the scale after
// the token, and the factor of what is kept before it.
constexpr int64_t kStepRows = 16;
struct Mamba2Steps {
  float gain[kStepRows], scale[kStepRows], factor[kStepRows];
  bool rescales[kStepRows];  // factor is not 1
};

inline void mamba2_steps(const Mamba2Task& t, int64_t head, int64_t row, int64_t rows, float before,
                         Mamba2Steps& steps) {
  float raw[kStepRows] = {}, decay[kStepRows];
  for (int64_t i = 0; i < rows; ++i) raw[i] = t.dt[(row + i) * t.dt_stride + head];
  const F16 moved = fma(load(raw), broadcast(t.dt_scale), broadcast(t.dt_bias[head]));
  const F16 dt = min(broadcast(t.dt_most), max(broadcast(t.dt_least), softplus(moved)));
  store(decay, exp(sub(zero(), mul(dt, exp(broadcast(t.a_log[head]))))));
  for (int64_t i = 0; i < kStepRows; ++i) {
    const Forgetting gate(i ? steps.scale[i - 1] : before, decay[i]);
    steps.scale[i] = gate.scale;
    steps.rescales[i] = gate.rescales;
    steps.factor[i] = gate.rescales ? gate.decayed : 1.0f;
  }
  store(steps.gain, div(dt, load(steps.scale)));
}

// Panels and tokens of a pass: for each panel of each token a sum and what x adds must fit the registers.
constexpr int kMambaTokens = kVectorRegisters == 1 ? 4 : 2, kMambaPanels = kVectorRegisters == 1 ? 2 : 1;

// Moves kPanels panels of a head's state by kTokens tokens, from column `column` of the head on.
template <int kPanels, int kTokens, bool kRescales>
inline void mamba2_pass(const Mamba2Task& t, int64_t head, int64_t row, int64_t column, const Mamba2Steps& steps,
                        int64_t step) {
  const int64_t group = head / (t.heads / t.groups) * t.state_dim;
  const int64_t panel = panel_floats(t.state_dim);
  float* state = t.state + head * state_floats(t.state_dim, t.head_dim) + column / kPanel * panel;
  const float *b = t.b + row * t.stride + group, *c = t.c + row * t.stride + group;
  float* x = t.x + row * t.stride + head * t.head_dim + column;
  F16 moved[kTokens][kPanels], y[kTokens][kPanels];
  const auto lanes_of = [&](int panel) {
    const int64_t left = t.head_dim - column - panel * kPanel;
    return left < kPanel ? left : kPanel;
  };
  UNROLLED_FOR (i, kTokens) {
    UNROLLED_FOR (p, kPanels) {
      moved[i][p] = mul(load_lanes(x + i * t.stride + p * kPanel, lanes_of(p)), broadcast(steps.gain[step + i]));
      y[i][p] = zero();
    }
  }
  for (int64_t n = 0; n < t.state_dim; ++n) {
    F16 write[kTokens], read[kTokens];
    UNROLLED_FOR (i, kTokens) {
      write[i] = broadcast(b[i * t.stride + n]);
      read[i] = broadcast(c[i * t.stride + n]);
    }
    UNROLLED_FOR (p, kPanels) {
      float* at = state + p * panel + n * kPanel;
      F16 s = load(at);
      UNROLLED_FOR (i, kTokens) {
        if constexpr (kRescales) s = mul(broadcast(steps.factor[step + i]), s);
        s = fma(write[i], moved[i][p], s);
        y[i][p] = fma(read[i], s, y[i][p]);
      }
      store(at, s);
    }
  }
  const F16 d = broadcast(t.d[head]);
  UNROLLED_FOR (i, kTokens) {
    UNROLLED_FOR (p, kPanels) {
      float* out = x + i * t.stride + p * kPanel;
      const F16 told = mul(broadcast(steps.scale[step + i]), y[i][p]);
      store_lanes(out, fma(d, load_lanes(out, lanes_of(p)), told), lanes_of(p));
    }
  }
}

// Moves kPanels panels by `rows` rows, at most kStepRows.
template <int kPanels>
inline void mamba2_columns(const Mamba2Task& t, int64_t head, int64_t row, int64_t rows, int64_t column,
                           const Mamba2Steps& steps) {
  int64_t step = 0;
  for (; step + kMambaTokens <= rows; step += kMambaTokens) {
    bool rescales = false;
    UNROLLED_FOR (i, kMambaTokens) rescales |= steps.rescales[step + i];
    if (rescales) {
      mamba2_pass<kPanels, kMambaTokens, true>(t, head, row + step, column, steps, step);
    } else {
      mamba2_pass<kPanels, kMambaTokens, false>(t, head, row + step, column, steps, step);
    }
  }
  for (; step < rows; ++step) mamba2_pass<kPanels, 1, true>(t, head, row + step, column, steps, step);
}

// Moves the panels of a head's columns [begin, end) by all rows.
inline void mamba2_head(const Mamba2Task& t, int64_t head, int64_t begin, int64_t end) {
  const int64_t panel = panel_floats(t.state_dim);
  float* scale = t.state + head * state_floats(t.state_dim, t.head_dim) + panel - kPanel;
  float after = scale[begin / kPanel * panel];
  Mamba2Steps steps;
  for (int64_t row = 0; row < t.rows; row += kStepRows) {
    const int64_t rows = t.rows - row < kStepRows ? t.rows - row : kStepRows;
    mamba2_steps(t, head, row, rows, after, steps);
    after = steps.scale[rows - 1];
    int64_t column = begin;
    for (; column + (kMambaPanels - 1) * kPanel < end; column += kMambaPanels * kPanel)
      mamba2_columns<kMambaPanels>(t, head, row, rows, column, steps);
    if (column < end) mamba2_columns<1>(t, head, row, rows, column, steps);
  }
  for (int64_t column = begin; column < end; column += kPanel) scale[column / kPanel * panel] = after;
}

inline void mamba2(const Mamba2Task& t) {
  const int64_t panels = state_panels(t.head_dim);
  for (int64_t head = t.panel_begin / panels; head * panels < t.panel_end; ++head) {
    const int64_t begin = (t.panel_begin - head * panels) * kPanel, end = (t.panel_end - head * panels) * kPanel;
    mamba2_head(t, head, begin < 0 ? 0 : begin, end < t.head_dim ? end : t.head_dim);
  }
}

inline void gated_norm(const GatedNormTask& t) {
  const int64_t size = t.dim / t.groups;
  const F16 scale = broadcast(t.z_scale);
  const auto gated = [&](F16 y, const float* z, int64_t lanes) {
    const F16 scaled = mul(load_lanes(z, lanes), scale);
    return mul(y, t.by_sigmoid ? sigmoid(scaled) : activate<Activation::silu>(scaled));
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
