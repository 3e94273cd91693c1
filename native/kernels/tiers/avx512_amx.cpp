// x86-64 with AMX: Sapphire Rapids and later.
#include "kernels/simd/x86/mma_amx.h"
#include "kernels/simd/x86/mma_int_amx.h"

#include "kernels/simd/scalar/f16_scaled_scalar.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels avx512_amx_tier;
constinit const Kernels avx512_amx_tier = table_of("avx512_amx");
}  // namespace forearm
