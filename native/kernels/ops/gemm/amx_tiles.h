// Multiplication by tile registers (simd/x86/tiles_amx.h): up to 32 rows by 32 columns at once, or 16 by 64, a step of
// 64 bytes of k after another. Where the rows are no multiple of 16, the last tile begins as many rows earlier and its
// first rows are computed twice.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/epilogue.h"
#include "kernels/ops/gemm/tile.h"

namespace forearm {
namespace {

// An Mma with Tiles has add_tile<sums, a, w>: sums += what the registers a and w hold.
template <typename Mma>
constexpr bool kHasTiles = requires { typename Mma::Tiles; };

// Rows of a tile and columns of its sums; bytes of k in a step, and numbers of 16 bits; bytes of a tile of W.
constexpr int64_t kSquare = 16, kTileStep = 64, kTileHalves = kTileStep / 2, kTileOfW = kSquare * kTileStep;
constexpr int64_t kPairRows = 2 * kSquare;

// Rows that two tiles take, or one, and those of them that no earlier tiles have.
struct TilePair {
  int64_t begin, second, end;  // second == end: one tile
  int64_t fresh;

  bool is_two() const { return second < end; }
};
struct TilePairs {
  int64_t row_begin, rows;

  int64_t height() const { return rows < kSquare ? rows : kSquare; }
  int64_t tiles() const { return (rows + kSquare - 1) / kSquare; }
  int64_t count() const { return (tiles() + 1) / 2; }
  // Panels that they take at once: few rows as many as there are sums for, since the hardware fetches several streams
  // of W better than two. One row of bf16 read at 93 % of the bandwidth, with two panels at 88 (Xeon,
  // bench/kernels.cpp).
  int64_t panels() const { return tiles() == 1 ? 4 : 2; }

  TilePair operator[](int64_t pair) const {
    const int64_t tile = 2 * pair, first = begin_of(tile);
    const int64_t second = tile + 1 < tiles() ? begin_of(tile + 1) : first + height();
    return {first, second, tile + 1 < tiles() ? second + height() : second, row_begin + tile * kSquare};
  }

 private:
  int64_t begin_of(int64_t tile) const {
    const int64_t latest = rows - height();
    return row_begin + (tile * kSquare < latest ? tile * kSquare : latest);
  }
};
constexpr int64_t kPairFloats = kPairRows * 2 * kPanel;  // sums of a pair of tiles

// What is multiplied together: rows by panels of W, and which part of these panels' rows it is.
struct TileBlock {
  TilePair rows;
  int64_t panel, panels;
  TilePart part;
};

// Panels of bytes, or of 16 bits, as they lie in memory.
template <int Panels>
class PackedTiles {
 public:
  PackedTiles(const char* w, int64_t panel_bytes) : w_(w - kTileOfW), panel_bytes_(panel_bytes) {}
  void step() { w_ += kTileOfW; }
  const char* tile(int p) const { return w_ + p * panel_bytes_; }

 private:
  const char* w_;
  int64_t panel_bytes_;
};

// Lines that a tile asks for while it multiplies, an equal part each step: its part of the next panels of W, and its
// output.
class TileAhead {
 public:
  static constexpr bool kPassing = true;

  // `bytes` are those of the panels from w on, which are multiplied now.
  TileAhead(const GemmTask& task, const TileBlock& block, int64_t steps, const char* w, int64_t bytes) {
    const int64_t part = (bytes / kTileStep + block.part.tiles - 1) / block.part.tiles;
    w_ = w + bytes + block.part.number * part * kTileStep;
    w_step_ = (part + steps - 1) / steps;
    const int gated = task.epilogue == Epilogue::gated;
    const int64_t row = block.rows.fresh, column = (block.panel >> gated) * kPanel;
    out_ = place_of(task.out, row, column);
    out_stride_ = place_of(task.out, row + 1, column) - out_;
    out_bytes_ = place_of(task.out, row, column + (block.panels >> gated) * kPanel) - out_;
    out_left_ = block.rows.end - row;
    out_step_ = (out_left_ + steps - 1) / steps;
  }

  void fetch() {
    for (int64_t line = 0; line < w_step_; ++line, w_ += kTileStep) __builtin_prefetch(w_, 0, 2);
    for (int64_t row = 0; row < out_step_ && out_left_ > 0; ++row, --out_left_, out_ += out_stride_) {
      for (int64_t line = 0; line < out_bytes_; line += kTileStep) __builtin_prefetch(out_ + line, 1, 2);
    }
  }

 private:
  const char *w_, *out_;
  int64_t w_step_, out_stride_, out_bytes_, out_left_, out_step_;
};

// What follows the sums of a block, some rows at each step of the next one, while the registers multiply by themselves.
// After all of its steps it would not overlap with them: 512 rows went from 4.1 to 5.0 and from 3.9 to 4.5 TOP/s (int8,
// k 1536 and 896, two cores of a Xeon, bench/kernels.cpp).
class Finishing {
 public:
  Finishing() = default;
  Finishing(const GemmTask& task, const TileBlock& block, const float* sums, int64_t steps)
      : task_(&task), block_(block), sums_(sums), row_(block.rows.fresh) {
    some_ = (block.rows.end - row_ + steps - 1) / steps;
  }

  void some() {
    if (row_ < block_.rows.end) finish_until(row_ + some_ < block_.rows.end ? row_ + some_ : block_.rows.end);
  }
  void rest() {
    if (row_ < block_.rows.end) finish_until(block_.rows.end);
  }

 private:
  void finish_until(int64_t end) {
    const float* sums = sums_ + (row_ - block_.rows.begin) * block_.panels * kPanel;
    finish(*task_, {sums, row_, end, block_.panel, block_.panels});
    row_ = end;
  }

  const GemmTask* task_ = nullptr;
  TileBlock block_{};
  const float* sums_ = nullptr;
  int64_t row_ = 0, some_ = 0;
};

template <typename SomeAhead>
struct AndFinish {
  static constexpr bool kPassing = requires { SomeAhead::kPassing; };

  void fetch() {
    ahead.fetch();
    last.some();
  }

  SomeAhead& ahead;
  Finishing& last;
};

// Rows of A: two tiles' if kTwo, the second `second` rows below the first.
struct TileOperand {
  const char* data;
  int64_t stride;
  int64_t second;
};

// Of several blocks of rows each passes by the same panels, which stay in the first-level cache if the rows do not: 117
// -> 90 cycles a step of two panels of k 896 (Xeon, by hand).
template <typename Tiles, int kA, bool kPassing>
inline void load_rows(const char* at, int64_t stride) {
  if constexpr (kPassing) return Tiles::template load_once<kA>(at, stride);
  Tiles::template load<kA>(at, stride);
}

template <typename Tiles, int kSums>
inline void begin_sums(const char* from, int64_t stride, bool resume) {
  if (resume) return Tiles::template load<kSums>(from, stride);
  Tiles::template clear<kSums>();
}

// sums [rows][kSums], int32 or float: A W^T over so many steps, added to what stands there where they resume. Before
// the registers are stored: meanwhile(), while they still multiply.
constexpr auto kNothingElse = [] {};
template <typename Mma, bool kTwo, int Panels, int64_t kSums = Panels * kPanel, typename Source, typename SomeAhead,
          typename Meanwhile = decltype(kNothingElse)>
inline void multiply_steps(const TileOperand& a, Source& w, SomeAhead& ahead, int64_t steps, void* to,
                           bool resume = false, const Meanwhile& meanwhile = kNothingElse) {
  using Tiles = typename Mma::Tiles;
  static_assert(Panels <= (kTwo ? 2 : 4));
  constexpr int64_t kStride = kSums * 4, kColumns = kPanel * 4;
  char* sums = static_cast<char*>(to);
  char* lower = sums + a.second * kStride;
  begin_sums<Tiles, 0>(sums, kStride, resume);
  if constexpr (Panels > 1) begin_sums<Tiles, 1>(sums + kColumns, kStride, resume);
  if constexpr (kTwo) begin_sums<Tiles, 2>(lower, kStride, resume);
  if constexpr (kTwo && Panels > 1) begin_sums<Tiles, 3>(lower + kColumns, kStride, resume);
  if constexpr (Panels > 2) begin_sums<Tiles, 2>(sums + 2 * kColumns, kStride, resume);
  if constexpr (Panels > 3) begin_sums<Tiles, 3>(sums + 3 * kColumns, kStride, resume);
  const char* row = a.data;
  for (int64_t s = 0; s < steps; ++s, row += kTileStep) {
    ahead.fetch();
    w.step();
    load_rows<Tiles, 4, SomeAhead::kPassing>(row, a.stride);
    Tiles::template load<6>(w.tile(0), kTileStep);
    Mma::template add_tile<0, 4, 6>();
    if constexpr (Panels > 1) {
      Tiles::template load<7>(w.tile(1), kTileStep);
      Mma::template add_tile<1, 4, 7>();
    }
    if constexpr (kTwo) {
      load_rows<Tiles, 5, SomeAhead::kPassing>(row + a.second * a.stride, a.stride);
      Mma::template add_tile<2, 5, 6>();
      if constexpr (Panels > 1) Mma::template add_tile<3, 5, 7>();
    }
    if constexpr (Panels > 2) {
      Tiles::template load<5>(w.tile(2), kTileStep);
      Mma::template add_tile<2, 4, 5>();
      Tiles::template load<6>(w.tile(3), kTileStep);
      Mma::template add_tile<3, 4, 6>();
    }
  }
  meanwhile();
  Tiles::template store<0>(sums, kStride);
  if constexpr (Panels > 1) Tiles::template store<1>(sums + kColumns, kStride);
  if constexpr (kTwo) Tiles::template store<2>(lower, kStride);
  if constexpr (kTwo && Panels > 1) Tiles::template store<3>(lower + kColumns, kStride);
  if constexpr (Panels > 2) Tiles::template store<2>(sums + 2 * kColumns, kStride);
  if constexpr (Panels > 3) Tiles::template store<3>(sums + 3 * kColumns, kStride);
}

// multiply.of<kTwo, Panels>(block, sums, last) for all rows of a task by all its panels; it finishes some of the last
// block meanwhile. Before the first rows by panels: multiply.begin(the first panel).
template <bool kTwo, typename Multiply>
inline void multiply_tiles_of(Multiply& multiply, const TileBlock& block, float* sums, Finishing& last) {
  if constexpr (!kTwo) {
    if (block.panels == 4) return multiply.template of<false, 4>(block, sums, last);
  }
  block.panels == 2 ? multiply.template of<kTwo, 2>(block, sums, last)
                    : multiply.template of<kTwo, 1>(block, sums, last);
}
template <typename Tiles, typename Multiply>
inline void multiply_tiles(const GemmTask& task, Multiply& multiply) {
  const TilePairs pairs = {task.row_begin, task.row_end - task.row_begin};
  const Tiles tiles(static_cast<int>(pairs.height()), pairs.tiles() > 1);
  const int64_t end = (task.n_end + kPanel - 1) / kPanel;
  alignas(64) float sums[2][kPairFloats];
  int turn = 0;
  Finishing last;
  int64_t panels = pairs.panels();
  for (int64_t panel = task.n_begin / kPanel; panel < end; panel += panels) {
    while (panels > end - panel) panels /= 2;
    multiply.begin(panel);
    for (int64_t pair = 0; pair < pairs.count(); ++pair, turn ^= 1) {
      const TileBlock block = {pairs[pair], panel, panels, {pair, pairs.count()}};
      block.rows.is_two() ? multiply_tiles_of<true>(multiply, block, sums[turn], last)
                          : multiply_tiles_of<false>(multiply, block, sums[turn], last);
      last.rest();
      last = Finishing(task, block, sums[turn], multiply.steps());
    }
  }
  last.rest();
}

}  // namespace
}  // namespace forearm
