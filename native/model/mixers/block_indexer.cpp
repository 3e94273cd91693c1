#include "model/mixers/block_indexer.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/mixers/indexer.h"
#include "model/step/multiply.h"

namespace forearm {
namespace {

// Keys that a member scores at once: of 128 numbers in bfloat16 512 KiB, which each kv head's query finds in its cache.
constexpr int64_t kScoredKeys = 2048;

}  // namespace

int64_t BlockIndexer::score_floats(const Config& c, const Limits& limits) {
  const BlockIndexerKind* own = c.block_indexer();
  if (!own || limits.max_model_len <= own->chosen * own->block) return 0;
  return round_up(limits.max_model_len, 2 * kBlockTokens);
}

int64_t BlockIndexer::scratch_floats(const Config& c, const Limits& limits) {
  const BlockIndexerKind* own = c.block_indexer();
  return own ? 2 * (score_floats(c, limits) / own->block + 1) : 0;
}

BlockIndexer::BlockIndexer(const Weights& weights, const KvBlocks& kv, Step& step)
    : weights_(weights), kv_(kv), step_(step), layers_(step.config.layers.size()) {
  const Config& c = step.config;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto* attention = c.layers[i].mixer_as<AttentionKind>();
    if (!attention || !attention->blocks) continue;
    const int64_t columns = BlockIndexColumns(*attention->blocks, c.head_shape(i).kv_heads).end;
    layers_[i] = &weights.linear("layers." + std::to_string(i) + ".index_in", columns, c.hidden);
  }
}

void BlockIndexer::plan() {
  rows_.clear();
  const BlockIndexerKind* own = step_.config.block_indexer();
  if (!own) return;
  const Batch& b = step_.batch();
  for (int64_t s = 0; s < b.sequences; ++s)
    for (int64_t r = b.start[s]; r < b.start[s + 1]; ++r)
      if (b.position[r] >= own->chosen * own->block) rows_.push_back({r, b.block_start[s]});
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
  const Range rows = step_.mine(w, w.rows);
  const Operand& in = step_.scratch.index_in;
  float* queries = static_cast<float*>(in.data) + rows.begin * in.stride;
  float* keys = queries + BlockIndexColumns(*k.blocks, kv_heads).key;
  normalize(queries, kv_heads, rows, *k.blocks, norms.index_q);
  normalize(keys, 1, rows, *k.blocks, norms.index);
  rotate(queries, kv_heads, rows, k);
  rotate(keys, 1, rows, k);
  step_.kernel.write_kv({kv_.index(layer), keys, nullptr, in.stride, rows.size(), k.blocks->head_dim, 0,
                         step_.scratch.slots + rows.begin});
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

}  // namespace forearm
