// The columns of engine/batch.py's Sampling, Sampled and ScoredTokens as arrays of numpy.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "sampling/sampler.h"

namespace forearm {

// Sampling's columns in its order, as C-contiguous arrays of one dimension; they are read in place, so `columns` must
// stay. Throws std::invalid_argument naming the column whose type or length is wrong.
SamplingColumns sampling_columns(const pybind11::args& columns);

// Alternatives that a result needs room for.
int64_t most_alternatives(const SamplingColumns& sampling);

// New arrays for log-probabilities, which Python will own.
struct ScoredArrays {
  ScoredArrays(int64_t lines, int64_t alternatives);
  ScoredColumns columns();
  pybind11::tuple tuple() const { return pybind11::make_tuple(logprob, rank, top_ids, top_logprobs); }

  pybind11::array_t<float> logprob;
  pybind11::array_t<int32_t> rank, top_ids;
  pybind11::array_t<float> top_logprobs;
};

// New arrays for sampled tokens and their log-probabilities.
struct SampledArrays {
  SampledArrays(int64_t lines, int64_t alternatives) : token(lines), nan(lines), scored(lines, alternatives) {}
  SampledColumns columns() { return {token.mutable_data(), nan.mutable_data(), scored.columns()}; }
  pybind11::tuple tuple() const {
    return pybind11::make_tuple(token, nan, scored.logprob, scored.rank, scored.top_ids, scored.top_logprobs);
  }

  pybind11::array_t<int32_t> token;
  pybind11::array_t<bool> nan;
  ScoredArrays scored;
};

}  // namespace forearm
