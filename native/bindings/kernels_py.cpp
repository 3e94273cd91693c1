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
#include "bindings/states_py.h"
#include "kernels/kernels.h"
#include "sampling/sampler.h"

namespace forearm {

namespace py = pybind11;

namespace {

using Floats = NumpyFloats;
using Ints = py::array_t<int32_t, py::array::c_style>;
using MaybeMask = std::optional<py::array_t<uint32_t, py::array::c_style>>;

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
  bind_states(kernels);
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
      .def("row_max", &row_max, "x"_a)
      .def("row_maxima", &row_maxima, "x"_a, "mask"_a)
      .def("row_exp_sum", &row_exp_sum, "x"_a, "max"_a, "inverse_temperature"_a, "mask"_a = py::none())
      .def("row_collect", &row_collect, "x"_a, "threshold"_a, "mask"_a = py::none(), "maxima"_a = py::none())
      .def("sample", &sample_rows)
      .def("score", &score_rows, "logits"_a, "rows"_a.noconvert(), "tokens"_a.noconvert(), "alternatives"_a);
}

}  // namespace forearm
