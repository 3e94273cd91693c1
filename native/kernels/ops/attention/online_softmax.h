// The state of attention's rows: queries, running maxima, sums and values, and the softmax over a pair of blocks.
#pragma once
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/lanes.h"
#include "kernels/simd/math.h"
#include "kernels/simd/unroll.h"

namespace forearm {
namespace {

constexpr int kMaxTileRows = 16;   // one number for each row of a tile fits one vector
constexpr int64_t kMostRows = 96;  // that go over a pair of blocks together
constexpr int64_t kPairKeys = 2 * kBlockTokens;
static_assert(kChunkTokens % kPairKeys == 0);
constexpr float kNothing = -__builtin_inff();

// The running state of a row: values weighted by 2^(score - max), and the sum of these weights.
struct RowState {
  float max, sum;
  float* values;  // [value_dim]
};

// Rows [first, first + rows) of a task, counted as token * group + head from token_begin.
struct AttendTile {
  int64_t first, rows, units;
  int64_t begin[kMaxTileRows], end[kMaxTileRows];  // keys that each row sees
  float softcap;
  // The bias of distance 0 for each row's head, the farthest distance that has a value of its own, and the positions.
  const float* bias[kMaxTileRows];  // null: none
  int64_t reach, position[kMaxTileRows];
  // In the scratch of the thread:
  Operand q;        // [rows][head_dim], scaled
  Operand weights;  // [rows][64] of a pair of blocks
  float* scores;    // [rows][64]
  float* values;    // [rows][value_dim] of a chunk
  int64_t value_dim;
  float* sums;  // [rows][16]: key j adds to lane j % 16
  // Of the chunk, and 2^(max before the pair - max); rows beyond the last mean nothing.
  alignas(64) float max[kMaxTileRows], before[kMaxTileRows];
  RowState total[kMaxTileRows];
};

// The tiles that up to kMostRows rows of a task are cut into.
struct AttendRows {
  const AttendTask* task;
  char* wide;    // a pair of blocks, keys or values, widened
  char* turned;  // the values of a pair of latent blocks
  int64_t count;
  AttendTile tiles[kMostRows / 4];
};

// Scales of a pair of blocks, null where there are none.
struct PairScales {
  const float* keys[2];
  const float* values[2];
};

inline int64_t attend_scratch_bytes(int64_t head_dim) {
  const int64_t row = 3 * head_dim + kPairKeys + 16;
  return (2 * kPairKeys * head_dim + kMostRows * row + kMaxTileRows * kPairKeys) * 4;
}

inline int64_t token_of(const AttendTask& task, const AttendTile& t, int64_t row) {
  return task.token_begin + (t.first + row) / task.group;
}
inline int64_t head_of(const AttendTask& task, const AttendTile& t, int64_t row) {
  return task.kv_head * task.group + (t.first + row) % task.group;
}

inline void clear(float* p, int64_t count) { __builtin_memset(p, 0, static_cast<uint64_t>(count) * 4); }

// Cuts `rows` rows from `first` on into tiles of even height, at most `most`, and lays them out in the scratch.
inline void lay_out(AttendRows& all, Form form, int64_t first, int64_t rows, int64_t most, int64_t unit_rows) {
  const AttendTask& task = *all.task;
  const int64_t dim = task.cache.head_dim, value_dim = task.cache.value_dim();
  float* at = static_cast<float*>(task.scratch);
  const auto take = [&](int64_t floats) {
    float* piece = at;
    at += floats;
    return piece;
  };
  all.wide = reinterpret_cast<char*>(take(kPairKeys * dim));
  all.turned = reinterpret_cast<char*>(take(kPairKeys * dim));
  float* scores = take(kMaxTileRows * kPairKeys);
  all.count = (rows + most - 1) / most;
  for (int64_t i = 0; i < all.count; ++i) {
    AttendTile& t = all.tiles[i];
    const int64_t begin = rows * i / all.count, end = rows * (i + 1) / all.count;
    t.first = first + begin;
    t.rows = end - begin;
    t.units = (t.rows + unit_rows - 1) / unit_rows;
    t.softcap = task.softcap;
    const int64_t by_key = task.key_bias.reach > 0 ? task.key_bias.reach : INT32_MAX;
    t.reach = task.key_bias.values ? by_key : task.bias.reach;
    t.q = {take(most * dim), dim, form};
    t.weights = {take(most * kPairKeys), kPairKeys, form};
    t.scores = scores;
    t.values = take(most * value_dim);
    t.value_dim = value_dim;
    t.sums = take(most * 16);
  }
  for (int64_t i = 0; i < all.count; ++i) {  // what is touched but once a chunk
    AttendTile& t = all.tiles[i];
    for (int64_t r = 0; r < t.rows; ++r) t.total[r] = {kNothing, 0.0f, take(value_dim)};
  }
}

// One past the last key that a token at this position sees.
inline int64_t end_of_keys(const AttendTask& task, int64_t position) {
  if (task.keys == 0) return position + 1;
  return task.window > 0 && position + task.window < task.keys ? position + task.window : task.keys;
}

// Prefetches the queries of rows [first, first + rows), which stand a row of all heads apart: no hardware does.
inline void fetch_queries(const AttendTask& task, int64_t first, int64_t rows) {
  for (int64_t r = first; r < first + rows; ++r) {
    const float* from = task.q + (task.token_begin + r / task.group) * task.q_stride;
    from += (task.kv_head * task.group + r % task.group) * task.head_dim;
    for (int64_t d = 0; d < task.head_dim; d += 16) __builtin_prefetch(from + d);
  }
}

inline void gather_queries(const AttendTask& task, AttendTile& t, int64_t unit_rows) {
  const F16 scale = broadcast(task.softcap > 0.0f ? task.scale : task.scale * kLog2E);
  const int64_t dim = task.cache.head_dim, padded = t.units * unit_rows;
  if (t.rows < padded || task.head_dim < dim) {  // else every element is written
    clear(static_cast<float*>(t.q.data), padded * dim);
    clear(static_cast<float*>(t.weights.data), padded * kPairKeys);
  }
  for (int64_t r = 0; r < t.rows; ++r) {
    const int64_t token = token_of(task, t, r), position = task.first_position + token;
    t.position[r] = position;
    t.bias[r] = nullptr;
    if (task.bias.values) t.bias[r] = task.bias.values + head_of(task, t, r) * task.bias.stride() + t.reach + 15;
    if (task.key_bias.values)
      t.bias[r] = task.key_bias.values + (t.first + r) * task.key_bias.stride +
                  (task.key_bias.reach > 0 ? t.reach + 15 : position - task.key_bias.first);
    t.end[r] = end_of_keys(task, position);
    t.begin[r] = task.first_key(position);
    clear(t.total[r].values, t.value_dim);
    const float* from = task.q + token * task.q_stride + head_of(task, t, r) * task.head_dim;
    for_columns(task.head_dim, [&](int64_t column, int64_t lanes) {
      store_operand(t.q, r, column, mul(load_lanes(from + column, lanes), scale), lanes);
    });
  }
}

inline void clear_chunk(AttendRows& all) {
  for (int64_t i = 0; i < all.count; ++i) {
    AttendTile& t = all.tiles[i];
    clear(t.values, t.rows * t.value_dim);
    clear(t.sums, t.rows * 16);
    store(t.max, broadcast(kNothing));
  }
}

inline bool sees(const AttendTile& t, int64_t row, int64_t first_key, int64_t keys) {
  return t.begin[row] < first_key + keys && t.end[row] > first_key;
}

// Bit r: row r sees one of these keys.
inline uint32_t rows_that_see(const AttendTile& t, int64_t first_key, int64_t keys = kBlockTokens) {
  if (t.begin[t.rows - 1] < first_key + keys && t.end[0] > first_key) return (1u << t.rows) - 1u;
  uint32_t rows = 0;
  for (int64_t r = 0; r < t.rows; ++r) rows |= static_cast<uint32_t>(sees(t, r, first_key, keys)) << r;
  return rows;
}

inline float first_lane(F16 x) {
  float lanes[16];
  store(lanes, x);
  return lanes[0];
}

// A row's bias of 16 keys from `first_key` on.
inline F16 bias_of_keys(const AttendTile& t, int64_t row, int64_t first_key) {
  const int64_t distance = first_key - t.position[row], least = -(t.reach + 15);
  return load(t.bias[row] + (distance < least ? least : distance > t.reach ? t.reach : distance));
}

// Applies the scales of quantized keys, the softcap and the bias to scores, and masks keys that a row does not see.
inline void settle_scores(AttendTile& t, uint32_t rows, int64_t first_key, const PairScales& scales) {
  const bool all_wholly = t.begin[t.rows - 1] <= first_key && t.end[0] >= first_key + kPairKeys;
  const bool changed = scales.keys[0] || t.softcap > 0.0f || t.bias[0];
  if (all_wholly && !changed) return;
  const F16 none = broadcast(kNothing), cap = broadcast(t.softcap * kLog2E), by_cap = broadcast(1.0f / t.softcap);
  for (int64_t r = 0; r < t.rows; ++r) {
    const bool partly = t.begin[r] > first_key || t.end[r] < first_key + kPairKeys;
    if (!(rows >> r & 1) || !(partly || changed)) continue;
    const F16 begin = broadcast(static_cast<float>(t.begin[r] - first_key));
    const F16 end = broadcast(static_cast<float>(t.end[r] - first_key));
    for (int i = 0; i < 4; ++i) {
      float* scores = t.scores + r * kPairKeys + 16 * i;
      F16 v = load(scores);
      if (scales.keys[i / 2]) v = mul(v, load(scales.keys[i / 2] + i % 2 * 16));
      if (t.softcap > 0.0f) v = mul(cap, tanh(mul(v, by_cap)));
      if (t.bias[0]) v = fma(bias_of_keys(t, r, first_key + 16 * i), broadcast(kLog2E), v);
      if (partly) {
        const F16 key = add(iota(), broadcast(static_cast<float>(16 * i)));
        v = select(both(less_equal(begin, key), less(key, end)), v, none);
      }
      store(scores, v);
    }
  }
}

// Raises each row's maximum to these scores and sets the factor that rescales its state: exactly 1 where the maximum
// stays. The factors of all rows are computed as one vector, so that no row waits for its own.
inline void raise_max(AttendTile& t, uint32_t rows) {
  const F16 before = load(t.max);
  for (int64_t r = 0; r < t.rows; ++r) {
    const float* s = t.scores + r * kPairKeys;
    const float highest = reduce_max(max(max(load(s), load(s + 16)), max(load(s + 32), load(s + 48))));
    const float top = rows >> r & 1 ? highest : kNothing;
    t.max[r] = top > t.max[r] ? top : t.max[r];  // a NaN hides what is larger
  }
  store(t.before, exp2_of_negative(sub(before, load(t.max))));
}

// weights(i): those of keys 16 i to 16 i + 15 of a pair of blocks. Two registers at once where the tier rounds bf16 in
// pairs.
template <Form form, typename Weights, typename Narrow = Mma<DType::bf16>>
__attribute__((always_inline)) inline void store_weights(const Operand& out, int64_t row, Weights weights) {
  if constexpr (form == Form::bf16_rows && requires { Narrow::kStoresPairs; }) {
    UNROLL(2)
    for (int i = 0; i < 4; i += 2)
      Narrow::store_both(weights(i), weights(i + 1), reinterpret_cast<char*>(half_row(out, row) + 16 * i));
  } else {
    UNROLLED_FOR (i, 4) store_operand(out, row, 16 * i, weights(i), 16);
  }
}

// Turns scores into weights, adds up the weights, and sets the factor for the earlier state (`before`). A template by
// form, not by dtype: all dtypes of a tier share one.
template <Form form>
inline void softmax_weights(AttendTile& t, int64_t first_key, const PairScales& scales) {
  const Operand out{t.weights.data, t.weights.stride, form};
  const uint32_t rows = rows_that_see(t, first_key, kPairKeys);
  settle_scores(t, rows, first_key, scales);
  raise_max(t, rows);
  for (int64_t r = 0; r < t.rows; ++r) {
    if (!(rows >> r & 1)) continue;
    const F16 top = broadcast(t.max[r]);
    F16 w[4];
    UNROLLED_FOR (i, 4) w[i] = exp2_of_negative(sub(load(t.scores + r * kPairKeys + 16 * i), top));
    const F16 sum = add(add(w[0], w[1]), add(w[2], w[3]));
    store(t.sums + r * 16, fma(load(t.sums + r * 16), broadcast(t.before[r]), sum));
    store_weights<form>(out, r, [&](int i) {
      return scales.values[i / 2] ? mul(w[i], load(scales.values[i / 2] + i % 2 * 16)) : w[i];
    });
  }
}

// Folds a chunk's state into the total; a row that sees no key of the chunk is unchanged.
inline void fold(RowState& total, const RowState& chunk, int64_t dim) {
  if (chunk.max == kNothing) return;
  const float top = total.max > chunk.max ? total.max : chunk.max;
  const F16 old_factor = exp2_of_negative(broadcast(total.max - top));
  const F16 new_factor = exp2_of_negative(broadcast(chunk.max - top));
  for (int64_t d = 0; d < dim; d += 16) {
    store(total.values + d, fma(load(total.values + d), old_factor, mul(load(chunk.values + d), new_factor)));
  }
  total.sum = fmaf(total.sum, first_lane(old_factor), chunk.sum * first_lane(new_factor));
  total.max = top;
}

// Returns what results are multiplied with.
inline F16 gate_factor(Gate kind, F16 gate) { return kind == Gate::softplus ? softplus(gate) : sigmoid(gate); }

// Adds the sink's logit to the denominator, divides and writes the row's columns of `out`.
inline void write_row(const AttendTask& task, int64_t token, int64_t head, const RowState& total) {
  float sum = total.sum, remains = 1.0f;
  if (task.sinks) {
    const float sink = task.sinks[head] * kLog2E, top = total.max > sink ? total.max : sink;
    remains = first_lane(exp2_of_negative(broadcast(total.max - top)));
    sum = fmaf(sum, remains, first_lane(exp2_of_negative(broadcast(sink - top))));
  }
  F16 factor = broadcast(remains / sum);
  const float* gate = task.gate ? task.gate + token * task.q_stride + head * task.gates : nullptr;
  if (gate && task.gates == 1) {
    factor = mul(factor, gate_factor(task.gate_kind, broadcast(*gate)));
    gate = nullptr;
  }
  const int64_t own = task.cache.latent ? task.cache.latent : task.cache.value, dim = own ? own : task.head_dim;
  for_columns(dim, [&](int64_t column, int64_t lanes) {
    F16 y = mul(load(total.values + column), factor);
    if (gate) y = mul(y, gate_factor(task.gate_kind, load_lanes(gate + column, lanes)));
    store_operand(task.out, task.out_row + token, head * dim + column, y, lanes);
  });
}

}  // namespace
}  // namespace forearm
