// Integer tiles of the AVX2 tier: up to 4 rows by 16 columns, 8 of the 16 registers.
#pragma once
#include "kernels/simd/x86/e2m1_codes.h"
#include "kernels/simd/x86/vec_avx2.h"

namespace forearm {
namespace {

struct I16 {
  __m256i a, b;  // lanes 0-7, 8-15
};
using Bytes = I16;
using Words = I16;
using Quad = __m256i;

inline I16 broadcast_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline F16 floats_of(const I16& x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Bytes load_bytes(const char* p) {
  const auto* from = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
template <int I>
inline __m256i nibbles(__m256i x) {
  return _mm256_and_si256(I == 0 ? x : _mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
}
template <int I>
inline Bytes nibbles(const Bytes& x) {
  return {nibbles<I>(x.a), nibbles<I>(x.b)};
}
template <int kAdded>
inline Bytes looked_up(const Bytes& bits) {
  const __m256i codes = _mm256_broadcastsi128_si256(e2m1_codes<kAdded>());
  return {_mm256_shuffle_epi8(codes, bits.a), _mm256_shuffle_epi8(codes, bits.b)};
}
inline Quad broadcast_quad(const char* a) {
  int32_t quad;
  __builtin_memcpy(&quad, a, 4);
  return _mm256_set1_epi32(quad);
}
inline Bytes signs_of(const Bytes& x) { return {_mm256_abs_epi8(x.a), _mm256_abs_epi8(x.b)}; }
inline Words products(const Bytes& x, Quad quad) {
  return {_mm256_maddubs_epi16(x.a, quad), _mm256_maddubs_epi16(x.b, quad)};
}
inline Words signed_products(const Bytes& w, const Bytes& magnitudes, Quad quad) {
  return {_mm256_maddubs_epi16(magnitudes.a, _mm256_sign_epi8(quad, w.a)),
          _mm256_maddubs_epi16(magnitudes.b, _mm256_sign_epi8(quad, w.b))};
}
inline Words add_words(const Words& x, const Words& y) {
  return {_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)};
}
inline void add_widened(I16& sums, const Words& words) {
  const __m256i one = _mm256_set1_epi16(1);
  sums.a = _mm256_add_epi32(sums.a, _mm256_madd_epi16(words.a, one));
  sums.b = _mm256_add_epi32(sums.b, _mm256_madd_epi16(words.b, one));
}

constexpr int kCodeUnits = 4;
constexpr int code_panels(int units) { return units == 1 ? 4 : units == 2 ? 2 : 1; }

}  // namespace
}  // namespace forearm

#include "kernels/simd/x86/mma_int_maddubs.h"
