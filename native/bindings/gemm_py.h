// One tier's multiplications on arrays of numpy, for tests.
#pragma once
#include <pybind11/pybind11.h>

#include "kernels/kernels.h"

namespace forearm {
void bind_gemm(pybind11::class_<Kernels>& kernels);
}  // namespace forearm
