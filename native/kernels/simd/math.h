// exp, exp2, softplus, tanh and erfc on the vector of 16 floats: one sequence of operations, hence the same bits in
// every tier. The polynomials are minimax fits (Lawson iteration on Chebyshev points, in 40-digit arithmetic) of the
// functions named.
#pragma once

namespace forearm {
namespace {

// 1.5 * 2^23 + 127: adding it rounds to an integer n, and the low bits are the exponent of 2^n.
constexpr float kExponent = 12583039.0f;
constexpr float kLog2E = 0x1.715476p+0f;

struct Exponential {
  F16 power;  // 2^n
  F16 rest;   // e^r - 1, |r| <= ln(2) / 2
};

// e^x = power * (1 + rest). x is clamped to [-88, 88]: below, e^x comes out as 0; above, it saturates at 1.65e38.
inline Exponential split_exp(F16 x) {
  const F16 shift = broadcast(kExponent);
  x = max(broadcast(-88.0f), min(broadcast(88.0f), x));
  const F16 shifted = fma(x, broadcast(kLog2E), shift);
  const F16 n = sub(shifted, shift);
  F16 r = fma(n, broadcast(-0x1.62e400p-1f), x);  // ln(2) in two parts: n times the first is exact
  r = fma(n, broadcast(-0x1.7f7d1cp-20f), r);
  F16 p = broadcast(0x1.6db452p-10f);  // (e^r - 1 - r) / r^2; e^r is 3.1e-9 off
  p = fma(p, r, broadcast(0x1.123b72p-7f));
  p = fma(p, r, broadcast(0x1.55545ep-5f));
  p = fma(p, r, broadcast(0x1.55548ep-3f));
  p = fma(p, r, broadcast(0.5f));
  return {power_of_two(shifted), fma(mul(r, r), p, r)};
}

// Within 1 ulp; NaN gives NaN, -inf gives 0.
inline F16 exp(F16 x) {
  const Exponential e = split_exp(x);
  return fma(e.power, e.rest, e.power);
}

// 2^x, x <= 0, within 2.1 ulp, of which the polynomial is 1.5. NaN gives NaN, below -127 gives 0, and 0 gives 1.
inline F16 exp2_of_negative(F16 x) {
  const F16 shift = broadcast(kExponent);
  x = max(broadcast(-127.0f), x);
  const F16 shifted = add(x, shift), r = sub(x, sub(shifted, shift));  // exact, |r| <= 1/2
  F16 p = broadcast(0x1.5bba34p-10f);
  p = fma(p, r, broadcast(0x1.3cea88p-7f));
  p = fma(p, r, broadcast(0x1.c6b752p-5f));
  p = fma(p, r, broadcast(0x1.ebf9bcp-3f));
  p = fma(p, r, broadcast(0x1.62e42ap-1f));
  return mul(fma(p, r, broadcast(1.0f)), power_of_two(shifted));
}

// log(1 + e^x), without overflow: max(x, 0) + log(1 + u), u = e^-|x|. The logarithm is 2 artanh(s), s = u / (2 + u) <=
// 1/3, whose polynomial in s^2 is 4.0e-9 off: small u keep their relative error.
inline F16 softplus(F16 x) {
  const F16 u = exp(sub(zero(), abs(x))), s = div(u, add(u, broadcast(2.0f))), z = mul(s, s);
  F16 p = broadcast(0x1.208bd0p-2f);
  p = fma(p, z, broadcast(0x1.1e510ap-2f));
  p = fma(p, z, broadcast(0x1.99dae6p-2f));
  p = fma(p, z, broadcast(0x1.5554e0p-1f));
  p = fma(p, z, broadcast(2.0f));
  return fma(s, p, max(x, zero()));
}

// (e^2|x| - 1) / (e^2|x| + 1), the numerator without cancellation: a relative error of a few ulp, small x too.
inline F16 tanh(F16 x) {
  const F16 one = broadcast(1.0f), magnitude = min(broadcast(10.0f), abs(x));  // tanh(9.02) rounds to 1
  const Exponential e = split_exp(add(magnitude, magnitude));
  const F16 minus_one = fma(e.power, e.rest, sub(e.power, one));
  return copysign(div(minus_one, add(minus_one, broadcast(2.0f))), x);
}

// erfc(x) for x >= 0, as e^(-x^2) t P(t) with t = 1 / (1 + 0.3275911 x): the form of Hastings 1955 (Abramowitz and
// Stegun 7.1.26), three terms more. P is 5.6e-8 off up to x = 6.5; beyond, erfc is below 4e-20.
inline F16 erfc_positive(F16 x) {
  const F16 t = div(broadcast(1.0f), fma(x, broadcast(0.3275911f), broadcast(1.0f)));
  F16 p = broadcast(-0.14428216218948364f);
  p = fma(p, t, broadcast(0.5100868940353394f));
  p = fma(p, t, broadcast(-0.4295654296875f));
  p = fma(p, t, broadcast(0.4757075607776642f));
  p = fma(p, t, broadcast(0.013069544918835163f));
  p = fma(p, t, broadcast(0.20982205867767334f));
  p = fma(p, t, broadcast(0.18006189167499542f));
  p = fma(p, t, broadcast(0.18509957194328308f));
  return mul(exp(sub(zero(), mul(x, x))), mul(p, t));
}

}  // namespace
}  // namespace forearm
