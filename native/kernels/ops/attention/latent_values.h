// Values of a latent cache: they are the first numbers of the keys, which are packed with 16 tokens to a panel; values
// are multiplied with 16 dimensions to a panel. A pair of blocks is turned once for all rows that go over it: for 16
// rows of DeepSeek's 576 dimensions that moves 64 x 512 numbers beside 16 x 64 x 1088 multiply-adds.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/transpose.h"

namespace forearm {
namespace {

// Turns one block: from W [32 tokens, head_dim] to W [latent, 32 tokens], both packed with this quantum.
template <typename Element, int kQuantum>
inline void turn_block(const Element* from, int64_t head_dim, int64_t latent, Element* to) {
  for (int64_t panel = 0; panel < kBlockTokens / kPanel; ++panel) {
    for (int64_t dim = 0; dim < latent; dim += kPanel) {
      const Element* block = from + (panel * head_dim + dim) * kPanel;
      transpose_panel<kQuantum>(block, to + dim * kBlockTokens + panel * kPanel * kPanel);
    }
  }
}

// Sets `values` to the packed values of a pair of blocks of keys, in `room`; null stays null.
template <typename Mma>
inline void values_of_keys(const KvCache& cache, const char* const (&keys)[2], char* room, const char* (&values)[2]) {
  for (int i = 0; i < 2; ++i) {
    if (!keys[i]) continue;
    if constexpr (Mma::kQuantum == 1) {
      float* to = reinterpret_cast<float*>(room) + i * kBlockTokens * cache.latent;
      turn_block<float, 1>(reinterpret_cast<const float*>(keys[i]), cache.head_dim, cache.latent, to);
      values[i] = reinterpret_cast<const char*>(to);
    } else {
      uint16_t* to = reinterpret_cast<uint16_t*>(room) + i * kBlockTokens * cache.latent;
      turn_block<uint16_t, Mma::kQuantum>(reinterpret_cast<const uint16_t*>(keys[i]), cache.head_dim, cache.latent, to);
      values[i] = reinterpret_cast<const char*>(to);
    }
  }
}

}  // namespace
}  // namespace forearm
