// Tiles of float sums, and how a slice is cut into tiles: shared by all matrix products.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// The number of a tile among those that multiply the same panels.
struct TilePart {
  int64_t number = 0, tiles = 1;
};

// The operands of one tile, in bytes and units of the Mma.
struct Walk {
  const char* a;  // first unit of A
  int64_t unit_bytes;
  const char* w;  // first panel of W
  int64_t panel_bytes;
  int64_t steps;        // along k
  bool resume = false;  // the sums go on from those in memory
  TilePart part;

  void skip_panels(int64_t panels) { w += panels * panel_bytes; }
};

// Prefetches W while a tile multiplies Panels panels side by side: the hardware prefetches one panel after another well
// and several at once badly. kFetchedRows says from how many rows on a CPU gains by it.
//
// The next panels are fetched in the order of memory if they fit the second-level cache; of longer panels, the lines 4
// KiB ahead: 8 rows of bf16 went from 64 to 86 % of their limit, 32 from 87 to 93 % (VDPBF16PS on Zen 4,
// bench/kernels/kernels.cpp). Each tile of the same panels fetches its part of the next ones; otherwise the first would
// wait for memory and the others for nothing: 48 rows of int8 went from 64 to 81 %, of float32 from 69 to 89 % (Xeon, n
// 4864, k 896).
template <bool kNear, int Panels, int64_t kStepBytes, int kLevel = kNearLevel>
class Ahead {
 public:
  Ahead(const char* w, int64_t panel_bytes, TilePart part)
      : apart_(panel_bytes), advance_(kStepBytes), whole_(0), at_(w + kFurther) {
    const int64_t bytes = Panels * panel_bytes;
    if (bytes > (part.tiles > 1 ? kMostOfSeveral : kMostOfOne)) return;
    whole_ = -1;
    advance_ = (Panels * kStepBytes + part.tiles - 1) / part.tiles;
    at_ = w + bytes + bytes * part.number / part.tiles;
  }

  template <int64_t kSteps = 1>
  void fetch() {
    constexpr int64_t kBytes = kSteps * kStepBytes;
    const int64_t apart = apart_ + (whole_ & (kBytes - apart_));
    UNROLLED_FOR (p, Panels) {
      UNROLL(8)
      for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(at_ + p * apart + line, 0, 2);
    }
    at_ += kSteps * advance_;
  }
  // The tile has come to w, where a step takes fewer bytes than kStepBytes.
  void go_to(const char* w) {
    if (whole_ == 0) at_ = w + kFurther;
  }

 private:
  // Of k 8960, 280 KiB for two panels: 32 and 48 rows of int8 went from 63 and 72 to 73 and 87 %, but 8 rows, one tile
  // of three panels, from 89 to 71 % (Xeon).
  static constexpr int64_t kFurther = 4096;
  static constexpr int64_t kMostOfOne = 256 << 10, kMostOfSeveral = 512 << 10;

  int64_t apart_, advance_;
  int64_t whole_;  // all bits or none: for a branch in the loop gcc 12 moves sums to other registers and spills them
  const char* at_;
};

// For a tile of all rows, which is bound by memory alone: fetches the lines that are multiplied 6 KiB later, over all
// panels together, into the first or second level (kLevel), and near the end of the panels the beginning of the
// next ones. Of the read bandwidth (Xeon, n 4864, k 896, two cores): bf16 88 -> 97, 8 rows 76 -> 88 %; int8 95 -> 101,
// 84 -> 87; int4 89 -> 96, 73 -> 83. A third of the distance is too little from 8 rows on; more is no better.
template <int Panels, int64_t kStepBytes, int kLevel>
class Ahead<true, Panels, kStepBytes, kLevel> {
 public:
  Ahead(const char* w, int64_t panel_bytes, TilePart)
      : apart_(panel_bytes), skip_((Panels - 1) * panel_bytes), end_(w + panel_bytes), at_(w + kDistance) {}

  template <int64_t kSteps = 1>
  void fetch() {
    constexpr int64_t kBytes = kSteps * kStepBytes;
    UNROLLED_FOR (p, Panels) {
      UNROLL(8)
      for (int64_t line = 0; line < kBytes; line += 64)
        __builtin_prefetch(at_ + p * apart_ + line, 0, kLevel == 2 ? 2 : 3);
    }
    at_ += kBytes;
    const int64_t past = (end_ - at_ - 1) >> 63;  // all bits or none, as whole_ above
    at_ += skip_ & past;
    skip_ &= ~past;
  }
  void go_to(const char* w) {
    at_ = w + kDistance;
    if (at_ >= end_) at_ += (Panels - 1) * apart_;
    skip_ = at_ >= end_ ? 0 : (Panels - 1) * apart_;
  }

 private:
  static constexpr int64_t kDistance = (6 << 10) / Panels / 64 * 64;

  int64_t apart_, skip_;
  const char *end_, *at_;
};

// Whether a tile that takes one panel after another fetches W, too: a core that unpacks asks for too little at a time
// (one row of int4 in groups of 32: 74 to 90 % of the read bandwidth, of MXFP4 73 to 89, two rows 54 to 85; Zen 5). Of
// bytes and bf16 the hardware alone fetches more: with prefetches one row of int8 reads 25 to 29 GB/s instead of 34,
// two rows 25 instead of 30 to 34, one row of bf16 28 to 30 instead of 33 to 35 (one thread of Zen 4, which has 33
// GB/s).
template <typename Mma, int Units, int Panels>
constexpr bool kStreamed = Panels == 1 && requires { requires Mma::kNibbles && Units <= Mma::kStreamedUnits; };
template <typename Mma, int Units, int Panels>
constexpr bool kFetchesW = Units * Mma::kRows >= kFetchedRows || kStreamed<Mma, Units, Panels>;

// Adds `steps` steps to the sums, kTogether at once where the Mma takes them so, else two, or one by one where its step
// is long: of two of 48 products gcc 12 moves sums and spills some. kStepA are the bytes of A of a step.
template <typename Mma, int64_t kStepA, typename Sums, int Units, int Panels, typename SomeAhead>
__attribute__((always_inline)) inline void add_steps(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes,
                                                     const char* w, int64_t panel_bytes, int64_t steps,
                                                     SomeAhead& ahead) {
  constexpr bool kFetch = kFetchesW<Mma, Units, Panels>;
  constexpr int64_t kStepW = Mma::kStepBytes;
  int64_t s = 0;
  if constexpr (requires { Mma::kTogether; }) {
    constexpr int64_t kMany = Mma::kTogether;
    for (; s + kMany <= steps; s += kMany, a += kMany * kStepA, w += kMany * kStepW) {
      if constexpr (kFetch) ahead.template fetch<kMany>();
      Mma::steps(sums, a, unit_bytes, w, panel_bytes);
    }
  }
  if constexpr (requires { requires Mma::kLongStep; }) {
    for (; s < steps; ++s, a += kStepA, w += kStepW) {
      if constexpr (kFetch) ahead.fetch();
      Mma::step(sums, a, unit_bytes, w, panel_bytes);
    }
    return;
  }
  UNROLL(2)
  for (; s < steps; ++s, a += kStepA, w += kStepW) {
    if constexpr (kFetch) ahead.fetch();
    Mma::step(sums, a, unit_bytes, w, panel_bytes);
  }
}

template <typename Mma>
inline typename Mma::Sums sums_at(const float* sums, int64_t stride) {
  if constexpr (Mma::kRows == 1) {
    return load(sums);
  } else {
    return Mma::load(sums, stride);
  }
}

// Not inlined: there would be many copies.
template <typename Mma, bool kNear, int Units, int Panels>
__attribute__((noinline)) void microkernel(const Walk& walk, float* sums, int64_t stride) {
  typename Mma::Sums acc[Units][Panels];
  UNROLLED_FOR (u, Units)
    UNROLLED_FOR (p, Panels) acc[u][p] = Mma::none();
  if (walk.resume) {
    UNROLLED_FOR (u, Units)
      UNROLLED_FOR (p, Panels) acc[u][p] = sums_at<Mma>(sums + u * Mma::kRows * stride + p * kPanel, stride);
  }

  constexpr int64_t kStepA = Mma::kQuantum * Mma::kRows * (Mma::kForm == Form::f32_rows ? 4 : 2);
  Ahead<kNear, Panels, Mma::kStepBytes> ahead(walk.w, walk.panel_bytes, walk.part);
  add_steps<Mma, kStepA>(acc, walk.a, walk.unit_bytes, walk.w, walk.panel_bytes, walk.steps, ahead);

  UNROLLED_FOR (u, Units)
    UNROLLED_FOR (p, Panels) Mma::store(acc[u][p], sums + u * Mma::kRows * stride + p * kPanel, stride);
}

// Multiplies `panels` panels, as many side by side as registers hold, then half as many, and so on. Each kind of walk
// has its microkernel.
template <typename Mma, bool kNear, int Units, int Panels, typename SomeWalk>
inline void over_panels(SomeWalk& walk, int64_t panels, float* sums, int64_t stride) {
  for (; panels >= Panels; panels -= Panels, sums += Panels * kPanel, walk.skip_panels(Panels)) {
    microkernel<Mma, kNear, Units, Panels>(walk, sums, stride);
  }
  if constexpr (Panels > 1) {
    if (panels > 0) over_panels<Mma, kNear, Units, (Panels + 1) / 2>(walk, panels, sums, stride);
  }
}

// Panels that a tile takes at once: one, where few rows are multiplied by a single tile, because memory is read fastest
// like this.
template <typename Mma, bool kNear>
constexpr int panels_at_once(int units) {
  if constexpr (kNear && requires { Mma::kStreamedUnits; }) {
    if (units <= Mma::kStreamedUnits) return 1;
  }
  return Mma::panels(units);
}

template <typename Mma, bool kNear, int Units, typename SomeWalk>
inline void with_units(SomeWalk& walk, int64_t units, int64_t panels, float* sums, int64_t stride) {
  // cut_rows: several tiles are of about the same height, and where the tile of all rows is near, these are several.
  constexpr int kFewest = kNearLevel > 0 && !kNear ? (Mma::kUnits + 1) / 2 : 1;
  if constexpr (Units > kFewest) {
    if (units < Units) return with_units<Mma, kNear, Units - 1>(walk, units, panels, sums, stride);
  }
  over_panels<Mma, kNear, Units, panels_at_once<Mma, kNear>(Units)>(walk, panels, sums, stride);
}

template <typename Mma, typename SomeWalk>
inline void tile_product(SomeWalk walk, int64_t units, int64_t panels, float* sums, int64_t stride) {
  if constexpr (kNearLevel > 0) {
    if (walk.part.tiles == 1) return with_units<Mma, true, Mma::kUnits>(walk, units, panels, sums, stride);
  }
  with_units<Mma, false, Mma::kUnits>(walk, units, panels, sums, stride);
}

// The tiles that the rows of a slice are cut into, of about the same height, in units of the Mma; and the number of
// panels whose sums are finished together. A row of several digits, which are rows of their own, stays in one tile.
struct TileRows {
  int64_t first_unit, units, tiles, panels;
  int64_t together;  // units

  int64_t begin(int64_t tile) const { return first_unit + units / together * tile / tiles * together; }
};
template <typename Mma>
inline TileRows cut_rows(int64_t row_begin, int64_t row_end, Epilogue epilogue, int64_t digits = 1) {
  TileRows cut;
  cut.together = digits > Mma::kRows ? digits / Mma::kRows : 1;
  cut.first_unit = row_begin * digits / Mma::kRows;
  cut.units = (row_end * digits + Mma::kRows - 1) / Mma::kRows - cut.first_unit;
  const int64_t most = Mma::kUnits / cut.together * cut.together;
  cut.tiles = (cut.units + most - 1) / most;
  cut.panels = Mma::panels(static_cast<int>((cut.units / cut.together + cut.tiles - 1) / cut.tiles * cut.together));
  if (epilogue == Epilogue::gated) cut.panels = cut.panels < 2 ? 2 : cut.panels / 2 * 2;
  return cut;
}

}  // namespace
}  // namespace forearm
