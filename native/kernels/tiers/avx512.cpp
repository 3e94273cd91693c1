// x86-64 with AVX-512 F, CD, BW, DQ and VL: Skylake-SP, Zen 4 and later.
#include "kernels/simd/mma_avx512.h"
#include "kernels/simd/mma_int_avx512.h"

#include "kernels/simd/halves_soft.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels avx512_tier;
constinit const Kernels avx512_tier = table_of("avx512");
}  // namespace forearm
