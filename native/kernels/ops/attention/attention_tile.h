// The products of attention: rows of q by keys, rows of weights by values, on the steps of mma_<isa>.h.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/epilogue.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

template <typename Mma>
constexpr int64_t kUnitBytes = Mma::kRows * (Mma::kForm == Form::f32_rows ? 4 : 2);  // of one k of a unit

// A tile's rows by one packed block, or by two, one after the other along k.
struct TileWalk {
  const char* a;  // first unit of the rows
  int64_t unit_bytes;
  const char* block[2];  // first panel; the second may be null
  const char* next[2];   // fetched meanwhile, as many bytes as are read of the block; null: nothing
  int64_t steps;         // of a block
  int64_t panel_bytes;
};

// Stores scores: rows of kPairKeys floats.
struct StoreScores {
  float* scores;
  template <typename Mma, int Units, int Panels>
  __attribute__((always_inline)) void operator()(const typename Mma::Sums (&acc)[Units][Panels], int64_t column) const {
    UNROLLED_FOR (u, Units)
      UNROLLED_FOR (p, Panels)
        Mma::store(acc[u][p], scores + u * Mma::kRows * 2 * kBlockTokens + column + p * kPanel, 2 * kBlockTokens);
  }
};

// values[r] = values[r] * before[r] + sums, for the rows of a mask.
struct AddValues {
  float* values;  // [rows][dim]
  int64_t dim;
  const float* before;
  uint32_t rows;

  template <typename Mma, int Units, int Panels>
  __attribute__((always_inline)) void operator()(const typename Mma::Sums (&acc)[Units][Panels], int64_t column) const {
    float* to = values + column;
    if constexpr (requires { F16(acc[0][0]); }) {
      fold_from<0>(acc, to);
    } else {
      alignas(64) float sums[Units * Mma::kRows][Panels * kPanel];
      UNROLLED_FOR (u, Units)
        UNROLLED_FOR (p, Panels) Mma::store(acc[u][p], sums[u * Mma::kRows] + p * kPanel, Panels * kPanel);
      for (int r = 0; r < Units * Mma::kRows; ++r) {
        if (!(rows >> r & 1)) continue;
        const F16 factor = broadcast(before[r]);
        for (int p = 0; p < Panels; ++p) fold(to + r * dim + p * kPanel, factor, load(sums[r] + p * kPanel));
      }
    }
  }

 private:
  static void fold(float* to, F16 factor, F16 sums) { store(to, fma(load(to), factor, sums)); }

  // A recursion that is always inlined, not a loop over u: otherwise gcc 12 keeps the sums of the tile in memory.
  template <int u, int Units, int Panels, typename Sums>
  __attribute__((always_inline)) void fold_from(const Sums (&acc)[Units][Panels], float* to) const {
    if constexpr (u < Units) {
      if (rows >> u & 1) {
        const F16 factor = broadcast(before[u]);
        UNROLLED_FOR (p, Panels) fold(to + u * dim + p * kPanel, factor, acc[u][p]);
      }
      fold_from<u + 1>(acc, to);
    }
  }
};

// Adds the products of one block to the sums of a tile.
template <typename Mma, int Units, int Panels>
inline void add_block_products(typename Mma::Sums (&acc)[Units][Panels], const TileWalk& walk, const char* a,
                               const char* w, const char* next) {
  constexpr int64_t kStepA = Mma::kQuantum * kUnitBytes<Mma>;
  constexpr int64_t kStepW = Mma::kStepBytes;
  for (int64_t s = 0; s < walk.steps; ++s, a += kStepA, w += kStepW) {
    if (next) {
      UNROLLED_FOR (p, Panels) {
        UNROLL(2)
        for (int64_t line = 0; line < kStepW; line += 64) __builtin_prefetch(next + p * walk.panel_bytes + line, 0, 2);
      }
      next += kStepW;
    }
    Mma::step(acc, a, walk.unit_bytes, w, walk.panel_bytes);
  }
}

// Not inlined: there would be many copies.
template <typename Mma, int Units, int Panels, typename Finish>
__attribute__((noinline)) void attention_microkernel(const TileWalk& walk, int64_t panel, const Finish& finish) {
  typename Mma::Sums acc[Units][Panels];
  UNROLLED_FOR (u, Units)
    UNROLLED_FOR (p, Panels) acc[u][p] = Mma::none();
  const int64_t offset = panel * walk.panel_bytes;
  const char* a = walk.a;
  for (int i = 0; i < 2 && walk.block[i]; ++i, a += walk.steps * Mma::kQuantum * kUnitBytes<Mma>) {
    add_block_products<Mma>(acc, walk, a, walk.block[i] + offset, walk.next[i] ? walk.next[i] + offset : nullptr);
  }
  finish.template operator()<Mma>(acc, panel * kPanel);
}

// The most panels at once. Few rows take more, so that sums do not wait for each other.
template <typename Mma, int Units>
constexpr int kMostPanels = Mma::panels(Units) >= 4 && Units <= 2 ? 4
                            : Mma::panels(Units) >= 2             ? 2
                                                                  : 1;

template <typename Mma, int Units, int Panels, typename Finish>
inline void over_panels_of_head(const TileWalk& walk, int64_t panel, int64_t panels, const Finish& finish) {
  for (; panel + Panels <= panels; panel += Panels) attention_microkernel<Mma, Units, Panels>(walk, panel, finish);
  if constexpr (Panels > 1) {
    if (panel < panels) over_panels_of_head<Mma, Units, Panels / 2>(walk, panel, panels, finish);
  }
}

// Multiplies `units` units of rows by all `panels` panels.
template <typename Mma, int Units = Mma::kUnits, typename Finish>
inline void block_product(const TileWalk& walk, int64_t units, int64_t panels, const Finish& finish) {
  if constexpr (Units > 1) {
    if (units < Units) return block_product<Mma, Units - 1>(walk, units, panels, finish);
  }
  over_panels_of_head<Mma, Units, kMostPanels<Mma, Units>>(walk, 0, panels, finish);
}

}  // namespace
}  // namespace forearm
