// Test matrices of codes, and rows in the i8 and i16 forms.
#include <math.h>

#include "kernel_check_quantized.h"

namespace forearm::checks {

CodeRows::CodeRows(Form form, int64_t rows, int64_t dim, int64_t group)
    : rows_(rows * digits_of(form)), dim_(dim), groups_((dim + group - 1) / group) {
  const int64_t stride = round_up(dim, 64) + 64, held = round_up(rows_, 2);
  codes_.resize(held * stride);
  scales_.resize(held * groups_);
  sums_.resize(held * groups_);
  operand_ = {codes_.data(), stride, form, group, scales_.data(), sums_.data()};
}

int8_t CodeRows::code(int64_t row, int64_t column) const {
  const int64_t stride = operand_.stride;
  if (digit_form(operand_.form) == Form::i8_rows) return codes_[row * stride + column];
  return codes_[row / 2 * 2 * stride + column / 8 * 16 + row % 2 * 8 + column % 8];
}

std::vector<float> CodeRows::codes() const {
  std::vector<float> out;
  for (int64_t i = 0; i < rows_ * dim_; ++i) out.push_back(code(i / dim_, i % dim_));
  return out;
}

bool CodeRows::padding_is_zero() const {
  for (int64_t row = 0; row < round_up(rows_, 2); ++row) {
    for (int64_t column = row < rows_ ? dim_ : 0; column < operand_.stride; ++column) {
      if (code(row, column) != 0) return false;
    }
  }
  return true;
}

CodeMatrix::CodeMatrix(const CodeShape& s, uint64_t seed) : shape(s) {
  Random random(seed);
  for (int64_t i = 0; i < s.n * s.k; ++i) {
    auto code = static_cast<int8_t>(random.next() * 128);
    if (has_six_bits(s.dtype)) code = static_cast<int8_t>(code >> 2);
    if (has_nibbles(s.dtype)) code = nibble_code(s.dtype, code & 15);
    const bool nan = s.dtype == DType::fp8_e4m3 ? (code & 0x7f) == 0x7f : (code & 0x7f) >= 0x7c;
    if (is_fp8(s.dtype) && nan) code = 1;
    codes.push_back(code);
  }
  scales = random.floats(s.n * s.groups(), is_integer(s.dtype) ? 0.02f : 0.0002f);
  if (s.scale_dtype == DType::e8m0) {
    for (float& scale : scales) scale = widen_e8m0(narrow_e8m0(fabsf(scale)));
  } else {
    scales = rounded(scales, s.scale_dtype);
  }
  if (s.zero == Zero::offsets) offsets = rounded(random.floats(s.n * s.groups(), 0.05f), DType::f16);
  if (s.zero == Zero::zeros) {
    for (int64_t i = 0; i < s.n * s.groups(); ++i) zeros.push_back(static_cast<int8_t>(random.next() * 128));
  }
}

double CodeMatrix::code(int64_t n, int64_t k) const {
  const int8_t code = codes[n * shape.k + k];
  if (is_integer(shape.dtype)) return code;
  return widen_fp8(static_cast<uint8_t>(code), shape.dtype);
}

double CodeMatrix::offset(int64_t n, int64_t k) const {
  const int64_t at = n * shape.groups() + k / shape.group;
  if (shape.zero == Zero::offsets) return offsets[at];
  return shape.zero == Zero::zeros ? -static_cast<double>(scales[at] * static_cast<float>(zeros[at])) : 0.0;
}

double CodeMatrix::value(int64_t n, int64_t k) const { return scale(n, k) * code(n, k) + offset(n, k); }

double CodeMatrix::magnitude(int64_t n, int64_t k) const { return fabs(scale(n, k) * code(n, k)) + fabs(offset(n, k)); }

PackedCodes::PackedCodes(const Kernels& tier, const CodeMatrix& m) {
  const CodeShape& s = m.shape;
  const Layout layout = tier.layout[static_cast<int>(s.dtype)];
  codes_.resize(packed_bytes(s.dtype, s.n, s.k, layout.quantum) + 64);
  pack_codes(m.codes.data(), s.n, {aligned(codes_), s.dtype, layout.quantum, s.k, layout.bias}, 0);
  const int64_t count = scales_count(s.n, s.groups());
  scales_.resize(count * dtype_bytes(s.scale_dtype));
  pack_scales(m.scales.data(), s.n, s.groups(), s.scale_dtype, scales_.data(), 0);
  weights_ = {aligned(codes_), s.dtype, s.n, s.k, s.group, scales_.data(), s.scale_dtype};
  if (s.zero == Zero::zeros) {
    zeros_.resize(count);
    pack_zeros(m.zeros.data(), s.n, s.groups(), zeros_.data(), 0);
    weights_.zeros = zeros_.data();
  }
  if (s.zero == Zero::offsets) {
    offsets_.resize(count);
    pack_scales(m.offsets.data(), s.n, s.groups(), DType::f16, offsets_.data(), 0);
    weights_.offsets = offsets_.data();
  }
}

}  // namespace forearm::checks
