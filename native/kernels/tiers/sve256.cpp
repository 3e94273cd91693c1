// SVE of 256 bits with bf16 and int8 matrix multiplication: Graviton3, Neoverse V1.
#include "kernels/simd/arm/mma_sve256.h"

#include "kernels/simd/arm/mma_int_sve256.h"

namespace forearm {
namespace {
template <CodePacking kFormat>
using IntMma = QuadsIntMma<kFormat>;
}  // namespace
}  // namespace forearm

#include "kernels/simd/scalar/f16_scaled_scalar.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels sve256_tier;
constinit const Kernels sve256_tier = table_of("sve256");
}  // namespace forearm
