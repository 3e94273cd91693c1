// The activations of feed-forward layers, on a vector in registers.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/math.h"

namespace forearm {
namespace {

inline F16 sigmoid(F16 x) { return div(broadcast(1.0f), add(broadcast(1.0f), exp(sub(zero(), x)))); }

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
inline F16 gelu_tanh(F16 x) {
  const F16 cubic = fma(mul(mul(x, x), x), broadcast(0.044715f), x);
  const F16 half = mul(x, broadcast(0.5f));
  return fma(half, tanh(mul(cubic, broadcast(0.7978845608028654f))), half);
}

// x Phi(x), from the tail that does not cancel: x erfc(-x / sqrt(2)) / 2 below zero, x - x erfc(x / sqrt(2)) / 2 above.
inline F16 gelu_erf(F16 x) {
  const F16 tail = mul(mul(abs(x), broadcast(0.5f)), erfc_positive(mul(abs(x), broadcast(0.7071067811865476f))));
  return sub(max(zero(), x), tail);
}

inline F16 relu(F16 x) { return max(zero(), x); }

// e^x - 1 without cancellation.
inline F16 xielu(F16 x, const Xielu& c) {
  const F16 linear = mul(broadcast(c.linear), x);
  const Exponential e = split_exp(min(x, broadcast(c.limit)));
  const F16 minus_one = fma(e.power, e.rest, sub(e.power, broadcast(1.0f)));
  const F16 up_to_zero = fma(broadcast(c.negative), sub(minus_one, x), linear);
  return select(less(zero(), x), fma(mul(broadcast(c.positive), x), x, linear), up_to_zero);
}

// A template, so that the activation is chosen once a tile and not once a vector.
template <Activation kind>
inline F16 activate(F16 x) {
  if constexpr (kind == Activation::silu) return mul(x, sigmoid(x));
  if constexpr (kind == Activation::gelu_tanh) return gelu_tanh(x);
  if constexpr (kind == Activation::gelu_erf) return gelu_erf(x);
  if constexpr (kind == Activation::relu) return relu(x);
  if constexpr (kind == Activation::relu_squared) return mul(relu(x), relu(x));
  if constexpr (kind == Activation::none || kind == Activation::swiglu_oai || kind == Activation::xielu) return x;
}

// Returns what a gated feed-forward passes on.
template <Activation kind>
inline F16 activate_gated(F16 gate, F16 up) {
  if constexpr (kind == Activation::swiglu_oai) {
    const F16 limit = broadcast(7.0f), low = min(limit, gate), kept = max(broadcast(-7.0f), min(limit, up));
    const F16 glu = mul(low, sigmoid(mul(low, broadcast(1.702f))));
    return fma(glu, kept, glu);
  } else {
    return mul(activate<kind>(gate), up);
  }
}

}  // namespace
}  // namespace forearm
