// x86-64 with AVX-512 and its VNNI: Cascade Lake, Ice Lake, Zen 4 and later.
#include "kernels/simd/mma_avx512.h"
#include "kernels/simd/mma_int_avx512_vnni.h"

#include "kernels/simd/halves_soft.h"

#include "kernels/ops/table.h"

namespace forearm {
extern const Kernels avx512_vnni_tier;
constinit const Kernels avx512_vnni_tier = table_of("avx512_vnni");
}  // namespace forearm
