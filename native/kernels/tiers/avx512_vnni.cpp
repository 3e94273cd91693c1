// x86-64 with AVX-512 and its VNNI: Cascade Lake, Ice Lake, Zen 4 and later. It multiplies integers; all else is
// avx512's.
#include "kernels/simd/x86/mma_avx512.h"
#include "kernels/simd/x86/mma_int_avx512_vnni.h"

#include "kernels/simd/scalar/f16_scaled_scalar.h"

#include "kernels/ops/borrow.h"

namespace forearm {
extern const Kernels avx512_tier, avx512_vnni_tier;
namespace {
template <DType W>
  requires(!is_integer(W))
constexpr const Kernels* kWeightsLender<W> = &avx512_tier;
}  // namespace
}  // namespace forearm

#include "kernels/ops/table.h"

namespace forearm {
namespace {
constexpr Kernels table() {
  Kernels table = table_of("avx512_vnni");
  borrow_rows<avx512_tier>(table);
  borrow_attention<avx512_tier>(table);
  return table;
}
}  // namespace
constinit const Kernels avx512_vnni_tier = table();
}  // namespace forearm
