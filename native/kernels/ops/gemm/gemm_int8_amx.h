// int8, int4 and fp4 by AMX tile registers: the sums of a group leave them as int32 and are scaled as gemm_int8.h does
// it, so that both give the same bits.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/gemm_amx.h"
#include "kernels/ops/gemm/gemm_int8.h"
#include "kernels/ops/gemm/scales.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

template <CodePacking kFormat>
struct Int8Amx {
  using Mma = IntMma<kFormat>;
  static constexpr int64_t kPackedTile = kTileBytes / (in_nibbles(kFormat) ? 2 : 1);

  const GemmTask& task;
  int64_t steps = task.w.k / kTileStep, panel_bytes = steps * kPackedTile;
  int64_t group_steps = task.w.group < task.w.k ? task.w.group / kTileStep : steps;
  int64_t groups = groups_of(task.w.k, task.w.group);

  // 4-bit codes are unpacked by the first block of rows, step by step: to the scratch, where the other blocks find
  // them (two panels, as six_bits_unpacked has room for), or, where there are none, into two buffers by turns, since
  // the last step's may still be read.
  template <bool kTwo, int Panels, bool kStream, typename EachStep>
  void accumulate(const AmxBlock& block, const char* w, const EachStep& each_step, float* sums) const {
    if constexpr (in_nibbles(kFormat)) {
      char* kept = block.part.tiles > 1 ? static_cast<char*>(task.scratch) : nullptr;
      if (block.part.number > 0)
        return accumulate_groups<kTwo, Panels, kStream>(block, packed_tiles(kept, 2 * panel_bytes), each_step, sums);
      alignas(64) char buffers[2][Panels * kTileBytes];
      const int64_t apart = kept ? 2 * panel_bytes : kTileBytes;
      const auto unpacked = [&](int64_t s, int p) -> const char* {
        char* to = kept ? kept + s * kTileBytes : buffers[s & 1];
        if (p > 0) return to + p * apart;
        for (int i = 0; i < Panels; ++i) Mma::unpack_tile(w + s * kPackedTile + i * panel_bytes, to + i * apart);
        return to;
      };
      accumulate_groups<kTwo, Panels, kStream>(block, unpacked, each_step, sums);
    } else {
      accumulate_groups<kTwo, Panels, kStream>(block, packed_tiles(w, panel_bytes), each_step, sums);
    }
  }

  template <bool kTwo, int Panels, bool kStream, typename Tile, typename EachStep>
  void accumulate_groups(const AmxBlock& block, const Tile& tile, const EachStep& each_step, float* acc) const {
    alignas(64) int32_t sums[kPairFloats];
    const RowPair& rows = block.rows;
    for (int64_t i = 0; i < (rows.end - rows.begin) * Panels * kPanel; i += kPanel) store(acc + i, zero());
    const char* first = static_cast<const char*>(task.a.data) + rows.begin * task.a.stride;
    TileOperand a = {first, task.a.stride, rows.second - rows.begin};
    for (int64_t group = 0, begin = 0; group < groups; ++group, begin += group_steps) {
      const int64_t count = steps - begin < group_steps ? steps - begin : group_steps;
      // Beside the next group's products: int4 of 32 and 512 rows is 10 and 7 % faster than if each waited for its own.
      const auto fold_last = [&] {
        if (group > 0) add_group<Panels>(block, group - 1, sums, acc);
      };
      const auto tile_of_group = [&](int64_t s, int p) { return tile(begin + s, p); };
      accumulate_amx<Mma, kTwo, Panels, kStream>(a, count, sums, false, tile_of_group, each_step, fold_last);
      a.data += count * kTileStep;
    }
    add_group<Panels>(block, groups - 1, sums, acc);
  }

  template <int Panels>
  void add_group(const AmxBlock& block, int64_t group, const int32_t* sums, float* acc) const {
    block.digits == 2 ? add_digits_of<Panels>(block, group, sums, acc) : fold_group<Panels>(block, group, sums, acc);
  }

  // As fold_group, of rows of two digits. A call: the code stands once for each number of panels.
  template <int Panels>
  __attribute__((noinline)) void add_digits_of(const AmxBlock& block, int64_t group, const int32_t* sums,
                                               float* acc) const {
    F16 s[Panels], o[Panels];
    const bool offsets = has_offsets(task.w);
    for (int p = 0; p < Panels; ++p) {
      const int64_t at = ((block.panel + p) * groups + group) * kPanel;
      s[p] = load_scales(task.w, at);
      o[p] = offsets ? load_offsets(task.w, at, s[p]) : s[p];
    }
    const int32_t* a_sums = task.a.sums + block.rows.begin * groups + group;
    const float* a_scales = task.a.scales + block.rows.begin * groups + group;
    constexpr int64_t kWidth = Panels * kPanel;
    for (int64_t r = block.rows.begin; r < block.rows.end; r += 2, a_sums += 2 * groups, a_scales += 2 * groups) {
      UNROLL(4)
      for (int p = 0; p < Panels; ++p, sums += kPanel, acc += kPanel) {
        const F16 high = Mma::template row<0>(Mma::sums_of(sums, a_sums));
        const F16 low = Mma::template row<0>(Mma::sums_of(sums + kWidth, a_sums + groups));
        store(acc, add_digits(load(acc), high, low, a_sums, a_scales, groups, s[p], offsets ? &o[p] : nullptr));
      }
      sums += kWidth;
    }
  }

  // acc += the group's sums times the scales of rows and columns, plus the columns' offsets.
  template <int Panels>
  void fold_group(const AmxBlock& block, int64_t group, const int32_t* sums, float* acc) const {
    typename Mma::Scales s[Panels], o[Panels];
    const bool offsets = has_offsets(task.w);
    for (int p = 0; p < Panels; ++p) {
      const int64_t at = ((block.panel + p) * groups + group) * kPanel;
      const F16 scales = load_scales(task.w, at);
      s[p] = Mma::scales(scales);
      o[p] = offsets ? Mma::scales(load_offsets(task.w, at, scales)) : s[p];
    }
    const int32_t* a_sums = task.a.sums + block.rows.begin * groups + group;
    const float* a_scales = task.a.scales + block.rows.begin * groups + group;
    for (int64_t r = block.rows.begin; r < block.rows.end; ++r, a_sums += groups, a_scales += groups) {
      UNROLL(4)
      for (int p = 0; p < Panels; ++p, sums += kPanel, acc += kPanel) {
        Mma::fold(Mma::sums_of(sums, a_sums), a_scales, groups, s[p], acc);
        if (offsets) Mma::fold_offsets(a_sums, a_scales, groups, o[p], acc);
      }
    }
  }
};

// Tiles multiply where rows are enough and groups are of whole steps.
template <CodePacking kFormat>
inline void gemm_int8_amx(const GemmTask& task) {
  using Mma = IntMma<kFormat>;
  const bool whole = task.w.k % kTileStep == 0 && (task.w.group >= task.w.k || task.w.group % kTileStep == 0);
  const int64_t rows = (task.row_end - task.row_begin) * digits_of(task.a.form);
  if (has_six_bits(task.w.dtype) || !whole || rows < Mma::kFewestRows) return Mma::kWithoutTiles.gemm(task);
  gemm_amx(Int8Amx<kFormat>{task});
}

template <typename Bytes = IntMma<CodePacking::bytes>>
inline void gemm_quantized(const GemmTask& task) {
  if constexpr (kHasTiles<Bytes>) {
    const CodePacking packing = packing_of(task.w.dtype);
    if (packing == CodePacking::e2m1) return gemm_int8_amx<CodePacking::e2m1>(task);
    if (packing == CodePacking::nibbles) return gemm_int8_amx<CodePacking::nibbles>(task);
    gemm_int8_amx<CodePacking::bytes>(task);
  } else {
    gemm_int8(task);
  }
}

}  // namespace
}  // namespace forearm
