// The sigmoid of a single number: of gates that are too few for an operation of the kernels.
#pragma once
#include <cmath>

namespace forearm {

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

}  // namespace forearm
