#include "bindings/sampling_arrays.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace forearm {

namespace py = pybind11;

namespace {

constexpr const char* kNames[] = {
    "row",  "temperature",    "top_k",         "top_p",      "min_p",         "presence",   "frequency",   "repetition",
    "seed", "counter",        "prompt_starts", "prompt_ids", "output_starts", "output_ids", "bias_starts", "bias_ids",
    "bias", "allowed_starts", "allowed_ids",   "logprobs",   "mask",          "masks"};
constexpr size_t kColumns = std::size(kNames);

// Takes the columns one after the other.
class Columns {
 public:
  explicit Columns(const py::args& columns) : columns_(columns) {
    if (columns.size() == kColumns) return;
    throw std::invalid_argument("there are " + std::to_string(columns.size()) + " columns; sampling takes " +
                                std::to_string(kColumns));
  }

  template <typename T>
  const T* take(int64_t count) {
    const py::handle column = columns_[next_];
    if (!py::isinstance<py::array_t<T, py::array::c_style>>(column)) fail(" has the wrong type or is not contiguous");
    const auto array = py::reinterpret_borrow<py::array_t<T>>(column);
    if (array.ndim() != 1 || array.size() != count) {
      fail(" has " + std::to_string(array.size()) + " entries; it must have " + std::to_string(count));
    }
    ++next_;
    return array.data();
  }

  // A matrix and its shape.
  template <typename T>
  const T* take(int64_t* rows, int64_t* width) {
    const py::handle column = columns_[next_];
    if (!py::isinstance<py::array_t<T, py::array::c_style>>(column)) fail(" has the wrong type or is not contiguous");
    const auto array = py::reinterpret_borrow<py::array_t<T>>(column);
    if (array.ndim() != 2) fail(" has " + std::to_string(array.ndim()) + " dimensions; it has 2");
    ++next_;
    *rows = array.shape(0);
    *width = array.shape(1);
    return array.data();
  }

  int64_t size() const { return static_cast<int64_t>(py::len(columns_[next_])); }
  // Length that delimiters, just taken, give to the arrays after them.
  int64_t delimited(const int32_t* starts, int64_t lines) const {
    bool ascend = starts[0] == 0;
    for (int64_t i = 0; i < lines; ++i) ascend = ascend && starts[i] <= starts[i + 1];
    if (!ascend) throw std::invalid_argument(std::string(kNames[next_ - 1]) + " must ascend from 0");
    return starts[lines];
  }

 private:
  [[noreturn]] void fail(const std::string& how) const { throw std::invalid_argument(kNames[next_] + how); }

  const py::args& columns_;
  size_t next_ = 0;
};

}  // namespace

SamplingColumns sampling_columns(const py::args& arrays) {
  Columns columns(arrays);
  SamplingColumns s{};
  const int64_t n = s.lines = columns.size();
  s.row = columns.take<int32_t>(n);
  s.temperature = columns.take<float>(n);
  s.top_k = columns.take<int32_t>(n);
  s.top_p = columns.take<float>(n);
  s.min_p = columns.take<float>(n);
  s.presence = columns.take<float>(n);
  s.frequency = columns.take<float>(n);
  s.repetition = columns.take<float>(n);
  s.seed = columns.take<uint64_t>(n);
  s.counter = columns.take<uint64_t>(n);
  s.prompt_starts = columns.take<int32_t>(n + 1);
  s.prompt_ids = columns.take<int32_t>(columns.delimited(s.prompt_starts, n));
  s.output_starts = columns.take<int32_t>(n + 1);
  s.output_ids = columns.take<int32_t>(columns.delimited(s.output_starts, n));
  s.bias_starts = columns.take<int32_t>(n + 1);
  s.bias_ids = columns.take<int32_t>(columns.delimited(s.bias_starts, n));
  s.bias = columns.take<float>(s.bias_starts[n]);
  s.allowed_starts = columns.take<int32_t>(n + 1);
  s.allowed_ids = columns.take<int32_t>(columns.delimited(s.allowed_starts, n));
  s.logprobs = columns.take<int32_t>(n);
  s.mask = columns.take<int32_t>(n);
  s.masks = columns.take<uint32_t>(&s.mask_count, &s.mask_words);
  return s;
}

int64_t most_alternatives(const SamplingColumns& s) {
  return s.lines ? std::max(0, *std::max_element(s.logprobs, s.logprobs + s.lines)) : 0;
}

ScoredArrays::ScoredArrays(int64_t lines, int64_t alternatives)
    : logprob(lines), rank(lines), top_ids({lines, alternatives}), top_logprobs({lines, alternatives}) {}

ScoredColumns ScoredArrays::columns() {
  return {logprob.mutable_data(), rank.mutable_data(), top_ids.mutable_data(), top_logprobs.mutable_data(),
          top_ids.shape(1)};
}

}  // namespace forearm
