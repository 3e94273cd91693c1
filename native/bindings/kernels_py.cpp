// Binds one tier's operations to numpy arrays, for tests: shapes as in _native.pyi, not meant to be fast.
#include "bindings/kernels_py.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/config.h"
#include "bindings/gemm_py.h"
#include "bindings/sampling_arrays.h"
#include "kernels/kernels.h"
#include "sampling/sampler.h"

namespace forearm {

namespace py = pybind11;

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Ints = py::array_t<int32_t, py::array::c_style>;
using MaybeFloats = std::optional<Floats>;
using MaybeMask = std::optional<py::array_t<uint32_t, py::array::c_style>>;

const float* data_or_null(const MaybeFloats& array) { return array ? array->data() : nullptr; }

Floats copy_of(const Floats& array) {
  Floats copy(std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim()));
  std::copy_n(array.data(), array.size(), copy.mutable_data());
  return copy;
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, Free>;
Memory zeroed(int64_t bytes) {
  const int64_t whole = (bytes + 63) / 64 * 64;
  Memory memory(static_cast<char*>(std::aligned_alloc(64, whole)));
  std::memset(memory.get(), 0, whole);
  return memory;
}

Kernels tier_named(const std::string& name) {
  const Kernels* tier = find_tier(name.c_str());
  if (!tier) throw std::invalid_argument("there is no tier '" + name + "' on this CPU");
  return *tier;
}

Floats norm(const Kernels& kernels, const Floats& x, const MaybeFloats& weight, const MaybeFloats& bias, float eps,
            bool layer_norm) {
  const int64_t rows = x.shape(0), dim = x.shape(1);
  Floats out({rows, dim});
  kernels.norm({x.data(),
                dim,
                0,
                rows,
                dim,
                data_or_null(weight),
                data_or_null(bias),
                eps,
                layer_norm,
                {out.mutable_data(), dim, Form::f32_rows}});
  return out;
}

Floats add_norm(const Kernels& kernels, const Floats& residual, const Floats& x, const MaybeFloats& weight, float eps,
                float scale) {
  const int64_t rows = x.shape(0), dim = x.shape(1);
  Floats out = copy_of(residual);
  const Operand sum{out.mutable_data(), dim, Form::f32_rows};
  kernels.add_norm({{x.data(), dim, 0, rows, dim, data_or_null(weight), nullptr, eps, false, sum}, scale});
  return out;
}

Floats head_norm(const Kernels& kernels, const Floats& x, const MaybeFloats& weight, float eps) {
  Floats out = copy_of(x);
  const int64_t rows = x.shape(0), heads = x.shape(1), dim = x.shape(2);
  kernels.head_norm({out.mutable_data(), heads * dim, rows, heads, dim, data_or_null(weight), eps});
  return out;
}

Floats rope(const Kernels& kernels, const Floats& x, const Floats& cos, const Floats& sin, bool interleaved) {
  Floats out = copy_of(x);
  const int64_t rows = x.shape(0), heads = x.shape(1), dim = x.shape(2);
  kernels.rope(
      {out.mutable_data(), heads * dim, rows, heads, dim, 2 * cos.shape(1), cos.data(), sin.data(), interleaved});
  return out;
}

// Keys and values of one sequence, in blocks that are in memory in descending order.
class PagedCache {
 public:
  PagedCache(const Kernels& kernels, const Floats& k, const Floats& v, DType dtype)
      : blocks_((k.shape(0) + kBlockTokens - 1) / kBlockTokens) {
    const int64_t keys = k.shape(0), heads = k.shape(1), dim = k.shape(2);
    const int64_t padded = (dim + 15) / 16 * 16, head_bytes = kv_head_bytes(dtype, padded);
    const int64_t bytes = head_bytes * heads * static_cast<int64_t>(blocks_.size());
    keys_ = zeroed(bytes);
    values_ = zeroed(bytes);
    cache = {keys_.get(), values_.get(), head_bytes * heads, head_bytes, dtype, padded};
    std::iota(blocks_.rbegin(), blocks_.rend(), 0);
    std::vector<int32_t> slots(keys);
    for (int64_t i = 0; i < keys; ++i) {
      slots[i] =
          blocks_[i / kBlockTokens] * static_cast<int32_t>(kBlockTokens) + static_cast<int32_t>(i % kBlockTokens);
    }
    for (int64_t head = 0; head < heads; ++head) {
      kernels.write_kv(
          {cache, k.data() + head * dim, v.data() + head * dim, heads * dim, keys, dim, head, slots.data()});
    }
  }

  KvCache cache;
  const int32_t* blocks() const { return blocks_.data(); }

 private:
  std::vector<int32_t> blocks_;
  Memory keys_, values_;
};

// Computes the task as partial results of one chunk each, folded by merge.
void attend_in_chunks(const Kernels& kernels, AttendTask task) {
  const int64_t rows = (task.token_end - task.token_begin) * task.group;
  MergeTask merge{task, task.chunk_end, rows * (2 + task.cache.head_dim)};
  std::vector<float> partials(merge.chunks * merge.chunk_stride);
  for (int64_t chunk = 0; chunk < merge.chunks; ++chunk) {
    task.chunk_begin = chunk;
    task.chunk_end = chunk + 1;
    task.partials = partials.data() + chunk * merge.chunk_stride;
    kernels.attend(task);
  }
  merge.attend.partials = partials.data();
  kernels.merge(merge);
}

Floats attend(const Kernels& kernels, const Floats& q, const Floats& k, const Floats& v, const std::string& dtype,
              float scale, int64_t window, float softcap, const MaybeFloats& sinks, int64_t step_tokens, bool in_chunks,
              const MaybeFloats& bias, const MaybeFloats& gate, int64_t segment) {
  const int64_t tokens = q.shape(0), heads = q.shape(1), dim = q.shape(2), kv_heads = k.shape(1);
  const PagedCache paged(kernels, k, v, dtype_of(dtype));
  Floats out({tokens, heads, dim});
  const Memory scratch = zeroed(kernels.attend_scratch_bytes(paged.cache.head_dim));
  for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
    for (int64_t token = 0; token < tokens; token += step_tokens) {
      AttendTask task{};
      task.cache = paged.cache;
      task.blocks = paged.blocks();
      task.q = q.data();
      task.q_stride = heads * dim;
      task.head_dim = dim;
      task.kv_head = kv_head;
      task.group = heads / kv_heads;
      task.token_begin = token;
      task.token_end = std::min(tokens, token + step_tokens);
      task.first_position = k.shape(0) - tokens;
      task.window = window;
      task.segment = segment;
      task.scale = scale;
      task.softcap = softcap;
      task.sinks = data_or_null(sinks);
      task.bias = {data_or_null(bias), bias ? (bias->shape(1) - 31) / 2 : 0};
      task.chunk_end = (k.shape(0) + kChunkTokens - 1) / kChunkTokens;
      task.out = {out.mutable_data(), heads * dim, Form::f32_rows};
      task.scratch = scratch.get();
      task.gate = data_or_null(gate);
      task.gate_kind = Gate::sigmoid;
      task.gates = task.head_dim;
      in_chunks ? attend_in_chunks(kernels, task) : kernels.attend(task);
    }
  }
  return out;
}

py::tuple route(const Kernels& kernels, const Floats& logits, int64_t active, const std::string& score,
                const MaybeFloats& correction, int64_t groups, int64_t groups_kept, int64_t group_best,
                bool renormalized, float sum_epsilon, float scale, float jitter) {
  const int64_t rows = logits.shape(0), experts = logits.shape(1);
  Ints chosen({rows, active});
  Floats weights({rows, active});
  std::vector<float> scratch(4 * experts + groups);
  kernels.route({logits.data(), experts, 0, rows, experts, active, active, score_of(score), data_or_null(correction),
                 groups, groups_kept, group_best, renormalized, sum_epsilon, scale, jitter, chosen.mutable_data(),
                 weights.mutable_data(), scratch.data()});
  return py::make_tuple(chosen, weights);
}

Floats combine(const Kernels& kernels, const Floats& results, const Floats& weights, const Ints& place, float scale,
               const MaybeFloats& residual) {
  const int64_t rows = weights.shape(0), slots = weights.shape(1), columns = results.shape(1);
  Floats out = residual ? copy_of(*residual) : Floats({rows, columns});
  kernels.combine({results.data(),
                   columns,
                   0,
                   rows,
                   slots,
                   weights.data(),
                   place.data(),
                   0,
                   columns,
                   scale,
                   residual.has_value(),
                   {out.mutable_data(), columns, Form::f32_rows}});
  return out;
}

py::tuple short_conv(const Kernels& kernels, const Floats& b, const MaybeFloats& c, const MaybeFloats& x,
                     const Floats& taps, const Floats& state, const MaybeFloats& bias, int64_t first_output) {
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
                      0});
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

py::tuple row_max(const Kernels& kernels, const Floats& x) {
  const RowMax max = kernels.row_max(x.data(), x.size());
  return py::make_tuple(max.value, max.index, max.nan);
}

LogitRow row_of(const Floats& x, const MaybeMask& mask) { return {x.data(), x.size(), mask ? mask->data() : nullptr}; }

Floats row_maxima(const Kernels& kernels, const Floats& x, const MaybeMask& mask) {
  Floats maxima(maxima_of(x.size()));
  kernels.row_maxima(row_of(x, mask), maxima.mutable_data());
  return maxima;
}

py::tuple row_exp_sum(const Kernels& kernels, const Floats& x, float max, float inverse_temperature,
                      const MaybeMask& mask) {
  Floats terms(x.size());
  const float sum = kernels.row_exp_sum(row_of(x, mask), max, inverse_temperature, terms.mutable_data());
  return py::make_tuple(sum, terms);
}

py::tuple row_collect(const Kernels& kernels, const Floats& x, float threshold, const MaybeMask& mask,
                      const MaybeFloats& maxima) {
  std::vector<int32_t> index(x.size());
  std::vector<float> value(x.size());
  const int64_t count =
      kernels.row_collect(row_of(x, mask), data_or_null(maxima), threshold, index.data(), value.data(), x.size());
  return py::make_tuple(Ints(count, index.data()), Floats(count, value.data()));
}

// Logits with the maxima that a model's head would have left.
struct LogitsWithMaxima {
  LogitsWithMaxima(const Kernels& kernels, const Floats& logits)
      : maxima(logits.shape(0) * maxima_of(logits.shape(1))) {
    const int64_t vocab = logits.shape(1);
    for (int64_t r = 0; r < logits.shape(0); ++r)
      kernels.row_maxima({logits.data() + r * vocab, vocab}, maxima.data() + r * maxima_of(vocab));
    table = {logits.data(), logits.shape(0), vocab, vocab, maxima.data(), maxima_of(vocab)};
  }
  std::vector<float> maxima;
  LogitRows table;
};

py::tuple sample_rows(const Kernels& kernels, const Floats& logits, const py::args& columns) {
  const SamplingColumns sampling = sampling_columns(columns);
  const LogitsWithMaxima rows(kernels, logits);
  check(sampling, rows.table);
  SampledArrays out(sampling.lines, most_alternatives(sampling));
  const Memory memory = zeroed(sampler_scratch_bytes(logits.shape(1)));
  SamplerScratch scratch = sampler_scratch(memory.get(), logits.shape(1));
  sample(kernels, rows.table, sampling, 0, sampling.lines, out.columns(), scratch);
  return out.tuple();
}

py::tuple score_rows(const Kernels& kernels, const Floats& logits, const Ints& row, const Ints& tokens,
                     int64_t alternatives) {
  const int64_t lines = row.size();
  const LogitsWithMaxima rows(kernels, logits);
  check(row.data(), tokens.data(), lines, rows.table);
  ScoredArrays out(lines, alternatives);
  const Memory memory = zeroed(sampler_scratch_bytes(logits.shape(1)));
  SamplerScratch scratch = sampler_scratch(memory.get(), logits.shape(1));
  score(kernels, rows.table, row.data(), tokens.data(), 0, lines, out.columns(), scratch);
  return out.tuple();
}

}  // namespace

void bind_kernels(py::module_& module) {
  using namespace py::literals;
  py::class_<Kernels> kernels(module, "Kernels");
  bind_gemm(kernels);
  kernels.def(py::init(&tier_named), "tier"_a)
      .def("norm", &norm, "x"_a, "weight"_a, "bias"_a, "eps"_a, "layer_norm"_a)
      .def("add_norm", &add_norm, "residual"_a, "x"_a, "weight"_a, "eps"_a, "scale"_a)
      .def("head_norm", &head_norm, "x"_a, "weight"_a, "eps"_a)
      .def("rope", &rope, "x"_a, "cos"_a, "sin"_a, "interleaved"_a)
      .def("attend", &attend, "q"_a, "k"_a, "v"_a, "dtype"_a, "scale"_a, "window"_a, "softcap"_a, "sinks"_a,
           "step_tokens"_a, "in_chunks"_a, "bias"_a = py::none(), "gate"_a = py::none(), "segment"_a = 0)
      .def("route", &route, "logits"_a, "active"_a, "score"_a, "correction"_a = py::none(), "groups"_a = 1,
           "groups_kept"_a = 1, "group_best"_a = 2, "renormalized"_a = false, "sum_epsilon"_a = 0.0f, "scale"_a = 1.0f,
           "jitter"_a = 0.0f)
      .def("combine", &combine, "results"_a, "weights"_a, "place"_a.noconvert(), "scale"_a = 1.0f,
           "residual"_a = py::none())
      .def("short_conv", &short_conv, "b"_a, "c"_a, "x"_a, "taps"_a, "state"_a, "bias"_a = py::none(),
           "first_output"_a = 0)
      .def("mamba2", &mamba2, "x"_a, "b"_a, "c"_a, "dt"_a, "dt_bias"_a, "a_log"_a, "d"_a, "state"_a,
           "dt_scale"_a = 1.0f, "dt_least"_a = 0.0f, "dt_most"_a = std::numeric_limits<float>::infinity())
      .def("gated_norm", &gated_norm, "y"_a, "z"_a, "weight"_a, "groups"_a = 1, "eps"_a = 1e-5f, "gate_first"_a = true,
           "z_scale"_a = 1.0f, "by_sigmoid"_a = false)
      .def("delta_gates", &delta_gates, "a"_a, "b"_a, "a_log"_a, "dt_bias"_a, "beta_scale"_a = 1.0f, "least"_a = 0.0f)
      .def("delta_rule", &delta_rule, "q"_a, "k"_a, "v"_a, "decay"_a, "beta"_a, "state"_a)
      .def("row_max", &row_max, "x"_a)
      .def("row_maxima", &row_maxima, "x"_a, "mask"_a)
      .def("row_exp_sum", &row_exp_sum, "x"_a, "max"_a, "inverse_temperature"_a, "mask"_a = py::none())
      .def("row_collect", &row_collect, "x"_a, "threshold"_a, "mask"_a = py::none(), "maxima"_a = py::none())
      .def("sample", &sample_rows)
      .def("score", &score_rows, "logits"_a, "rows"_a.noconvert(), "tokens"_a.noconvert(), "alternatives"_a);
}

}  // namespace forearm
