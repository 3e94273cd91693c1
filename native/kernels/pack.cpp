// Packing: rows are converted in strips of 64 k and laid into their panel step by step.
#include "kernels/pack.h"

#include <string.h>

#include <algorithm>

namespace forearm {
namespace {

uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

float widen_bf16(uint16_t h) { return float_of(static_cast<uint32_t>(h) << 16); }

uint16_t narrow_bf16(float x) {
  const uint32_t u = bits_of(x);
  const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(x != x ? u >> 16 | 0x40 : rounded);
}

// The fraction and exponent of a half, read as a float's, are 2^112 too small; zero and denormals as well.
float widen_f16(uint16_t h) {
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fff) << 13;
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  if (magnitude >= 0x0f800000) return float_of(sign | magnitude | 0x7f800000);  // infinity, NaN
  return float_of(sign | bits_of(float_of(magnitude) * 0x1p112f));
}

// To nearest even, in integers: half of what is cut off is added, less one where the last place that stays is even.
uint16_t narrow_f16(float x) {
  const uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // from 65520 on
  if (magnitude < 0x38800000) {                                              // denormal: last place is 2^-24
    return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000) >> 13);
}

template <DType D>
struct Element {
  using type = uint16_t;
};
template <>
struct Element<DType::f32> {
  using type = float;
};
template <DType D>
using ElementOf = typename Element<D>::type;

template <DType D>
float to_float(ElementOf<D> value) {
  if constexpr (D == DType::f32) return value;
  if constexpr (D == DType::f16) return widen_f16(value);
  if constexpr (D == DType::bf16) return widen_bf16(value);
}

template <DType D>
ElementOf<D> from_float(float value) {
  if constexpr (D == DType::f32) return value;
  if constexpr (D == DType::f16) return narrow_f16(value);
  if constexpr (D == DType::bf16) return narrow_bf16(value);
}

template <DType From, DType To>
ElementOf<To> convert(ElementOf<From> value) {
  if constexpr (From == To) return value;
  return from_float<To>(to_float<From>(value));
}

constexpr int64_t kStrip = 64;  // k converted at once: a strip of a panel is 4 KiB at most

// Rows [lane, lane + rows) of one panel; src is the first of them, [rows, k].
template <DType From, DType To, int64_t kQuantum>
void pack_panel(const ElementOf<From>* src, int64_t lane, int64_t rows, int64_t k, ElementOf<To>* panel) {
  ElementOf<To> strip[kPanel][kStrip];
  for (int64_t begin = 0; begin < k; begin += kStrip) {
    const int64_t count = std::min(kStrip, k - begin), steps = (count + kQuantum - 1) / kQuantum;
    for (int64_t r = 0; r < kPanel - lane; ++r) {
      const int64_t real = r < rows ? count : 0;
      for (int64_t i = 0; i < real; ++i) strip[r][i] = convert<From, To>(src[r * k + begin + i]);
      for (int64_t i = real; i < steps * kQuantum; ++i) strip[r][i] = 0;
    }
    ElementOf<To>* to = panel + begin * kPanel;
    for (int64_t s = 0; s < steps; ++s) {
      for (int64_t r = 0; r < kPanel - lane; ++r) {
        memcpy(to + (s * kPanel + lane + r) * kQuantum, &strip[r][s * kQuantum], sizeof(ElementOf<To>) * kQuantum);
      }
    }
  }
}

template <DType From, DType To, int64_t kQuantum>
void pack(const void* src, int64_t rows, const PackedMatrix& to, int64_t row0, PanelMap map) {
  const auto* from = static_cast<const ElementOf<From>*>(src);
  const int64_t panel_elements = packed_elements(kPanel, to.k, kQuantum);
  for (int64_t row = row0; row < row0 + rows;) {
    const int64_t lane = row % kPanel, count = std::min(kPanel - lane, row0 + rows - row);
    auto* panel = static_cast<ElementOf<To>*>(to.data) + (row / kPanel * map.step + map.offset) * panel_elements;
    pack_panel<From, To, kQuantum>(from + (row - row0) * to.k, lane, count, to.k, panel);
    row += count;
  }
}

template <DType From, DType To>
void pack_quantum(const void* src, int64_t rows, const PackedMatrix& to, int64_t row0, PanelMap map) {
  switch (to.quantum) {
    case 1:
      return pack<From, To, 1>(src, rows, to, row0, map);
    case 2:
      return pack<From, To, 2>(src, rows, to, row0, map);
    case 4:
      return pack<From, To, 4>(src, rows, to, row0, map);
    default:
      __builtin_unreachable();  // no tier has another
  }
}

template <DType From>
void pack_from(const void* src, int64_t rows, const PackedMatrix& to, int64_t row0, PanelMap map) {
  switch (to.dtype) {
    case DType::f32:
      return pack_quantum<From, DType::f32>(src, rows, to, row0, map);
    case DType::f16:
      return pack_quantum<From, DType::f16>(src, rows, to, row0, map);
    case DType::bf16:
      return pack_quantum<From, DType::bf16>(src, rows, to, row0, map);
    default:
      __builtin_unreachable();  // codes are packed by another function
  }
}

// The power of two that a row's largest magnitude gives it (Form::f16_scaled in kernels.h).
template <DType From>
float scale_of(const ElementOf<From>* row, int64_t k) {
  uint32_t largest = 0;  // by its bits
  for (int64_t i = 0; i < k; ++i) largest = std::max(largest, bits_of(to_float<From>(row[i])) & 0x7fffffff);
  const int exponent = std::max(static_cast<int>(largest >> 23) - 127, kLeastExponent);
  return exponent == 128 ? float_of(0x7fc00000) : float_of(static_cast<uint32_t>(exponent - kScaledTop + 127) << 23);
}

// Rows [lane, lane + rows) of one panel, as pack_panel.
template <DType From>
void pack_scaled_panel(const ElementOf<From>* src, int64_t lane, int64_t rows, int64_t k, float* scales,
                       uint16_t* panel) {
  uint16_t strip[kPanel][kStrip] = {};
  float inverse[kPanel];
  for (int64_t r = 0; r < kPanel - lane; ++r) {
    scales[lane + r] = r < rows ? scale_of<From>(src + r * k, k) : 0.0f;
    inverse[r] = scales[lane + r] == scales[lane + r] ? 1.0f / scales[lane + r] : 0.0f;
  }
  for (int64_t begin = 0; begin < k; begin += kStrip) {
    const int64_t count = std::min(kStrip, k - begin);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < count; ++i) {
        const float value = to_float<From>(src[r * k + begin + i]);
        strip[r][i] = inverse[r] == 0.0f ? uint16_t{0} : narrow_f16(value * inverse[r]);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t r = 0; r < kPanel - lane; ++r) panel[(begin + i) * kPanel + lane + r] = strip[r][i];
    }
  }
}

template <DType From>
void pack_scaled_from(const void* src, int64_t rows, const PackedMatrix& to, float* scales, int64_t row0,
                      PanelMap map) {
  const auto* from = static_cast<const ElementOf<From>*>(src);
  for (int64_t row = row0; row < row0 + rows;) {
    const int64_t lane = row % kPanel, count = std::min(kPanel - lane, row0 + rows - row);
    const int64_t panel = row / kPanel * map.step + map.offset;
    pack_scaled_panel<From>(from + (row - row0) * to.k, lane, count, to.k, scales + panel * kPanel,
                            static_cast<uint16_t*>(to.data) + panel * kPanel * to.k);
    row += count;
  }
}

}  // namespace

void pack_scaled(const void* src, DType src_dtype, int64_t rows, const PackedMatrix& to, float* scales, int64_t row0,
                 PanelMap map) {
  switch (src_dtype) {
    case DType::f32:
      return pack_scaled_from<DType::f32>(src, rows, to, scales, row0, map);
    case DType::f16:
      return pack_scaled_from<DType::f16>(src, rows, to, scales, row0, map);
    case DType::bf16:
      return pack_scaled_from<DType::bf16>(src, rows, to, scales, row0, map);
    default:
      __builtin_unreachable();
  }
}

void unpack_scaled(const PackedMatrix& from, const float* scales, int64_t row0, int64_t rows, float* out,
                   PanelMap map) {
  const auto* codes = static_cast<const uint16_t*>(from.data);
  for (int64_t row = row0; row < row0 + rows; ++row) {
    const int64_t panel = row / kPanel * map.step + map.offset, lane = row % kPanel;
    for (int64_t k = 0; k < from.k; ++k, ++out)
      *out = scales[panel * kPanel + lane] * widen_f16(codes[(panel * from.k + k) * kPanel + lane]);
  }
}

void pack_rows(const void* src, DType src_dtype, int64_t rows, const PackedMatrix& to, int64_t row0, PanelMap map) {
  switch (src_dtype) {
    case DType::f32:
      return pack_from<DType::f32>(src, rows, to, row0, map);
    case DType::f16:
      return pack_from<DType::f16>(src, rows, to, row0, map);
    case DType::bf16:
      return pack_from<DType::bf16>(src, rows, to, row0, map);
    default:
      __builtin_unreachable();
  }
}

void unpack_rows(const PackedMatrix& from, int64_t row0, int64_t rows, float* out, PanelMap map) {
  const int64_t panel_elements = packed_elements(kPanel, from.k, from.quantum);
  for (int64_t row = row0; row < row0 + rows; ++row) {
    const int64_t panel = row / kPanel * map.step + map.offset;
    for (int64_t k = 0; k < from.k; ++k, ++out) {
      const int64_t step = k / from.quantum, in_step = row % kPanel * from.quantum + k % from.quantum;
      const int64_t element = panel * panel_elements + step * kPanel * from.quantum + in_step;
      *out = from.dtype == DType::f32 ? static_cast<const float*>(from.data)[element]
                                      : widen(static_cast<const uint16_t*>(from.data)[element], from.dtype);
    }
  }
}

float widen(uint16_t value, DType dtype) { return dtype == DType::bf16 ? widen_bf16(value) : widen_f16(value); }

uint16_t narrow(float value, DType dtype) { return dtype == DType::bf16 ? narrow_bf16(value) : narrow_f16(value); }

}  // namespace forearm
