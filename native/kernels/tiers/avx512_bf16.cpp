// x86-64 with AVX-512 and its BF16: Cooper Lake, Sapphire Rapids, Zen 4 and later. It multiplies weights of all
// kinds, which it prefetches in its own way (one row of f16 reads 26 GB/s, by avx512's 22; one thread of Zen 4), and
// attends by what is or becomes bf16; all else is avx512's.
#include "kernels/simd/x86/mma_avx512_bf16.h"
#include "kernels/simd/x86/mma_int_avx512_vnni.h"

#include "kernels/simd/scalar/f16_scaled_scalar.h"

#include "kernels/ops/borrow.h"

namespace forearm {
extern const Kernels avx512_tier, avx512_bf16_tier;
namespace {
template <DType C>
  requires(C == DType::f32 || C == DType::f16)
constexpr const Kernels* kCacheLender<C> = &avx512_tier;
template <>
constexpr const Kernels* kWeightsLender<DType::f16_scaled> = &avx512_tier;
}  // namespace
}  // namespace forearm

#include "kernels/ops/table.h"

namespace forearm {
namespace {
constexpr Kernels table() {
  Kernels table = table_of("avx512_bf16");
  borrow_rows<avx512_tier>(table);
  return table;
}
}  // namespace
constinit const Kernels avx512_bf16_tier = table();
}  // namespace forearm
