// Comparing, random numbers, and test matrices of kernel_check.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernel_check.h"
#include "kernels/pack.h"

namespace forearm::checks {

namespace {
constexpr int kPrinted = 10;  // failures of a group that are printed

template <typename T>
int64_t first_difference(const std::vector<T>& got, const std::vector<T>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (memcmp(&got[i], &wanted[i], sizeof(T)) != 0) return static_cast<int64_t>(i);
  }
  return -1;
}

std::string difference(int64_t at, double got, double wanted) {
  char text[160];
  snprintf(text, sizeof text, "[%lld] is %.9g, should be %.9g", static_cast<long long>(at), got, wanted);
  return text;
}
}  // namespace

void Report::fail(const char* name, const std::string& how) {
  if (failures_++ < kPrinted) printf("FAIL %s %s (%s): %s%s\n", tier_, group_, what_.c_str(), name, how.c_str());
}

void Report::same_bits(const std::vector<float>& got, const std::vector<float>& wanted, const char* name) {
  if (got.size() != wanted.size()) return fail(name, " differs in size");
  const int64_t at = first_difference(got, wanted);
  if (at >= 0) fail(name, difference(at, got[at], wanted[at]));
}

void Report::same_bits(const std::vector<uint16_t>& got, const std::vector<uint16_t>& wanted, const char* name) {
  if (got.size() != wanted.size()) return fail(name, " differs in size");
  const int64_t at = first_difference(got, wanted);
  if (at >= 0) fail(name, difference(at, got[at], wanted[at]));
}

void Report::within(const std::vector<float>& got, const std::vector<double>& wanted,
                    const std::vector<double>& tolerance, const char* name) {
  if (got.size() != wanted.size()) return fail(name, " differs in size");
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double error = fabs(got[i] - wanted[i]);
    if (error <= tolerance[i]) {
      if (tolerance[i] > 0) worst_ = fmax(worst_, error / tolerance[i]);
    } else {  // NaN too
      return fail(
          name, difference(static_cast<int64_t>(i), got[i], wanted[i]) + ", tolerance " + std::to_string(tolerance[i]));
    }
  }
}

void Report::holds(bool condition, const char* name) {
  if (!condition) fail(name, " does not hold");
}

float Random::next() {  // the high bits of a linear congruential generator: Knuth, TAOCP 2, MMIX's constants
  state_ = state_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
}

std::vector<float> Random::floats(int64_t count, float scale) {
  std::vector<float> values(count);
  for (float& value : values) value = next() * scale;
  return values;
}

std::string sizes(std::initializer_list<std::pair<const char*, int64_t>> values) {
  std::string text;
  for (const auto& [name, value] : values) {
    if (!text.empty()) text += ' ';
    text += name;
    text += '=';
    text += std::to_string(value);
  }
  return text;
}

std::vector<float> rounded(std::vector<float> values, DType dtype) {
  if (dtype == DType::f32) return values;
  for (float& value : values) value = widen(narrow(value, dtype), dtype);
  return values;
}

std::vector<float> kept(std::vector<float> rows, int64_t dim, DType dtype) {
  if (is_float(dtype)) return rounded(std::move(rows), dtype);
  for (size_t first = 0; first < rows.size(); first += static_cast<size_t>(dim)) {
    float largest = 0;
    for (int64_t d = 0; d < dim; ++d) largest = fmaxf(largest, fabsf(rows[first + d]));
    for (int64_t d = 0; d < dim; ++d) {
      float& x = rows[first + d];
      const float top = cache_top(dtype), scaled = x * (top / largest);
      const float code = is_fp8(dtype) ? widen_fp8(narrow_fp8(scaled, dtype), dtype) : nearbyintf(scaled) + 0.0f;
      x = code * (largest / top);  // of int8 never -0
    }
  }
  return rows;
}

Packed::Packed(const Kernels& tier, DType dtype, const std::vector<float>& values, int64_t n, int64_t k) {
  const int64_t quantum = tier.layout[static_cast<int>(dtype)].quantum;
  bytes_.resize(packed_elements(n, k, quantum) * dtype_bytes(dtype) + 64);
  pack_rows(values.data(), DType::f32, n, {data(), dtype, quantum, k}, 0);
}

void* Packed::data() {
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
  return bytes_.data() + (64 - address % 64) % 64;
}

Rows::Rows(Form form, int64_t rows, int64_t dim, const std::vector<float>* values) : rows_(rows), dim_(dim) {
  operand_ = {nullptr, round_up(dim, 4) + 4, form};  // wider than needed: a stride is not a width
  if (form == Form::f32_rows) {
    floats_.resize(rows * operand_.stride);
    operand_.data = floats_.data();
  } else {
    halves_.resize(round_up(rows, 2) * operand_.stride);
    operand_.data = halves_.data();
  }
  if (!values) return;
  for (int64_t i = 0; i < rows * dim; ++i) {
    if (form == Form::f32_rows) {
      floats_[i / dim * operand_.stride + i % dim] = (*values)[i];
    } else {
      *half(i / dim, i % dim) = narrow((*values)[i], operand_dtype(form));
    }
  }
}

uint16_t* Rows::half(int64_t row, int64_t column) const {
  const int64_t quads = operand_.stride / 4;
  uint16_t* first = static_cast<uint16_t*>(operand_.data);
  if (operand_.form != Form::bf16_pairs) return first + row * operand_.stride + column;
  return first + ((row / 2 * quads + column / 4) * 2 + row % 2) * 4 + column % 4;
}

std::vector<float> Rows::values() const {
  std::vector<float> out(rows_ * dim_);
  for (int64_t i = 0; i < rows_ * dim_; ++i) {
    out[i] = operand_.form == Form::f32_rows ? floats_[i / dim_ * operand_.stride + i % dim_]
                                             : widen(*half(i / dim_, i % dim_), operand_dtype(operand_.form));
  }
  return out;
}

bool Rows::padding_is_zero() const {
  const bool floats = operand_.form == Form::f32_rows;
  for (int64_t row = 0; row < (floats ? rows_ : round_up(rows_, 2)); ++row) {
    for (int64_t column = row < rows_ ? dim_ : 0; column < operand_.stride; ++column) {
      if (floats ? floats_[row * operand_.stride + column] != 0 : *half(row, column) != 0) return false;
    }
  }
  return true;
}

}  // namespace forearm::checks
