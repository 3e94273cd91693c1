// Armv8.2 with fp16 and dot products: Graviton2, Neoverse N1. Two tiers of the same code: neon_fp16 multiplies matrices
// of 16 bits in 16 bits, neon_dot in float32.
#include "kernels/simd/arm/mma_neon.h"

#include "kernels/simd/arm/mma_int_neon_dot.h"

#include "kernels/simd/arm/f16_scaled_neon.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels neon_dot_tier, neon_fp16_tier;
constinit const Kernels neon_dot_tier = table_of("neon_dot");
constinit const Kernels neon_fp16_tier = table_of("neon_fp16", true);
}  // namespace forearm
