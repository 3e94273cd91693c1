// Attention over the paged cache: tiles of query rows against blocks of 32 keys, with an online softmax
// (Milakov and Gimelshein 2018, arXiv:1805.02867; in tiles: Dao et al. 2022, arXiv:2205.14135).
//
// A row is one query head of one token; the heads that share a kv head and consecutive tokens fill a tile, so that a
// block of the cache is read once for all of them. Scores and weighted values come from the tiles that multiply
// weights. A row's state changes only at blocks of which it sees a key, and by its own scores alone: the same bits
// whichever rows share its tile. Weights of keys it does not see are exact zeros.
#pragma once
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/lanes.h"
#include "kernels/ops/operand.h"

namespace forearm {
namespace {

constexpr int kMaxTileRows = 16;  // what is kept of each row, one number each, fits one vector
constexpr float kNothing = -__builtin_inff();

// What a row has gathered over some keys: values are weighted by exp(score - max), sum is that of the weights.
struct RowState {
  float max, sum;
  float* values;  // [padded head_dim]
};

// Rows [first, first + rows) of a task, counted as token * group + head from token_begin.
struct AttendTile {
  const AttendTask& task;
  int64_t first, rows;
  int64_t begin[kMaxTileRows], end[kMaxTileRows];  // keys that each row sees
  // In the scratch of the thread:
  Operand q;        // [rows][head_dim], scaled
  Operand weights;  // [rows][32] of a block
  float* scores;    // [rows][32]
  float* values;    // [rows][head_dim] of a chunk
  float* sums;      // [rows][16]: key j of a block adds to lane j % 16
  float* max;       // [16]
  float* before;    // [16]: max before the block, then exp(max before - max)
  RowState total[kMaxTileRows];
};

inline int64_t attend_scratch_bytes(int64_t head_dim) {
  return (kMaxTileRows * (3 * head_dim + 2 * kBlockTokens + 16) + 2 * 16) * 4;
}

inline int64_t token_of(const AttendTile& t, int64_t row) {
  return t.task.token_begin + (t.first + row) / t.task.group;
}
inline int64_t head_of(const AttendTile& t, int64_t row) {
  return t.task.kv_head * t.task.group + (t.first + row) % t.task.group;
}

inline void clear(float* p, int64_t count) { __builtin_memset(p, 0, static_cast<uint64_t>(count) * 4); }

inline void lay_out_scratch(AttendTile& t, Form form) {
  const int64_t dim = t.task.cache.head_dim;
  float* at = static_cast<float*>(t.task.scratch);
  const auto take = [&](int64_t floats) {
    float* piece = at;
    at += floats;
    return piece;
  };
  t.q = {take(kMaxTileRows * dim), dim, form};
  t.weights = {take(kMaxTileRows * kBlockTokens), kBlockTokens, form};
  t.scores = take(kMaxTileRows * kBlockTokens);
  t.values = take(kMaxTileRows * dim);
  t.sums = take(kMaxTileRows * 16);
  t.max = take(16);
  t.before = take(16);
  float* totals = take(kMaxTileRows * dim);
  clear(totals, kMaxTileRows * dim);
  for (int64_t r = 0; r < kMaxTileRows; ++r) t.total[r] = {kNothing, 0.0f, totals + r * dim};
}

inline void gather_queries(AttendTile& t) {
  const AttendTask& task = t.task;
  const F16 scale = broadcast(task.scale);
  clear(static_cast<float*>(t.q.data), kMaxTileRows * task.cache.head_dim);
  clear(static_cast<float*>(t.weights.data), kMaxTileRows * kBlockTokens);
  for (int64_t r = 0; r < t.rows; ++r) {
    const int64_t token = token_of(t, r), position = task.first_position + token;
    t.end[r] = position + 1;
    t.begin[r] = task.window > 0 && position >= task.window ? position - task.window + 1 : 0;
    const float* from = task.q + token * task.q_stride + head_of(t, r) * task.head_dim;
    for_columns(task.head_dim, [&](int64_t column, int64_t lanes) {
      store_operand(t.q, r, column, mul(load_lanes(from + column, lanes), scale), lanes);
    });
  }
}

inline bool sees(const AttendTile& t, int64_t row, int64_t first_key) {
  return t.begin[row] < first_key + kBlockTokens && t.end[row] > first_key;
}

// Caps and masks the scores of a row and takes their maximum into max[row].
inline void settle_scores(AttendTile& t, int64_t row, int64_t first_key) {
  float* scores = t.scores + row * kBlockTokens;
  F16 low = load(scores), high = load(scores + 16);
  if (t.task.softcap > 0.0f) {
    const F16 cap = broadcast(t.task.softcap), inverse = broadcast(1.0f / t.task.softcap);
    low = mul(cap, tanh(mul(low, inverse)));
    high = mul(cap, tanh(mul(high, inverse)));
  }
  if (t.begin[row] > first_key || t.end[row] < first_key + kBlockTokens) {
    const F16 begin = broadcast(static_cast<float>(t.begin[row] - first_key)), none = broadcast(kNothing);
    const F16 end = broadcast(static_cast<float>(t.end[row] - first_key));
    const F16 key = iota(), later = add(key, broadcast(16.0f));
    low = select(both(less_equal(begin, key), less(key, end)), low, none);
    high = select(both(less_equal(begin, later), less(later, end)), high, none);
  }
  store(scores, low);
  store(scores + 16, high);
  const float best = reduce_max(max(low, high));
  if (best > t.max[row]) t.max[row] = best;
}

// scores -> weights, the sums of the weights, and how much of what came before remains (in `before`).
inline void weigh_scores(AttendTile& t, int64_t first_key) {
  store(t.before, load(t.max));
  for (int64_t r = 0; r < t.rows; ++r) {
    if (sees(t, r, first_key)) settle_scores(t, r, first_key);
  }
  store(t.before, exp(sub(load(t.before), load(t.max))));
  for (int64_t r = 0; r < t.rows; ++r) {
    if (!sees(t, r, first_key)) continue;
    const F16 top = broadcast(t.max[r]);
    const F16 low = exp(sub(load(t.scores + r * kBlockTokens), top));
    const F16 high = exp(sub(load(t.scores + r * kBlockTokens + 16), top));
    store_operand(t.weights, r, 0, low, 16);
    store_operand(t.weights, r, 16, high, 16);
    store(t.sums + r * 16, fma(load(t.sums + r * 16), broadcast(t.before[r]), add(low, high)));
  }
}

// One side of a multiplication: rows of q or of the weights, by a packed block.
template <typename Mma>
inline Walk walk_block(const Operand& a, const char* block, int64_t k) {
  const int64_t steps = k / Mma::kQuantum;
  const int64_t unit_bytes = a.stride * Mma::kRows * (Mma::kForm == Form::f32_rows ? 4 : 2);
  return {static_cast<const char*>(a.data), unit_bytes, block, steps * Mma::kStepBytes, steps};
}

template <typename Mma>
inline void add_values(AttendTile& t, const char* block, int64_t units, int64_t first_key) {
  const int64_t dim = t.task.cache.head_dim, panels = dim / kPanel;
  const int64_t group = Mma::panels(static_cast<int>(units));
  Walk walk = walk_block<Mma>(t.weights, block, kBlockTokens);
  for (int64_t panel = 0; panel < panels; panel += group) {
    const int64_t count = panels - panel < group ? panels - panel : group;
    alignas(64) float products[kTileFloats];
    walk.w = block + panel * walk.panel_bytes;
    multiply_units<Mma>(walk, units, count, products, count * kPanel);
    for (int64_t r = 0; r < t.rows; ++r) {
      if (!sees(t, r, first_key)) continue;
      const F16 remains = broadcast(t.before[r]);
      float* values = t.values + r * dim + panel * kPanel;
      for (int64_t d = 0; d < count * kPanel; d += 16) {
        store(values + d, fma(load(values + d), remains, load(products + r * count * kPanel + d)));
      }
    }
  }
}

// Where the task's head begins in the block that holds `key`.
inline int64_t block_offset(const AttendTask& task, int64_t key) {
  return task.blocks[key / kBlockTokens] * task.cache.block_bytes + task.kv_head * task.cache.head_bytes;
}

// Asks for a head's part of the next block: blocks lie anywhere, so that no prefetcher of the CPU foresees them. Into
// the second-level cache: of the first level, half is in use.
inline void fetch(const char* block, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(block + at, 0, 2);
}

template <typename Mma>
inline void attend_chunk(AttendTile& t, int64_t chunk) {
  const AttendTask& task = t.task;
  const int64_t dim = task.cache.head_dim, units = (t.rows + Mma::kRows - 1) / Mma::kRows;
  clear(t.values, kMaxTileRows * dim);
  clear(t.sums, kMaxTileRows * 16);
  store(t.max, broadcast(kNothing));

  int64_t begin = chunk * kChunkTokens, end = begin + kChunkTokens;
  if (begin < t.begin[0]) begin = t.begin[0] / kBlockTokens * kBlockTokens;
  if (end > t.end[t.rows - 1]) end = t.end[t.rows - 1];
  for (int64_t key = begin; key < end; key += kBlockTokens) {
    const int64_t offset = block_offset(task, key);
    const Walk walk = walk_block<Mma>(t.q, task.cache.keys + offset, dim);
    const int64_t next = key + kBlockTokens < end ? block_offset(task, key + kBlockTokens) : offset;
    fetch(task.cache.keys + next, task.cache.head_bytes);
    multiply_units<Mma>(walk, units, kBlockTokens / kPanel, t.scores, kBlockTokens);
    weigh_scores(t, key);
    fetch(task.cache.values + next, task.cache.head_bytes);
    add_values<Mma>(t, task.cache.values + offset, units, key);
  }
}

inline float first_lane(F16 x) {
  float lanes[16];
  store(lanes, x);
  return lanes[0];
}

// Folds what a chunk gave into the total; a row that saw nothing of the chunk is left as it is.
inline void fold(RowState& total, const RowState& chunk, int64_t dim) {
  if (chunk.max == kNothing) return;
  const float top = total.max > chunk.max ? total.max : chunk.max;
  const F16 old_factor = exp(broadcast(total.max - top)), new_factor = exp(broadcast(chunk.max - top));
  for (int64_t d = 0; d < dim; d += 16) {
    store(total.values + d, fma(load(total.values + d), old_factor, mul(load(chunk.values + d), new_factor)));
  }
  total.sum = fmaf(total.sum, first_lane(old_factor), chunk.sum * first_lane(new_factor));
  total.max = top;
}

// Adds the sink's logit to the denominator, divides and writes the row's columns of `out`.
inline void write_row(const AttendTask& task, int64_t token, int64_t head, const RowState& total) {
  float sum = total.sum, remains = 1.0f;
  if (task.sinks) {
    const float sink = task.sinks[head], top = total.max > sink ? total.max : sink;
    remains = first_lane(exp(broadcast(total.max - top)));
    sum = fmaf(sum, remains, first_lane(exp(broadcast(sink - top))));
  }
  const F16 factor = broadcast(remains / sum);
  for_columns(task.head_dim, [&](int64_t column, int64_t lanes) {
    store_operand(task.out, task.out_row + token, head * task.head_dim + column,
                  mul(load(total.values + column), factor), lanes);
  });
}

inline RowState chunk_row(const AttendTile& t, int64_t row) {
  return {t.max[row], reduce_add(load(t.sums + row * 16)), t.values + row * t.task.cache.head_dim};
}

template <typename Mma>
inline void attend_tile(const AttendTask& task, int64_t first, int64_t rows) {
  AttendTile t{task, first, rows, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  const int64_t dim = task.cache.head_dim;
  lay_out_scratch(t, Mma::kForm);
  gather_queries(t);
  for (int64_t chunk = task.chunk_begin; chunk < task.chunk_end; ++chunk) {
    attend_chunk<Mma>(t, chunk);
    for (int64_t r = 0; r < rows; ++r) {
      const RowState state = chunk_row(t, r);
      if (!task.partials) {
        fold(t.total[r], state, dim);
        continue;
      }
      float* partial = task.partials + (first + r) * (2 + dim);
      partial[0] = state.max;
      partial[1] = state.sum;
      for (int64_t d = 0; d < dim; d += 16) store(partial + 2 + d, load(state.values + d));
    }
  }
  if (task.partials) return;
  for (int64_t r = 0; r < rows; ++r) write_row(task, token_of(t, r), head_of(t, r), t.total[r]);
}

template <typename Mma>
inline void attend_rows(const AttendTask& task) {
  constexpr int64_t kMost = Mma::kUnits * Mma::kRows;
  static_assert(kMost <= kMaxTileRows);
  const int64_t rows = (task.token_end - task.token_begin) * task.group;
  const int64_t tiles = (rows + kMost - 1) / kMost;
  for (int64_t tile = 0; tile < tiles; ++tile) {  // of even height, rather than a low last one
    const int64_t first = rows * tile / tiles;
    attend_tile<Mma>(task, first, rows * (tile + 1) / tiles - first);
  }
}

inline void attend(const AttendTask& task) {
  switch (task.cache.dtype) {
    case DType::f32:
      return attend_rows<Mma<DType::f32>>(task);
    case DType::f16:
      return attend_rows<Mma<DType::f16>>(task);
    case DType::bf16:
      return attend_rows<Mma<DType::bf16>>(task);
    default:
      __builtin_unreachable();  // codes: not yet
  }
}

inline void merge(const MergeTask& m) {
  const AttendTask& task = m.attend;
  const int64_t dim = task.cache.head_dim;
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
