#include "bindings/modules.h"

#include <optional>

#include <pybind11/stl.h>

#include "bindings/arrays.h"
#include "bindings/config.h"

namespace py = pybind11;

namespace forearm {
namespace {

void expect_heads(const char* name, const Array<float>& array, int64_t tokens, int64_t heads, int64_t head_dim) {
  if (array.ndim() != 3 || array.shape(0) != tokens || array.shape(1) != heads || array.shape(2) != head_dim)
    throw std::invalid_argument(std::string(name) + " must be [" + std::to_string(tokens) + ", " +
                                std::to_string(heads) + ", " + std::to_string(head_dim) + "]");
}

void expect_layer(int64_t layer, const Config& c) {
  const auto layers = static_cast<int64_t>(c.layers.size());
  if (layer < 0 || layer >= layers)
    throw std::invalid_argument("layer is " + std::to_string(layer) + "; the cache has " + std::to_string(layers));
}

py::array_t<float> attend(Executor& executor, int64_t layer, const Array<float>& q, const Array<float>& k,
                          const Array<float>& v, float scale, int64_t window, float softcap,
                          const std::optional<Array<float>>& sinks) {
  const Config& c = executor.config();
  Modules& modules = executor.modules();
  expect_layer(layer, c);
  expect_heads("q", q, modules.tokens(), c.heads, c.head_dim);
  expect_heads("k", k, modules.tokens(), c.kv_heads, c.head_dim);
  expect_heads("v", v, modules.tokens(), c.kv_heads, c.head_dim);
  if (sinks) expect_length("sinks", *sinks, c.heads);
  py::array_t<float> out({modules.tokens(), c.heads, c.head_dim});
  const ModuleAttention in{
      q.data(), k.data(), v.data(), scale, softcap, window, sinks ? sinks->data() : nullptr, out.mutable_data()};
  const py::gil_scoped_release release;
  modules.attend(static_cast<size_t>(layer), in);
  return out;
}

py::array_t<float> multiply(Executor& executor, const std::string& name, const Array<float>& x,
                            const std::string& gate) {
  Modules& modules = executor.modules();
  const Linear& linear = modules.linear(name);
  const Matrix& matrix = linear.matrix;
  if (x.ndim() != 2 || x.shape(1) != matrix.k || x.shape(0) > executor.most_rows())
    throw std::invalid_argument("the rows for '" + name + "' must be [at most " + std::to_string(executor.most_rows()) +
                                ", " + std::to_string(matrix.k) + "]");
  const Activation activation = activation_of(gate);
  py::array_t<float> out({x.shape(0), activation == Activation::none ? matrix.n : matrix.n / 2});
  const float* from = x.data();
  float* to = out.mutable_data();
  const int64_t rows = x.shape(0);
  const py::gil_scoped_release release;
  modules.multiply(linear, from, rows, activation, to);
  return out;
}

py::array_t<float> norm(Executor& executor, const Array<float>& x, const Array<float>& weight, float eps) {
  if (x.ndim() != 2) throw std::invalid_argument("the rows of a norm must be [rows, columns]");
  expect_length("weight", weight, x.shape(1));
  py::array_t<float> out({x.shape(0), x.shape(1)});
  const NormTask task{x.data(),      x.shape(1), 0,   x.shape(0), x.shape(1),
                      weight.data(), nullptr,    eps, false,      {out.mutable_data(), x.shape(1), Form::f32_rows}};
  const py::gil_scoped_release release;
  executor.modules().norm(task);
  return out;
}

py::array_t<float> rope(Executor& executor, const py::array_t<float, 0>& x, const Array<float>& cos,
                        const Array<float>& sin) {
  if (x.ndim() != 4 || x.shape(0) != 1 || x.shape(3) % 2 || x.strides(3) != sizeof(float))
    throw std::invalid_argument("heads must be [1, heads, tokens, an even number of floats side by side]");
  const int64_t heads = x.shape(1), tokens = x.shape(2), dim = x.shape(3);
  expect_shape("cos", cos, tokens, dim / 2);
  expect_shape("sin", sin, tokens, dim / 2);
  py::array_t<float> out({int64_t{1}, tokens, heads, dim});
  const auto floats = [&](int axis) { return x.strides(axis) / static_cast<int64_t>(sizeof(float)); };
  const ModuleHeads in{x.data(), floats(2), floats(1)};
  const RopeTask task{out.mutable_data(), heads * dim, tokens, heads, dim, dim, cos.data(), sin.data(), false};
  const py::gil_scoped_release release;
  executor.modules().rope(in, task);
  return out;
}

size_t add_half(Executor& executor, const Array<float>& norm, float eps, const std::string& first,
                const std::string& last, const std::string& gate, float scale, int64_t window) {
  const Config& c = executor.config();
  Modules& modules = executor.modules();
  const ModuleHalf half{norm.data(), eps,   &modules.linear(first), &modules.linear(last), activation_of(gate),
                        scale,       window};
  const int64_t k = half.attends() ? c.heads * c.head_dim : half.last->matrix.k;
  const int64_t columns = half.attends() ? (c.heads + 2 * c.kv_heads) * c.head_dim : 2 * k;
  expect_length("norm", norm, half.width());
  if (half.last->matrix.n != half.width() || half.first->matrix.n != columns || half.last->matrix.k != k)
    throw std::invalid_argument("'" + first + "' and '" + last + "' are not the matrices of half a layer");
  return modules.add(half);
}

py::array_t<float> compute_halves(Executor& executor, size_t begin, size_t end, int64_t layer, const Array<float>& x,
                                  const Array<float>& cos, const Array<float>& sin) {
  const int64_t angles = executor.config().head_dim / 2;
  Modules& modules = executor.modules();
  const int64_t tokens = modules.tokens();
  if (begin >= end || end > modules.halves().size()) throw std::invalid_argument("there are no such halves");
  int64_t last = layer - 1;
  for (size_t i = begin; i < end; ++i) {
    expect_shape("x", x, tokens, modules.halves()[i].width());
    last += modules.halves()[i].attends();
  }
  expect_layer(layer, executor.config());
  expect_layer(last, executor.config());
  expect_shape("cos", cos, tokens, angles);
  expect_shape("sin", sin, tokens, angles);
  py::array_t<float> out({x.shape(0), x.shape(1)});
  const ModuleRows rows{x.data(), cos.data(), sin.data(), out.mutable_data()};
  const py::gil_scoped_release release;
  modules.compute(begin, end, static_cast<size_t>(layer), rows);
  return out;
}

void take_logits(Executor& executor, const Array<float>& logits) {
  const int64_t rows = logits.ndim() == 2 ? logits.shape(0) : 0;
  expect_shape("logits", logits, rows, executor.config().vocab_size);
  const float* from = logits.data();
  const py::gil_scoped_release release;
  executor.take_logits(from, rows);
}

}  // namespace

void bind_modules(py::class_<Executor>& executor) {
  using namespace py::literals;
  executor
      .def("attend", &attend, "layer"_a, "q"_a.noconvert(), "k"_a.noconvert(), "v"_a.noconvert(), "scale"_a,
           "window"_a = 0, "softcap"_a = 0.0f, "sinks"_a = py::none())
      .def("multiply", &multiply, "name"_a, "x"_a.noconvert(), "gate"_a = "none")
      .def("norm", &norm, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a)
      .def("rope", &rope, "x"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert())
      .def("add_half", &add_half, "norm"_a.noconvert(), "eps"_a, "first"_a, "last"_a, "gate"_a = "none",
           "scale"_a = 0.0f, "window"_a = 0, py::keep_alive<1, 2>())
      .def("compute_halves", &compute_halves, "begin"_a, "end"_a, "layer"_a, "x"_a.noconvert(), "cos"_a.noconvert(),
           "sin"_a.noconvert())
      .def("take_logits", &take_logits, "logits"_a.noconvert());
}

}  // namespace forearm
