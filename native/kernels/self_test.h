// The test at start: every operation of a tier on small inputs, against the scalar tier. What a wrong compiler, a wrong
// emulator or a defective core does to a kernel shows here, before it shows in an answer.
#pragma once
#include <vector>

#include "kernels/kernels.h"

namespace forearm {

// The first operation of `tier` that does not give what `scalar` gives, or null. Bits are compared where kernels.h has
// them equal, else sums within their roundings. A few milliseconds.
const char* wrong_operation(const Kernels& tier, const Kernels& scalar);

// A tier that is not used, and why.
struct Quarantined {
  const char* tier;
  const char* operation;
};

// The first of `candidates` (best first) that is not wrong; `scalar` where all are.
const Kernels& first_sound(const std::vector<const Kernels*>& candidates, const Kernels& scalar,
                           std::vector<Quarantined>* wrong);

// Those that the choice of kernels() has passed over.
const std::vector<Quarantined>& quarantined();

}  // namespace forearm
