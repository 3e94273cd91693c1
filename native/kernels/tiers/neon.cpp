// Armv8.0: every 64-bit Arm server, Graviton1 among them.
#include "kernels/simd/arm/mma_neon.h"

#include "kernels/simd/arm/mma_int_neon.h"

#include "kernels/simd/scalar/f16_scaled_scalar.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels neon_tier;
constinit const Kernels neon_tier = table_of("neon");
}  // namespace forearm
