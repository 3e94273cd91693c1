// bf16 by AMX tile registers.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/gemm_amx.h"

namespace forearm {
namespace {

template <typename Bf16>
struct Bf16Amx {
  using Mma = Bf16;
  static constexpr int64_t kPackedTile = kTileBytes;

  const GemmTask& task;
  int64_t steps = task.w.k / kTileHalves, panel_bytes = task.w.k * kPanel * 2;

  template <bool kTwo, int Panels, bool kStream, typename EachStep>
  void accumulate(const AmxBlock& block, const char* w, const EachStep& each_step, float* sums) const {
    const int64_t stride = task.a.stride * 2;
    const char* a = static_cast<const char*>(task.a.data) + block.rows.begin * stride;
    accumulate_amx<Mma, kTwo, Panels, kStream>({a, stride, block.rows.second - block.rows.begin}, steps, sums, false,
                                               packed_tiles(w, panel_bytes), each_step);
  }
};

// Tiles multiply wherever k is of whole steps, however few rows there are, because the order in which sums are added
// follows from the weight's shape alone.
template <typename Mma>
inline void gemm_bf16_amx(const GemmTask& task) {
  if (task.w.k % kTileHalves != 0) return Mma::kWithoutTiles.gemm(task);
  gemm_amx(Bf16Amx<Mma>{task});
}

}  // namespace
}  // namespace forearm
