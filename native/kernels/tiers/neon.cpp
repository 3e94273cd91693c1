// Armv8.0: every 64-bit Arm server, Graviton1 among them.
#include "kernels/simd/mma_neon.h"

#include "kernels/simd/mma_int_neon.h"

#include "kernels/simd/halves_soft.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels neon_tier;
constinit const Kernels neon_tier = table_of("neon");
}  // namespace forearm
