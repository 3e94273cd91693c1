// The multiplications of attention by tile registers: 16 rows of q by the 64 keys of a pair of blocks, and 16 rows of
// weights by 64 columns of values at once.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/attention/online_softmax.h"
#include "kernels/ops/gemm/amx_tiles.h"

namespace forearm {
namespace {

// Blocks lie as matrices of 16 bits do. Keys of one block or of two: a panel has 16 tokens, a step 32 of the head's
// dimensions.
template <int Panels>
class KeyTiles {
 public:
  KeyTiles(const char* const (&blocks)[2], int64_t panel_bytes)
      : blocks_{blocks[0], blocks[1]}, panel_bytes_(panel_bytes) {}
  void step() { at_ += kTileOfW; }
  const char* tile(int p) const { return blocks_[p / 2] + p % 2 * panel_bytes_ + at_; }

 private:
  const char* blocks_[2];
  int64_t panel_bytes_, at_ = -kTileOfW;
};

// Values: a panel has 16 dimensions, a step is the 32 tokens of a block.
class ValueTiles {
 public:
  ValueTiles(const char* first, const char* second) : blocks_{first, second} {}
  void step() { now_ = blocks_[next_++]; }
  const char* tile(int p) const { return now_ + p * kTileOfW; }

 private:
  const char* blocks_[2];
  int next_ = 0;
  const char* now_ = nullptr;
};

// Asks for a part of two blocks each step, or for nothing.
class BlocksAhead {
 public:
  static constexpr bool kPassing = false;

  BlocksAhead(const char* const (&next)[2], int64_t begin, int64_t step_bytes)
      : next_{next[0], next[1]}, at_(begin), step_(step_bytes) {}
  void fetch() {
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

// scores [rows][64] of the blocks that any of the rows sees.
template <typename Mma>
inline void score_keys(const AttendTile& t, const char* const (&blocks)[2], const char* const (&next)[2], bool low,
                       bool high) {
  const int64_t dim = t.q.stride, steps = dim / kTileHalves, panel_bytes = dim * kPanel * 2;
  const TileOperand q = {static_cast<const char*>(t.q.data), dim * 2, 0};
  BlocksAhead ahead(next, 0, 2 * kTileOfW);
  if (low && high) {
    KeyTiles<4> keys(blocks, panel_bytes);
    return multiply_steps<Mma, false, 4, kPairKeys>(q, keys, ahead, steps, t.scores);
  }
  KeyTiles<2> keys({blocks[low ? 0 : 1], nullptr}, panel_bytes);
  multiply_steps<Mma, false, 2, kPairKeys>(q, keys, ahead, steps, t.scores + (low ? 0 : kBlockTokens));
}

// values[r] = values[r] * before[r] + weights[r] by Panels panels, for the rows of a mask.
template <typename Mma, int Panels>
inline void add_weighted(const AttendTile& t, const TileOperand& weights, ValueTiles tiles, BlocksAhead& ahead,
                         int64_t blocks, int64_t column, uint32_t rows) {
  alignas(64) float sums[kMaxTileRows * Panels * kPanel];
  multiply_steps<Mma, false, Panels>(weights, tiles, ahead, blocks, sums);
  for (int64_t r = 0; r < t.rows; ++r) {
    if (!(rows >> r & 1)) continue;
    const F16 factor = broadcast(t.before[r]);
    float* to = t.values + r * t.q.stride + column;
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p)
      store(to + p * kPanel, fma(load(to + p * kPanel), factor, load(sums + (r * Panels + p) * kPanel)));
  }
}

// From `first` on one block, or two.
template <typename Mma>
inline void weigh_values(const AttendTile& t, const char* const (&blocks)[2], const char* const (&next)[2], int first,
                         int64_t count, uint32_t rows) {
  const int64_t panels = t.q.stride / kPanel;
  const char* weights = static_cast<const char*>(t.weights.data) + first * kBlockTokens * 2;
  const TileOperand a = {weights, kPairKeys * 2, 0};
  for (int64_t panel = 0; panel < panels;) {
    const int64_t at = panel * kTileOfW, left = panels - panel, taken = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    BlocksAhead ahead(next, at, taken * kTileOfW / count);
    const ValueTiles tiles(blocks[first] + at, count > 1 ? blocks[1] + at : nullptr);
    if (taken == 4) add_weighted<Mma, 4>(t, a, tiles, ahead, count, panel * kPanel, rows);
    if (taken == 2) add_weighted<Mma, 2>(t, a, tiles, ahead, count, panel * kPanel, rows);
    if (taken == 1) add_weighted<Mma, 1>(t, a, tiles, ahead, count, panel * kPanel, rows);
    panel += taken;
  }
}

}  // namespace
}  // namespace forearm
