#pragma once
#include <pybind11/pybind11.h>

#include "kernels/kernels.h"

namespace forearm {
void bind_codes(pybind11::class_<Kernels>& kernels);
}  // namespace forearm
