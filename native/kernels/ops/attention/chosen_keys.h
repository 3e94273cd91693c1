// Attention to chosen keys (DeepSeek-AI 2025, arXiv:2512.02556): the scores that keys are chosen by, and the packing of
// those that were chosen.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/ops/gemm/gemm.h"

namespace forearm {
namespace {

// Copies a key, whose numbers lie side by side, to its column of a panel, `unit` bytes at a time.
template <int64_t kUnit>
inline void scatter_units(const char* from, int64_t bytes, char* to) {
  for (int64_t at = 0; at < bytes; at += kUnit) __builtin_memcpy(to + at * kPanel, from + at, kUnit);
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
      for (int64_t at = 0; at < bytes; at += unit) __builtin_memset(to + at * kPanel, 0, static_cast<uint64_t>(unit));
      if (has_scales(dtype)) reinterpret_cast<float*>(block + kBlockTokens * bytes)[column] = 0.0f;
      continue;
    }
    const char* from = address(i);
    if (i + 1 < t.end) {  // the next key is anywhere in memory
      const char* next = address(i + 1);
      for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(next + line);
    }
    switch (unit) {
      case 1:
        scatter_units<1>(from, bytes, to);
        break;
      case 2:
        scatter_units<2>(from, bytes, to);
        break;
      case 4:
        scatter_units<4>(from, bytes, to);
        break;
      default:
        scatter_units<8>(from, bytes, to);
    }
    if (!has_scales(dtype)) continue;
    const int64_t token = (t.chosen ? t.chosen[i] : i) % kBlockTokens;
    const char* codes = from - token * bytes;
    reinterpret_cast<float*>(block + kBlockTokens * bytes)[column] =
        reinterpret_cast<const float*>(codes + kBlockTokens * bytes)[token];
  }
}

// Lays out `rows` heads from `first` on, as queries of attention that see all of the task's keys.
template <typename Multiply>
inline void lay_out_heads(const IndexTask& task, const AttendTask& keys, int64_t first, int64_t rows, AttendRows& all) {
  all.task = &keys;
  lay_out(all, Multiply::kForm, first, rows, most_rows<Multiply>(task.cache.head_dim), Multiply::kRows);
  for (int64_t i = 0; i < all.count; ++i) {
    AttendTile& t = all.tiles[i];
    clear(static_cast<float*>(t.q.data), t.units * Multiply::kRows * task.cache.head_dim);
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
inline void add_head_scores(const float* weights, const AttendTile& t, float* scores) {
  for (int64_t lane = 0; lane < kPairKeys; lane += 16) {
    F16 sum = load(scores + lane);
    for (int64_t r = 0; r < t.rows; ++r)
      sum = fma(broadcast(weights[t.first + r]), max(load(t.scores + r * kPairKeys + lane), zero()), sum);
    store(scores + lane, sum);
  }
}

template <DType K>
inline void score_all_keys(const IndexTask& task) {
  using Multiply = BlockMma<K, false>;
  AttendTask keys{};
  keys.cache = task.cache;
  keys.blocks = task.blocks;
  keys.group = task.heads;
  keys.scratch = task.scratch;
  const int64_t most = most_rows<Multiply>(task.cache.head_dim), together = kMostRows / most * most;
  clear(task.scores + task.begin, (task.end - task.begin + kPairKeys - 1) / kPairKeys * kPairKeys);
  for (int64_t first = 0; first < task.heads; first += together) {
    AttendRows all;
    const int64_t left = task.heads - first;
    lay_out_heads<Multiply>(task, keys, first, left < together ? left : together, all);
    for (int64_t key = task.begin; key < task.end; key += kPairKeys) {
      BlockPair pair = pair_at<K, false>(keys, task.cache.keys, key, task.end, all.wide);
      for (int64_t i = 0; i < all.count; ++i) {
        score_keys<Multiply>(all.tiles[i], pair, key);
        add_head_scores(task.weights, all.tiles[i], task.scores + key);
        pair.next[0] = pair.next[1] = nullptr;  // once is enough
      }
    }
  }
  if (!has_scales(K)) return;
  for (int64_t key = task.begin; key < task.end; key += kPairKeys) {
    const PairScales scales = scales_at(keys, key, task.end);
    for (int64_t i = 0; i < kPairKeys / 16 && scales.keys[i / 2]; ++i) {
      float* at = task.scores + key + 16 * i;
      store(at, mul(load(at), load(scales.keys[i / 2] + i % 2 * 16)));
    }
  }
}

inline void index_scores(const IndexTask& task) {
  with_dtype(task.cache.dtype, [&task]<DType C>() {
    if constexpr (number_format(C).in_cache) {
      using Multiply = BlockMma<key_dtype(C), false>;
      if constexpr (kHasTiles<Multiply>) {
        if (uses_amx<Multiply>(task.cache.head_dim)) {
          const typename Multiply::Tiles tiles(static_cast<int>(task.heads < kTileRows ? task.heads : kTileRows),
                                               false);
          return score_all_keys<key_dtype(C)>(task);
        }
      }
      score_all_keys<key_dtype(C)>(task);
    }
  });
}

}  // namespace
}  // namespace forearm
