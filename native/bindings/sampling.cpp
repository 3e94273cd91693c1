#include "bindings/sampling.h"

#include <algorithm>

#include "bindings/arrays.h"

namespace py = pybind11;

namespace forearm {
namespace {

using Ints = Array<int32_t>;
using Floats = Array<float>;
using Words = Array<uint64_t>;

// What a line gets from score: new arrays that Python will own.
struct ScoredArrays {
  py::array_t<float> logprob;
  py::array_t<int32_t> rank, top_ids;
  py::array_t<float> top_logprobs;
  int64_t alternatives;

  ScoredArrays(int64_t lines, int64_t alternatives)
      : logprob(lines),
        rank(lines),
        top_ids({lines, alternatives}),
        top_logprobs({lines, alternatives}),
        alternatives(alternatives) {}
  ScoredColumns columns() {
    return {logprob.mutable_data(), rank.mutable_data(), top_ids.mutable_data(), top_logprobs.mutable_data(),
            alternatives};
  }
};

py::tuple choose(Executor& executor, const SamplingColumns& columns) {
  int64_t most = 0;  // alternatives; -1 (none, not even the chosen token's) has no room either
  for (int64_t line = 0; line < columns.lines; ++line) most = std::max<int64_t>(most, columns.logprobs[line]);
  ScoredArrays scored(columns.lines, std::min(most, executor.config().vocab_size));
  py::array_t<int32_t> token(columns.lines);
  py::array_t<bool> nan(columns.lines);
  const SampledColumns out{token.mutable_data(), nan.mutable_data(), scored.columns()};
  {
    const py::gil_scoped_release release;
    executor.sample(columns, out);
  }
  return py::make_tuple(token, nan, scored.logprob, scored.rank, scored.top_ids, scored.top_logprobs);
}

py::tuple sample_lines(Executor& executor, const Ints& row, const Floats& temperature, const Ints& top_k,
                       const Floats& top_p, const Floats& min_p, const Floats& presence, const Floats& frequency,
                       const Floats& repetition, const Words& seed, const Words& counter, const Ints& prompt_starts,
                       const Ints& prompt_ids, const Ints& output_starts, const Ints& output_ids,
                       const Ints& bias_starts, const Ints& bias_ids, const Floats& bias, const Ints& allowed_starts,
                       const Ints& allowed_ids, const Ints& logprobs, const Ints& mask, const Array<uint32_t>& masks) {
  const int64_t lines = length("row", row);
  expect_length("temperature", temperature, lines);
  expect_length("top_k", top_k, lines);
  expect_length("top_p", top_p, lines);
  expect_length("min_p", min_p, lines);
  expect_length("presence", presence, lines);
  expect_length("frequency", frequency, lines);
  expect_length("repetition", repetition, lines);
  expect_length("seed", seed, lines);
  expect_length("counter", counter, lines);
  expect_length("logprobs", logprobs, lines);
  expect_length("mask", mask, lines);
  if (masks.ndim() != 2) throw std::invalid_argument("masks must be [masks, words]");
  expect_starts("prompt_starts", prompt_starts, lines, length("prompt_ids", prompt_ids));
  expect_starts("output_starts", output_starts, lines, length("output_ids", output_ids));
  expect_starts("bias_starts", bias_starts, lines, length("bias_ids", bias_ids));
  expect_starts("allowed_starts", allowed_starts, lines, length("allowed_ids", allowed_ids));
  expect_length("bias", bias, bias_ids.size());
  const SamplingColumns columns{lines,
                                row.data(),
                                temperature.data(),
                                top_k.data(),
                                top_p.data(),
                                min_p.data(),
                                presence.data(),
                                frequency.data(),
                                repetition.data(),
                                seed.data(),
                                counter.data(),
                                prompt_starts.data(),
                                prompt_ids.data(),
                                output_starts.data(),
                                output_ids.data(),
                                bias_starts.data(),
                                bias_ids.data(),
                                bias.data(),
                                allowed_starts.data(),
                                allowed_ids.data(),
                                logprobs.data(),
                                mask.data(),
                                masks.data(),
                                masks.shape(0),
                                masks.shape(1)};
  return choose(executor, columns);
}

py::tuple score_lines(Executor& executor, const Ints& rows, const Ints& tokens, int64_t alternatives) {
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
  return py::make_tuple(scored.logprob, scored.rank, scored.top_ids, scored.top_logprobs);
}

}  // namespace

void bind_sampling(py::class_<Executor>& executor) {
  using namespace py::literals;
  executor.def("sample", &sample_lines, "row"_a.noconvert(), "temperature"_a.noconvert(), "top_k"_a.noconvert(),
               "top_p"_a.noconvert(), "min_p"_a.noconvert(), "presence"_a.noconvert(), "frequency"_a.noconvert(),
               "repetition"_a.noconvert(), "seed"_a.noconvert(), "counter"_a.noconvert(), "prompt_starts"_a.noconvert(),
               "prompt_ids"_a.noconvert(), "output_starts"_a.noconvert(), "output_ids"_a.noconvert(),
               "bias_starts"_a.noconvert(), "bias_ids"_a.noconvert(), "bias"_a.noconvert(),
               "allowed_starts"_a.noconvert(), "allowed_ids"_a.noconvert(), "logprobs"_a.noconvert(),
               "mask"_a.noconvert(), "masks"_a.noconvert());
  executor.def("score", &score_lines, "rows"_a.noconvert(), "tokens"_a.noconvert(), "alternatives"_a);
}

}  // namespace forearm
