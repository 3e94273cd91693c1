// The vector of 16 floats as two ymm registers (AVX2, FMA, F16C). Meaning of each function: vec_scalar.h.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "kernels/simd/compress.h"

namespace forearm {
namespace {

constexpr int kVectorRegisters = 2;  // that hold an F16

struct F16 {
  __m256 a, b;  // lanes 0-7, 8-15
};
struct M16 {
  __m256 a, b;  // all bits of a lane, or none
};

inline F16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F16 iota() { return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)}; }

inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F16 load_first(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
inline void store_first(float* p, F16 x, int64_t n) {
  _mm256_maskstore_ps(p, first_lanes(n), x.a);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), x.b);
}

inline F16 add(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 sub(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 mul(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 div(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 sqrt(F16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F16 abs(F16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F16 copysign(F16 magnitude, F16 sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  const F16 m = abs(magnitude);
  return {_mm256_or_ps(m.a, _mm256_and_ps(bit, sign.a)), _mm256_or_ps(m.b, _mm256_and_ps(bit, sign.b))};
}
inline __m256 power_of_two(__m256 shifted) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
}
inline F16 power_of_two(F16 shifted) { return {power_of_two(shifted.a), power_of_two(shifted.b)}; }

inline M16 less(F16 x, F16 y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
inline M16 less_equal(F16 x, F16 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)};
}
inline M16 is_nan(F16 x) { return {_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)}; }
inline M16 both(M16 x, M16 y) { return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)}; }
inline M16 either(M16 x, M16 y) { return {_mm256_or_ps(x.a, y.a), _mm256_or_ps(x.b, y.b)}; }
inline F16 select(M16 m, F16 if_true, F16 if_false) {
  return {_mm256_blendv_ps(if_false.a, if_true.a, m.a), _mm256_blendv_ps(if_false.b, if_true.b, m.b)};
}
inline uint32_t bitmask(M16 m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.a)) | static_cast<uint32_t>(_mm256_movemask_ps(m.b)) << 8;
}
inline M16 truths(uint32_t bits) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits)), low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i high = _mm256_slli_epi32(low, 8);
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, low), low)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, high), high))};
}

inline float reduce_add(F16 x) {
  const __m256 by8 = _mm256_add_ps(x.a, x.b);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
inline float reduce_max(F16 x) {
  const __m256 by8 = _mm256_max_ps(x.a, x.b);
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

inline __m128i load_half(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline F16 load_bf16(const uint16_t* p) {
  const __m256i a = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p)), 16);
  const __m256i b = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p + 8)), 16);
  return {_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)};
}
inline F16 load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(load_half(p)), _mm256_cvtph_ps(load_half(p + 8))}; }

inline __m256i narrow_bf16(__m256 x) {  // in the lower half of each 32 bits
  const __m256i u = _mm256_castps_si256(x), upper = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
inline void store_bf16(uint16_t* p, F16 x) {
  const __m256i interleaved = _mm256_packus_epi32(narrow_bf16(x.a), narrow_bf16(x.b));  // by 128-bit lanes
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(interleaved, 0xd8));
}
inline void store_f16(uint16_t* p, F16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

inline __m256 load_8_codes(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline F16 load_i8(const int8_t* p) { return {load_8_codes(p), load_8_codes(p + 8)}; }
inline void store_low_bytes(int8_t* p, F16 x) {
  const __m256i low = _mm256_set1_epi32(0xff);
  const __m256i a = _mm256_and_si256(_mm256_castps_si256(x.a), low);
  const __m256i b = _mm256_and_si256(_mm256_castps_si256(x.b), low);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

inline __m128i load_codes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline F16 widen_halves(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
// As float16: E4M3 with an exponent biased by 8 more, its NaN (all ones but for the sign) as all ones.
inline F16 load_e4m3(const uint8_t* p) {
  const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_codes(p)), 7);
  const __m256i ones = _mm256_set1_epi16(0x3f80), halves = _mm256_and_si256(words, _mm256_set1_epi16(-0x4001));
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(words, ones), ones);
  return mul(widen_halves(_mm256_or_si256(halves, nan)), broadcast(256.0f));
}
inline F16 load_e5m2(const uint8_t* p) {
  return widen_halves(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_codes(p)), 8));
}
inline __m256i upper_words(F16 x) {
  const __m256i words = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(x.a), 16),
                                            _mm256_srli_epi32(_mm256_castps_si256(x.b), 16));
  return _mm256_permute4x64_epi64(words, 0xd8);
}
inline void store_upper(uint16_t* p, F16 x, F16 y) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), upper_words(x));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), upper_words(y));
}
inline void transpose_fours(__m256& a, __m256& b, __m256& c, __m256& d) {
  const __m256 ab = _mm256_unpacklo_ps(a, b), ab_high = _mm256_unpackhi_ps(a, b);
  const __m256 cd = _mm256_unpacklo_ps(c, d), cd_high = _mm256_unpackhi_ps(c, d);
  a = _mm256_shuffle_ps(ab, cd, 0x44);
  b = _mm256_shuffle_ps(ab, cd, 0xee);
  c = _mm256_shuffle_ps(ab_high, cd_high, 0x44);
  d = _mm256_shuffle_ps(ab_high, cd_high, 0xee);
}
inline void transpose_fours(F16 (&x)[4]) {
  transpose_fours(x[0].a, x[1].a, x[2].a, x[3].a);
  transpose_fours(x[0].b, x[1].b, x[2].b, x[3].b);
}
inline void transpose_vectors(F16 (&x)[4]) {
  const F16 a = x[0], b = x[1], c = x[2], d = x[3];
  x[0] = {_mm256_permute2f128_ps(a.a, b.a, 0x20), _mm256_permute2f128_ps(c.a, d.a, 0x20)};
  x[1] = {_mm256_permute2f128_ps(a.a, b.a, 0x31), _mm256_permute2f128_ps(c.a, d.a, 0x31)};
  x[2] = {_mm256_permute2f128_ps(a.b, b.b, 0x20), _mm256_permute2f128_ps(c.b, d.b, 0x20)};
  x[3] = {_mm256_permute2f128_ps(a.b, b.b, 0x31), _mm256_permute2f128_ps(c.b, d.b, 0x31)};
}
inline bool any(M16 m) { return !_mm256_testz_ps(_mm256_or_ps(m.a, m.b), _mm256_or_ps(m.a, m.b)); }

}  // namespace
}  // namespace forearm
