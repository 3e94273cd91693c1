// Quantized activations of 8 or 16 bits by int8, int4 or fp4 weights: exact int32 sums over a group, scaled and added
// to float sums in the order of the groups.
//
// A tile keeps int32 sums in registers over a group and float sums in the first-level cache, so that a group costs two
// or three instructions a register of sums. On Arm, 4-bit codes that more than one tile of rows multiplies is unpacked
// first, panel by panel, into bytes that stay in the second-level cache; x86 unpacks nibbles in the tile, which
// measured faster there. The integers are the same.
//
// 6-bit codes are unpacked by int8's tiles, 64 k at a time as they come to them, into bytes that stay in the
// first-level cache: no tier needs tiles of its own for them. Where several tiles of rows multiply the same panels, the
// first one keeps the bytes in the scratch for the others.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/epilogue.h"
#include "kernels/ops/gemm/scales.h"
#include "kernels/ops/gemm/tile.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

// Floats of one group of a panel: scales and offsets of 16 columns, each twice.
constexpr int64_t kFactors = 4 * kPanel;
constexpr int64_t kShortestGroup = 16;  // PackedWeights
// Tiles of at least this many rows prefetch the lines that they will write, if the Mma has kFetchesOut.
constexpr int kOutRows = 4;
template <typename Mma>
constexpr bool kFetchesOut = requires { requires Mma::kFetchesOut; };
template <typename Mma>
constexpr bool kTakesGroups = requires { requires(Mma::kLongestGroup > 0); };

struct IntWalk {
  const char* a;  // first unit of A
  int64_t unit_bytes;
  const char* w;  // first panel of W
  int64_t panel_bytes;
  const char* stored;  // what Ahead fetches: w, or the 6-bit codes that it is unpacked from
  int64_t stored_bytes;
  int64_t turn_groups = 0;     // groups that are unpacked at a time; 0: w has its bytes already
  bool by_turns = false;       // w has room for the last ones only
  int64_t steps, group_steps;  // along k
  int64_t groups, digits;
  const float* a_scales;  // of the first unit's first row
  const int32_t* a_sums;
  const PackedWeights* weights;  // whose scales they are,
  int64_t scale;                 // from this one on
  const float* factors;          // the same for an Mma that takes groups itself, [groups][kFactors]; null: it does not
  float* room;                   // for what else it lays out, kRoomFloats of its own for each group
  TilePart part;
  const OutLines* out;

  void skip_panels(int64_t panels) {
    w += panels * panel_bytes;
    stored += panels * stored_bytes;
    scale += panels * groups * kPanel;
    if (factors) factors += panels * groups * kFactors;
  }
};

// As Ahead, and a line of the output every other step: the rows of an output are too far apart for the hardware
// prefetcher, and prefetched all at once they exceed the fill buffers. For 512 rows by k 896 and 1536 int8 went from 48
// and 56 to 80 and 83 % of the limit, int4 from 41 and 49 to 65 and 67 %; with all lines prefetched at once, int8 to 71
// and 78 % (VPDPBUSD on a Xeon, bench/kernels/kernels.cpp).
template <bool kNear, int Panels, int64_t kStepBytes>
class AheadAndOut : public Ahead<kNear, Panels, kStepBytes> {
 public:
  explicit AheadAndOut(const IntWalk& walk)
      : Ahead<kNear, Panels, kStepBytes>(walk.stored, walk.stored_bytes, walk.part),
        lines_(walk.out->at),
        last_(walk.out->count - 1) {}

  void fetch() {
    Ahead<kNear, Panels, kStepBytes>::fetch();
    const int64_t line = step_++ >> 1;
    __builtin_prefetch(lines_[line < last_ ? line : last_], 1, 2);
  }

 private:
  const char* const* lines_;
  int64_t last_, step_ = 0;
};
template <typename Mma, bool kNear, int Units, int Panels>
inline auto ahead_of(const IntWalk& walk) {
  if constexpr (kFetchesOut<Mma> && Units * Mma::kRows >= kOutRows) {
    return AheadAndOut<kNear, Panels, Mma::kStepBytes>(walk);
  } else {
    // One row of int4 reads 28 to 30 GB/s if it prefetches into the first level, into the second one 26 to 27, two rows
    // 23 to 27 and 28 (one thread of Zen 4).
    constexpr int kLevel = Units * Mma::kRows == 1 ? 1 : kNearLevel;
    return Ahead<kNear, Panels, Mma::kStepBytes, kLevel>(walk.stored, walk.stored_bytes, walk.part);
  }
}

template <typename Mma, int Units, int Panels>
inline void add_group(const IntWalk& walk, int64_t group, const typename Mma::Sums (&sums)[Units][Panels],
                      float (&acc)[Units][Panels][Mma::kRows * kPanel]) {
  UNROLLED_FOR (p, Panels) {
    const int64_t at = walk.scale + (p * walk.groups + group) * kPanel;
    const F16 scales = load_scales(*walk.weights, at);
    const typename Mma::Scales s = Mma::scales(scales);
    const float* a_scales = walk.a_scales + group;
    UNROLL(16)
    for (int u = 0; u < Units; ++u, a_scales += Mma::kRows * walk.groups) {
      Mma::fold(sums[u][p], a_scales, walk.groups, s, acc[u][p]);
    }
    if (!has_offsets(*walk.weights)) continue;
    const typename Mma::Scales o = Mma::scales(load_offsets(*walk.weights, at, scales));
    for (int u = 0; u < Units; ++u) {
      const int64_t first = u * Mma::kRows * walk.groups + group;
      Mma::fold_offsets(walk.a_sums + first, walk.a_scales + first, walk.groups, o, acc[u][p]);
    }
  }
}

// A row of two digits: acc plus the sums of the group's products with its high and low digits, added before they are
// scaled. a_sums and a_scales are those of the digits, `groups` apart; o are the columns' offsets, or null.
inline F16 add_digits(F16 acc, F16 high, F16 low, const int32_t* a_sums, const float* a_scales, int64_t groups, F16 s,
                      const F16* o) {
  const float scale = a_scales[groups];
  acc = fma(mul(fma(broadcast(kDigitBase), high, low), broadcast(scale)), s, acc);
  if (!o) return acc;
  return fma(broadcast(sum_of_digits(a_sums[0], a_sums[groups]) * scale), *o, acc);
}

// As add_group, of rows of two digits, to the rows of `out`. `sums` are [units][panels]: a call with them in memory, so
// that tiles of all sizes share one copy of this code.
template <typename Mma>
__attribute__((noinline)) void add_digits(const IntWalk& walk, int64_t group, const typename Mma::Sums* sums, int units,
                                          int panels, float* out, int64_t stride) {
  const bool offsets = has_offsets(*walk.weights);
  for (int p = 0; p < panels; ++p, ++sums, out += kPanel) {
    const int64_t at = walk.scale + (p * walk.groups + group) * kPanel;
    const F16 s = load_scales(*walk.weights, at), o = offsets ? load_offsets(*walk.weights, at, s) : s;
    for (int row = 0; 2 * row < units * Mma::kRows; ++row) {
      const typename Mma::Sums* high = sums + 2 * row / Mma::kRows * panels;
      const typename Mma::Sums* low = sums + (2 * row + 1) / Mma::kRows * panels;
      const int64_t first = 2 * row * walk.groups + group;
      float* acc = out + row * stride;
      store(acc, add_digits(group == 0 ? zero() : load(acc), Mma::template row<0>(*high),
                            Mma::template row<Mma::kRows - 1>(*low), walk.a_sums + first, walk.a_scales + first,
                            walk.groups, s, offsets ? &o : nullptr));
    }
  }
}

// Whether an Mma's tiles unpack 6-bit codes, if the walk has them.
template <typename Mma>
constexpr bool kMeetsSixBits = false;
template <>
constexpr bool kMeetsSixBits<IntMma<CodePacking::bytes>> = true;
constexpr int64_t kSixBitsAhead = 6 << 10;

// A register of codes, from anywhere in memory.
using CodePairRegister = uint16_t __attribute__((vector_size(64 / kVectorRegisters), aligned(1), may_alias));
using CodeRegister = uint8_t __attribute__((vector_size(64 / kVectorRegisters), aligned(1), may_alias));

// Unpacks `count` k of `panels` panels of 6-bit codes from `stored` to w. One function for all tiles. fetch: the tile
// does not fetch W, so this does, where tiles fetch at all: one row reads 25 GB/s instead of 13 (one thread of Zen 4).
template <typename Mma>
__attribute__((noinline)) void unpack_six_bits(const IntWalk& walk, int panels, int64_t count, const char* stored,
                                               char* w, [[maybe_unused]] bool fetch) {
  constexpr auto kAdd = static_cast<uint8_t>(Mma::kBias - kSixBitBias);
  constexpr int kQuarter = kVectorRegisters;
  for (int p = 0; p < panels; ++p, stored += walk.stored_bytes, w += walk.panel_bytes) {
    const auto* from = reinterpret_cast<const CodePairRegister*>(stored);
    auto* to = reinterpret_cast<CodeRegister*>(w);
    for (int64_t k = 0; k < count; k += kSixBitK, from += 3 * kQuarter, to += 4 * kQuarter) {
      if constexpr (kNearLevel > 0) {
        const char* later = reinterpret_cast<const char*>(from) + kSixBitsAhead;
        for (int64_t line = 0; fetch && line < kSixBitBytes; line += 64) __builtin_prefetch(later + line, 0, 2);
      }
      if constexpr (requires { typename Mma::SixBits; }) {
        Mma::SixBits::unpack(reinterpret_cast<const uint8_t*>(from), reinterpret_cast<uint8_t*>(to));
        continue;
      }
      UNROLLED_FOR (i, kQuarter) {
        const CodePairRegister first = from[i], second = from[kQuarter + i], high = from[2 * kQuarter + i];
        const CodePairRegister quarters[4] = {
            (first & 0x0f0f) | (high << 4 & 0x3030), (first >> 4 & 0x0f0f) | (high << 2 & 0x3030),
            (second & 0x0f0f) | (high & 0x3030), (second >> 4 & 0x0f0f) | (high >> 2 & 0x3030)};
        UNROLLED_FOR (q, 4) to[q * kQuarter + i] = reinterpret_cast<CodeRegister>(quarters[q]) + kAdd;
      }
    }
  }
}

template <typename Mma, bool kNear, int Units, int Panels>
__attribute__((noinline)) void microkernel(const IntWalk& walk, float* out, int64_t stride) {
  if constexpr (kTakesGroups<Mma>) {
    if (walk.factors) {
      IntWalk one = walk;
      for (int p = 0; p < Panels; ++p, one.skip_panels(1)) {
        Mma::template multiply_groups<Units>(one, out + p * kPanel, stride);
      }
      return;
    }
  }
  alignas(64) float acc[Units][Panels][Mma::kRows * kPanel] = {};
  constexpr int64_t kStepA = Mma::kRows * Mma::kStepK;
  const char* a = walk.a;
  const char* w = walk.w;
  const char* stored = walk.stored;
  int64_t turn = walk.turn_groups > 0;
  auto ahead = ahead_of<Mma, kNear, Units, Panels>(walk);
  for (int64_t group = 0, left = walk.steps; group < walk.groups; ++group) {
    const int64_t steps = left < walk.group_steps ? left : walk.group_steps;
    if constexpr (kMeetsSixBits<Mma>) {
      if (--turn == 0) {
        turn = walk.turn_groups;
        const int64_t next = left < turn * walk.group_steps ? left : turn * walk.group_steps;
        w = walk.by_turns ? walk.w : w;
        unpack_six_bits<IntMma<CodePacking::bytes>>(walk, Panels, next * Mma::kStepK, stored,
                                                    const_cast<char*>(w),  // w is the scratch
                                                    !kFetchesW<Mma, Units, Panels>);
        ahead.go_to(stored);
        stored += next * Mma::kStepBytes / 4 * 3;
      }
    }
    typename Mma::Sums sums[Units][Panels];
    UNROLLED_FOR (u, Units)
      UNROLLED_FOR (p, Panels) sums[u][p] = Mma::start(walk.a_sums + u * Mma::kRows * walk.groups + group, walk.groups);
    add_steps<Mma, kStepA>(sums, a, walk.unit_bytes, w, walk.panel_bytes, steps, ahead);
    a += steps * kStepA;
    w += steps * Mma::kStepBytes;
    left -= steps;
    if (walk.digits == 1) {
      add_group<Mma>(walk, group, sums, acc);
    } else {
      typename Mma::Sums kept[Units][Panels];  // a copy, so that `sums` can stay in registers
      UNROLLED_FOR (u, Units)
        UNROLLED_FOR (p, Panels) kept[u][p] = sums[u][p];
      add_digits<Mma>(walk, group, kept[0], Units, Panels, out, stride);
    }
  }
  if (walk.digits == 2) return;
  UNROLLED_FOR (u, Units)
    UNROLLED_FOR (p, Panels) Mma::store(acc[u][p], out + u * Mma::kRows * stride + p * kPanel, stride);
}

template <typename Mma>
constexpr int64_t steps_of(int64_t k) {
  return (k + Mma::kStepK - 1) / Mma::kStepK;
}

// Returns the panels that tiles multiply: those of W, or 4-bit codes unpacked into the scratch.
template <CodePacking kFormat>
inline const char* panels_of(const GemmTask& task, int64_t panel, int64_t panels) {
  using Packed = IntMma<kFormat == CodePacking::unpacked_nibbles ? CodePacking::nibbles : kFormat>;
  const int64_t steps = steps_of<Packed>(task.w.k), bytes = steps * Packed::kStepBytes;
  const char* packed = static_cast<const char*>(task.w.data) + panel * bytes;
  if constexpr (kFormat == CodePacking::unpacked_nibbles) {
    char* to = static_cast<char*>(task.scratch);
    const auto unpack_panel =
        packing_of(task.w.dtype) == CodePacking::e2m1 ? unpack<CodePacking::e2m1> : unpack<CodePacking::nibbles>;
    for (int64_t p = 0; p < panels; ++p) unpack_panel(packed + p * bytes, to + p * 2 * bytes, steps);
    return to;
  }
  return packed;
}

// Whether 4-bit codes are unpacked once for several tiles of rows, or by each tile.
template <typename Mma>
constexpr bool kUnpacks = !requires { Mma::kInPlace; };

constexpr int64_t kPairK = IntMma<CodePacking::nibbles>::kStepK;

// The most panels that a tile of many rows takes at once; at least two, for gated.
constexpr int64_t many_panels() {
  using Unpacked = IntMma<CodePacking::unpacked_nibbles>;
  int64_t panels = 2;
  for (int units = 1; units <= Unpacked::kUnits; ++units) {
    if (Unpacked::panels(units) > panels && 2 * units > Unpacked::kUnits) panels = Unpacked::panels(units);
  }
  return panels;
}
constexpr int64_t kSixBitPanels = 2;        // of which all bytes are kept in the scratch: gate and up
constexpr int64_t kTurnK = 64;              // unpacked at a time
constexpr int64_t kByTurnsBytes = 8 << 10;  // the groups of all panels of a tile
constexpr int64_t whole_six_bits(int64_t k) { return (k + kSixBitK - 1) / kSixBitK * kSixBitK; }
constexpr int64_t six_bits_unpacked(int64_t k) {
  const int64_t bytes = kSixBitPanels * kPanel * whole_six_bits(k);
  return bytes > kByTurnsBytes ? bytes : kByTurnsBytes;
}
constexpr int64_t unpacked_bytes(int64_t k) {
  using Nibbles = IntMma<CodePacking::nibbles>;
  if (!kUnpacks<Nibbles>) return 0;
  return many_panels() * 2 * steps_of<Nibbles>(k) * Nibbles::kStepBytes;
}

// An Mma with a kLongestGroup multiplies tiles of several rows and short groups in its own order of registers
// (mma_int_neon_mm.h); the factors of its panels are laid out once for all tiles of rows.
template <typename Mma>
inline void lay_out_factors(const GemmTask& task, IntWalk& walk, int64_t panels) {
  if constexpr (kTakesGroups<Mma>) {
    auto* to = reinterpret_cast<float*>(static_cast<char*>(task.scratch) + unpacked_bytes(task.w.k));
    walk.factors = to;
    for (int64_t group = 0; group < panels * walk.groups; ++group, to += kFactors) {
      const F16 scales = load_scales(task.w, walk.scale + group * kPanel);
      Mma::spread(scales, to);
      if (has_offsets(task.w)) Mma::spread(load_offsets(task.w, walk.scale + group * kPanel, scales), to + 2 * kPanel);
    }
    walk.room = to;
  }
}
template <typename Mma>
inline bool takes_groups(const IntWalk& walk, const TileRows& cut) {
  if constexpr (kTakesGroups<Mma>) {
    const bool whole = walk.group_steps % Mma::kGroupSteps == 0 && walk.steps % Mma::kGroupSteps == 0;
    return walk.groups > 1 && whole && walk.group_steps * Mma::kStepK <= Mma::kLongestGroup && cut.units > 1;
  }
  return false;
}

// Makes the walk one over 6-bit codes: bytes of all k are kept for several tiles, or where groups are long.
inline void meet_six_bits(const PackedWeights& w, TileRows& cut, IntWalk& walk) {
  const int64_t whole = whole_six_bits(w.k);
  walk.turn_groups = w.group < kTurnK ? kTurnK / w.group : 1;
  walk.by_turns = cut.tiles == 1 && w.group <= kTurnK;
  if (!walk.by_turns) cut.panels = kSixBitPanels;
  walk.stored_bytes = whole / kSixBitK * kSixBitBytes;
  walk.panel_bytes = kPanel * (walk.by_turns ? kTurnK : whole);
}

template <CodePacking kFormat>
inline void gemm_int8(const GemmTask& task) {
  using Mma = IntMma<kFormat>;
  IntWalk walk;
  walk.digits = digits_of(task.a.form);
  TileRows cut = cut_rows<Mma>(task.row_begin, task.row_end, task.epilogue, walk.digits);
  const int64_t group = task.w.group;
  walk.unit_bytes = task.a.stride * Mma::kRows;
  walk.steps = steps_of<Mma>(has_nibbles(task.w.dtype) ? (task.w.k + kPairK - 1) / kPairK * kPairK : task.w.k);
  walk.group_steps = group < task.w.k ? group / Mma::kStepK : walk.steps;
  walk.groups = groups_of(task.w.k, group);
  walk.panel_bytes = walk.steps * Mma::kStepBytes;
  walk.stored_bytes = walk.panel_bytes;
  walk.weights = &task.w;
  const bool six_bits = kMeetsSixBits<Mma> && has_six_bits(task.w.dtype);
  if (six_bits) meet_six_bits(task.w, cut, walk);
  const int64_t turn_groups = walk.turn_groups;
  const int64_t end = (task.n_end + kPanel - 1) / kPanel;
  for (int64_t panel = task.n_begin / kPanel; panel < end; panel += cut.panels) {
    const int64_t panels = end - panel < cut.panels ? end - panel : cut.panels;
    walk.w = six_bits ? static_cast<const char*>(task.scratch) : panels_of<kFormat>(task, panel, panels);
    walk.stored = six_bits ? static_cast<const char*>(task.w.data) + panel * walk.stored_bytes : walk.w;
    walk.scale = panel * walk.groups * kPanel;
    walk.factors = nullptr;
    if (!six_bits && takes_groups<Mma>(walk, cut)) lay_out_factors<Mma>(task, walk, panels);
    for (int64_t tile = 0; tile < cut.tiles; ++tile) {
      const int64_t unit = cut.begin(tile), unit_end = cut.begin(tile + 1);
      alignas(64) float sums[kTileFloats];
      walk.a = static_cast<const char*>(task.a.data) + unit * walk.unit_bytes;
      walk.a_scales = task.a.scales + unit * Mma::kRows * walk.groups;
      walk.a_sums = task.a.sums + unit * Mma::kRows * walk.groups;
      const SumTile sum_tile = {sums, unit * Mma::kRows / walk.digits, unit_end * Mma::kRows / walk.digits, panel,
                                panels};
      OutLines out;
      if constexpr (kFetchesOut<Mma>) out.find(task, sum_tile);
      walk.out = &out;
      walk.part = {tile, cut.tiles};
      walk.turn_groups = tile == 0 ? turn_groups : 0;
      tile_product<Mma>(walk, unit_end - unit, panels, sums, panels * kPanel);
      finish(task, sum_tile);
    }
  }
}

inline void gemm_int8(const GemmTask& task) {
  if (!has_nibbles(task.w.dtype)) return gemm_int8<CodePacking::bytes>(task);
  using Mma = IntMma<CodePacking::nibbles>;
  if constexpr (kUnpacks<Mma>) {
    const int64_t rows = (task.row_end - task.row_begin) * digits_of(task.a.form);
    if (rows > Mma::kUnits * Mma::kRows) return gemm_int8<CodePacking::unpacked_nibbles>(task);
  }
  if (packing_of(task.w.dtype) == CodePacking::e2m1) return gemm_int8<CodePacking::e2m1>(task);
  gemm_int8<CodePacking::nibbles>(task);
}

// Bytes of the factors of the panels and of the room, for an Mma that takes groups itself.
template <typename Mma>
constexpr int64_t factor_bytes(int64_t k) {
  if constexpr (kTakesGroups<Mma>)
    return (many_panels() * kFactors + Mma::kRoomFloats) * groups_of(k, kShortestGroup) * 4;
  return 0;
}
constexpr int64_t int8_scratch_bytes(int64_t k) {
  const int64_t nibbles = unpacked_bytes(k) + factor_bytes<IntMma<CodePacking::unpacked_nibbles>>(k);
  return nibbles > six_bits_unpacked(k) ? nibbles : six_bits_unpacked(k);
}

}  // namespace
}  // namespace forearm
