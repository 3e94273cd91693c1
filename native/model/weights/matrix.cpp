#include "model/weights/matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <span>
#include <stdexcept>
#include <string>

namespace forearm {
namespace {

void widen_all(const uint16_t* from, DType dtype, int64_t count, float* to) {
  if (dtype == DType::bf16)  // a loop of its own, so that the compiler vectorizes it
    for (int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
  else
    for (int64_t i = 0; i < count; ++i) to[i] = widen(from[i], dtype);
}

// Writes one zero to each page, before anything is packed.
void touch_pages(char* begin, char* end) {
  constexpr int64_t kPage = 4096;  // the smallest page size
  for (char* at = begin; at < end; at += kPage) *static_cast<volatile char*>(at) = 0;
}

// A scale, rounded to the dtype that it is stored in.
float stored(float scale, DType dtype) {
  if (dtype == DType::e8m0) return widen_e8m0(narrow_e8m0(scale));
  return dtype == DType::f32 ? scale : widen(narrow(scale, dtype), dtype);
}

// Whether a format has this code. No branches, so that compilers vectorize the loop over all codes.
bool has_code(DType dtype, int8_t code) {
  if (has_six_bits(dtype)) return code >= -kSixBitBias && code < kSixBitBias;
  if (dtype != DType::fp4_e2m1) return code >= -8 && code <= 7;
  const int magnitude = code < 0 ? -code : code;
  return (magnitude <= 4) | (magnitude == 6) | (magnitude == 8) | (magnitude == 12);
}

// The codes of a format of 4 or 6 bits, for an error.
std::string codes_of(DType dtype) {
  if (has_six_bits(dtype)) return std::to_string(-kSixBitBias) + " to " + std::to_string(kSixBitBias - 1);
  std::set<int> codes;
  for (int nibble = 0; nibble < 16; ++nibble) codes.insert(nibble_code(dtype, nibble));
  std::string text;
  for (const int code : codes) text += (text.empty() ? "" : ", ") + std::to_string(code);
  return text;
}

// Scales each group so that its largest value becomes the largest of the dtype; codes are rounded to nearest.
void round_to_fp8(const RoundTask& t) {
  const float top = number_format(t.dtype).largest;
  const int64_t groups = (t.k + t.group - 1) / t.group;
  for (int64_t i = 0; i < t.rows * groups; ++i) {
    const int64_t begin = i / groups * t.k + i % groups * t.group,
                  count = std::min(t.group, t.k - i % groups * t.group);
    float largest = 0.0f;
    for (int64_t j = begin; j < begin + count; ++j) largest = std::max(largest, std::fabs(t.w[j]));
    const float scale = stored(largest / top, t.scale_dtype);
    for (int64_t j = begin; j < begin + count; ++j)
      t.codes[j] = static_cast<int8_t>(narrow_fp8(scale > 0.0f ? t.w[j] / scale : 0.0f, t.dtype));
    t.scales[i] = scale;
  }
}

}  // namespace
void Matrix::shape(const std::string& called, int64_t rows, int64_t columns, const Format& kept, Partition divided,
                   int64_t number) {
  check(called, kept, columns);
  name = called;
  n = rows;
  k = columns;
  experts = number;
  format = kept;
  // What else a float's format says is right of f16_scaled: a float32 scale for each row, and no zeros.
  format.dtype = kept_as(kept.dtype, kernels());
  partition = std::move(divided);
}

void Matrix::place(Pieces& pieces) {
  data_at_ = pieces.take(experts * packed_bytes(format.dtype, n, k, layout().quantum));
  const int64_t scales = is_codes() ? experts * round_up(n, kPanel) * groups() : 0;
  scales_at_ = pieces.take(scales * dtype_bytes(format.scale_dtype));
  zeros_at_ = pieces.take(format.zero == Format::Zero::int8 ? scales : 0);
  offsets_at_ = pieces.take(format.zero == Format::Zero::float16 ? scales * 2 : 0);
}

void Matrix::settle(char* region) {
  data_ = region + data_at_;
  scales_ = is_codes() ? region + scales_at_ : nullptr;
  zeros_ = format.zero == Format::Zero::int8 ? reinterpret_cast<int8_t*>(region + zeros_at_) : nullptr;
  offsets_ = format.zero == Format::Zero::float16 ? reinterpret_cast<uint16_t*>(region + offsets_at_) : nullptr;
}

void Matrix::touch(int member) const { each_piece(partition[static_cast<size_t>(member)], touch_pages); }

Form Matrix::form() const {
  const Kernels& table = kernels();
  const Form form = table.layout[static_cast<int>(is_fp8(format.dtype) ? table.wide : format.dtype)].form;
  return is_integer(format.dtype) && format.wide ? in_16_bits(form) : form;
}

PackedWeights Matrix::weights(int64_t expert) const {
  PackedWeights w{data_ + expert * packed_bytes(format.dtype, n, k, layout().quantum), format.dtype, n, k};
  if (!is_codes()) return w;
  const int64_t first = first_panel(expert) * kPanel * groups();
  w.group = group();
  w.scales = static_cast<char*>(scales_) + first * dtype_bytes(format.scale_dtype);
  w.scale_dtype = format.scale_dtype;
  w.zeros = zeros_ ? zeros_ + first : nullptr;
  w.offsets = offsets_ ? offsets_ + first : nullptr;
  return w;
}

void Matrix::pack(const Tensor& rows, int64_t row, PanelMap map, const Rounding& how, PackRoom& room) const {
  if (!is_codes()) return pack_rows(rows.data, rows.dtype, rows.rows, packed(), row, map);
  if (format.dtype == DType::f16_scaled)
    return pack_scaled(rows.data, rows.dtype, rows.rows, packed(), static_cast<float*>(scales_), row, map);
  pack(rounded(rows, how, room), row, map);
}

void Matrix::pack(const CodeRows& rows, int64_t row, PanelMap map) const {
  pack_codes(rows.codes, rows.rows, packed(), row, map);
  pack_scales(rows.scales, rows.rows, groups(), format.scale_dtype, scales_, row, map);
  if (zeros_) pack_zeros(rows.zeros, rows.rows, groups(), zeros_, row, map);
  if (offsets_) pack_scales(rows.offsets, rows.rows, groups(), DType::f16, offsets_, row, map);
}

// Rounds rows of floats to symmetric codes of the format.
CodeRows Matrix::rounded(const Tensor& rows, const Rounding& how, PackRoom& room) const {
  room.values.resize(static_cast<size_t>(kPanel * k));
  room.codes.resize(static_cast<size_t>(kPanel * k));
  room.scales.resize(static_cast<size_t>(kPanel * groups()));
  const auto* values = static_cast<const float*>(rows.data);
  if (rows.dtype != DType::f32) {
    widen_all(static_cast<const uint16_t*>(rows.data), rows.dtype, rows.rows * k, room.values.data());
    values = room.values.data();
  }
  const RoundTask task{
      values,         rows.rows,   k, group(), format.dtype, format.scale_dtype, room.codes.data(), room.scales.data(),
      how.importance, how.feedback};
  if (is_integer(format.dtype))
    kernels().round(task);
  else
    round_to_fp8(task);
  return {room.codes.data(), rows.rows, k, room.scales.data(), nullptr, nullptr};
}

void Matrix::check_floats() const {
  const NumberFormat number = number_format(format.dtype);
  if (number.kind == NumberKind::integer && number.largest == 0)
    throw std::invalid_argument("'" + name + "': floats are not rounded to " + number.name + "; load codes");
  if (format.zero != Format::Zero::none || format.ordered)
    throw std::invalid_argument("'" + name +
                                "': floats are rounded to codes without zeros and order, but its format has them");
}

void Matrix::check_codes(const CodeRows& rows) const {
  const auto must = [this](bool holds, const std::string& what) {
    if (!holds) throw std::invalid_argument("'" + name + "': " + what);
  };
  must(is_codes() && format.dtype != DType::f16_scaled, "its format holds floats; codes can't be loaded");
  must((rows.zeros != nullptr) == (zeros_ != nullptr), "zeros come where the format has them, and only there");
  must((rows.offsets != nullptr) == (offsets_ != nullptr), "offsets come where the format has them, and only there");
  // Message texts are made only for an error: made for every code, they took 30 ns each.
  const int8_t* last_code = rows.codes + rows.rows * k;
  const auto has = [this](int8_t code) { return has_code(format.dtype, code); };
  const int8_t* code = is_integer(format.dtype) && dtype_bits(format.dtype) < 8
                           ? std::find_if_not(rows.codes, last_code, has)
                           : last_code;
  if (code != last_code)
    must(false, std::string(number_format(format.dtype).name) + " codes are " + codes_of(format.dtype) + ", not " +
                    std::to_string(*code));
  const auto must_have = [&](const float* values, const char* what, DType dtype, const std::string& field) {
    const float* last = values + rows.rows * groups();
    const float* other =
        std::find_if(values, last, [dtype](float v) { return !std::isfinite(v) || stored(v, dtype) != v; });
    if (other != last)
      must(false, std::string("the ") + what + " " + std::to_string(*other) + " is not a number that the format's " +
                      field + " has");
  };
  must_have(rows.scales, "scale", format.scale_dtype, "scale_dtype");
  if (offsets_) must_have(rows.offsets, "offset", DType::f16, "zero");
}

void Matrix::set_order(const int32_t* given, int64_t expert) {
  if (format.ordered != (given != nullptr))
    throw std::invalid_argument("'" + name + "': an order comes where the format is ordered, and only there");
  if (!given) return;
  order.resize(static_cast<size_t>(experts * k), -1);
  int32_t* own = order.data() + expert * k;
  if (own[0] >= 0 && !std::equal(given, given + k, own))
    throw std::invalid_argument("'" + name + "': its parts must have one order of columns");
  std::vector<bool> seen(static_cast<size_t>(k));
  for (const int32_t column : std::span(given, static_cast<size_t>(k))) {
    if (column < 0 || column >= k || seen[static_cast<size_t>(column)])
      throw std::invalid_argument("'" + name + "': order holds each of 0 to " + std::to_string(k - 1) + " once, not " +
                                  std::to_string(column));
    seen[static_cast<size_t>(column)] = true;
  }
  std::copy_n(given, k, own);
}

}  // namespace forearm
