// Attention to chosen keys (DeepSeek-AI 2025, arXiv:2512.02556): the scores that keys are chosen by, and the packing of
// those that were chosen.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/ops/gemm/gemm.h"

namespace forearm {
namespace {

// Copies a key, whose numbers lie side by side, to its column of a panel, a unit at a time; null: zeros. A function
// of its own, whose loop is not unrolled: inlined, gather_keys had 5.5 kB in each tier, and the wheel has a limit.
template <typename Unit>
__attribute__((noinline)) void scatter_units(const char* from, int64_t bytes, char* to) {
  UNROLL(1)
  for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(sizeof(Unit))) {
    Unit unit = 0;
    if (from) __builtin_memcpy(&unit, from + at, sizeof unit);
    __builtin_memcpy(to + at * kPanel, &unit, sizeof unit);
  }
}

inline void scatter_key_units(int64_t unit, const char* from, int64_t bytes, char* to) {
  if (unit == 1) return scatter_units<uint8_t>(from, bytes, to);
  if (unit == 2) return scatter_units<uint16_t>(from, bytes, to);
  unit == 4 ? scatter_units<uint32_t>(from, bytes, to) : scatter_units<uint64_t>(from, bytes, to);
}

inline void gather_keys(const GatherTask& t) {
  const DType dtype = key_dtype(t.from.dtype);
  const int64_t width = is_float(dtype) ? dtype_bytes(dtype) : 1, bytes = t.from.head_dim * width;
  const int64_t unit = mma_layout(is_float(dtype) ? dtype : kWide).quantum * width;
  const int64_t padded = (t.end + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  const auto address = [&](int64_t key) {
    const int64_t token = t.chosen ? t.chosen[key] : key;
    return t.from.keys + t.blocks[token / kBlockTokens] * t.from.block_bytes + t.kv_head * t.from.head_bytes +
           token % kBlockTokens * bytes;
  };
  for (int64_t i = t.begin; i < padded; ++i) {
    const int64_t column = i % kBlockTokens;
    char* block = t.to.keys + i / kBlockTokens * t.to.block_bytes;
    char* to = block + column / kPanel * kPanel * bytes + column % kPanel * unit;
    if (i >= t.end) {
      scatter_key_units(unit, nullptr, bytes, to);
      if (has_scales(dtype)) reinterpret_cast<float*>(block + kBlockTokens * bytes)[column] = 0.0f;
      continue;
    }
    const char* from = address(i);
    if (i + 1 < t.end) {  // the next key is anywhere in memory
      const char* next = address(i + 1);
      for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(next + line);
    }
    scatter_key_units(unit, from, bytes, to);
    if (!has_scales(dtype)) continue;
    const int64_t token = (t.chosen ? t.chosen[i] : i) % kBlockTokens;
    const char* codes = from - token * bytes;
    reinterpret_cast<float*>(block + kBlockTokens * bytes)[column] =
        reinterpret_cast<const float*>(codes + t.from.block_keys * bytes)[token];
  }
}

// Lays out `rows` heads from `first` on in tiles of at most `most`, as queries of attention that see all of the task's
// keys. One function for all dtypes.
__attribute__((noinline)) inline void lay_out_heads(const IndexTask& task, int64_t first, int64_t rows, int64_t most,
                                                    int64_t unit_rows, Form form, AttendRows& all) {
  lay_out(all, form, first, rows, most, unit_rows);
  for (int64_t i = 0; i < all.count; ++i) {
    AttendTile& t = all.tiles[i];
    clear(static_cast<float*>(t.q.data), t.units * unit_rows * task.cache.head_dim);
    for (int64_t r = 0; r < t.rows; ++r) {
      t.begin[r] = task.begin;
      t.end[r] = task.end;
      const float* from = task.q + (t.first + r) * task.head_dim;
      for_columns(task.head_dim, [&](int64_t column, int64_t lanes) {
        store_operand(t.q, r, column, load_lanes(from + column, lanes), lanes);
      });
    }
  }
}

// Adds the scores of a tile's heads and a pair of blocks.
__attribute__((noinline)) inline void add_head_scores(const IndexTask& task, const AttendTile& t, float* scores) {
  for (int64_t lane = 0; lane < kPairKeys; lane += 16) {
    F16 sum = load(scores + lane);
    for (int64_t r = 0; r < t.rows; ++r)
      sum = fma(broadcast(task.weights[t.first + r]), max(load(t.scores + r * kPairKeys + lane), broadcast(task.least)),
                sum);
    store(scores + lane, sum);
  }
}

// Multiplies the scores of a pair of blocks with the scales of its keys, of blocks that have any.
__attribute__((noinline)) inline void scale_scores(const PairScales& scales, float* scores) {
  for (int64_t i = 0; i < kPairKeys / 16 && scales.keys[i / 2]; ++i)
    store(scores + 16 * i, mul(load(scores + 16 * i), load(scales.keys[i / 2] + i % 2 * 16)));
}

template <DType K>
__attribute__((noinline)) void score_all_keys(const IndexTask& task) {
  using Multiply = BlockMma<K, false>;
  AttendTask keys{};
  keys.cache = task.cache;
  keys.blocks = task.blocks;
  keys.group = task.heads;
  keys.scratch = task.scratch;
  const int64_t most = most_rows<Multiply>(), together = kMostRows / most * most;
  clear(task.scores + task.begin, (task.end - task.begin + kPairKeys - 1) / kPairKeys * kPairKeys);
  AttendRows all;
  all.task = &keys;
  for (int64_t first = 0; first < task.heads; first += together) {
    const int64_t left = task.heads - first, rows = left < together ? left : together;
    lay_out_heads(task, first, rows, most, Multiply::kRows, Multiply::kForm, all);
    for (int64_t key = task.begin; key < task.end; key += kPairKeys) {
      BlockPair pair = pair_at<K, false>(keys, task.cache.keys, key, task.end, all.wide);
      for (int64_t i = 0; i < all.count; ++i) {
        score_keys<Multiply>(all.tiles[i], pair, key);
        add_head_scores(task, all.tiles[i], task.scores + key);
        pair.next[0] = pair.next[1] = nullptr;  // once is enough
      }
    }
  }
  for (int64_t key = task.begin; has_scales(K) && key < task.end; key += kPairKeys)
    scale_scores(scales_at(keys, key, task.end), task.scores + key);
}

inline void index_scores(const IndexTask& task) {
  with_dtype(task.cache.dtype, [&task]<DType C>() {
    if constexpr (number_format(C).in_cache) {
      using Multiply = BlockMma<key_dtype(C), false>;
      if constexpr (kBorrowsCache<C>) {
        kCacheLender<C>->index_scores(task);
      } else if constexpr (kHasTiles<Multiply>) {
        if (task.cache.head_dim % kTileHalves != 0) return Multiply::kWithoutTiles.index_scores(task);
        const typename Multiply::Tiles tiles(static_cast<int>(task.heads < kTileRows ? task.heads : kTileRows), false);
        score_all_keys<key_dtype(C)>(task);
      } else {
        score_all_keys<key_dtype(C)>(task);
      }
    }
  });
}

}  // namespace
}  // namespace forearm
