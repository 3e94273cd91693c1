// Integer products in plain C++: the definition. mma_int.h names the members.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/mma_int.h"

namespace forearm {
namespace {

// The code that four bits of a panel stand for.
template <CodePacking kFormat>
inline int32_t code_of(int nibble) {
  return kFormat == CodePacking::e2m1 ? kE2m1Codes[nibble & 15] : ((nibble & 15) ^ 8) - 8;
}

template <CodePacking kFormat>
struct IntMma {
  static constexpr int kRows = 1, kQuantum = 4;
  static constexpr Form kForm = Form::i8_rows;
  static constexpr int kBias = 0, kNibbleBias = 0;
  static constexpr int kStepK = kQuantum * (in_nibbles(kFormat) ? 2 : 1);
  static constexpr int kStepBytes = kPanel * kQuantum;
  static constexpr int kUnits = 4;
  static constexpr int panels(int) { return 1; }
  struct Sums {
    int32_t of[16];
  };
  using Scales = F16;

  static Sums start(const int32_t*, int64_t) { return {}; }
  static Scales scales(F16 s) { return s; }

  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    for (int u = 0; u < Units; ++u) {
      for (int p = 0; p < Panels; ++p) {
        const auto* row = reinterpret_cast<const int8_t*>(a + u * unit_bytes);
        const auto* codes = reinterpret_cast<const int8_t*>(w + p * panel_bytes);
        add_products(sums[u][p].of, row, codes);
      }
    }
  }

  template <int>
  static F16 row(const Sums& sums) {
    float values[16];
    for (int i = 0; i < 16; ++i) values[i] = static_cast<float>(sums.of[i]);
    return load(values);
  }
  static void fold(const Sums& sums, const float* a_scales, int64_t, Scales s, float* acc) {
    forearm::store(acc, fma(mul(row<0>(sums), broadcast(*a_scales)), s, load(acc)));
  }
  static void fold_offsets(const int32_t* sums, const float* a_scales, int64_t, Scales o, float* acc) {
    forearm::store(acc, fma(broadcast(static_cast<float>(*sums) * *a_scales), o, load(acc)));
  }
  static void store(const float* acc, float* out, int64_t) { forearm::store(out, load(acc)); }

 private:
  static void add_products(int32_t (&sums)[16], const int8_t* row, const int8_t* codes) {
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < kQuantum; ++k) {
        const int8_t byte = codes[i * kQuantum + k];
        if constexpr (in_nibbles(kFormat)) {
          sums[i] += row[k] * code_of<kFormat>(byte) + row[kQuantum + k] * code_of<kFormat>(byte >> 4);
        } else {
          sums[i] += row[k] * byte;
        }
      }
    }
  }
};

template <CodePacking kFormat>
inline void unpack(const char* nibbles, char* to, int64_t steps) {
  constexpr int kChunk = kPanel * IntMma<kFormat>::kQuantum;
  for (int64_t s = 0; s < steps; ++s, nibbles += kChunk, to += 2 * kChunk) {
    for (int i = 0; i < kChunk; ++i) {
      to[i] = static_cast<char>(code_of<kFormat>(nibbles[i]));
      to[kChunk + i] = static_cast<char>(code_of<kFormat>(nibbles[i] >> 4));
    }
  }
}

}  // namespace
}  // namespace forearm
