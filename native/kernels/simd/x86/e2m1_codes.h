// The codes of E2M1's four bits (kernels.h, kE2m1Codes) as a table of PSHUFB, `added` to each.
#pragma once
#include <immintrin.h>

#include "kernels/kernels.h"

namespace forearm {
namespace {

template <int kAdded>
inline __m128i e2m1_codes() {
  constexpr auto code = [](int bits) { return static_cast<char>(kE2m1Codes[bits] + kAdded); };
  return _mm_setr_epi8(code(0), code(1), code(2), code(3), code(4), code(5), code(6), code(7), code(8), code(9),
                       code(10), code(11), code(12), code(13), code(14), code(15));
}

}  // namespace
}  // namespace forearm
