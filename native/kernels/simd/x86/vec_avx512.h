// The vector of 16 floats as one zmm register (AVX-512F). Meaning of each function: vec_scalar.h.
#pragma once
#include <immintrin.h>
#include <stdint.h>

namespace forearm {
namespace {

constexpr int kVectorRegisters = 1;  // that hold an F16

struct F16 {
  __m512 v;
};
struct M16 {
  __mmask16 m;
};

inline F16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline F16 zero() { return {_mm512_setzero_ps()}; }
inline F16 iota() { return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }

inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 load_first(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store_first(float* p, F16 a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }

inline __m512i bits_of(F16 a) { return _mm512_castps_si512(a.v); }
inline F16 float_of(__m512i bits) { return {_mm512_castsi512_ps(bits)}; }
inline F16 abs(F16 a) { return float_of(_mm512_and_si512(bits_of(a), _mm512_set1_epi32(0x7fffffff))); }
inline F16 copysign(F16 magnitude, F16 sign) {  // 0xe4: where the third is set the first, else the second
  return float_of(_mm512_ternarylogic_epi32(bits_of(magnitude), bits_of(sign), _mm512_set1_epi32(0x7fffffff), 0xe4));
}
inline F16 power_of_two(F16 shifted) { return float_of(_mm512_slli_epi32(bits_of(shifted), 23)); }

inline M16 less(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline M16 less_equal(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
inline M16 is_nan(F16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
inline M16 both(M16 a, M16 b) { return {static_cast<__mmask16>(a.m & b.m)}; }
inline M16 either(M16 a, M16 b) { return {static_cast<__mmask16>(a.m | b.m)}; }
inline F16 select(M16 m, F16 if_true, F16 if_false) { return {_mm512_mask_blend_ps(m.m, if_false.v, if_true.v)}; }
inline uint32_t bitmask(M16 m) { return m.m; }
inline M16 truths(uint32_t bits) { return {static_cast<__mmask16>(bits)}; }

inline __m256 upper_half(__m512 v) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)); }
inline float reduce_add(F16 a) {
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper_half(a.v));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
inline float reduce_max(F16 a) {
  const __m256 by8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), upper_half(a.v));
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

inline F16 load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return float_of(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
inline F16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// By integers, since VCVTNEPS2BF16 flushes denormals.
inline void store_bf16(uint16_t* p, F16 a) {
  const __m512i u = bits_of(a), upper = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  const __m512i narrow = _mm512_mask_blend_epi32(is_nan(a).m, rounded, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(narrow));
}
inline void store_f16(uint16_t* p, F16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

inline F16 load_i8(const int8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
}
inline void store_low_bytes(int8_t* p, F16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(bits_of(a)));
}

// As float16: E4M3 with an exponent biased by 8 more, its NaN (all ones but for the sign) as all ones.
inline F16 load_e4m3(const uint8_t* p) {
  const __m256i words =
      _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 7);
  const __m256i ones = _mm256_set1_epi16(0x3f80), halves = _mm256_and_si256(words, _mm256_set1_epi16(-0x4001));
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(words, ones), ones);
  return mul({_mm512_cvtph_ps(_mm256_or_si256(halves, nan))}, broadcast(256.0f));
}
inline F16 load_e5m2(const uint8_t* p) {
  const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_cvtph_ps(_mm256_slli_epi16(words, 8))};
}
inline void store_upper(uint16_t* p, F16 a, F16 b) {
  alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                    33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  _mm512_storeu_si512(p, _mm512_permutex2var_epi16(bits_of(a), _mm512_load_si512(kOdd), bits_of(b)));
}
inline void transpose_fours(F16 (&x)[4]) {
  const __m512 ab = _mm512_unpacklo_ps(x[0].v, x[1].v), ab_high = _mm512_unpackhi_ps(x[0].v, x[1].v);
  const __m512 cd = _mm512_unpacklo_ps(x[2].v, x[3].v), cd_high = _mm512_unpackhi_ps(x[2].v, x[3].v);
  x[0].v = _mm512_shuffle_ps(ab, cd, 0x44);
  x[1].v = _mm512_shuffle_ps(ab, cd, 0xee);
  x[2].v = _mm512_shuffle_ps(ab_high, cd_high, 0x44);
  x[3].v = _mm512_shuffle_ps(ab_high, cd_high, 0xee);
}
inline void transpose_vectors(F16 (&x)[4]) {
  const __m512 ab = _mm512_shuffle_f32x4(x[0].v, x[1].v, 0x44), ab_high = _mm512_shuffle_f32x4(x[0].v, x[1].v, 0xee);
  const __m512 cd = _mm512_shuffle_f32x4(x[2].v, x[3].v, 0x44), cd_high = _mm512_shuffle_f32x4(x[2].v, x[3].v, 0xee);
  x[0].v = _mm512_shuffle_f32x4(ab, cd, 0x88);
  x[1].v = _mm512_shuffle_f32x4(ab, cd, 0xdd);
  x[2].v = _mm512_shuffle_f32x4(ab_high, cd_high, 0x88);
  x[3].v = _mm512_shuffle_f32x4(ab_high, cd_high, 0xdd);
}
inline bool any(M16 m) { return m.m != 0; }
// VPCOMPRESSD to a register: to memory it is microcode on Zen 4 (256 micro-ops; uops.info).
inline int store_hits(const float* x, int64_t at, uint32_t bits, int32_t* index, float* value) {
  const int count = __builtin_popcount(bits);
  const __mmask16 hits = static_cast<__mmask16>(bits), stored = first_lanes(count);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i ids = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(at)));
  _mm512_mask_storeu_epi32(index, stored, _mm512_maskz_compress_epi32(hits, ids));
  _mm512_mask_storeu_ps(value, stored, _mm512_maskz_compress_ps(hits, _mm512_maskz_loadu_ps(hits, x + at)));
  return count;
}

}  // namespace
}  // namespace forearm
