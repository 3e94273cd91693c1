// From a dtype that is known at run time to one that is known when the tier is compiled.
#pragma once
#include "kernels/kernels.h"

namespace forearm {
namespace {

// Calls run.operator()<D>() with D = dtype. `run` is compiled for every dtype of matrices: what an operation does not
// take, it leaves out with `if constexpr` on the format's row (number_format(D)).
template <int D = 0, typename Run>
inline void with_dtype(DType dtype, const Run& run) {
  if constexpr (D < kDTypes) {
    constexpr auto kDType = static_cast<DType>(D);
    if (dtype != kDType) return with_dtype<D + 1>(dtype, run);
    if constexpr (number_format(kDType).kind != NumberKind::scale) run.template operator()<kDType>();
  }
}

}  // namespace
}  // namespace forearm
