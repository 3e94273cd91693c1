// Python's ModelConfig as the executor's Config.
#pragma once
#include <pybind11/pybind11.h>

#include <string>

#include "model/config.h"

namespace forearm {

// Reads the attributes of app/forearm/model/families/config.py's dataclass, and the list that matrices.py makes of it.
// Throws std::invalid_argument naming a value that the executor does not know.
Config config_of(const pybind11::object& config, const pybind11::object& matrices);

// Reads a mapping of names to that file's WeightFormat.
Formats formats_of(const pybind11::object& formats);

// "float32", "float16", "bfloat16", "int8", "int4", "fp8_e4m3" or "fp8_e5m2".
DType dtype_of(const std::string& name);

}  // namespace forearm
