// Binds one tier's quantized operations to numpy arrays, for tests: quantization and matrix products; shapes as in
// _native.pyi, not meant to be fast.
#include "bindings/quantized_py.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/config.h"
#include "kernels/pack.h"

namespace forearm {

namespace py = pybind11;

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Bytes = py::array_t<int8_t, py::array::c_style>;
using Ints = py::array_t<int32_t, py::array::c_style>;
using Memory = std::unique_ptr<char, decltype(&std::free)>;

Memory zeroed(int64_t bytes) {
  const size_t size = (static_cast<size_t>(bytes) / 64 + 1) * 64;
  Memory memory(static_cast<char*>(std::aligned_alloc(64, size)), &std::free);
  if (!memory) throw std::bad_alloc();
  std::memset(memory.get(), 0, size);
  return memory;
}

int64_t groups_of(int64_t k, int64_t group) { return (k + group - 1) / group; }

// Rows in an i8 or i16 form, quantized by the tier.
struct OperandCodes {
  OperandCodes(const Kernels& kernels, Form form, const Floats& x, int64_t group, const int32_t* order,
               bool turned = false)
      : rows(x.shape(0)), dim(x.shape(1)), codes(zeroed((rows + 1) * (dim + 128) * form_bytes(form))) {
    scales.resize((rows + 1) * digits_of(form) * groups_of(dim, group));
    sums.resize(scales.size());
    operand = {codes.get(), (dim + 63) / 64 * 64, form, group, scales.data(), sums.data()};
    std::vector<float> room(turned ? static_cast<size_t>(dim) : 0);
    kernels.quantize({x.data(), dim, 0, rows, dim, order, operand, turned ? room.data() : nullptr});
  }

  int64_t rows, dim;
  Memory codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  Operand operand;
};

// The form of activations of so many bits.
Form form_of(Form eight, int bits) {
  if (bits != 8 && bits != 16) throw std::invalid_argument("bits is 8 or 16, not " + std::to_string(bits));
  return bits == 16 ? in_16_bits(eight) : eight;
}

py::tuple quantize(const Kernels& kernels, const Floats& x, int64_t group, const std::optional<Ints>& order, int bits,
                   bool turned) {
  if (turned && !is_turnable(x.shape(1), group))
    throw std::invalid_argument("activations are turned in groups of a multiple of 64 columns, by primes up to 61");
  const OperandCodes rows(kernels, form_of(Form::i8_rows, bits), x, group, order ? order->data() : nullptr, turned);
  const int64_t groups = groups_of(rows.dim, group), digits = rows.rows * digits_of(rows.operand.form);
  Bytes codes({digits, rows.dim});
  for (int64_t r = 0; r < digits; ++r) {
    std::memcpy(codes.mutable_data(r, 0), rows.codes.get() + r * rows.operand.stride, static_cast<size_t>(rows.dim));
  }
  return py::make_tuple(codes, Floats({digits, groups}, rows.scales.data()), Ints({digits, groups}, rows.sums.data()));
}

py::tuple round(const Kernels& kernels, const Floats& w, const std::string& dtype, int64_t group,
                const std::string& scale_dtype, const std::optional<Array<float>>& importance,
                const std::optional<Array<float>>& feedback) {
  const int64_t rows = w.shape(0), k = w.shape(1);
  if (importance) expect_length("importance", *importance, k);
  if (feedback) expect_length("feedback", *feedback, 2 * k * kFeedback);
  Bytes codes({rows, k});
  Floats scales({rows, groups_of(k, group)});
  kernels.round({w.data(), rows, k, group, dtype_of(dtype), dtype_of(scale_dtype), codes.mutable_data(),
                 scales.mutable_data(), importance ? importance->data() : nullptr,
                 feedback ? feedback->data() : nullptr});
  return py::make_tuple(codes, scales);
}

// A matrix of codes packed for a tier.
struct PackedCodes {
  PackedCodes(const Kernels& kernels, const Bytes& from, const Floats& s, DType dtype, int64_t group, DType scale_dtype)
      : n(from.shape(0)),
        groups(groups_of(from.shape(1), group)),
        codes(nullptr, &std::free),
        scales(nullptr, &std::free) {
    const Layout layout = kernels.layout[static_cast<int>(dtype)];
    const int64_t k = from.shape(1);
    if (s.shape(0) != n || s.shape(1) != groups) throw std::invalid_argument("scales must be [n, groups]");
    codes = zeroed(packed_bytes(dtype, n, k, layout.quantum));
    scales = zeroed(scales_count(n, groups) * dtype_bytes(scale_dtype));
    pack_codes(from.data(), n, {codes.get(), dtype, layout.quantum, k, layout.bias}, 0);
    pack_scales(s.data(), n, groups, scale_dtype, scales.get(), 0);
    weights = {codes.get(), dtype, n, k, group, scales.get(), scale_dtype};
  }

  int64_t n, groups;
  Memory codes, scales;
  std::vector<int8_t> zeros;
  std::vector<uint16_t> offsets;
  PackedWeights weights;
};

Floats gemm_codes(const Kernels& kernels, const Floats& a, const Bytes& codes, const Floats& scales,
                  const std::string& dtype, int64_t group, const std::optional<Bytes>& zeros,
                  const std::optional<Floats>& offsets, const std::string& scale_dtype, int bits) {
  PackedCodes w(kernels, codes, scales, dtype_of(dtype), group, dtype_of(scale_dtype));
  if (a.shape(1) != w.weights.k) throw std::invalid_argument("a and codes differ in k");
  w.zeros.resize(scales_count(w.n, w.groups));
  w.offsets.resize(scales_count(w.n, w.groups));
  if (zeros) {
    pack_zeros(zeros->data(), w.n, w.groups, w.zeros.data(), 0);
    w.weights.zeros = w.zeros.data();
  }
  if (offsets) {
    pack_scales(offsets->data(), w.n, w.groups, DType::f16, w.offsets.data(), 0);
    w.weights.offsets = w.offsets.data();
  }
  const Form form = kernels.layout[static_cast<int>(w.weights.dtype)].form;
  const OperandCodes rows(kernels, form_of(form, bits), a, group, nullptr);
  const Memory scratch = zeroed(kernels.gemm_scratch_bytes(w.weights.k));
  Floats out({rows.rows, w.n});
  GemmTask task{};
  task.a = rows.operand;
  task.row_end = rows.rows;
  task.w = w.weights;
  task.n_end = w.n;
  task.scale = 1.0f;
  task.out = {out.mutable_data(), w.n, Form::f32_rows};
  task.scratch = scratch.get();
  kernels.gemm(task);
  return out;
}

}  // namespace

void bind_codes(py::class_<Kernels>& kernels) {
  using namespace py::literals;
  kernels.def("quantize", &quantize, "x"_a, "group"_a, "order"_a = py::none(), "bits"_a = 8, "turned"_a = false)
      .def("round", &round, "w"_a, "dtype"_a, "group"_a, "scale_dtype"_a = "float32", "importance"_a = py::none(),
           "feedback"_a = py::none())
      .def("gemm_codes", &gemm_codes, "a"_a, "codes"_a.noconvert(), "scales"_a, "dtype"_a, "group"_a,
           "zeros"_a = py::none(), "offsets"_a = py::none(), "scale_dtype"_a = "float32", "bits"_a = 8);
}

}  // namespace forearm
