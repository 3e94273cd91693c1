// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) with angles given as cosines and sines.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/rows/lanes.h"

namespace forearm {
namespace {

// Products are rounded before they are added, as transformers does in float32.
inline void rotate_halves(float* x, int64_t half, const float* cos, const float* sin) {
  for_columns(half, [&](int64_t i, int64_t lanes) {
    const F16 a = load_lanes(x + i, lanes), b = load_lanes(x + half + i, lanes);
    const F16 c = load_lanes(cos + i, lanes), s = load_lanes(sin + i, lanes);
    store_lanes(x + i, sub(mul(a, c), mul(b, s)), lanes);
    store_lanes(x + half + i, add(mul(b, c), mul(a, s)), lanes);
  });
}

// Few models interleave, so this is left to the compiler's vectorizer, which rounds the same.
inline void rotate_pairs(float* x, int64_t half, const float* cos, const float* sin) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

inline void rope(const RopeTask& t) {
  const int64_t half = t.rotary_dim / 2;
  for (int64_t row = 0; row < t.rows; ++row) {
    for (int64_t head = 0; head < t.heads; ++head) {
      float* x = t.x + row * t.x_stride + head * t.head_dim;
      if (t.interleaved) {
        rotate_pairs(x, half, t.cos + row * half, t.sin + row * half);
      } else {
        rotate_halves(x, half, t.cos + row * half, t.sin + row * half);
      }
    }
  }
}

}  // namespace
}  // namespace forearm
