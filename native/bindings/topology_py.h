// Adds topology() and its types to the Python module; called once, by module.cpp.
#pragma once
#include <pybind11/pybind11.h>

namespace forearm {

void bind_topology(pybind11::module_& module);

}  // namespace forearm
