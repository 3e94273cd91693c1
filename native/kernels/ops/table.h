// Fills the kernel table of the tier that includes this file: every operation under ops/, with the layouts of the
// tier's MMA.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/ops/attention/chosen_keys.h"
#include "kernels/ops/attention/kv_write.h"
#include "kernels/ops/experts/combine.h"
#include "kernels/ops/experts/route.h"
#include "kernels/ops/gemm/gemm.h"
#include "kernels/ops/load/quantize_activations.h"
#include "kernels/ops/load/quantize_weights.h"
#include "kernels/ops/machine_peak.h"
#include "kernels/ops/rows/embed.h"
#include "kernels/ops/rows/logits.h"
#include "kernels/ops/rows/norm.h"
#include "kernels/ops/rows/rope.h"
#include "kernels/ops/rows/squash.h"
#include "kernels/ops/state/delta_rule.h"
#include "kernels/ops/state/mamba2.h"
#include "kernels/ops/state/rg_lru.h"
#include "kernels/ops/state/rwkv7.h"
#include "kernels/ops/state/selective_scan.h"
#include "kernels/ops/state/short_conv.h"
#include "kernels/ops/state/token_shift.h"

namespace forearm {
namespace {

constexpr Kernels table_of(const char* tier, bool scales_halves = false) {
  Kernels table{};
  table.tier = tier;
  for (int dtype = 0; dtype < kDTypes; ++dtype) table.layout[dtype] = mma_layout(static_cast<DType>(dtype));
  table.wide = kWide;
  table.scales_halves = scales_halves;
  table.gemm = gemm;
  table.gemm_scratch_bytes = gemm_scratch_bytes;
  table.quantize = quantize;
  table.round = round;
  table.embed = embed;
  table.norm = norm;
  table.add_norm = add_norm;
  table.head_norm = head_norm;
  table.rope = rope;
  table.write_kv = write_kv;
  table.attend_scratch_bytes = attend_scratch_bytes;
  table.attend = attend;
  table.merge = merge;
  table.gather_keys = gather_keys;
  table.index_scores = index_scores;
  table.route = route;
  table.combine = combine;
  table.short_conv = short_conv;
  table.mamba2 = mamba2;
  table.selective_scan = selective_scan;
  table.rg_lru = rg_lru;
  table.token_shift = token_shift;
  table.squash = squash;
  table.rwkv7 = rwkv7;
  table.gated_norm = gated_norm;
  table.delta_gates = delta_gates;
  table.delta_rule = delta_rule;
  table.row_max = row_max;
  table.row_maxima = row_maxima;
  table.row_exp_sum = row_exp_sum;
  table.row_collect = row_collect;
  table.read_all = read_all;
  table.multiply_rounds = multiply_rounds;
  return table;
}

}  // namespace
}  // namespace forearm
