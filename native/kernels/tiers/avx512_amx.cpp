// x86-64 with AMX: Sapphire Rapids and later. It multiplies by what fills its tiles; all else is the others'.
#include "kernels/simd/x86/mma_amx.h"
#include "kernels/simd/x86/mma_int_amx.h"

#include "kernels/simd/scalar/f16_scaled_scalar.h"

#include "kernels/ops/borrow.h"

namespace forearm {
extern const Kernels avx512_tier, avx512_amx_tier;
namespace {
template <DType W>
  requires(W == DType::f32 || W == DType::f16 || W == DType::f16_scaled)
constexpr const Kernels* kWeightsLender<W> = &avx512_tier;
template <DType C>
  requires(C == DType::f32 || C == DType::f16)
constexpr const Kernels* kCacheLender<C> = &avx512_tier;
}  // namespace
}  // namespace forearm

#include "kernels/ops/table.h"

namespace forearm {
namespace {
constexpr Kernels table() {
  Kernels table = table_of("avx512_amx");
  borrow_rows<avx512_tier>(table);
  borrow<avx512_bf16_tier, &Kernels::embed, &Kernels::write_kv, &Kernels::gather_keys>(table);
  return table;
}
}  // namespace
constinit const Kernels avx512_amx_tier = table();
}  // namespace forearm
