// Integer tiles of the AVX-512 tier without VNNI: up to 8 rows by 32 columns.
#pragma once
#include "kernels/simd/x86/e2m1_codes.h"
#include "kernels/simd/x86/vec_avx512.h"

namespace forearm {
namespace {

using I16 = __m512i;
using Bytes = __m512i;
using Quad = __m512i;

inline I16 broadcast_int(int32_t x) { return _mm512_set1_epi32(x); }
inline F16 floats_of(I16 x) { return {_mm512_cvtepi32_ps(x)}; }
inline Bytes load_bytes(const char* p) { return _mm512_loadu_si512(p); }
template <int I>
inline Bytes nibbles(Bytes x) {
  return _mm512_and_si512(I == 0 ? x : _mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
}
template <int kAdded>
inline Bytes looked_up(Bytes bits) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(e2m1_codes<kAdded>()), bits);
}
inline Quad broadcast_quad(const char* a) {
  int32_t quad;
  __builtin_memcpy(&quad, a, 4);
  return _mm512_set1_epi32(quad);
}
struct Signs {
  __mmask64 negative;
  __m512i magnitude;
};
inline Signs signs_of(Bytes x) { return {_mm512_movepi8_mask(x), _mm512_abs_epi8(x)}; }
inline __m512i products(Bytes x, Quad quad) { return _mm512_maddubs_epi16(x, quad); }
inline __m512i signed_products(Bytes, const Signs& w, Quad quad) {
  return products(w.magnitude, _mm512_mask_sub_epi8(quad, w.negative, _mm512_setzero_si512(), quad));
}
inline __m512i add_words(__m512i x, __m512i y) { return _mm512_add_epi16(x, y); }
inline void add_widened(I16& sums, __m512i words) {
  sums = _mm512_add_epi32(sums, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
}

constexpr int kCodeUnits = 8;
constexpr int code_panels(int units) { return units <= 2 ? 8 : units <= 4 ? 4 : 2; }

}  // namespace
}  // namespace forearm

#include "kernels/simd/x86/mma_int_maddubs.h"
