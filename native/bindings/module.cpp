// The Python surface, as app/forearm/_native.pyi describes it. Exceptions become Python's: std::invalid_argument is
// ValueError, OutOfMemory is MemoryError, std::runtime_error is RuntimeError.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "bindings/arrays.h"
#include "bindings/config.h"
#include "bindings/kernels_py.h"
#include "bindings/modules.h"
#include "bindings/sampling.h"
#include "bindings/topology_py.h"
#include "kernels/self_test.h"
#include "model/executor.h"
#include "model/machine_limits.h"

namespace py = pybind11;

namespace forearm {
namespace {

std::unique_ptr<Executor> make_executor(const py::object& config, const py::object& matrices, const py::object& formats,
                                        const std::string& kv_dtype, int64_t step_tokens, int64_t step_sequences,
                                        int64_t step_logit_rows, int64_t max_model_len, std::vector<int> cores,
                                        int threads, std::vector<int> ranks, bool kv_groups, const Executor* beside) {
  const Limits limits{dtype_of(kv_dtype), step_tokens, step_sequences, step_logit_rows, max_model_len, kv_groups};
  if (ranks.empty()) ranks = {threads};
  if (std::accumulate(ranks.begin(), ranks.end(), 0) != threads)
    throw std::invalid_argument("the threads of all ranks must add up to " + std::to_string(threads) +
                                ", the value of `threads`");
  return std::make_unique<Executor>(config_of(config, matrices), formats_of(formats), limits, std::move(cores),
                                    Ranks(ranks), beside);
}

int64_t scratch_bytes(const py::object& config, const py::object& matrices, const py::object& formats,
                      int64_t step_tokens, int64_t step_logit_rows, int64_t max_model_len, int threads, bool any_tier) {
  const Limits limits{DType::f32, step_tokens, step_tokens, step_logit_rows, max_model_len};
  const Config model = config_of(config, matrices);
  check(model, limits);
  return Scratch::bytes_for(model, limits, formats_of(formats), threads, any_tier);
}

int64_t kv_block_bytes(const py::object& config, const std::string& kv_dtype, bool grouped) {
  return KvBlocks(config_of(config, py::tuple()), dtype_of(kv_dtype), 1, grouped).bytes_per_block();
}

std::vector<int64_t> kv_reaches(const py::object& config, const std::string& kv_dtype) {
  return kv_groups(config_of(config, py::tuple()), dtype_of(kv_dtype)).reach;
}

int64_t state_bytes(const py::object& config) { return States(config_of(config, py::tuple())).bytes_per_slot(); }

void load_matrix(Executor& executor, const std::string& name, const py::array& data, const std::string& dtype,
                 int64_t row, const py::object& rounding) {
  const DType kind = dtype_of(dtype);
  const bool floats = py::isinstance<py::array_t<float>>(data), halves = py::isinstance<py::array_t<uint16_t>>(data);
  if (data.ndim() != 2 || !(data.flags() & py::array::c_style))
    throw std::invalid_argument("'" + name + "' must be a C-contiguous array of two dimensions");
  if (!is_float(kind))
    throw std::invalid_argument("'" + name + "' has dtype " + dtype +
                                ", which load_matrix does not take; use load_codes");
  if (kind == DType::f32 ? !floats : !halves)
    throw std::invalid_argument("'" + name + "' has dtype " + dtype + ", but its array is " +
                                py::str(data.dtype()).cast<std::string>());
  const Tensor tensor{data.data(), kind, data.shape(0), data.shape(1)};
  std::optional<Array<float>> importance, feedback;
  if (!rounding.is_none()) {
    importance = rounding.attr("importance").cast<std::optional<Array<float>>>();
    feedback = rounding.attr("feedback").cast<std::optional<Array<float>>>();
  }
  if (importance) expect_length("importance", *importance, tensor.k);
  if (feedback) expect_length("feedback", *feedback, 2 * tensor.k * kFeedback);
  const py::gil_scoped_release release;
  executor.load_matrix(name, tensor, row,
                       {importance ? importance->data() : nullptr, feedback ? feedback->data() : nullptr});
}

py::array_t<float> inputs(const Executor& executor, const std::string& part) {
  const Matrix& matrix = executor.matrix_of(part);
  const std::vector<float>& rows = executor.inputs(matrix);
  return py::array_t<float>({static_cast<int64_t>(rows.size()) / matrix.k, matrix.k}, rows.data());
}

// Codes come as int8, or as uint8 where they are bytes of fp8; `scales` and the others are [rows, groups].
void load_codes(Executor& executor, const std::string& name, const py::array& codes, const Array<float>& scales,
                const std::optional<Array<int8_t>>& zeros, const std::optional<Array<float>>& offsets,
                const std::optional<Array<int32_t>>& order, int64_t row) {
  const Matrix& matrix = executor.matrix_of(name);
  const bool fp8 = is_fp8(matrix.format.dtype);
  const bool fits = fp8 ? py::isinstance<py::array_t<uint8_t>>(codes) : py::isinstance<py::array_t<int8_t>>(codes);
  if (!fits || codes.ndim() != 2 || !(codes.flags() & py::array::c_style))
    throw std::invalid_argument("the codes of '" + name + "' must be a C-contiguous array of " +
                                (fp8 ? "uint8" : "int8") + ", [rows, k]");
  const int64_t rows = codes.shape(0), k = codes.shape(1), groups = matrix.groups();
  expect_shape("scales", scales, rows, groups);
  if (zeros) expect_shape("zeros", *zeros, rows, groups);
  if (offsets) expect_shape("offsets", *offsets, rows, groups);
  if (order) expect_length("order", *order, k);
  const CodeRows given{
      static_cast<const int8_t*>(codes.data()), rows, k, scales.data(), zeros ? zeros->data() : nullptr,
      offsets ? offsets->data() : nullptr};
  const int32_t* columns = order ? order->data() : nullptr;
  const py::gil_scoped_release release;
  executor.load_codes(name, given, columns, row);
}

template <void (Executor::*step)(const Batch&)>
void run_step(Executor& executor, const Array<int32_t>& tokens, const Array<int32_t>& positions,
              const Array<int32_t>& starts, const Array<int32_t>& block_starts, const Array<int32_t>& blocks,
              const Array<int32_t>& logit_rows, const std::optional<Array<int32_t>>& types,
              const std::optional<Array<int32_t>>& states, const std::optional<Array<float>>& hidden) {
  Batch batch{};
  batch.tokens = length("tokens", tokens);
  batch.sequences = std::max<int64_t>(length("starts", starts) - 1, 0);
  const int64_t groups = executor.kv().groups(), tables = length("blocks", blocks);
  if (tables % groups)
    throw std::invalid_argument("blocks has length " + std::to_string(tables) + "; it has as many for each of " +
                                std::to_string(groups) + " groups of layers");
  batch.blocks = tables / groups;
  batch.logits = length("logit_rows", logit_rows);
  expect_length("positions", positions, batch.tokens);
  expect_starts("starts", starts, batch.sequences, batch.tokens);
  expect_starts("block_starts", block_starts, batch.sequences, batch.blocks);
  batch.token = tokens.data();
  batch.position = positions.data();
  batch.start = starts.data();
  batch.block_start = block_starts.data();
  batch.block = blocks.data();
  batch.logit_row = logit_rows.data();
  if (types) expect_length("types", *types, batch.tokens);
  batch.type = types ? types->data() : nullptr;
  if (states) expect_length("states", *states, batch.sequences);
  batch.state = states ? states->data() : nullptr;
  if (hidden) expect_shape("hidden", *hidden, batch.tokens, executor.config().hidden);
  batch.hidden = hidden ? hidden->data() : nullptr;
  const py::gil_scoped_release release;
  (executor.*step)(batch);
}

py::array_t<float> logits(Executor& executor) {
  const int64_t columns = executor.config().out_columns();
  py::array_t<float> out({executor.logit_rows(), columns});
  for (int64_t r = 0; r < executor.logit_rows(); ++r)
    std::memcpy(out.mutable_data(r, 0), executor.logits() + r * executor.logit_stride(),
                static_cast<size_t>(columns) * sizeof(float));
  return out;
}

py::array_t<float> hidden(const Executor& executor) {
  const int64_t width = executor.config().hidden;
  py::array_t<float> out({executor.hidden_count(), width});
  for (int64_t r = 0; r < executor.hidden_count(); ++r)
    std::copy_n(executor.hidden_row(r), width, out.mutable_data(r, 0));
  return out;
}

py::array_t<float> pool(Executor& executor, const Array<int32_t>& starts, int64_t head) {
  const int64_t texts = std::max<int64_t>(length("starts", starts) - 1, 0);
  py::array_t<float> out({texts, executor.config().pooled_columns(head)});
  float* to = out.mutable_data();
  const int32_t* from = starts.data();
  const py::gil_scoped_release release;
  executor.pool(from, texts, head, to);
  return out;
}

std::vector<std::string> names_of_tiers() {
  std::vector<std::string> names;
  for (const char* const* name = tier_names(); *name; ++name) names.emplace_back(*name);
  return names;
}

std::vector<std::pair<std::string, std::string>> quarantined_tiers() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Quarantined& one : quarantined()) all.emplace_back(one.tier, one.operation);
  return all;
}

std::string operand_form(const std::string& weight_dtype) {
  const Form form = kernels().layout[static_cast<int>(kept_as(dtype_of(weight_dtype), kernels()))].form;
  if (form == Form::f16_scaled) return "float16";
  if (is_quantized(form)) return "int8";
  return form == Form::f32_rows ? "float32" : form == Form::f16_rows ? "float16" : "bfloat16";
}

py::dict limits(std::vector<int> cores, int threads, int64_t megabytes, double seconds) {
  MachineLimits measured{};
  {
    const py::gil_scoped_release release;
    Pool pool(threads, std::move(cores));
    measured = measure_limits(pool, megabytes, seconds);
  }
  py::dict out;
  out["read_gb_s"] = measured.read_gb_s;
  out["fma_gflops"] = measured.fma_gflops;
  out["bf16_gflops"] = measured.bf16_gflops;
  out["int8_gops"] = measured.int8_gops;
  return out;
}

void bind_executor(py::module_& module) {
  using namespace py::literals;
  py::class_<Executor> executor(module, "Executor");
  executor
      .def(py::init(&make_executor), "config"_a, "matrices"_a, "formats"_a, "kv_dtype"_a, "step_tokens"_a,
           "step_sequences"_a, "step_logit_rows"_a, "max_model_len"_a, "cores"_a, "threads"_a,
           "ranks"_a = std::vector<int>{}, "kv_groups"_a = false, "beside"_a = py::none())
      .def_property_readonly("packed_bytes", &Executor::packed_bytes)
      .def_property_readonly("weights_mapped", &Executor::weights_mapped)
      .def_property_readonly("scratch_bytes", &Executor::scratch_bytes)
      .def_property_readonly("kv_bytes_per_block", &Executor::kv_bytes_per_block)
      .def_property_readonly("state_bytes_per_slot", &Executor::state_bytes_per_slot)
      .def_property_readonly("threads", [](Executor& executor) { return executor.pool().threads(); })
      .def_property_readonly("barriers", [](Executor& executor) { return executor.pool().barriers(); })
      .def("load_matrix", &load_matrix, "name"_a, "data"_a, "dtype"_a, "row"_a = 0, "rounding"_a = py::none())
      .def("load_codes", &load_codes, "name"_a, "codes"_a, "scales"_a.noconvert(), "zeros"_a = py::none(),
           "offsets"_a = py::none(), "order"_a = py::none(), "row"_a = 0)
      .def(
          "load_vector",
          [](Executor& executor, const std::string& name, const Array<float>& data, int64_t row) {
            executor.load_vector(name, data.data(), length(name.c_str(), data), row);
          },
          "name"_a, "data"_a.noconvert(), "row"_a = 0)
      .def("save_weights", &Executor::save_weights, "path"_a, "key"_a, py::call_guard<py::gil_scoped_release>())
      .def("map_weights", &Executor::map_weights, "path"_a, "key"_a, py::call_guard<py::gil_scoped_release>())
      .def("finish_loading", &Executor::finish_loading)
      .def("allocate_kv", &Executor::allocate_kv, "blocks"_a)
      .def("merge_page", &Executor::merge_page, py::call_guard<py::gil_scoped_release>())
      .def("allocate_states", &Executor::allocate_states, "slots"_a)
      .def("copy_state", &Executor::copy_state, "source"_a, "target"_a, py::call_guard<py::gil_scoped_release>())
      .def("forward", &run_step<&Executor::forward>, "tokens"_a.noconvert(), "positions"_a.noconvert(),
           "starts"_a.noconvert(), "block_starts"_a.noconvert(), "blocks"_a.noconvert(), "logit_rows"_a.noconvert(),
           "types"_a = py::none(), "states"_a = py::none(), "hidden"_a = py::none())
      .def("begin", &run_step<&Executor::begin>, "tokens"_a.noconvert(), "positions"_a.noconvert(),
           "starts"_a.noconvert(), "block_starts"_a.noconvert(), "blocks"_a.noconvert(), "logit_rows"_a.noconvert(),
           "types"_a = py::none(), "states"_a = py::none(), "hidden"_a = py::none())
      .def("record_inputs", &Executor::record_inputs)
      .def("inputs", &inputs, "part"_a)
      .def("logits", &logits)
      .def("hidden", &hidden)
      .def("pool", &pool, "starts"_a.noconvert(), "head"_a);
  bind_sampling(executor);
  bind_modules(executor);
}

}  // namespace
}  // namespace forearm

PYBIND11_MODULE(_native, module) {
  using namespace py::literals;
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const forearm::OutOfMemory& out_of_memory) {
      py::set_error(PyExc_MemoryError, out_of_memory.what());
    }
  });
  module.def("tier", [] { return std::string(forearm::kernels().tier); });
  module.def("tier_names", &forearm::names_of_tiers);
  module.def("quarantined", &forearm::quarantined_tiers);
  module.def("operand_form", &forearm::operand_form, "weight_dtype"_a);
  module.def("scratch_bytes", &forearm::scratch_bytes, "config"_a, "matrices"_a, "formats"_a, "step_tokens"_a,
             "step_logit_rows"_a, "max_model_len"_a, "threads"_a, "any_tier"_a = false);
  module.def("kv_block_bytes", &forearm::kv_block_bytes, "config"_a, "kv_dtype"_a, "grouped"_a = false);
  module.def("kv_reaches", &forearm::kv_reaches, "config"_a, "kv_dtype"_a);
  module.def("state_bytes", &forearm::state_bytes, "config"_a);
  module.def("limits", &forearm::limits, "cores"_a, "threads"_a, "megabytes"_a = 1024, "seconds"_a = 1.0);
  forearm::bind_executor(module);
  forearm::bind_topology(module);
  forearm::bind_kernels(module);
}
