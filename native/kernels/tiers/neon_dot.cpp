// Armv8.2 with fp16 and dot products: Graviton2, Neoverse N1.
#include "kernels/simd/mma_neon.h"

#include "kernels/simd/mma_int_neon_dot.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels neon_dot_tier;
constinit const Kernels neon_dot_tier = table_of("neon_dot");
}  // namespace forearm
