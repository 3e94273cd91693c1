// x86-64 with AVX-512 F, CD, BW, DQ and VL: Skylake-SP, Zen 4 and later.
#include "kernels/simd/x86/mma_avx512.h"
#include "kernels/simd/x86/mma_int_avx512.h"

#include "kernels/simd/scalar/f16_scaled_scalar.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels avx512_tier;
constinit const Kernels avx512_tier = table_of("avx512");
}  // namespace forearm
