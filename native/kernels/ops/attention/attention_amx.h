// The products of attention by AMX tiles: 16 rows of q by the 64 keys of a pair of blocks, and 16 rows of
// weights by 64 columns of values at once.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/attention/online_softmax.h"
#include "kernels/ops/gemm/gemm_amx.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// Asks for a part of two blocks at each step; blocks that are null are left out.
class BlocksAhead {
 public:
  BlocksAhead(const char* const (&next)[2], int64_t begin, int64_t step_bytes)
      : next_{next[0], next[1]}, at_(begin), step_(step_bytes) {}
  void operator()() {
    for (const char* block : next_) {
      if (!block) continue;
      for (int64_t line = 0; line < step_; line += kTileStep) __builtin_prefetch(block + at_ + line, 0, 2);
    }
    at_ += step_;
  }

 private:
  const char* next_[2];
  int64_t at_, step_;
};

// scores [rows][64] of the blocks that any of the rows sees. Keys are packed as a matrix of 16 bits: a panel has 16
// tokens, a step 32 of the head's dimensions.
template <typename Mma>
inline void score_keys_amx(const AttendTile& t, const char* const (&blocks)[2], const char* const (&next)[2], bool low,
                           bool high) {
  const int64_t dim = t.q.stride, steps = dim / kTileHalves, panel_bytes = dim * kPanel * 2;
  const TileOperand q = {static_cast<const char*>(t.q.data), dim * 2, 0};
  BlocksAhead ahead(next, 0, 2 * kTileBytes);
  const auto each_step = [&] { ahead(); };
  if (low && high) {
    const auto tile = [&](int64_t s, int p) { return blocks[p / 2] + p % 2 * panel_bytes + s * kTileBytes; };
    return accumulate_amx<Mma, false, 4, false, kPairKeys>(q, steps, t.scores, false, tile, each_step);
  }
  accumulate_amx<Mma, false, 2, false, kPairKeys>(q, steps, t.scores + (low ? 0 : kBlockTokens), false,
                                                  packed_tiles(blocks[low ? 0 : 1], panel_bytes), each_step);
}

// values[r] = values[r] * before[r] + weights[r] V for the rows of a mask, over `count` blocks from `first` on. Values
// are packed with 16 dimensions to a panel; a step is the 32 tokens of a block.
template <typename Mma>
inline void weigh_values_amx(const AttendTile& t, const char* const (&blocks)[2], const char* const (&next)[2],
                             int first, int64_t count, uint32_t rows) {
  const int64_t panels = t.value_dim / kPanel;
  const char* weights = static_cast<const char*>(t.weights.data) + first * kBlockTokens * 2;
  for (int64_t panel = 0; panel < panels;) {
    const int64_t at = panel * kTileBytes, left = panels - panel, taken = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    BlocksAhead ahead(next, at, taken * kTileBytes / count);
    with_shape(false, taken, [&]<bool kTwo, int Panels>() {
      alignas(64) float sums[kMaxTileRows * Panels * kPanel];
      const auto tile = [&](int64_t s, int p) { return blocks[first + s] + at + p * kTileBytes; };
      accumulate_amx<Mma, kTwo, Panels>({weights, kPairKeys * 2, 0}, count, sums, false, tile, [&] { ahead(); });
      for (int64_t r = 0; r < t.rows; ++r) {
        if (!(rows >> r & 1)) continue;
        const F16 factor = broadcast(t.before[r]);
        float* to = t.values + r * t.value_dim + panel * kPanel;
        UNROLLED_FOR (p, Panels)
          store(to + p * kPanel, fma(load(to + p * kPanel), factor, load(sums + (r * Panels + p) * kPanel)));
      }
    });
    panel += taken;
  }
}

}  // namespace
}  // namespace forearm
