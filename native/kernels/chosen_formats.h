// The number formats of one property, for loops over them.
#pragma once
#include "kernels/kernels.h"

namespace forearm {

// Those that `chosen` is true of, in the order of kNumberFormats.
struct ChosenFormats {
  constexpr explicit ChosenFormats(bool (*chosen)(DType)) {
    for (const NumberFormat& format : kNumberFormats)
      if (chosen(format.dtype)) dtypes[count++] = format.dtype;
  }
  DType dtypes[kDTypes]{};
  int count = 0;
};

}  // namespace forearm
