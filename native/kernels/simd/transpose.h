// Transposing a packed panel of 16 by 16 elements, in pieces of 4 by 4, by shuffles of 16-byte vectors that every
// compiler maps to instructions of the CPU (ZIP and TBL of Arm, UNPCK and PSHUFB of x86).
#pragma once
#include <stdint.h>

namespace forearm {
namespace {

typedef float Floats4 __attribute__((vector_size(16)));
typedef uint16_t Halves8 __attribute__((vector_size(16)));

template <typename Vector, typename Element>
inline Vector load_vector(const Element* p) {
  Vector v;
  __builtin_memcpy(&v, p, 16);
  return v;
}
template <typename Vector, typename Element>
inline void store_vector(Element* p, Vector v) {
  __builtin_memcpy(p, &v, 16);
}

// to [16 n / quantum][16 k][quantum n] = from [16 k / quantum][16 n][quantum k], a panel of each.
template <int kQuantum>
inline void transpose_panel(const float* from, float* to) {
  static_assert(kQuantum == 1);
  for (int k = 0; k < 16; k += 4) {
    for (int n = 0; n < 16; n += 4) {
      const float* p = from + k * 16 + n;
      const auto a = load_vector<Floats4>(p), b = load_vector<Floats4>(p + 16);
      const auto c = load_vector<Floats4>(p + 32), d = load_vector<Floats4>(p + 48);
      const Floats4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
      const Floats4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Floats4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      float* q = to + n * 16 + k;
      store_vector(q, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
      store_vector(q + 16, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
      store_vector(q + 32, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
      store_vector(q + 48, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
    }
  }
}
template <int kQuantum>
inline void transpose_panel(const uint16_t* from, uint16_t* to) {
  static_assert(kQuantum == 2 || kQuantum == 4);
  for (int k = 0; k < 16; k += 4) {
    for (int n = 0; n < 16; n += 4) {
      const uint16_t* p = from + k * 16 + n * kQuantum;
      uint16_t* q = to + n * 16 + k * kQuantum;
      if constexpr (kQuantum == 2) {  // a: k 0 and 1 of four n, b: k 2 and 3
        const auto a = load_vector<Halves8>(p), b = load_vector<Halves8>(p + 32);
        store_vector(q, __builtin_shufflevector(a, b, 0, 2, 1, 3, 8, 10, 9, 11));
        store_vector(q + 32, __builtin_shufflevector(a, b, 4, 6, 5, 7, 12, 14, 13, 15));
      } else {  // a: four k of n 0 and 1, b: of n 2 and 3
        const auto a = load_vector<Halves8>(p), b = load_vector<Halves8>(p + 8);
        store_vector(q, __builtin_shufflevector(a, b, 0, 4, 8, 12, 1, 5, 9, 13));
        store_vector(q + 8, __builtin_shufflevector(a, b, 2, 6, 10, 14, 3, 7, 11, 15));
      }
    }
  }
}

}  // namespace
}  // namespace forearm
