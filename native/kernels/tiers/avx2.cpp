// x86-64 with AVX2, FMA and F16C: Haswell, Zen and later.
#include "kernels/simd/x86/mma_avx2.h"
#include "kernels/simd/x86/mma_int_avx2.h"

#include "kernels/simd/scalar/f16_scaled_scalar.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels avx2_tier;
constinit const Kernels avx2_tier = table_of("avx2");
}  // namespace forearm
