// The table of the tier that includes this: every operation under ops/, with the layouts of the tier's MMA.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/embed.h"
#include "kernels/ops/gemm.h"

namespace forearm {
namespace {

constexpr Kernels table_of(const char* tier) {
  Kernels table{};
  table.tier = tier;
  for (int dtype = 0; dtype < kDTypes; ++dtype) table.layout[dtype] = mma_layout(static_cast<DType>(dtype));
  table.gemm = gemm;
  table.embed = embed;
  return table;
}

}  // namespace
}  // namespace forearm
