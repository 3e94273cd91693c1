// The frame of kernel_check: groups of cases, their random numbers, and how results are compared.
//
// A group is a function in its own kernel_check_<group>.cpp, named in kernel_check.cpp's list. It runs once for every
// tier of this CPU: `tier` is compared with the `scalar` tier, and scalar itself with float64.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace forearm::checks {

// Counts the cases of one group in one tier, and prints those that fail.
class Report {
 public:
  Report(const char* tier, const char* group, bool few = false) : tier_(tier), group_(group), few_(few) {}

  // Starts a case; `what` names its sizes when it fails.
  void begin(std::string what) {
    what_ = std::move(what);
    ++cases_;
  }
  // Every float has the same bits.
  void same_bits(const std::vector<float>& got, const std::vector<float>& wanted, const char* name);
  void same_bits(const std::vector<uint16_t>& got, const std::vector<uint16_t>& wanted, const char* name);
  // |got[i] - wanted[i]| <= tolerance[i]. `worst()` keeps the largest share of a tolerance that was used.
  void within(const std::vector<float>& got, const std::vector<double>& wanted, const std::vector<double>& tolerance,
              const char* name);
  void holds(bool condition, const char* name);

  // Whether a group with hundreds of cases is to take a share of them: where instructions are emulated.
  bool few() const { return few_; }
  int cases() const { return cases_; }
  int failures() const { return failures_; }
  double worst() const { return worst_; }

 private:
  void fail(const char* name, const std::string& how);

  const char* tier_;
  const char* group_;
  bool few_;
  std::string what_;
  int cases_ = 0;
  int failures_ = 0;
  double worst_ = 0;
};

using Group = void (*)(Report& report, const Kernels& tier, const Kernels& scalar);

// Numbers in [-1, 1), the same in every run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  float next();
  std::vector<float> floats(int64_t count, float scale = 1.0f);

 private:
  uint64_t state_;
};

// "name=value ..." for Report::begin.
std::string sizes(std::initializer_list<std::pair<const char*, int64_t>> values);

constexpr double kUnit = 0x1p-24;  // relative error of one float32 rounding to nearest
constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
inline bool is_scalar(const Kernels& tier) { return tier.tier == std::string("scalar"); }

// Values as a 16-bit dtype holds them (f32: unchanged).
std::vector<float> rounded(std::vector<float> values, DType dtype);

// Rows [.., dim] of keys or values as a cache of this dtype holds them.
std::vector<float> kept(std::vector<float> rows, int64_t dim, DType dtype);

// A matrix [n, k] packed as a tier wants it, 64-byte aligned.
class Packed {
 public:
  Packed(const Kernels& tier, DType dtype, const std::vector<float>& values, int64_t n, int64_t k);
  void* data();

 private:
  std::vector<char> bytes_;
};

// What a float form rounds to.
constexpr DType operand_dtype(Form form) {
  return form == Form::f32_rows ? DType::f32 : form == Form::f16_rows ? DType::f16 : DType::bf16;
}

// An operand with its memory: zeroed, or filled from values [rows, dim].
class Rows {
 public:
  Rows(Form form, int64_t rows, int64_t dim, const std::vector<float>* values = nullptr);
  Operand operand() const { return operand_; }
  std::vector<float> values() const;  // [rows, dim]
  bool padding_is_zero() const;       // columns from dim up to the stride, and what only completes a pair

 private:
  uint16_t* half(int64_t row, int64_t column) const;  // of a 16-bit form

  int64_t rows_, dim_;
  std::vector<float> floats_;
  std::vector<uint16_t> halves_;
  Operand operand_;
};

}  // namespace forearm::checks
