// Operations that a tier takes from another one, whose instructions all of its CPUs have, instead of a copy.
//
// In most operations of a tier its own instructions do not occur: with a copy of them in each of the four tiers of
// AVX-512 the wheel had 0.76 MB more. A borrowed one is called through the other tier's table, once an operation and
// slice. Which tables a tier may call is held by tests/house/test_objects.py.
#pragma once
#include "kernels/kernels.h"

namespace forearm {
namespace {

// The tier that multiplies by weights of a dtype for this one, and by keys and values of it; null: itself. A tier says
// so before it includes table.h.
// Its own type tells the null pointer apart: compared with an address it is no constant to gcc 12's sanitizers.
template <DType>
constexpr auto kWeightsLender = nullptr;
template <DType>
constexpr auto kCacheLender = nullptr;
template <DType W>
constexpr bool kBorrowsWeights = requires { kWeightsLender<W>->gemm; };
template <DType C>
constexpr bool kBorrowsCache = requires { kCacheLender<C>->attend; };

template <const Kernels& kTier, auto kOperation>
struct Borrowed;
template <const Kernels& kTier, typename Result, typename... Args, Result (*Kernels::*kOperation)(Args...)>
struct Borrowed<kTier, kOperation> {
  static Result call(Args... args) { return (kTier.*kOperation)(args...); }
};

template <const Kernels& kTier, auto... kOperations>
constexpr void borrow(Kernels& table) {
  ((table.*kOperations = Borrowed<kTier, kOperations>::call), ...);
}

// What is computed in float32 alone, whatever the layouts of weights and caches.
template <const Kernels& kTier>
constexpr void borrow_rows(Kernels& table) {
  borrow<kTier, &Kernels::quantize, &Kernels::round, &Kernels::norm, &Kernels::add_norm, &Kernels::head_norm,
         &Kernels::rope, &Kernels::merge, &Kernels::route, &Kernels::combine, &Kernels::short_conv, &Kernels::mamba2,
         &Kernels::selective_scan, &Kernels::rg_lru, &Kernels::token_shift, &Kernels::squash, &Kernels::rwkv7,
         &Kernels::gated_norm, &Kernels::delta_gates, &Kernels::delta_rule, &Kernels::row_max, &Kernels::row_maxima,
         &Kernels::row_exp_sum, &Kernels::row_collect, &Kernels::read_all>(table);
}

// Attention, and the cache that it reads.
template <const Kernels& kTier>
constexpr void borrow_attention(Kernels& table) {
  borrow<kTier, &Kernels::write_kv, &Kernels::attend, &Kernels::gather_keys, &Kernels::index_scores>(table);
}

}  // namespace
}  // namespace forearm
