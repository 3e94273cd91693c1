// The vector of 16 floats as four q registers (Armv8.0). Meaning of each function: vec_scalar.h; store_bf16 comes from
// mma_neon.h or store_bf16_neon.h.
#pragma once
#include <arm_neon.h>
#include <stdint.h>

#include "kernels/simd/compress.h"

namespace forearm {
namespace {

constexpr int kVectorRegisters = 4;  // that hold an F16

struct F16 {
  float32x4_t a, b, c, d;  // lanes 0-3, 4-7, 8-11, 12-15
};
struct M16 {
  uint32x4_t a, b, c, d;  // all bits of a lane, or none
};

inline F16 broadcast(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
inline F16 zero() { return broadcast(0.0f); }

inline F16 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
inline void store(float* p, F16 x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
inline F16 iota() {
  static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(lanes);
}
inline F16 load_first(const float* p, int64_t n) {
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
inline void store_first(float* p, F16 x, int64_t n) {
  float lanes[16];
  store(lanes, x);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

inline F16 add(F16 x, F16 y) {
  return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)};
}
inline F16 sub(F16 x, F16 y) {
  return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)};
}
inline F16 mul(F16 x, F16 y) {
  return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
}
inline F16 div(F16 x, F16 y) {
  return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)};
}
inline F16 sqrt(F16 x) { return {vsqrtq_f32(x.a), vsqrtq_f32(x.b), vsqrtq_f32(x.c), vsqrtq_f32(x.d)}; }
inline F16 fma(F16 x, F16 y, F16 z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
inline F16 abs(F16 x) { return {vabsq_f32(x.a), vabsq_f32(x.b), vabsq_f32(x.c), vabsq_f32(x.d)}; }
inline F16 copysign(F16 magnitude, F16 sign) {
  const uint32x4_t bit = vdupq_n_u32(0x80000000u);
  return {vbslq_f32(bit, sign.a, magnitude.a), vbslq_f32(bit, sign.b, magnitude.b), vbslq_f32(bit, sign.c, magnitude.c),
          vbslq_f32(bit, sign.d, magnitude.d)};
}
inline float32x4_t power_of_two(float32x4_t shifted) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23));
}
inline F16 power_of_two(F16 x) { return {power_of_two(x.a), power_of_two(x.b), power_of_two(x.c), power_of_two(x.d)}; }

inline M16 less(F16 x, F16 y) {
  return {vcltq_f32(x.a, y.a), vcltq_f32(x.b, y.b), vcltq_f32(x.c, y.c), vcltq_f32(x.d, y.d)};
}
inline M16 less_equal(F16 x, F16 y) {
  return {vcleq_f32(x.a, y.a), vcleq_f32(x.b, y.b), vcleq_f32(x.c, y.c), vcleq_f32(x.d, y.d)};
}
inline M16 is_nan(F16 x) {
  return {vmvnq_u32(vceqq_f32(x.a, x.a)), vmvnq_u32(vceqq_f32(x.b, x.b)), vmvnq_u32(vceqq_f32(x.c, x.c)),
          vmvnq_u32(vceqq_f32(x.d, x.d))};
}
inline M16 both(M16 x, M16 y) {
  return {vandq_u32(x.a, y.a), vandq_u32(x.b, y.b), vandq_u32(x.c, y.c), vandq_u32(x.d, y.d)};
}
inline M16 either(M16 x, M16 y) {
  return {vorrq_u32(x.a, y.a), vorrq_u32(x.b, y.b), vorrq_u32(x.c, y.c), vorrq_u32(x.d, y.d)};
}
inline F16 select(M16 m, F16 if_true, F16 if_false) {
  return {vbslq_f32(m.a, if_true.a, if_false.a), vbslq_f32(m.b, if_true.b, if_false.b),
          vbslq_f32(m.c, if_true.c, if_false.c), vbslq_f32(m.d, if_true.d, if_false.d)};
}
// Not FMAX, which differs from the definition in NaNs and signed zeros.
inline F16 max(F16 x, F16 y) { return select(less(y, x), x, y); }
inline F16 min(F16 x, F16 y) { return select(less(x, y), x, y); }
inline uint32_t bitmask(M16 m) {
  const uint32x4_t weight = {1, 2, 4, 8};
  const uint32_t a = vaddvq_u32(vandq_u32(m.a, weight)), b = vaddvq_u32(vandq_u32(m.b, weight));
  const uint32_t c = vaddvq_u32(vandq_u32(m.c, weight)), d = vaddvq_u32(vandq_u32(m.d, weight));
  return a | b << 4 | c << 8 | d << 12;
}
inline M16 truths(uint32_t bits) {
  const uint32x4_t all = vdupq_n_u32(bits), weight = {1, 2, 4, 8};
  return {vtstq_u32(all, weight), vtstq_u32(all, vshlq_n_u32(weight, 4)), vtstq_u32(all, vshlq_n_u32(weight, 8)),
          vtstq_u32(all, vshlq_n_u32(weight, 12))};
}

inline float reduce_add(F16 x) {
  const float32x4_t by4 = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  const float32x2_t by2 = vadd_f32(vget_low_f32(by4), vget_high_f32(by4));
  return vget_lane_f32(by2, 0) + vget_lane_f32(by2, 1);
}
inline float32x4_t max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
inline float reduce_max(F16 x) {
  const float32x4_t by4 = max4(max4(x.a, x.c), max4(x.b, x.d));
  const float32x4_t by2 = max4(by4, vextq_f32(by4, by4, 2));
  const float first = vgetq_lane_f32(by2, 0), second = vgetq_lane_f32(by2, 1);
  return first > second ? first : second;
}

inline float32x4_t widen_bf16(uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }
inline F16 load_bf16(const uint16_t* p) {
  const uint16x8_t low = vld1q_u16(p), high = vld1q_u16(p + 8);
  return {widen_bf16(vget_low_u16(low)), widen_bf16(vget_high_u16(low)), widen_bf16(vget_low_u16(high)),
          widen_bf16(vget_high_u16(high))};
}
inline F16 load_f16(const uint16_t* p) {
  const float16x8_t low = vreinterpretq_f16_u16(vld1q_u16(p)), high = vreinterpretq_f16_u16(vld1q_u16(p + 8));
  return {vcvt_f32_f16(vget_low_f16(low)), vcvt_f32_f16(vget_high_f16(low)), vcvt_f32_f16(vget_low_f16(high)),
          vcvt_f32_f16(vget_high_f16(high))};
}
inline uint16x4_t narrow_f16(float32x4_t x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
inline void store_f16(uint16_t* p, F16 x) {
  vst1q_u16(p, vcombine_u16(narrow_f16(x.a), narrow_f16(x.b)));
  vst1q_u16(p + 8, vcombine_u16(narrow_f16(x.c), narrow_f16(x.d)));
}

inline F16 load_i8(const int8_t* p) {
  const int8x16_t codes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_s8(vget_high_s8(codes));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))};
}
inline uint16x4_t low_half(float32x4_t x) { return vmovn_u32(vreinterpretq_u32_f32(x)); }
inline void store_low_bytes(int8_t* p, F16 x) {
  const uint8x8_t low = vmovn_u16(vcombine_u16(low_half(x.a), low_half(x.b)));
  const uint8x8_t high = vmovn_u16(vcombine_u16(low_half(x.c), low_half(x.d)));
  vst1q_u8(reinterpret_cast<uint8_t*>(p), vcombine_u8(low, high));
}

inline F16 widen_halves(uint16x8_t low, uint16x8_t high) {
  const float16x8_t a = vreinterpretq_f16_u16(low), b = vreinterpretq_f16_u16(high);
  return {vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)), vcvt_high_f32_f16(b)};
}
// As float16: E4M3 with an exponent biased by 8 more, its NaN (all ones but for the sign) as all ones.
inline uint16x8_t half_of_e4m3(int16x8_t code) {
  const uint16x8_t words = vshlq_n_u16(vreinterpretq_u16_s16(code), 7), ones = vdupq_n_u16(0x3f80);
  return vorrq_u16(vandq_u16(words, vdupq_n_u16(0xbfff)), vceqq_u16(vandq_u16(words, ones), ones));
}
inline F16 load_e4m3(const uint8_t* p) {
  const int8x16_t codes = vreinterpretq_s8_u8(vld1q_u8(p));
  return mul(widen_halves(half_of_e4m3(vmovl_s8(vget_low_s8(codes))), half_of_e4m3(vmovl_high_s8(codes))),
             broadcast(256.0f));
}
inline F16 load_e5m2(const uint8_t* p) {
  const uint8x16_t codes = vld1q_u8(p);
  return widen_halves(vshll_n_u8(vget_low_u8(codes), 8), vshll_n_u8(vget_high_u8(codes), 8));
}
inline uint16x8_t upper_words(float32x4_t low, float32x4_t high) {
  return vuzp2q_u16(vreinterpretq_u16_f32(low), vreinterpretq_u16_f32(high));
}
inline void store_upper(uint16_t* p, F16 x, F16 y) {
  vst1q_u16(p, upper_words(x.a, x.b));
  vst1q_u16(p + 8, upper_words(x.c, x.d));
  vst1q_u16(p + 16, upper_words(y.a, y.b));
  vst1q_u16(p + 24, upper_words(y.c, y.d));
}
inline void transpose_fours(float32x4_t& a, float32x4_t& b, float32x4_t& c, float32x4_t& d) {
  const float32x4x2_t ab = vtrnq_f32(a, b), cd = vtrnq_f32(c, d);
  a = vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(cd.val[0]));
  b = vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(cd.val[1]));
  c = vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(cd.val[0]));
  d = vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(cd.val[1]));
}
inline void transpose_fours(F16 (&x)[4]) {
  transpose_fours(x[0].a, x[1].a, x[2].a, x[3].a);
  transpose_fours(x[0].b, x[1].b, x[2].b, x[3].b);
  transpose_fours(x[0].c, x[1].c, x[2].c, x[3].c);
  transpose_fours(x[0].d, x[1].d, x[2].d, x[3].d);
}
inline void transpose_vectors(F16 (&x)[4]) {
  const F16 a = x[0], b = x[1], c = x[2], d = x[3];
  x[0] = {a.a, b.a, c.a, d.a};
  x[1] = {a.b, b.b, c.b, d.b};
  x[2] = {a.c, b.c, c.c, d.c};
  x[3] = {a.d, b.d, c.d, d.d};
}
inline bool any(M16 m) { return vmaxvq_u32(vorrq_u32(vorrq_u32(m.a, m.b), vorrq_u32(m.c, m.d))) != 0; }

}  // namespace
}  // namespace forearm
