// Armv8.2 with bf16 and int8 matrix multiplication: Graviton4 and 5, Axion, Cobalt, Grace, Vera, AmpereOne.
#include "kernels/simd/arm/mma_neon_mm.h"

#include "kernels/simd/arm/mma_int_neon_mm.h"

namespace forearm {
namespace {
template <CodePacking kFormat>
using IntMma = PairsIntMma<kFormat>;
}  // namespace
}  // namespace forearm

#include "kernels/simd/scalar/f16_scaled_scalar.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels neon_mm_tier;
constinit const Kernels neon_mm_tier = table_of("neon_mm");
}  // namespace forearm
