#include "model/mixers/block_indexer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "model/mixers/indexer.h"
#include "model/step/multiply.h"
#include "model/step/multiply_heads.h"

namespace forearm {
namespace {

// Keys that a member scores at once: of 128 numbers in bfloat16 512 KiB, which each kv head's query finds in its cache.
constexpr int64_t kScoredKeys = 2048;
// Rows that share the gathering of the means that they are scored with.
constexpr int64_t kScoredRows = 16;
// What is added to the scores of keys that are not seen, instead of -INFINITY: of a pair of blocks without any other
// key all weights are 2^0, and 0 once a score is known that counts.
constexpr float kMasked = -1e30f;

}  // namespace

int64_t BlockIndexer::score_floats(const Config& c, const Limits& limits) {
  const BlockIndexerKind* own = c.block_indexer();
  if (!own || limits.max_model_len <= own->most()) return 0;
  return round_up(own->heads ? limits.max_model_len / own->block : limits.max_model_len, 2 * kBlockTokens);
}

int64_t BlockIndexer::scratch_floats(const Config& c, const Limits& limits) {
  const BlockIndexerKind* own = c.block_indexer();
  if (!own) return 0;
  const int64_t scores = score_floats(c, limits);
  if (!own->heads) return 2 * (scores / own->block + 1);
  size_t layer = 0;
  while (!c.attends(layer)) ++layer;
  const int64_t masked = round_up(c.head_shape(layer).slots * kBlockTokens, 2 * kBlockTokens);
  return scores ? std::max(scores + own->chosen, masked) : 0;  // a copy of scores and the indices, or a mask
}

BlockIndexer::BlockIndexer(const Weights& weights, const KvBlocks& kv, const States& states, Step& step)
    : weights_(weights), kv_(kv), states_(states), step_(step), layers_(step.config.layers.size()) {
  const Config& c = step.config;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto* attention = c.layers[i].mixer_as<AttentionKind>();
    if (!attention || !attention->blocks) continue;
    const BlockIndexerKind& own = *attention->blocks;
    const int64_t columns = BlockIndexColumns(own, c.head_shape(i).kv_heads).end;
    layers_[i] = &weights.linear("layers." + std::to_string(i) + ".index_in", columns, c.hidden);
    head_weights_.assign(static_cast<size_t>(own.heads), 1.0f / std::sqrt(static_cast<float>(own.head_dim)));
  }
  if (!head_weights_.empty())
    std::iota(step.scratch.gathered_blocks, step.scratch.gathered_blocks + kChunkTokens / kBlockTokens, 0);
}

void BlockIndexer::plan() {
  rows_.clear();
  const BlockIndexerKind* own = step_.config.block_indexer();
  if (!own) return;
  const Batch& b = step_.batch();
  for (int64_t s = 0; s < b.sequences; ++s)
    for (int64_t r = b.start[s]; r < b.start[s + 1]; ++r)
      if (b.position[r] >= own->most()) rows_.push_back({r, b.block_start[s]});
}

void BlockIndexer::project(StepWalk& w, size_t layer, const Matrix& before, const Operand& ready) {
  const Linear& in = *layers_[layer];
  const Operand rows = step_.stream_again(w, weights_.norms(layer).input, in.matrix, before, ready);
  step_.multiply(w, in, rows, step_.scratch.index_in);
}

void BlockIndexer::finish(const StepWalk& w, size_t layer) {
  const AttentionKind& k = kind(layer);
  const LayerNorms& norms = weights_.norms(layer);
  const int64_t kv_heads = step_.config.head_shape(layer).kv_heads;
  const int64_t heads = k.blocks->heads ? k.blocks->heads : kv_heads;
  const Range rows = step_.mine(w, w.rows);
  const Operand& in = step_.scratch.index_in;
  float* queries = static_cast<float*>(in.data) + rows.begin * in.stride;
  float* keys = queries + BlockIndexColumns(*k.blocks, kv_heads).key;
  normalize(queries, heads, rows, *k.blocks, norms.index_q);
  rotate(queries, heads, rows, k);
  if (k.blocks->heads) {
    move_sums(w, layer);
    step_.barrier(w);
    return store_means(layer, rows);
  }
  normalize(keys, 1, rows, *k.blocks, norms.index);
  rotate(keys, 1, rows, k);
  step_.kernel.write_kv({kv_.index(layer), keys, nullptr, in.stride, rows.size(), k.blocks->head_dim, 0,
                         step_.scratch.slots + rows.begin});
}

// Adds the step's keys to the sums of the member's channels, token by token; a mean replaces the key of the last one.
void BlockIndexer::move_sums(const StepWalk& w, size_t layer) const {
  const BlockIndexerKind& own = *kind(layer).blocks;
  const Batch& batch = step_.batch();
  const Operand& in = step_.scratch.index_in;
  const Range channels = share(own.head_dim, kPanel, w.member, step_.pool.threads());
  const int64_t column = BlockIndexColumns(own, 0).key + channels.begin, count = channels.size();
  for (int64_t s = 0; s < batch.sequences && count > 0; ++s) {
    float* sum = states_.at(layer, batch.state[s]).tail + channels.begin;
    for (int64_t row = batch.start[s]; row < batch.start[s + 1]; ++row) {
      float* key = floats_at(in, row, column);
      const int64_t place = batch.position[row] % own.block;
      for (int64_t i = 0; i < count; ++i) sum[i] = place ? sum[i] + key[i] : key[i];
      for (int64_t i = 0; i < count && place + 1 == own.block; ++i) key[i] = sum[i] / static_cast<float>(own.block);
    }
  }
}

// A mean has the position of its first token.
void BlockIndexer::store_means(size_t layer, Range rows) const {
  const AttentionKind& k = kind(layer);
  const Rope& rope = step_.config.ropes[static_cast<size_t>(*k.rope)];
  const auto pairs = static_cast<int64_t>(rope.inv_freq.size());
  const Batch& batch = step_.batch();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t end = batch.position[row] + 1;
    if (end % k.blocks->block != 0) continue;
    float* key = floats_at(step_.scratch.index_in, row, BlockIndexColumns(*k.blocks, 0).key);
    normalize(key, 1, {row, row + 1}, *k.blocks, weights_.norms(layer).index);
    float cosines[kMostPairs], sines[kMostPairs];
    angles_at(rope, end - k.blocks->block, cosines, sines);
    step_.kernel.rope({key, 0, 1, 1, k.blocks->head_dim, 2 * pairs, cosines, sines, rope.interleaved});
    const int64_t slot = step_.scratch.slots[row], in_block = slot % kBlockTokens;
    const auto place = static_cast<int32_t>(slot - in_block + in_block / k.blocks->block);
    step_.kernel.write_kv({kv_.index(layer), key, nullptr, 0, 1, k.blocks->head_dim, 0, &place});
  }
}

void BlockIndexer::normalize(float* x, int64_t heads, Range rows, const BlockIndexerKind& own, const Norm& norm) const {
  step_.kernel.head_norm(
      {x, step_.scratch.index_in.stride, rows.size(), heads, own.head_dim, norm.weight.data(), step_.config.norm_eps});
}

// Rotates the first numbers of each head, as the layer's own heads are.
void BlockIndexer::rotate(float* x, int64_t heads, Range rows, const AttentionKind& k) const {
  const auto rope = static_cast<size_t>(*k.rope);
  const auto pairs = static_cast<int64_t>(step_.config.ropes[rope].inv_freq.size());
  step_.kernel.rope({x, step_.scratch.index_in.stride, rows.size(), heads, k.blocks->head_dim, 2 * pairs,
                     step_.scratch.cosines[rope] + rows.begin * pairs, step_.scratch.sines[rope] + rows.begin * pairs,
                     step_.config.ropes[rope].interleaved});
}

// As many rows at a time as there is room for scores. Pieces with the same keys follow each other.
void BlockIndexer::choose(const StepWalk& w, size_t layer) {
  const Scratch& s = step_.scratch;
  const auto count = static_cast<int64_t>(rows_.size());
  if (kind(layer).blocks->heads) {
    for (int64_t first = 0; first < count; first += s.index_rows)
      score_means(w, layer, rows_.data() + first, std::min(s.index_rows, count - first));
    return;
  }
  const int64_t kv_heads = step_.config.head_shape(layer).kv_heads;
  for (int64_t first = 0; first < count; first += s.index_rows) {
    const int64_t rows = std::min(s.index_rows, count - first);
    const auto row_at = [&](int64_t i) { return rows_[static_cast<size_t>(first + i)]; };
    int64_t longest = 0;
    for (int64_t i = 0; i < rows; ++i) longest = std::max<int64_t>(longest, step_.batch().position[row_at(i).row] + 1);
    const Range mine = share((longest + kScoredKeys - 1) / kScoredKeys * rows, 1, w.member, step_.pool.threads());
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t begin = i / rows * kScoredKeys;
      score(w.member, layer, row_at(i % rows), i % rows, {begin, begin + kScoredKeys});
    }
    step_.barrier(w);
    const Range own = share(rows * kv_heads, 1, w.member, step_.pool.threads());
    for (int64_t i = own.begin; i < own.end; ++i)
      choose(w.member, layer, row_at(i / kv_heads), i / kv_heads, i % kv_heads);
    step_.barrier(w);
  }
}

float* BlockIndexer::scores(int64_t slot, int64_t kv_head) const {
  const Operand& all = step_.scratch.index_scores;
  return static_cast<float*>(all.data) + slot * all.stride + kv_head * step_.scratch.index_keys;
}

void BlockIndexer::score(int member, size_t layer, const LongRow& row, int64_t slot, Range keys) const {
  constexpr float kWhole = 1.0f;
  const Scratch& s = step_.scratch;
  const BlockIndexerKind& own = *kind(layer).blocks;
  const int64_t end = std::min<int64_t>(keys.end, step_.batch().position[row.row] + 1);
  if (keys.begin >= end) return;
  const float* queries = static_cast<const float*>(s.index_in.data) + row.row * s.index_in.stride;
  for (int64_t h = 0; h < step_.config.kv_heads; ++h)
    step_.kernel.index_scores({kv_.index(layer), step_.batch().block + row.first_block, queries + h * own.head_dim,
                               &kWhole, 1, own.head_dim, keys.begin, end, scores(slot, h), s.attend(member),
                               -INFINITY});
}

// Writes the KV blocks of the chosen blocks, in the order of the sequence; the last one is the row's own.
void BlockIndexer::choose(int member, size_t layer, const LongRow& row, int64_t slot, int64_t kv_head) const {
  const BlockIndexerKind& own = *kind(layer).blocks;
  const int64_t keys = step_.batch().position[row.row] + 1, blocks = (keys + own.block - 1) / own.block;
  const float* from = scores(slot, kv_head);
  float *best = step_.scratch.mixer(member), *room = best + blocks;
  for (int64_t i = 0; i < blocks; ++i)
    best[i] = i + own.local >= blocks
                  ? INFINITY
                  : *std::max_element(from + i * own.block, from + std::min(keys, (i + 1) * own.block));
  const int64_t parts = own.block / kBlockTokens;
  const int32_t* table = step_.batch().block + row.first_block;
  int32_t* out = step_.scratch.chosen_blocks(row.row, kv_head);
  // The indices stand behind the blocks that each is replaced with, so that none is overwritten before it is read.
  const int32_t* chosen = out + own.chosen * (parts - 1);
  choose_largest(best, blocks, own.chosen, room, out + own.chosen * (parts - 1));
  const int64_t whole = (keys + kBlockTokens - 1) / kBlockTokens;
  for (int64_t i = 0; i < own.chosen; ++i) {
    const int64_t first = chosen[i] * parts;
    for (int64_t part = 0; part < parts && first + part < whole; ++part) *out++ = table[first + part];
  }
}

// Scores the complete blocks of `count` rows and chooses among them. Ends with a barrier.
void BlockIndexer::score_means(const StepWalk& w, size_t layer, const LongRow* rows, int64_t count) const {
  const int64_t block = kind(layer).blocks->block;
  int64_t longest = 0;
  std::vector<Range> runs;  // rows of one sequence that are scored together
  for (int64_t i = 0; i < count; ++i) {
    longest = std::max(longest, (step_.batch().position[rows[i].row] + 1) / block);
    const bool goes_on = i > 0 && rows[i].first_block == rows[i - 1].first_block && i - runs.back().begin < kScoredRows;
    if (goes_on)
      runs.back().end = i + 1;
    else
      runs.push_back({i, i + 1});
  }
  const auto all = static_cast<int64_t>(runs.size());
  const Range mine = share((longest + kChunkTokens - 1) / kChunkTokens * all, 1, w.member, step_.pool.threads());
  for (int64_t i = mine.begin; i < mine.end; ++i)
    score_chunk(w.member, layer, rows, runs[static_cast<size_t>(i % all)], i / all * kChunkTokens);
  step_.barrier(w);
  const Range own = share(count, 1, w.member, step_.pool.threads());
  for (int64_t i = own.begin; i < own.end; ++i) choose_means(w.member, layer, rows[i], i);
  step_.barrier(w);
}

// Scores up to kChunkTokens blocks from `begin` on for rows of one sequence.
void BlockIndexer::score_chunk(int member, size_t layer, const LongRow* rows, Range slots, int64_t begin) const {
  const Scratch& s = step_.scratch;
  const BlockIndexerKind& own = *kind(layer).blocks;
  const auto end_of = [&](int64_t slot) {
    return std::min(begin + kChunkTokens, (step_.batch().position[rows[slot].row] + 1) / own.block);
  };
  const int64_t end = end_of(slots.end - 1);  // the last row has the most
  if (begin >= end) return;
  int32_t places[kChunkTokens];
  for (int64_t i = begin; i < end; ++i) places[i - begin] = entry_place(i, own.block);
  const KvCache from = kv_.index(layer);
  KvCache means = from;
  means.by_token = false;
  means.block_keys = kBlockTokens;
  means.keys = s.gathered(member);
  means.block_bytes = means.head_bytes = kv_head_bytes(means.dtype, means.head_dim);
  const int32_t* blocks = step_.batch().block + rows[slots.begin].first_block;
  step_.kernel.gather_keys({from, means, blocks, 0, places, 0, end - begin});
  for (int64_t i = slots.begin; i < slots.end; ++i)
    if (end_of(i) > begin)
      step_.kernel.index_scores({means, s.gathered_blocks, floats_at(s.index_in, rows[i].row, 0), head_weights_.data(),
                                 own.heads, own.head_dim, 0, end_of(i) - begin, scores(i, 0) + begin,
                                 s.attend(member)});
}

// Writes the KV blocks that hold what a row sees, ascending, and behind them the bits of the keys of each; the rest of
// the slots have no keys that are seen.
void BlockIndexer::choose_means(int member, size_t layer, const LongRow& row, int64_t slot) const {
  const BlockIndexerKind& own = *kind(layer).blocks;
  const int64_t keys = step_.batch().position[row.row] + 1, complete = keys / own.block;
  const int64_t slots = step_.config.head_shape(layer).slots;
  float* room = step_.scratch.mixer(member);
  auto* chosen = reinterpret_cast<int32_t*>(room + step_.scratch.index_keys);
  choose_largest(scores(slot, 0), complete, own.chosen, room, chosen);
  const int32_t* table = step_.batch().block + row.first_block;
  int32_t* out = step_.scratch.chosen_blocks(row.row, 0);
  auto* bits = reinterpret_cast<uint32_t*>(out + slots);
  int64_t count = 0, last = -1;
  const auto see = [&](int64_t begin, int64_t end) {
    for (int64_t key = begin; key < end; ++key) {
      if (key / kBlockTokens != last) {
        last = key / kBlockTokens;
        out[count] = table[last];
        bits[count++] = 0;
      }
      bits[count - 1] |= uint32_t{1} << key % kBlockTokens;
    }
  };
  for (int64_t i = 0; i < own.chosen; ++i) see(chosen[i] * own.block, (chosen[i] + 1) * own.block);
  see(complete * own.block, keys);
  for (; count < slots; ++count) {
    out[count] = out[0];
    bits[count] = 0;
  }
}

KeyBias BlockIndexer::mask(int member, int64_t row, Range keys) const {
  const int64_t slots = step_.scratch.mask_slots, end = std::min(keys.end, slots * kBlockTokens);
  const auto* bits = reinterpret_cast<const uint32_t*>(step_.scratch.chosen_blocks(row, 0) + slots);
  float* values = step_.scratch.mixer(member);
  for (int64_t key = keys.begin; key < end; ++key)
    values[key - keys.begin] = bits[key / kBlockTokens] >> key % kBlockTokens & 1 ? 0.0f : kMasked;
  return {values, 0, keys.begin};
}

}  // namespace forearm
