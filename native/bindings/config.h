// Python's ModelConfig as the executor's Config.
#pragma once
#include <pybind11/pybind11.h>

#include <string>

#include "model/config.h"

namespace forearm {

// Throws std::invalid_argument naming the value and those that are known.
Score score_of(const std::string& name);

// Throws std::invalid_argument naming the value and those that are known.
Activation activation_of(const std::string& name);

// Reads the attributes of app/forearm/model/families/config.py's dataclass, and the list that matrices.py makes of it.
// Throws std::invalid_argument naming a value that the executor does not know.
Config config_of(const pybind11::object& config, const pybind11::object& matrices);

// Reads a mapping of names to that file's WeightFormat.
Formats formats_of(const pybind11::object& formats);

// The dtype that has this name in kNumberFormats; throws std::invalid_argument with the known names.
DType dtype_of(const std::string& name);

}  // namespace forearm
