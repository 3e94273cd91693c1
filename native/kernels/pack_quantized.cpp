// Packing of quantized weights, and of their scales, zeros and offsets.
#include <string.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/pack.h"

namespace forearm {
namespace {

int64_t panel_of(int64_t row, PanelMap map) { return row / kPanel * map.step + map.offset; }

// Rows [row0, row0 + rows) by panels: each(panel, first lane, rows of it, rows before them).
template <typename Each>
void for_panels(int64_t row0, int64_t rows, PanelMap map, Each each) {
  for (int64_t row = row0; row < row0 + rows;) {
    const int64_t lane = row % kPanel, count = std::min(kPanel - lane, row0 + rows - row);
    each(panel_of(row, map), lane, count, row - row0);
    row += count;
  }
}

// A row of codes by chunks of a quantum, each one word; null: no row.
template <typename Word>
struct Chunks {
  static constexpr int64_t kQuantum = sizeof(Word);
  static constexpr Word kOnes = static_cast<Word>(~Word{0}) / 255;  // 1 in every byte
  const int8_t* row;
  int64_t k;
  int32_t bias;

  // Biased: 0, or half of a code's range, which turns its highest bit over. Codes beyond k are 0; Whole: all are
  // there.
  template <bool Whole>
  Word at(int64_t chunk) const {
    const int64_t begin = chunk * kQuantum, left = row ? std::clamp(k - begin, int64_t{0}, kQuantum) : 0;
    Word word = 0;
    if (Whole || left > 0) memcpy(&word, row + begin, static_cast<size_t>(Whole ? kQuantum : left));
    return static_cast<Word>(word ^ static_cast<Word>(bias) * kOnes);
  }
  template <bool Whole>
  Word step(int64_t s, bool nibbles) const {
    constexpr Word kLow = 15 * kOnes;
    if (!nibbles) return at<Whole>(s);
    return static_cast<Word>((at<Whole>(2 * s) & kLow) | (at<Whole>(2 * s + 1) & kLow) << 4);
  }
};

struct Steps {
  int64_t begin, end;
};

template <typename Word>
void pack_words(const Chunks<Word>& from, bool nibbles, Steps steps, uint8_t* lane) {
  constexpr int64_t kStepBytes = kPanel * Chunks<Word>::kQuantum;
  const int64_t whole = from.row ? from.k / ((nibbles ? 2 : 1) * from.kQuantum) : 0;
  int64_t s = steps.begin;
  for (; s < std::min(steps.end, whole); ++s) {
    const Word word = from.template step<true>(s, nibbles);
    memcpy(lane + s * kStepBytes, &word, sizeof word);
  }
  for (; s < steps.end; ++s) {
    const Word word = from.template step<false>(s, nibbles);
    memcpy(lane + s * kStepBytes, &word, sizeof word);
  }
}

void pack_lane(const int8_t* row, const PackedMatrix& m, Steps steps, uint8_t* lane) {
  const bool nibbles = has_nibbles(m.dtype);
  if (m.quantum == 8) return pack_words(Chunks<uint64_t>{row, m.k, m.bias}, nibbles, steps, lane);
  if (m.quantum == 4) return pack_words(Chunks<uint32_t>{row, m.k, m.bias}, nibbles, steps, lane);
  if (m.quantum == 2) return pack_words(Chunks<uint16_t>{row, m.k, m.bias}, nibbles, steps, lane);
  pack_words(Chunks<uint8_t>{row, m.k, m.bias}, nibbles, steps, lane);
}

int64_t steps_of(const PackedMatrix& m) {
  const int64_t in_step = has_nibbles(m.dtype) ? 2 * m.quantum : m.quantum;
  return (m.k + in_step - 1) / in_step;
}

// Rows of one panel, from `lane` on, as steps of 6-bit codes. The step's codes stand in the order of int8's bytes while
// they are written: loops over the quarters are vectorized.
void pack_six_bits(const int8_t* rows, int64_t lane, int64_t count, const PackedMatrix& m, uint8_t* panel) {
  for (int64_t k = 0; k < m.k; k += kSixBitK, panel += kSixBitBytes) {
    uint8_t codes[kSixBitK * kPanel];
    if (lane > 0)  // rows that the panel has already
      for (int64_t place = 0; place < kSixBitK * kPanel; ++place)
        codes[place] = static_cast<uint8_t>(six_bit_code(panel, place) + kSixBitBias);
    for (int64_t r = lane; r < kPanel; ++r) {
      const int64_t real = r < lane + count ? std::min(kSixBitK, m.k - k) : 0;
      int8_t row[kSixBitK] = {};
      if (real > 0) memcpy(row, rows + (r - lane) * m.k + k, static_cast<size_t>(real));
      for (int64_t i = 0; i < kSixBitK; ++i)
        codes[place_in_step(r, i, m.quantum)] = static_cast<uint8_t>(row[i] + kSixBitBias);
    }
    for (int64_t i = 0; i < 64; ++i) {
      const int q0 = codes[i], q1 = codes[64 + i], q2 = codes[128 + i], q3 = codes[192 + i];
      panel[i] = static_cast<uint8_t>((q0 & 15) | q1 << 4);
      panel[64 + i] = static_cast<uint8_t>((q2 & 15) | q3 << 4);
      panel[128 + i] = static_cast<uint8_t>(q0 >> 4 | q1 >> 4 << 2 | q2 >> 4 << 4 | q3 >> 4 << 6);
    }
  }
}

// Values of rows and groups by panel; `put` converts one and stores it at an index.
template <typename T, typename Put>
void pack_groups(const T* values, int64_t rows, int64_t groups, int64_t row0, PanelMap map, Put put) {
  for_panels(row0, rows, map, [&](int64_t panel, int64_t lane, int64_t count, int64_t first) {
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = lane; i < kPanel; ++i) {
        const bool real = i < lane + count;
        put((panel * groups + g) * kPanel + i, real ? values[(first + i - lane) * groups + g] : T{});
      }
    }
  });
}

template <typename Get>
void unpack_groups(int64_t groups, int64_t row0, int64_t rows, PanelMap map, Get get) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      get(row * groups + g, (panel_of(row0 + row, map) * groups + g) * kPanel + (row0 + row) % kPanel);
    }
  }
}

}  // namespace

// E2M1's bits of a code: 0 to 4, 6, 8 and 12 are its magnitudes, the sign stands above them. Without branches or a
// table, so that compilers vectorize it.
constexpr int8_t e2m1_bits(int8_t code) {
  const int magnitude = code < 0 ? -code : code;
  const int bits = magnitude <= 4 ? magnitude : magnitude <= 8 ? 2 + magnitude / 2 : 7;
  return static_cast<int8_t>(code < 0 ? bits | 8 : bits);
}

constexpr int64_t kStripSteps = 64;  // of all lanes at once: 4 KiB of a panel with a quantum of 4, 8 with one of 8

void pack_codes(const int8_t* codes, int64_t rows, const PackedMatrix& to, int64_t row0, PanelMap map) {
  const int64_t steps = steps_of(to);
  std::vector<int8_t> bits(static_cast<size_t>(to.dtype == DType::fp4_e2m1 ? kPanel * to.k : 0));
  for_panels(row0, rows, map, [&](int64_t panel, int64_t lane, int64_t count, int64_t first) {
    auto* start = static_cast<uint8_t*>(to.data) + panel * panel_bytes(to);
    const int8_t* given = codes + first * to.k;
    if (has_six_bits(to.dtype)) return pack_six_bits(given, lane, count, to, start);
    if (!bits.empty()) {
      std::transform(given, given + count * to.k, bits.begin(), e2m1_bits);
      given = bits.data();
    }
    for (int64_t s = 0; s < steps; s += kStripSteps) {
      for (int64_t i = lane; i < kPanel; ++i) {
        const int8_t* row = i < lane + count ? given + (i - lane) * to.k : nullptr;
        pack_lane(row, to, Steps{s, std::min(s + kStripSteps, steps)}, start + i * to.quantum);
      }
    }
  });
}

void unpack_codes(const PackedMatrix& from, int64_t row0, int64_t rows, int8_t* out, PanelMap map) {
  const bool nibbles = has_nibbles(from.dtype);
  for (int64_t row = row0; row < row0 + rows; ++row) {
    if (has_six_bits(from.dtype)) {
      const auto* panel = static_cast<const uint8_t*>(from.data) + panel_of(row, map) * panel_bytes(from);
      for (int64_t k = 0; k < from.k; ++k, ++out)
        *out =
            six_bit_code(panel + k / kSixBitK * kSixBitBytes, place_in_step(row % kPanel, k % kSixBitK, from.quantum));
      continue;
    }
    const auto* lane =
        static_cast<const uint8_t*>(from.data) + panel_of(row, map) * panel_bytes(from) + row % kPanel * from.quantum;
    for (int64_t k = 0; k < from.k; ++k, ++out) {
      const int64_t chunk = k / from.quantum, step = nibbles ? chunk / 2 : chunk;
      const uint8_t byte = lane[step * kPanel * from.quantum + k % from.quantum];
      if (!nibbles) {
        *out = static_cast<int8_t>(byte - from.bias);
      } else if (from.bias != 0) {
        *out = static_cast<int8_t>((chunk % 2 ? byte >> 4 : byte & 15) - from.bias);
      } else {
        *out = nibble_code(from.dtype, chunk % 2 ? byte >> 4 : byte & 15);
      }
    }
  }
}

void pack_scales(const float* scales, int64_t rows, int64_t groups, DType dtype, void* to, int64_t row0, PanelMap map) {
  pack_groups(scales, rows, groups, row0, map, [&](int64_t at, float scale) {
    if (dtype == DType::f32) {
      static_cast<float*>(to)[at] = scale;
    } else if (dtype == DType::e8m0) {
      static_cast<uint8_t*>(to)[at] = narrow_e8m0(scale);
    } else {
      static_cast<uint16_t*>(to)[at] = narrow(scale, dtype);
    }
  });
}

void unpack_scales(const void* from, DType dtype, int64_t groups, int64_t row0, int64_t rows, float* out,
                   PanelMap map) {
  unpack_groups(groups, row0, rows, map, [&](int64_t to, int64_t at) {
    out[to] = dtype == DType::f32    ? static_cast<const float*>(from)[at]
              : dtype == DType::e8m0 ? widen_e8m0(static_cast<const uint8_t*>(from)[at])
                                     : widen(static_cast<const uint16_t*>(from)[at], dtype);
  });
}

void pack_zeros(const int8_t* zeros, int64_t rows, int64_t groups, int8_t* to, int64_t row0, PanelMap map) {
  pack_groups(zeros, rows, groups, row0, map, [&](int64_t at, int8_t zero) { to[at] = zero; });
}

void unpack_zeros(const int8_t* from, int64_t groups, int64_t row0, int64_t rows, int8_t* out, PanelMap map) {
  unpack_groups(groups, row0, rows, map, [&](int64_t to, int64_t at) { out[to] = from[at]; });
}

float widen_e8m0(uint8_t value) { return std::ldexp(1.0f, value - 128); }

uint8_t narrow_e8m0(float value) {
  if (!(value > 0.0f)) return 0;
  return static_cast<uint8_t>(std::isinf(value) ? 255 : std::max(std::ilogb(value) + 128, 0));
}

// e5m2 is the upper half of an f16; e4m3 has three bits of fraction, exponents from -6 on, and no infinity.
float widen_fp8(uint8_t value, DType dtype) {
  if (dtype == DType::fp8_e5m2) return widen(static_cast<uint16_t>(value << 8), DType::f16);
  const int exponent = value >> 3 & 15, fraction = value & 7;
  float magnitude = std::ldexp(static_cast<float>(exponent ? 8 + fraction : fraction), std::max(exponent, 1) - 10);
  if ((value & 0x7f) == 0x7f) magnitude = NAN;
  return value & 0x80 ? -magnitude : magnitude;
}

// The place of the last bit is 2^(exponent - fraction bits), of subnormals as of the smallest normal number.
uint8_t narrow_fp8(float value, DType dtype) {
  const bool e4m3 = dtype == DType::fp8_e4m3;
  const int fraction_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, largest = e4m3 ? 0x7e : 0x7b;
  const int sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
  if (magnitude == 0) return static_cast<uint8_t>(sign);
  const int exponent = std::isinf(magnitude) ? 128 : std::max(std::ilogb(magnitude), 1 - bias);
  if (exponent > 16) return static_cast<uint8_t>(sign | largest);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent)));
  const int code = ((exponent + bias - 1) << fraction_bits) + units;  // the units' leading bit counts up the exponent
  return static_cast<uint8_t>(sign | std::min(code, largest));
}

}  // namespace forearm
