#include "bindings/sampling.h"

#include <algorithm>

#include "bindings/arrays.h"
#include "bindings/sampling_arrays.h"

namespace py = pybind11;

namespace forearm {
namespace {

py::tuple sample_lines(Executor& executor, const py::args& columns) {
  const SamplingColumns sampling = sampling_columns(columns);
  SampledArrays sampled(sampling.lines, std::min(most_alternatives(sampling), executor.config().vocab_size));
  const SampledColumns out = sampled.columns();
  {
    const py::gil_scoped_release release;
    executor.sample(sampling, out);
  }
  return sampled.tuple();
}

py::tuple score_lines(Executor& executor, const Array<int32_t>& rows, const Array<int32_t>& tokens,
                      int64_t alternatives) {
  const int64_t lines = length("rows", rows);
  expect_length("tokens", tokens, lines);
  if (alternatives < 0)
    throw std::invalid_argument("alternatives is " + std::to_string(alternatives) + "; it must not be negative");
  ScoredArrays scored(lines, std::min(alternatives, executor.config().vocab_size));
  const ScoredColumns out = scored.columns();
  {
    const py::gil_scoped_release release;
    executor.score(rows.data(), tokens.data(), lines, out);
  }
  return scored.tuple();
}

}  // namespace

void bind_sampling(py::class_<Executor>& executor) {
  using namespace py::literals;
  executor.def("sample", &sample_lines);
  executor.def("score", &score_lines, "rows"_a.noconvert(), "tokens"_a.noconvert(), "alternatives"_a);
}

}  // namespace forearm
