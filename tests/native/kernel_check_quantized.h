// Test matrices of codes, and rows in the i8 and i16 forms.
#pragma once
#include <vector>

#include "kernel_check.h"
#include "kernels/pack.h"

namespace forearm::checks {

// An operand of an i8 or i16 form with its memory, zeroed: codes, scales and sums. Rows of i16 are those of its digits.
class CodeRows {
 public:
  CodeRows(Form form, int64_t rows, int64_t dim, int64_t group);
  Operand operand() const { return operand_; }
  int64_t groups() const { return groups_; }
  int8_t code(int64_t row, int64_t column) const;
  std::vector<float> codes() const;  // [rows, dim]
  const std::vector<float>& scales() const { return scales_; }
  const std::vector<int32_t>& sums() const { return sums_; }
  bool padding_is_zero() const;

 private:
  int64_t rows_, dim_, groups_;
  std::vector<int8_t> codes_;
  std::vector<float> scales_;
  std::vector<int32_t> sums_;
  Operand operand_;
};

enum class Zero { none, zeros, offsets };

// How a matrix of codes is described: rows n, columns k.
struct CodeShape {
  int64_t n, k, group;
  DType dtype, scale_dtype;
  Zero zero;

  int64_t groups() const { return (k + group - 1) / group; }
};

// Random codes with scales, and zeros or offsets, unpacked.
struct CodeMatrix {
  CodeMatrix(const CodeShape& shape, uint64_t seed);
  double value(int64_t n, int64_t k) const;      // of a weight
  double magnitude(int64_t n, int64_t k) const;  // of what its value is the sum of
  double scale(int64_t n, int64_t k) const { return scales[n * shape.groups() + k / shape.group]; }
  double offset(int64_t n, int64_t k) const;
  double code(int64_t n, int64_t k) const;

  CodeShape shape;
  std::vector<int8_t> codes;  // [n, k]
  std::vector<float> scales, offsets;
  std::vector<int8_t> zeros;
};

// It, packed for a tier.
class PackedCodes {
 public:
  PackedCodes(const Kernels& tier, const CodeMatrix& matrix);
  PackedWeights weights() const { return weights_; }

 private:
  std::vector<char> codes_, scales_;
  std::vector<int8_t> zeros_;
  std::vector<uint16_t> offsets_;
  PackedWeights weights_;
};

inline char* aligned(std::vector<char>& bytes) {
  return bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
}

}  // namespace forearm::checks
