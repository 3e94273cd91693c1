// From a dtype that is known at run time to one that is known when the tier is compiled.
#pragma once
#include "kernels/kernels.h"

namespace forearm {
namespace {

// Calls run.operator()<D>() with D = dtype. `run` is compiled for every dtype: what an operation does not take, it
// leaves out with `if constexpr` on the format's row (number_format(D)).
template <typename Run>
inline void with_dtype(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::f32:
      return run.template operator()<DType::f32>();
    case DType::f16:
      return run.template operator()<DType::f16>();
    case DType::bf16:
      return run.template operator()<DType::bf16>();
    case DType::int8:
      return run.template operator()<DType::int8>();
    case DType::int4:
      return run.template operator()<DType::int4>();
    case DType::fp8_e4m3:
      return run.template operator()<DType::fp8_e4m3>();
    case DType::fp8_e5m2:
      return run.template operator()<DType::fp8_e5m2>();
    case DType::f16_scaled:
      return run.template operator()<DType::f16_scaled>();
    case DType::fp4_e2m1:
      return run.template operator()<DType::fp4_e2m1>();
    case DType::e8m0:
      return;  // no matrix is of it
  }
}

}  // namespace
}  // namespace forearm
