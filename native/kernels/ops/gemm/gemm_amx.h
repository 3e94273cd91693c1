// GEMM by AMX tile registers (simd/x86/tiles_amx.h): up to 32 rows by 32 columns at once, or 16 by 64, in steps of 64
// bytes of k.
//
// gemm_amx is the one driver: it cuts rows and panels into blocks, fetches W and the output ahead, and lets the
// epilogue of a block overlap with the next one's products. A policy (Bf16Amx, Int8Amx) says where W is and how a
// block's sums come about; accumulate_amx is the loop over k, which attention and gemm_dequant.h use as well. Where the
// number of rows is no multiple of 16, the last tile begins that many rows earlier and its first rows are computed
// twice.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/epilogue.h"
#include "kernels/ops/gemm/tile.h"

namespace forearm {
namespace {

// An Mma with Tiles has add_tile<sums, a, w>: sums += the product of the tiles in registers a and w; and kWithoutTiles,
// the tier with the same layouts that multiplies what tiles do not.
template <typename Mma>
constexpr bool kHasTiles = requires { typename Mma::Tiles; };

// Rows of a tile; bytes and 16-bit numbers of k in a step; bytes of a tile of W.
constexpr int64_t kTileRows = 16, kTileStep = 64, kTileHalves = kTileStep / 2, kTileBytes = kTileRows * kTileStep;

// Rows of one tile or of two. The second tile begins at row `second`; second == end: there is one. Rows before `fresh`
// belong to an earlier tile.
struct RowPair {
  int64_t begin, second, end;
  int64_t fresh;

  bool is_two() const { return second < end; }
};
struct RowPairs {
  int64_t row_begin, rows;

  int64_t height() const { return rows < kTileRows ? rows : kTileRows; }
  int64_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  int64_t count() const { return (tiles() + 1) / 2; }
  // Panels of a block. One tile of rows takes as many as there are registers for sums, since the hardware fetches
  // several streams of W better than two: one row of bf16 read at 93 % of the bandwidth, with two panels at 88 (Xeon,
  // bench/kernels/kernels.cpp).
  int64_t panels() const { return tiles() == 1 ? 4 : 2; }

  RowPair operator[](int64_t pair) const {
    const int64_t tile = 2 * pair, first = begin_of(tile);
    const int64_t second = tile + 1 < tiles() ? begin_of(tile + 1) : first + height();
    return {first, second, tile + 1 < tiles() ? second + height() : second, row_begin + tile * kTileRows};
  }

 private:
  int64_t begin_of(int64_t tile) const {
    const int64_t latest = rows - height();
    return row_begin + (tile * kTileRows < latest ? tile * kTileRows : latest);
  }
};
constexpr int64_t kPairFloats = 2 * kTileRows * 2 * kPanel;  // sums of a pair of tiles

// Rows by panels of W that are multiplied together; `part` numbers the blocks that share these panels. Rows of several
// digits are counted digit by digit; the sums of an output's row are those of all of its digits.
struct AmxBlock {
  RowPair rows;
  int64_t panel, panels;
  TilePart part;
  int64_t digits;

  int64_t out_row(int64_t row) const { return row / digits; }
};

// Calls call.operator()<kTwo, Panels>() for one tile of rows or two, by 1, 2 or (one tile of rows only) 4 panels.
template <typename Call>
inline void with_shape(bool two, int64_t panels, const Call& call) {
  if (two) return panels == 2 ? call.template operator()<true, 2>() : call.template operator()<true, 1>();
  if (panels == 4) return call.template operator()<false, 4>();
  panels == 2 ? call.template operator()<false, 2>() : call.template operator()<false, 1>();
}

// Lines that a block asks for while it multiplies, an equal part each step: its part of the next panels of W, and its
// output.
class BlockAhead {
 public:
  // `bytes` of panels from w on are multiplied now.
  BlockAhead(const GemmTask& task, const AmxBlock& block, int64_t steps, const char* w, int64_t bytes) {
    const int64_t part = (bytes / kTileStep + block.part.tiles - 1) / block.part.tiles;
    w_ = w + bytes + block.part.number * part * kTileStep;
    w_step_ = (part + steps - 1) / steps;
    const int gated = task.epilogue == Epilogue::gated;
    const int64_t row = block.out_row(block.rows.fresh), column = (block.panel >> gated) * kPanel;
    out_ = place_of(task.out, row, column);
    out_stride_ = place_of(task.out, row + 1, column) - out_;
    out_bytes_ = place_of(task.out, row, column + (block.panels >> gated) * kPanel) - out_;
    out_left_ = block.out_row(block.rows.end) - row;
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

// The epilogue of a block, some rows at each step of the next block, while the tile registers multiply. After all steps
// it would not overlap with them: 512 rows went from 4.1 to 5.0 and from 3.9 to 4.5 TOP/s (int8, k 1536 and 896, two
// cores of a Xeon, bench/kernels/kernels.cpp).
class OverlappedEpilogue {
 public:
  OverlappedEpilogue() = default;
  OverlappedEpilogue(const GemmTask& task, const AmxBlock& block, float* sums, int64_t steps)
      : task_(&task),
        sums_(sums),
        panel_(block.panel),
        panels_(block.panels),
        begin_(block.out_row(block.rows.begin)),
        row_(block.out_row(block.rows.fresh)),
        end_(block.out_row(block.rows.end)),
        rows_a_step_((end_ - row_ + steps - 1) / steps) {}

  void step() {
    if (row_ < end_) finish_until(row_ + rows_a_step_ < end_ ? row_ + rows_a_step_ : end_);
  }
  void complete() {
    if (row_ < end_) finish_until(end_);
  }

 private:
  void finish_until(int64_t end) {
    finish(*task_, {sums_ + (row_ - begin_) * panels_ * kPanel, row_, end, panel_, panels_});
    row_ = end;
  }

  const GemmTask* task_ = nullptr;
  float* sums_ = nullptr;
  int64_t panel_ = 0, panels_ = 0, begin_ = 0, row_ = 0, end_ = 0, rows_a_step_ = 0;
};

// Rows of A from `data` on; a second tile begins `second` rows below.
struct TileOperand {
  const char* data;
  int64_t stride;
  int64_t second;
};

// tile(s, p): the address of step s of panel p. Here panels lie one after the other, `apart` bytes each.
inline auto packed_tiles(const char* w, int64_t apart) {
  return [=](int64_t s, int p) { return w + s * kTileBytes + p * apart; };
}

// Calls call.operator()<register, row tile, panel>() for each register of sums.
template <bool kTwo, int Panels, typename Call>
inline void for_sums(const Call& call) {
  static_assert(Panels <= (kTwo ? 2 : 4));
  call.template operator()<0, 0, 0>();
  if constexpr (Panels > 1) call.template operator()<1, 0, 1>();
  if constexpr (kTwo) call.template operator()<2, 1, 0>();
  if constexpr (kTwo && Panels > 1) call.template operator()<3, 1, 1>();
  if constexpr (Panels > 2) call.template operator()<2, 0, 2>();
  if constexpr (Panels > 3) call.template operator()<3, 0, 3>();
}

// sums [rows][kColumns], int32 or float: A W^T over `steps` steps, added to what is there if `resume`. each_step() runs
// beside the products of a step, before_store() beside those of the last. kStream: A passes through the first-level
// cache and leaves it to the panels, which several blocks of rows share: 117 -> 90 cycles a step of two panels of k 896
// (Xeon, by hand).
constexpr auto kNothingElse = [] {};
template <typename Mma, bool kTwo, int Panels, bool kStream = false, int64_t kColumns = Panels * kPanel, typename Tile,
          typename EachStep, typename BeforeStore = decltype(kNothingElse)>
inline void accumulate_amx(const TileOperand& a, int64_t steps, void* sums, bool resume, const Tile& tile,
                           const EachStep& each_step, const BeforeStore& before_store = kNothingElse) {
  using Tiles = typename Mma::Tiles;
  constexpr int64_t kStride = kColumns * 4;
  const auto load_rows = [&]<int kRegister>(const char* at) {
    kStream ? Tiles::template load_once<kRegister>(at, a.stride) : Tiles::template load<kRegister>(at, a.stride);
  };
  const auto place = [&](int64_t row_tile, int64_t panel) {
    return static_cast<char*>(sums) + row_tile * a.second * kStride + panel * kPanel * 4;
  };
  for_sums<kTwo, Panels>([&]<int kRegister, int kRowTile, int kPanelOf>() {
    resume ? Tiles::template load<kRegister>(place(kRowTile, kPanelOf), kStride) : Tiles::template clear<kRegister>();
  });
  const char* row = a.data;
  for (int64_t s = 0; s < steps; ++s, row += kTileStep) {
    each_step();
    load_rows.template operator()<4>(row);
    Tiles::template load<6>(tile(s, 0), kTileStep);
    Mma::template add_tile<0, 4, 6>();
    if constexpr (Panels > 1) {
      Tiles::template load<7>(tile(s, 1), kTileStep);
      Mma::template add_tile<1, 4, 7>();
    }
    if constexpr (kTwo) {
      load_rows.template operator()<5>(row + a.second * a.stride);
      Mma::template add_tile<2, 5, 6>();
      if constexpr (Panels > 1) Mma::template add_tile<3, 5, 7>();
    }
    if constexpr (Panels > 2) {
      Tiles::template load<5>(tile(s, 2), kTileStep);
      Mma::template add_tile<2, 4, 5>();
      Tiles::template load<6>(tile(s, 3), kTileStep);
      Mma::template add_tile<3, 4, 6>();
    }
  }
  before_store();
  for_sums<kTwo, Panels>([&]<int kRegister, int kRowTile, int kPanelOf>() {
    Tiles::template store<kRegister>(place(kRowTile, kPanelOf), kStride);
  });
}

// The sums of one block, and some of the last block's epilogue. A policy has the task, `steps` and the `panel_bytes`
// and kPackedTile (bytes of a tile) of W, and accumulate<kTwo, Panels, kStream>(block, w, each_step, sums).
template <bool kTwo, int Panels, typename Policy>
__attribute__((noinline)) void accumulate_block(const Policy& policy, const AmxBlock& block, float* sums,
                                                OverlappedEpilogue& last) {
  const char* w = static_cast<const char*>(policy.task.w.data) + block.panel * policy.panel_bytes;
  if (block.part.tiles == 1) {
    Ahead<true, Panels, Policy::kPackedTile> ahead(w, policy.panel_bytes, {});
    const auto each_step = [&] {
      ahead.fetch();
      last.step();
    };
    return policy.template accumulate<kTwo, Panels, false>(block, w, each_step, sums);
  }
  BlockAhead ahead(policy.task, block, policy.steps, w, Panels * policy.panel_bytes);
  const auto each_step = [&] {
    ahead.fetch();
    last.step();
  };
  policy.template accumulate<kTwo, Panels, true>(block, w, each_step, sums);
}

// All rows of a task by all its panels.
template <typename Policy>
inline void gemm_amx(const Policy& policy) {
  const GemmTask& task = policy.task;
  const int64_t digits = digits_of(task.a.form);
  const RowPairs pairs = {task.row_begin * digits, (task.row_end - task.row_begin) * digits};
  const typename Policy::Mma::Tiles tiles(static_cast<int>(pairs.height()), pairs.tiles() > 1);
  const int64_t end = (task.n_end + kPanel - 1) / kPanel;
  alignas(64) float sums[2][kPairFloats];
  int turn = 0;
  OverlappedEpilogue last;
  int64_t panels = pairs.panels();
  for (int64_t panel = task.n_begin / kPanel; panel < end; panel += panels) {
    while (panels > end - panel) panels /= 2;
    for (int64_t pair = 0; pair < pairs.count(); ++pair, turn ^= 1) {
      const AmxBlock block = {pairs[pair], panel, panels, {pair, pairs.count()}, digits};
      with_shape(block.rows.is_two(), panels,
                 [&]<bool kTwo, int Panels>() { accumulate_block<kTwo, Panels>(policy, block, sums[turn], last); });
      last.complete();
      last = OverlappedEpilogue(task, block, sums[turn], policy.steps);
    }
  }
  last.complete();
}

}  // namespace
}  // namespace forearm
