// Attention over the paged cache: tiles of query rows against pairs of blocks, 64 keys, with an online softmax (Milakov
// and Gimelshein 2018, arXiv:1805.02867; in tiles: Dao et al. 2022, arXiv:2205.14135).
//
// A row is one query head of one token; the heads that share a kv head and consecutive tokens fill tiles, all of which
// go over a pair of blocks before the next pair: the pair is read, and dequantized, once for up to 96 rows. Scores and
// weighted values come from the steps that multiply weights. A row's state changes only at blocks of which it sees a
// key, and by its own scores alone: the same bits whichever rows share its tile. Weights of keys it does not see are
// exact zeros.
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/attention/attention_amx.h"
#include "kernels/ops/attention/attention_tile.h"
#include "kernels/ops/attention/kv_quantized.h"
#include "kernels/ops/attention/latent_values.h"
#include "kernels/ops/attention/online_softmax.h"
#include "kernels/ops/borrow.h"
#include "kernels/ops/with_dtype.h"

namespace forearm {
namespace {

// Keys or values of a pair of blocks, in the form that tiles multiply.
struct BlockPair {
  const char* data[2];  // packed, of a float dtype; the second is null beyond the last block
  const char* next[2];  // what to ask the memory for meanwhile, or null
};

// The offset of the task's head in the block that holds `key`.
inline int64_t block_offset(const AttendTask& task, int64_t key) {
  return task.blocks[key / kBlockTokens] * task.cache.block_bytes + task.kv_head * task.cache.head_bytes;
}

// The offset of one of the first two blocks of the task that follows; without one `otherwise`.
inline int64_t next_offset(const AttendTask& task, int i, int64_t otherwise) {
  if (i >= task.next_count) return otherwise;
  return task.next_blocks[i] * task.cache.block_bytes + task.next_kv_head * task.cache.head_bytes;
}

// Dequantizes a block into `to`, and prefetches as many bytes of `next` meanwhile.
template <DType C>
inline void dequantize_block(const char* codes, const char* next, int64_t count, char* to) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < count; at += kLine) {
    __builtin_prefetch(next + at, 0, 2);
    dequantize_kv<C>(reinterpret_cast<const uint8_t*>(codes) + at, kLine, to + at * dtype_bytes(kWide));
  }
}

// The Mma that multiplies a block of C: quantized, or dequantized to kWide.
template <DType C, bool kInRegisters>
using BlockMma = Mma<is_float(C) || kInRegisters ? C : kWide>;

// One side's pair of blocks that begins with `key`. Blocks are anywhere in memory, so the hardware does not prefetch
// the next ones: they are prefetched line by line while these are read.
template <DType C, bool kInRegisters>
inline BlockPair pair_at(const AttendTask& task, const char* side, int64_t key, int64_t end, char* wide) {
  const int64_t elements = kBlockTokens * task.cache.head_dim;
  BlockPair pair{};
  for (int i = 0; i < 2; ++i) {
    const int64_t first = key + i * kBlockTokens, later = first + kPairKeys;
    if (first >= end) break;
    const char* block = side + block_offset(task, first);
    const char* next = later < end ? side + block_offset(task, later) : side + next_offset(task, i, block - side);
    if constexpr (is_float(C) || kInRegisters) {
      pair.data[i] = block;
      pair.next[i] = next;
    } else {
      char* to = wide + i * elements * dtype_bytes(kWide);
      dequantize_block<C>(block, next, elements, to);
      pair.data[i] = to;
    }
  }
  return pair;
}

inline void fetch_scales(const AttendTask& task, int64_t at) {
  for (int64_t line = 0; line < kBlockTokens * 4; line += 64) {
    __builtin_prefetch(task.cache.keys + at + line);
    if (!task.cache.latent) __builtin_prefetch(task.cache.values + at + line);
  }
}

inline PairScales scales_at(const AttendTask& task, int64_t key, int64_t end) {
  PairScales scales{};
  if (!has_scales(task.cache.dtype)) return scales;
  const int64_t codes = kBlockTokens * task.cache.head_dim;
  for (int i = 0; i < 2 && key + i * kBlockTokens < end; ++i) {
    const int64_t at = block_offset(task, key + i * kBlockTokens) + codes, later = key + i * kBlockTokens + kPairKeys;
    if (later < end) fetch_scales(task, block_offset(task, later) + codes);
    scales.keys[i] = reinterpret_cast<const float*>(task.cache.keys + at);
    scales.values[i] = task.cache.latent ? scales.keys[i] : reinterpret_cast<const float*>(task.cache.values + at);
  }
  return scales;
}

// The most rows of a tile of attention.
template <typename Mma>
constexpr int64_t most_rows() {
  static_assert(Mma::kUnits * Mma::kRows <= kMaxTileRows && Mma::kUnits * Mma::kRows >= 4);
  return kHasTiles<Mma> ? kTileRows : Mma::kUnits * Mma::kRows;
}

// Not inlined: attention in all its forms and index_scores share a copy.
template <typename Mma>
__attribute__((noinline)) void score_keys(const AttendTile& t, const BlockPair& keys, int64_t first_key) {
  const int64_t dim = t.q.stride, steps = dim / Mma::kQuantum;
  if constexpr (kHasTiles<Mma>) {
    const bool low = rows_that_see(t, first_key), high = rows_that_see(t, first_key + kBlockTokens);
    if (low || high) score_keys_amx<Mma>(t, keys.data, keys.next, low, high);
    return;
  }
  for (int i = 0; i < 2; ++i) {
    if (!rows_that_see(t, first_key + i * kBlockTokens)) continue;
    const TileWalk walk{static_cast<const char*>(t.q.data),
                        dim * kUnitBytes<Mma>,
                        {keys.data[i], nullptr},
                        {keys.next[i], nullptr},
                        steps,
                        steps * Mma::kStepBytes};
    block_product<Mma>(walk, t.units, kBlockTokens / kPanel, StoreScores{t.scores + i * kBlockTokens});
  }
}

// Rows that see only one block of a pair multiply that one alone: the other may hold values that are not finite.
template <typename Mma>
__attribute__((noinline)) void weigh_values(const AttendTile& t, const BlockPair& values, int64_t first_key) {
  const uint32_t low = rows_that_see(t, first_key), high = rows_that_see(t, first_key + kBlockTokens);
  const int64_t dim = t.value_dim, steps = kBlockTokens / Mma::kQuantum;
  const char* weights = static_cast<const char*>(t.weights.data);
  const auto add = [&](uint32_t rows, int first, bool two) {
    if (!rows) return;
    if constexpr (kHasTiles<Mma>) return weigh_values_amx<Mma>(t, values.data, values.next, first, two ? 2 : 1, rows);
    const TileWalk walk{weights + first * kBlockTokens * kUnitBytes<Mma>,
                        kPairKeys * kUnitBytes<Mma>,
                        {values.data[first], two ? values.data[1] : nullptr},
                        {values.next[first], two ? values.next[1] : nullptr},
                        steps,
                        steps * Mma::kStepBytes};
    block_product<Mma>(walk, t.units, dim / kPanel, AddValues{t.values, dim, t.before, rows});
  };
  add(low & high, 0, true);
  add(low & ~high, 0, false);
  add(high & ~low, 1, false);
}

template <DType C, bool kInRegisters>
inline void attend_chunk(AttendRows& all, int64_t chunk) {
  constexpr DType K = key_dtype(C);
  using Multiply = BlockMma<C, kInRegisters>;
  const AttendTask& task = *all.task;
  const AttendTile &first = all.tiles[0], &last = all.tiles[all.count - 1];
  clear_chunk(all);
  int64_t begin = chunk * kChunkTokens, end = begin + kChunkTokens;
  if (begin < first.begin[0]) begin = first.begin[0] / kPairKeys * kPairKeys;
  if (end > last.end[last.rows - 1]) end = last.end[last.rows - 1];
  for (int64_t key = begin; key < end; key += kPairKeys) {
    const PairScales scales = scales_at(task, key, end);
    BlockPair keys = pair_at<K, kInRegisters>(task, task.cache.keys, key, end, all.wide);
    for (int64_t i = 0; i < all.count; ++i) {
      score_keys<BlockMma<K, kInRegisters>>(all.tiles[i], keys, key);
      softmax_weights<Multiply::kForm>(all.tiles[i], key, scales);
      keys.next[0] = keys.next[1] = nullptr;  // once is enough
    }
    BlockPair values{};
    if (kInRegisters || !task.cache.latent) {
      values = pair_at<C, kInRegisters>(task, task.cache.values, key, end, all.wide);
    } else {
      values_of_keys<Multiply>(task.cache, keys.data, all.turned, values.data);
    }
    for (int64_t i = 0; i < all.count; ++i) {
      weigh_values<Multiply>(all.tiles[i], values, key);
      values.next[0] = values.next[1] = nullptr;
    }
  }
}

inline void keep_chunk(const AttendTask& task, AttendTile& t) {
  const int64_t dim = t.value_dim;
  for (int64_t r = 0; r < t.rows; ++r) {
    const RowState state{t.max[r], reduce_add(load(t.sums + r * 16)), t.values + r * dim};
    if (!task.partials) {
      fold(t.total[r], state, dim);
      continue;
    }
    float* partial = task.partials + (t.first + r) * (2 + dim);
    partial[0] = state.max;
    partial[1] = state.sum;
    for (int64_t d = 0; d < dim; d += 16) store(partial + 2 + d, load(state.values + d));
  }
}

template <DType C>
inline void attend_rows(const AttendTask& task, int64_t first, int64_t rows) {
  using Multiply = BlockMma<C, false>;
  AttendRows all;
  all.task = &task;
  fetch_queries(task, first, rows);
  lay_out(all, Multiply::kForm, first, rows, most_rows<Multiply>(), Multiply::kRows);
  for (int64_t i = 0; i < all.count; ++i) gather_queries(task, all.tiles[i], Multiply::kRows);
  for (int64_t chunk = task.chunk_begin; chunk < task.chunk_end; ++chunk) {
    if constexpr (kTakesCodes<C> && !kHasTiles<Multiply>) {
      // A single tile dequantizes in registers; several share values that are dequantized once.
      if (all.count == 1 && all.tiles[0].units <= Mma<C>::kUnits && !task.cache.latent) {
        attend_chunk<C, true>(all, chunk);
      } else {
        attend_chunk<C, false>(all, chunk);
      }
    } else {
      attend_chunk<C, false>(all, chunk);
    }
    for (int64_t i = 0; i < all.count; ++i) keep_chunk(task, all.tiles[i]);
  }
  if (task.partials) return;
  for (int64_t i = 0; i < all.count; ++i) {
    const AttendTile& t = all.tiles[i];
    for (int64_t r = 0; r < t.rows; ++r) write_row(task, token_of(task, t, r), head_of(task, t, r), t.total[r]);
  }
}

template <DType C>
inline void attend_parts(const AttendTask& task) {
  constexpr int64_t most = most_rows<BlockMma<C, false>>(), together = kMostRows / most * most;
  const int64_t rows = (task.token_end - task.token_begin) * task.group;
  const int64_t parts = (rows + together - 1) / together;
  for (int64_t part = 0; part < parts; ++part) {  // of even height, rather than a low last one
    const int64_t first = rows * part / parts;
    attend_rows<C>(task, first, rows * (part + 1) / parts - first);
  }
}

template <DType C>
inline void attend_all(const AttendTask& task) {
  using Multiply = BlockMma<C, false>;
  if constexpr (kHasTiles<Multiply>) {
    if (task.cache.head_dim % kTileHalves != 0) return Multiply::kWithoutTiles.attend(task);
    const int64_t rows = (task.token_end - task.token_begin) * task.group;
    const typename Multiply::Tiles tiles(static_cast<int>(rows < kTileRows ? rows : kTileRows), false);
    return attend_parts<C>(task);
  }
  attend_parts<C>(task);
}

inline void attend(const AttendTask& task) {
  with_dtype(task.cache.dtype, [&task]<DType C>() {
    if constexpr (number_format(C).in_cache) {
      if constexpr (kBorrowsCache<C>) {
        kCacheLender<C>->attend(task);
      } else {
        attend_all<C>(task);
      }
    }
  });
}

inline void merge(const MergeTask& m) {
  const AttendTask& task = m.attend;
  const int64_t dim = task.cache.value_dim();
  for (int64_t row = 0; row < (task.token_end - task.token_begin) * task.group; ++row) {
    RowState total{kNothing, 0.0f, static_cast<float*>(task.scratch)};
    clear(total.values, dim);
    for (int64_t chunk = 0; chunk < m.chunks; ++chunk) {
      float* partial = task.partials + chunk * m.chunk_stride + row * (2 + dim);
      fold(total, {partial[0], partial[1], partial + 2}, dim);
    }
    write_row(task, task.token_begin + row / task.group, task.kv_head * task.group + row % task.group, total);
  }
}

}  // namespace
}  // namespace forearm
