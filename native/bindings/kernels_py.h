// One tier's operations on arrays of numpy, for tests and benchmarks.
#pragma once
#include <pybind11/pybind11.h>

namespace forearm {
void bind_kernels(pybind11::module_& module);
}  // namespace forearm
