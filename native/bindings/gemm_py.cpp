// Binds one tier's matrix products to numpy arrays, for tests: shapes as in _native.pyi, not meant to be fast.
#include "bindings/gemm_py.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/config.h"
#include "bindings/quantized_py.h"
#include "kernels/pack.h"

namespace forearm {

namespace py = pybind11;

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Ints = py::array_t<int32_t, py::array::c_style>;

template <typename Value>
Value named(const std::map<std::string, Value>& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) throw std::invalid_argument("there is no '" + name + "'");
  return found->second;
}

Epilogue epilogue_of(const std::string& name) {
  return named<Epilogue>({{"store", Epilogue::store},
                          {"add", Epilogue::add},
                          {"activate", Epilogue::activate},
                          {"gated", Epilogue::gated},
                          {"softcap", Epilogue::softcap}},
                         name);
}

Activation activation_of(const std::string& name) {
  return named<Activation>({{"none", Activation::none},
                            {"silu", Activation::silu},
                            {"gelu_tanh", Activation::gelu_tanh},
                            {"gelu_erf", Activation::gelu_erf},
                            {"relu", Activation::relu},
                            {"relu_squared", Activation::relu_squared},
                            {"swiglu_oai", Activation::swiglu_oai},
                            {"xielu", Activation::xielu}},
                           name);
}

// Activations in the form that a tier multiplies.
class OperandRows {
 public:
  OperandRows(Form form, const Floats& values) {
    const int64_t rows = values.shape(0), dim = values.shape(1), quads = (dim + 3) / 4;
    const auto at = values.unchecked<2>();
    if (form == Form::f32_rows) {
      floats_.resize(rows * quads * 4);
      for (int64_t r = 0; r < rows; ++r) std::copy_n(values.data(r, 0), dim, floats_.data() + r * quads * 4);
      operand = {floats_.data(), quads * 4, form};
      return;
    }
    halves_.resize((rows + 1) / 2 * quads * 8);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < dim; ++c) {
        const int64_t pair = ((r / 2 * quads + c / 4) * 2 + r % 2) * 4 + c % 4;
        halves_[form == Form::bf16_pairs ? pair : r * quads * 4 + c] =
            narrow(at(r, c), form == Form::f16_rows ? DType::f16 : DType::bf16);
      }
    }
    operand = {halves_.data(), quads * 4, form};
  }

  Operand operand;

 private:
  std::vector<float> floats_;
  std::vector<uint16_t> halves_;
};

// W [n, k] packed for a tier. Gated: the first half of its rows is the gate, the second up.
std::vector<char> packed(const Kernels& kernels, const Floats& w, DType dtype, bool gated) {
  const int64_t quantum = kernels.layout[static_cast<int>(dtype)].quantum, n = w.shape(0), k = w.shape(1);
  const int64_t rows = gated ? (n / 2 + kPanel - 1) / kPanel * kPanel * 2 : n;
  std::vector<char> bytes(packed_elements(rows, k, quantum) * dtype_bytes(dtype));
  const PackedMatrix matrix = {bytes.data(), dtype, quantum, k};
  if (!gated) {
    pack_rows(w.data(), DType::f32, n, matrix, 0);
  } else {
    pack_rows(w.data(), DType::f32, n / 2, matrix, 0, {2, 0});
    pack_rows(w.data() + n / 2 * k, DType::f32, n / 2, matrix, 0, {2, 1});
  }
  return bytes;
}

// A bias in the order of packed columns.
std::vector<float> packed_bias(const Floats& bias, bool gated) {
  const int64_t n = bias.size();
  if (!gated) return {bias.data(), bias.data() + n};
  std::vector<float> out((n / 2 + kPanel - 1) / kPanel * kPanel * 2);
  for (int64_t i = 0; i < n / 2; ++i) {
    out[i / kPanel * 2 * kPanel + i % kPanel] = bias.at(i);
    out[(i / kPanel * 2 + 1) * kPanel + i % kPanel] = bias.at(n / 2 + i);
  }
  return out;
}

Floats gemm(const Kernels& kernels, const Floats& a, const Floats& w, const std::string& dtype_name,
            const std::optional<Floats>& bias, const std::string& epilogue, const std::string& activation, float scale,
            float softcap, const std::optional<Floats>& residual, const std::array<float, 4>& xielu, float gate_limit,
            float limit) {
  const DType dtype = dtype_of(dtype_name);
  const bool gated = epilogue_of(epilogue) == Epilogue::gated;
  const int64_t m = a.shape(0), n = w.shape(0), k = w.shape(1), columns = gated ? n / 2 : n;
  if (a.shape(1) != k || (bias && bias->size() != n)) throw std::invalid_argument("shapes of a, w and bias differ");
  const OperandRows rows(kernels.layout[static_cast<int>(dtype)].form, a);
  const std::vector<char> weights = packed(kernels, w, dtype, gated);
  const std::vector<float> biases = bias ? packed_bias(*bias, gated) : std::vector<float>();
  Floats out({m, columns});
  std::fill_n(out.mutable_data(), m * columns, 0.0f);
  if (residual) std::copy_n(residual->data(), m * columns, out.mutable_data());
  const int64_t packed_columns = gated ? (columns + kPanel - 1) / kPanel * kPanel * 2 : n;
  const Xielu constants{xielu[0], xielu[1], xielu[2], xielu[3]};
  kernels.gemm({rows.operand,
                0,
                m,
                {weights.data(), dtype, n, k},
                0,
                packed_columns,
                bias ? biases.data() : nullptr,
                epilogue_of(epilogue),
                activation_of(activation),
                scale,
                softcap,
                {out.mutable_data(), columns, Form::f32_rows},
                nullptr,
                &constants,
                gate_limit,
                limit});
  return out;
}

Floats embed(const Kernels& kernels, const Ints& tokens, const Floats& w, const std::string& dtype_name, float scale) {
  const DType dtype = dtype_of(dtype_name);
  const std::vector<char> weights = packed(kernels, w, dtype, false);
  Floats out({static_cast<int64_t>(tokens.size()), static_cast<int64_t>(w.shape(1))});
  kernels.embed({tokens.data(),
                 tokens.size(),
                 {weights.data(), dtype, w.shape(0), w.shape(1)},
                 scale,
                 out.mutable_data(),
                 w.shape(1)});
  return out;
}

}  // namespace

void bind_gemm(py::class_<Kernels>& kernels) {
  using namespace py::literals;
  bind_codes(kernels);
  kernels
      .def("gemm", &gemm, "a"_a, "w"_a, "dtype"_a, "bias"_a = py::none(), "epilogue"_a = "store",
           "activation"_a = "none", "scale"_a = 1.0f, "softcap"_a = 0.0f, "residual"_a = py::none(),
           "xielu"_a = std::array<float, 4>{}, "gate_limit"_a = __builtin_inff(), "limit"_a = __builtin_inff())
      .def("embed", &embed, "tokens"_a.noconvert(), "w"_a, "dtype"_a, "scale"_a = 1.0f);
}

}  // namespace forearm
