// Executor.sample and Executor.score.
#pragma once
#include <pybind11/pybind11.h>

#include "model/executor.h"

namespace forearm {

void bind_sampling(pybind11::class_<Executor>& executor);

}  // namespace forearm
