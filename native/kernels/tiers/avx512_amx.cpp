// x86-64 with AMX: Sapphire Rapids and later.
#include "kernels/simd/mma_amx.h"
#include "kernels/simd/mma_int_amx.h"

#include "kernels/simd/halves_soft.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels avx512_amx_tier;
constinit const Kernels avx512_amx_tier = table_of("avx512_amx");
}  // namespace forearm
