// How a recurrence's state forgets (state_floats of kernels.h).
#pragma once
#include "kernels/kernels.h"

namespace forearm {
namespace {

// The scale of a state before and after a token.
struct Forgetting {
  float decayed;  // the scale of what is kept from before the token
  float scale;    // afterwards
  bool rescales;  // kept is multiplied with `decayed`

  Forgetting(float scale_before, float decay)
      : decayed(decay * scale_before), scale(decayed < kLeastScale ? 1.0f : decayed), rescales(decayed < kLeastScale) {}
};

}  // namespace
}  // namespace forearm
