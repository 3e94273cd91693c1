// One tier's operations of mixers that keep a state on arrays of numpy, for tests.
#pragma once
#include <pybind11/numpy.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/kernels.h"

namespace forearm {

using NumpyFloats = pybind11::array_t<float, pybind11::array::c_style | pybind11::array::forcecast>;
using MaybeFloats = std::optional<NumpyFloats>;

inline const float* data_or_null(const MaybeFloats& array) { return array ? array->data() : nullptr; }

inline NumpyFloats copy_of(const NumpyFloats& array) {
  NumpyFloats copy(std::vector<pybind11::ssize_t>(array.shape(), array.shape() + array.ndim()));
  std::copy_n(array.data(), array.size(), copy.mutable_data());
  return copy;
}

void bind_states(pybind11::class_<Kernels>& kernels);

}  // namespace forearm
