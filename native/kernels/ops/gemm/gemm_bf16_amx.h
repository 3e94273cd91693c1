// Floats of 16 bits by tile registers.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/amx_tiles.h"

namespace forearm {
namespace {

template <typename Mma>
class HalvesByTiles {
 public:
  explicit HalvesByTiles(const GemmTask& task)
      : task_(task), steps_(task.w.k / kTileHalves), panel_bytes_(task.w.k * kPanel * 2) {}

  void begin(int64_t panel) { w_ = static_cast<const char*>(task_.w.data) + panel * panel_bytes_; }

  int64_t steps() const { return steps_; }

  template <bool kTwo, int Panels>
  void of(const TileBlock& block, float* sums, Finishing& last) {
    const int64_t stride = task_.a.stride * 2;
    const char* a = static_cast<const char*>(task_.a.data) + block.rows.begin * stride;
    const TileOperand rows = {a, stride, block.rows.second - block.rows.begin};
    PackedTiles<Panels> w(w_, panel_bytes_);
    if (block.part.tiles == 1) {
      Ahead<true, Panels, kTileOfW> ahead(w_, panel_bytes_, {});
      AndFinish<decltype(ahead)> both{ahead, last};
      multiply_steps<Mma, kTwo, Panels>(rows, w, both, steps_, sums);
    } else {
      TileAhead ahead(task_, block, steps_, w_, Panels * panel_bytes_);
      AndFinish<TileAhead> both{ahead, last};
      multiply_steps<Mma, kTwo, Panels>(rows, w, both, steps_, sums);
    }
  }

 private:
  const GemmTask& task_;
  int64_t steps_, panel_bytes_;
  const char* w_ = nullptr;
};

// Whether tiles multiply it. Which order sums have follows from the weight's shape alone: they do so however few rows
// there are, of a k of whole steps.
template <typename Mma>
inline bool multiply_by_tiles(const GemmTask& task) {
  if constexpr (kHasTiles<Mma>) {
    if (task.w.k % kTileHalves != 0) return false;
    HalvesByTiles<Mma> multiply(task);
    multiply_tiles<typename Mma::Tiles>(task, multiply);
    return true;
  }
  return false;
}

}  // namespace
}  // namespace forearm
