// Multiplication of codes in plain C++, exact in int32: the definition, and what a tier without its own uses.
//
// An IntMma<codes> gives gemm_codes.h what it multiplies tiles of A (i8 form) and W (codes) with. Codes says how W
// stands:
//   bytes      int8 as packed: B[..][k / kQuantum][16][kQuantum], a byte is code + kBias
//   nibbles    int4 as packed: a step is two chunks of kQuantum k, low and high nibbles, a nibble is code + kNibbleBias
//   unpacked   int4 one code a byte in the order of `bytes`, a byte is code + kNibbleBias: unpack() makes it from nibbles
//              (any other order, and any multiple of the codes that store() takes back exactly, will do as well)
// Members:
//   kRows, kQuantum, kForm   rows that go together (a unit: 1 of i8_rows, 2 of i8_pairs), the layout's quantum, the
//   form kStepK, kStepBytes       k of a step, and the bytes that it takes of one panel of W kUnits, panels(units) the
//   most units of a tile, and how many panels so many units take Sums                     int32 sums of a unit by a
//   panel, in registers, in any order (SMMLA: blocks of 2 x 2)
//   start                    the sums before the first step of a group: -bias * sum of the row's codes in the group;
//                            `sums` is the group's of the unit's first row, the second row's is `groups` further
//   step                     adds kStepK k: to Units x Panels
//   Scales, scales           what 16 columns are multiplied with, in the order of Sums
//   fold                     acc = fma(float(i) * a_scale, s, acc); acc is kRows * 16 floats in the order of Sums,
//                            a_scales as `sums` above
//   fold_offsets             acc = fma(float(a_sum) * a_scale, o, acc)
//   store                    acc as floats, row r of the unit at out + r * stride
// Beside it mma_int_<isa>.h gives unpack(nibbles, to, steps), for one panel, and code_columns<dtype>(panel, k): the 16
// codes (int8, int4) at k as floats.
#pragma once
#include "kernels/kernels.h"

namespace forearm {
namespace {

enum class Codes { bytes, nibbles, unpacked };

// The code, signed, at one byte of a panel.
inline int32_t low_nibble(int8_t byte) { return static_cast<int8_t>(static_cast<uint8_t>(byte) << 4) >> 4; }
inline int32_t high_nibble(int8_t byte) { return byte >> 4; }

template <Codes kCodes, int kRowsOfUnit, int kQuantumK>
struct PlainIntMma {
  static constexpr int kRows = kRowsOfUnit, kQuantum = kQuantumK;
  static constexpr Form kForm = kRows == 2 ? Form::i8_pairs : Form::i8_rows;
  static constexpr int kBias = 0, kNibbleBias = 0;
  static constexpr int kStepK = kQuantum * (kCodes == Codes::nibbles ? 2 : 1);
  static constexpr int kStepBytes = kPanel * kQuantum;
  static constexpr int kUnits = 4 / kRows;
  static constexpr int panels(int) { return 1; }
  struct Sums {
    int32_t of[kRows][16];
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
        for (int r = 0; r < kRows; ++r) add_products(sums[u][p].of[r], row + r * kQuantum, codes);
      }
    }
  }

  static void fold(const Sums& sums, const float* a_scales, int64_t groups, Scales s, float* acc) {
    for (int r = 0; r < kRows; ++r) {
      float products[16];
      for (int i = 0; i < 16; ++i) products[i] = static_cast<float>(sums.of[r][i]) * a_scales[r * groups];
      forearm::store(acc + 16 * r, fma(load(products), s, load(acc + 16 * r)));
    }
  }
  static void fold_offsets(const int32_t* sums, const float* a_scales, int64_t groups, Scales o, float* acc) {
    for (int r = 0; r < kRows; ++r) {
      const F16 sum = broadcast(static_cast<float>(sums[r * groups]) * a_scales[r * groups]);
      forearm::store(acc + 16 * r, fma(sum, o, load(acc + 16 * r)));
    }
  }
  static void store(const float* acc, float* out, int64_t stride) {
    for (int r = 0; r < kRows; ++r) forearm::store(out + r * stride, load(acc + 16 * r));
  }

 private:
  static void add_products(int32_t (&sums)[16], const int8_t* row, const int8_t* codes) {
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < kQuantum; ++k) {
        const int8_t byte = codes[i * kQuantum + k];
        if constexpr (kCodes == Codes::nibbles) {
          sums[i] += row[k] * low_nibble(byte) + row[kRows * kQuantum + k] * high_nibble(byte);
        } else {
          sums[i] += row[k] * byte;
        }
      }
    }
  }
};

template <int kQuantum>
inline void plain_unpack(const char* nibbles, char* to, int64_t steps) {
  constexpr int kChunk = kPanel * kQuantum;
  for (int64_t s = 0; s < steps; ++s, nibbles += kChunk, to += 2 * kChunk) {
    for (int i = 0; i < kChunk; ++i) {
      to[i] = static_cast<char>(low_nibble(static_cast<int8_t>(nibbles[i])));
      to[kChunk + i] = static_cast<char>(high_nibble(static_cast<int8_t>(nibbles[i])));
    }
  }
}

template <DType D, int kQuantum>
inline F16 plain_columns(const char* panel, int64_t k) {
  const int64_t chunk = k / kQuantum;
  const auto* bytes = reinterpret_cast<const int8_t*>(panel) + k % kQuantum;
  int8_t codes[16];
  for (int i = 0; i < 16; ++i) {
    if constexpr (D == DType::int8) {
      codes[i] = bytes[(chunk * kPanel + i) * kQuantum];
    } else {
      const int8_t byte = bytes[(chunk / 2 * kPanel + i) * kQuantum];
      codes[i] = static_cast<int8_t>(chunk % 2 ? high_nibble(byte) : low_nibble(byte));
    }
  }
  return load_i8(codes);
}

}  // namespace
}  // namespace forearm
