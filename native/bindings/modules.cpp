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

// A half of a layer: its rows, norm and matrices. Throws std::invalid_argument if they do not fit.
ModuleHalf half_of(const Modules& modules, const Array<float>& x, const Array<float>& norm, float eps,
                   const std::string& first, const std::string& last) {
  const Linear &in = modules.linear(first), &out = modules.linear(last);
  const int64_t width = in.matrix.k;
  expect_shape("x", x, modules.tokens(), width);
  expect_length("norm", norm, width);
  if (out.matrix.n != width)
    throw std::invalid_argument("'" + last + "' has not as many rows as '" + first + "' reads");
  return {x.data(), norm.data(), eps, &in, &out, nullptr};
}

void expect_between(const ModuleHalf& half, int64_t columns, int64_t k) {
  if (half.first->matrix.n != columns || half.last->matrix.k != k)
    throw std::invalid_argument("the first matrix has " + std::to_string(half.first->matrix.n) + " rows, and not " +
                                std::to_string(columns) + ", or the last reads " + std::to_string(half.last->matrix.k) +
                                " values, and not " + std::to_string(k));
}

py::array_t<float> mix(Executor& executor, int64_t layer, const Array<float>& x, const Array<float>& norm, float eps,
                       const std::string& qkv, const std::string& o, const Array<float>& cos, const Array<float>& sin,
                       float scale, int64_t window) {
  const Config& c = executor.config();
  Modules& modules = executor.modules();
  expect_layer(layer, c);
  ModuleHalf half = half_of(modules, x, norm, eps, qkv, o);
  expect_between(half, (c.heads + 2 * c.kv_heads) * c.head_dim, c.heads * c.head_dim);
  expect_shape("cos", cos, modules.tokens(), c.head_dim / 2);
  expect_shape("sin", sin, modules.tokens(), c.head_dim / 2);
  py::array_t<float> out({x.shape(0), x.shape(1)});
  half.out = out.mutable_data();
  const ModuleAttention in{nullptr, nullptr, nullptr, scale, 0.0f, window, nullptr, nullptr};
  const float *cosines = cos.data(), *sines = sin.data();
  const py::gil_scoped_release release;
  modules.mix(half, static_cast<size_t>(layer), cosines, sines, in);
  return out;
}

void feed_forward(Executor& executor, Array<float>& x, const Array<float>& norm, float eps, const std::string& up,
                  const std::string& down, const std::string& gate) {
  Modules& modules = executor.modules();
  ModuleHalf half = half_of(modules, x, norm, eps, up, down);
  expect_between(half, 2 * half.last->matrix.k, half.last->matrix.k);
  const Activation activation = activation_of(gate);
  half.out = x.mutable_data();
  const py::gil_scoped_release release;
  modules.feed_forward(half, activation);
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
      .def("mix", &mix, "layer"_a, "x"_a.noconvert(), "norm"_a.noconvert(), "eps"_a, "qkv"_a, "o"_a,
           "cos"_a.noconvert(), "sin"_a.noconvert(), "scale"_a, "window"_a = 0)
      .def("feed_forward", &feed_forward, "x"_a.noconvert(), "norm"_a.noconvert(), "eps"_a, "up"_a, "down"_a, "gate"_a)
      .def("take_logits", &take_logits, "logits"_a.noconvert());
}

}  // namespace forearm
