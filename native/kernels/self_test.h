// The self-test at start: every operation of a tier on small inputs, compared with the scalar tier. It finds a wrong
// compiler, a wrong emulator or a defective core before an answer is wrong.
#pragma once
#include <vector>

#include "kernels/kernels.h"

namespace forearm {

// Returns the first operation of `tier` whose results differ from those of `scalar`, or null. Bits are compared where
// kernels.h says they are equal, else sums within their rounding errors. Takes a few milliseconds.
const char* wrong_operation(const Kernels& tier, const Kernels& scalar);

// A tier that failed its self-test, and the operation that failed.
struct Quarantined {
  const char* tier;
  const char* operation;
};

// Returns the first of `candidates` (best first) that passes the self-test; `scalar` if none does.
const Kernels& first_sound(const std::vector<const Kernels*>& candidates, const Kernels& scalar,
                           std::vector<Quarantined>* wrong);

// The tiers that kernels() skipped because they failed the self-test.
const std::vector<Quarantined>& quarantined();

}  // namespace forearm
