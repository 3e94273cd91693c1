// Python's ModelConfig as the executor's Config.
#pragma once
#include <pybind11/pybind11.h>

#include <string>

#include "model/config.h"

namespace forearm {

// Reads the attributes of app/forearm/model/config.py's dataclass.
// Throws std::invalid_argument naming a value that the executor does not know.
Config config_of(const pybind11::object& config);

// "float32", "float16" or "bfloat16".
DType dtype_of(const std::string& name);

}  // namespace forearm
