// Plain C++: the reference that every other tier is compared with, and what a CPU without vectors would run.
#include "kernels/simd/scalar/mma_scalar.h"

#include "kernels/simd/scalar/mma_int_scalar.h"

#include "kernels/simd/scalar/f16_scaled_scalar.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels scalar_tier;
constinit const Kernels scalar_tier = table_of("scalar");
}  // namespace forearm
