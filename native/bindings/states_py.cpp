// Binds one tier's operations of mixers that keep a state to numpy arrays, for tests: shapes as in _native.pyi, not
// meant to be fast.
#include "bindings/states_py.h"

#include <pybind11/stl.h>

#include <limits>

namespace forearm {

namespace py = pybind11;

namespace {

using Floats = NumpyFloats;

py::tuple short_conv(const Kernels& kernels, const Floats& b, const MaybeFloats& c, const MaybeFloats& x,
                     const Floats& taps, const Floats& state, const MaybeFloats& bias, int64_t first_output,
                     bool plain) {
  const int64_t rows = b.shape(0), channels = b.shape(1);
  Floats u = copy_of(b), next = copy_of(state), out({rows - first_output, channels});
  kernels.short_conv({u.mutable_data(),
                      data_or_null(c),
                      data_or_null(x),
                      channels,
                      rows,
                      first_output,
                      taps.shape(0),
                      taps.data(),
                      data_or_null(bias),
                      next.mutable_data(),
                      channels,
                      0,
                      channels,
                      {out.mutable_data(), channels, Form::f32_rows},
                      0,
                      plain});
  return py::make_tuple(out, next);
}

py::tuple mamba2(const Kernels& kernels, const Floats& x, const Floats& b, const Floats& c, const Floats& dt,
                 const Floats& dt_bias, const Floats& a_log, const Floats& d, const Floats& state, float dt_scale,
                 float dt_least, float dt_most) {
  const int64_t rows = x.shape(0), heads = x.shape(1), head_dim = x.shape(2);
  const int64_t groups = b.shape(1), state_dim = b.shape(2), inner = heads * head_dim, shared = groups * state_dim;
  const int64_t stride = inner + 2 * shared;
  std::vector<float> joint(static_cast<size_t>(rows * stride));
  for (int64_t row = 0; row < rows; ++row) {
    float* to = joint.data() + row * stride;
    to = std::copy_n(x.data() + row * inner, inner, to);
    to = std::copy_n(b.data() + row * shared, shared, to);
    std::copy_n(c.data() + row * shared, shared, to);
  }
  Floats next = copy_of(state), y({rows, heads, head_dim});
  kernels.mamba2({joint.data(),
                  joint.data() + inner,
                  joint.data() + inner + shared,
                  stride,
                  dt.data(),
                  heads,
                  rows,
                  heads,
                  groups,
                  head_dim,
                  state_dim,
                  0,
                  heads * state_panels(head_dim),
                  dt_bias.data(),
                  a_log.data(),
                  d.data(),
                  dt_scale,
                  dt_least,
                  dt_most,
                  next.mutable_data()});
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(joint.data() + row * stride, inner, y.mutable_data() + row * inner);
  return py::make_tuple(y, next);
}

py::tuple selective_scan(const Kernels& kernels, const Floats& x, const Floats& dt, const Floats& z, const Floats& b,
                         const Floats& c, const Floats& a, const Floats& d, const Floats& state, int64_t first_output) {
  const int64_t rows = x.shape(0), channels = x.shape(1), state_dim = b.shape(1), stride = 2 * (channels + state_dim);
  std::vector<float> joint(static_cast<size_t>(rows * stride));
  for (int64_t row = 0; row < rows; ++row) {
    float* to = joint.data() + row * stride;
    to = std::copy_n(dt.data() + row * channels, channels, to);
    to = std::copy_n(z.data() + row * channels, channels, to);
    to = std::copy_n(b.data() + row * state_dim, state_dim, to);
    std::copy_n(c.data() + row * state_dim, state_dim, to);
  }
  const float *joint_b = joint.data() + 2 * channels, *joint_c = joint_b + state_dim;
  Floats next = copy_of(state), out({rows - first_output, channels});
  const Operand rows_out{out.mutable_data(), channels, Form::f32_rows};
  kernels.selective_scan({x.data(), channels, joint.data(), joint.data() + channels, joint_b, joint_c, stride, rows,
                          first_output, state_dim, 0, channels, a.data(), d.data(), next.mutable_data(), rows_out, 0});
  return py::make_tuple(out, next);
}

py::tuple rg_lru(const Kernels& kernels, const Floats& x, const Floats& r, const Floats& i, const Floats& y,
                 const Floats& rate, const Floats& state, int64_t first_output, bool begins) {
  const int64_t rows = x.shape(0), channels = x.shape(1), padded = state_panels(channels) * kPanel;
  std::vector<float> moved(static_cast<size_t>(padded));
  std::copy_n(state.data(), channels, moved.data());
  Floats out({rows - first_output, channels}), next({channels});
  const Operand rows_out{out.mutable_data(), channels, Form::f32_rows};
  kernels.rg_lru({x.data(), channels, r.data(), i.data(), y.data(), channels, rows, first_output, begins, 0, channels,
                  rate.data(), moved.data(), rows_out, 0});
  std::copy_n(moved.data(), channels, next.mutable_data());
  return py::make_tuple(out, next);
}

Floats token_shift(const Kernels& kernels, const Floats& x, const MaybeFloats& before, const Floats& mix,
                   int64_t first_output) {
  const int64_t rows = x.shape(0), columns = x.shape(1);
  Floats out({rows - first_output, columns});
  kernels.token_shift({x.data(),
                       columns,
                       rows,
                       first_output,
                       data_or_null(before),
                       mix.data(),
                       0,
                       columns,
                       {out.mutable_data(), columns, Form::f32_rows},
                       0});
  return out;
}

Floats squash(const Kernels& kernels, const Floats& x, const std::string& by) {
  const int64_t rows = x.shape(0), columns = x.shape(1);
  const Squash kind = by == "tanh" ? Squash::tanh : by == "sigmoid" ? Squash::sigmoid : Squash::none;
  Floats out({rows, columns});
  kernels.squash({x.data(), columns, 0, rows, columns, kind, {out.mutable_data(), columns, Form::f32_rows}});
  return out;
}

// rows: r, w, k, v, a, g, each [rows, dim]; vectors: k_k, k_a, r_k, norm and norm_bias, each [dim].
py::tuple rwkv7(const Kernels& kernels, const Floats& rows, const MaybeFloats& mix, const MaybeFloats& first,
                const Floats& vectors, float eps, const Floats& state, int64_t first_output) {
  const int64_t count = rows.shape(1), dim = rows.shape(2);
  Floats next = copy_of(state), out({count - first_output, dim});
  std::vector<float> room(static_cast<size_t>(count * rwkv7_room_floats(dim)));
  const auto row = [&](int64_t i) { return rows.data() + i * count * dim; };
  const auto vector = [&](int64_t i) { return vectors.data() + i * dim; };
  kernels.rwkv7({row(0),
                 row(1),
                 row(2),
                 row(3),
                 row(4),
                 row(5),
                 data_or_null(mix),
                 data_or_null(first),
                 dim,
                 dim,
                 count,
                 dim,
                 first_output,
                 vector(0),
                 vector(1),
                 vector(2),
                 vector(3),
                 vector(4),
                 eps,
                 next.mutable_data(),
                 room.data(),
                 {out.mutable_data(), dim, Form::f32_rows},
                 0,
                 0});
  return py::make_tuple(out, next);
}

Floats gated_norm(const Kernels& kernels, const Floats& y, const Floats& z, const MaybeFloats& weight, int64_t groups,
                  float eps, bool gate_first, float z_scale, bool by_sigmoid) {
  const int64_t rows = y.shape(0), dim = y.shape(1);
  Floats own = copy_of(y), out({rows, dim});
  kernels.gated_norm({own.mutable_data(),
                      dim,
                      z.data(),
                      dim,
                      0,
                      rows,
                      dim,
                      groups,
                      data_or_null(weight),
                      eps,
                      gate_first,
                      z_scale,
                      {out.mutable_data(), dim, Form::f32_rows},
                      0,
                      0,
                      by_sigmoid});
  return out;
}

py::tuple delta_gates(const Kernels& kernels, const Floats& a, const Floats& b, const Floats& a_log,
                      const Floats& dt_bias, float beta_scale, float least) {
  const int64_t rows = a.shape(0), columns = a.shape(1), heads = a_log.shape(0);
  Floats decay({rows, columns}), beta({rows, heads});
  kernels.delta_gates({a.data(), b.data(), columns, rows, heads, columns / heads, a_log.data(), dt_bias.data(),
                       decay.mutable_data(), beta.mutable_data(), beta_scale, least});
  return py::make_tuple(decay, beta);
}

py::tuple delta_rule(const Kernels& kernels, const Floats& q, const Floats& k, const Floats& v, const Floats& decay,
                     const Floats& beta, const Floats& state) {
  const int64_t rows = q.shape(0), key_dim = q.shape(1), value_dim = v.shape(1);
  const bool by_channel = decay.ndim() == 2;
  Floats next = copy_of(state), out({rows, value_dim});
  kernels.delta_rule({q.data(), k.data(), key_dim, v.data(), value_dim, decay.data(), by_channel ? key_dim : 1,
                      by_channel, beta.data(), 1, rows, key_dim, value_dim, next.mutable_data(), out.mutable_data(),
                      value_dim});
  return py::make_tuple(out, next);
}

}  // namespace

void bind_states(py::class_<Kernels>& kernels) {
  using namespace py::literals;
  kernels
      .def("short_conv", &short_conv, "b"_a, "c"_a, "x"_a, "taps"_a, "state"_a, "bias"_a = py::none(),
           "first_output"_a = 0, "plain"_a = false)
      .def("mamba2", &mamba2, "x"_a, "b"_a, "c"_a, "dt"_a, "dt_bias"_a, "a_log"_a, "d"_a, "state"_a,
           "dt_scale"_a = 1.0f, "dt_least"_a = 0.0f, "dt_most"_a = std::numeric_limits<float>::infinity())
      .def("selective_scan", &selective_scan, "x"_a, "dt"_a, "z"_a, "b"_a, "c"_a, "a"_a, "d"_a, "state"_a,
           "first_output"_a = 0)
      .def("rg_lru", &rg_lru, "x"_a, "r"_a, "i"_a, "y"_a, "rate"_a, "state"_a, "first_output"_a = 0, "begins"_a = false)
      .def("token_shift", &token_shift, "x"_a, "before"_a, "mix"_a, "first_output"_a = 0)
      .def("squash", &squash, "x"_a, "by"_a)
      .def("rwkv7", &rwkv7, "rows"_a, "mix"_a, "first"_a, "vectors"_a, "eps"_a, "state"_a, "first_output"_a = 0)
      .def("gated_norm", &gated_norm, "y"_a, "z"_a, "weight"_a, "groups"_a = 1, "eps"_a = 1e-5f, "gate_first"_a = true,
           "z_scale"_a = 1.0f, "by_sigmoid"_a = false)
      .def("delta_gates", &delta_gates, "a"_a, "b"_a, "a_log"_a, "dt_bias"_a, "beta_scale"_a = 1.0f, "least"_a = 0.0f)
      .def("delta_rule", &delta_rule, "q"_a, "k"_a, "v"_a, "decay"_a, "beta"_a, "state"_a);
}

}  // namespace forearm
