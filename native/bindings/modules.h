// The operations of Executor that modules computed elsewhere call.
#pragma once
#include <pybind11/pybind11.h>

#include "model/executor.h"

namespace forearm {

void bind_modules(pybind11::class_<Executor>& executor);

}  // namespace forearm
