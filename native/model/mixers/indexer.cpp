#include "model/mixers/indexer.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <string>

#include "model/step/multiply.h"

namespace forearm {
namespace {

// Keys that a member scores at once: of 128 numbers in bfloat16 512 KiB, which neighbouring rows find in its cache.
constexpr int64_t kScoredKeys = 2048;

// Orders floats as integers, so that a NaN has a place, too.
uint32_t ordered(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

}  // namespace

void choose_largest(const float* scores, int64_t count, int64_t chosen, float* room, int32_t* out) {
  auto* copy = reinterpret_cast<uint32_t*>(room);
  for (int64_t i = 0; i < count; ++i) copy[i] = ordered(scores[i]);
  std::nth_element(copy, copy + chosen - 1, copy + count, std::greater<>());
  const uint32_t least = copy[chosen - 1];
  int64_t equal = chosen - std::count_if(copy, copy + chosen, [least](uint32_t x) { return x > least; });
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t own = ordered(scores[i]);
    if (own > least || (own == least && equal-- > 0)) *out++ = static_cast<int32_t>(i);
  }
}

int64_t Indexer::scratch_floats(const Config& c, const Limits& limits) {
  const LatentKind* latent = c.indexed();
  if (!latent || limits.max_model_len <= latent->indexer->chosen) return 0;
  return round_up(limits.max_model_len, 2 * kBlockTokens);
}

Indexer::Indexer(const Weights& weights, const KvBlocks& kv, Step& step) : weights_(weights), kv_(kv), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    const auto* latent = c.layers[i].mixer_as<LatentKind>();
    if (!latent || !latent->indexer || latent->indexer->shared) continue;
    const IndexerKind& indexer = *latent->indexer;
    const std::string layer = "layers." + std::to_string(i) + ".";
    own.in = &weights.linear(layer + "index_in", IndexColumns(indexer).end, c.hidden);
    own.q = &weights.linear(layer + "index_q", indexer.heads * indexer.head_dim, latent->q_rank);
  }
  std::iota(step.scratch.gathered_blocks, step.scratch.gathered_blocks + step.scratch.gathered_keys / kBlockTokens, 0);
}

void Indexer::plan() {
  rows_.clear();
  const LatentKind* latent = step_.config.indexed();
  if (!latent) return;
  const Batch& b = step_.batch();
  for (int64_t s = 0; s < b.sequences; ++s)
    for (int64_t r = b.start[s]; r < b.start[s + 1]; ++r)
      if (b.position[r] >= latent->indexer->chosen) rows_.push_back({r, b.block_start[s]});
}

void Indexer::project(StepWalk& w, size_t layer, const Matrix& before, const Operand& ready) {
  const Linear& in = *layers_[layer].in;
  const Operand rows = step_.stream_again(w, weights_.norms(layer).input, in.matrix, before, ready);
  step_.multiply(w, in, rows, step_.scratch.index_in);
}

void Indexer::store_keys(const StepWalk& w, size_t layer) {
  const IndexerKind& own = *kind(layer).indexer;
  const Norm& norm = weights_.norms(layer).index;
  const Operand& in = step_.scratch.index_in;
  const Range rows = step_.mine(w, w.rows);
  auto* keys = static_cast<float*>(in.data);
  step_.kernel.norm({keys, in.stride, rows.begin, rows.end, own.head_dim, norm.weight.data(), or_null(norm.bias),
                     own.key_eps, true, in});
  rotate(kind(layer), keys, in.stride, 1, rows);
  step_.kernel.write_kv({kv_.index(layer), keys + rows.begin * in.stride, nullptr, in.stride, rows.size(), own.head_dim,
                         0, step_.scratch.slots + rows.begin});
}

void Indexer::project_queries(StepWalk& w, size_t layer, const Matrix& before, const Operand& ready) {
  const Linear& q = *layers_[layer].q;
  const bool joint = kind(layer).joint_gates;
  if (joint) step_.barrier(w);  // these rows, of the first columns alone, may take the place of whole ones
  const Operand rows = joint ? step_.raw_output(w, step_.scratch.inner, q.matrix)
                             : step_.output_again(w, step_.scratch.inner, q.matrix, before, ready);
  step_.multiply(w, q, rows, step_.scratch.index_queries);
}

// Rotates the first numbers of each head, or the last ones.
void Indexer::rotate(const LatentKind& k, float* x, int64_t stride, int64_t heads, Range rows) const {
  const auto rope = static_cast<size_t>(*k.rope);
  const int64_t first = rows.begin * k.rotary / 2;
  x += k.indexer->last ? k.indexer->head_dim - k.rotary : 0;
  step_.kernel.rope({x + rows.begin * stride, stride, rows.size(), heads, k.indexer->head_dim, k.rotary,
                     step_.scratch.cosines[rope] + first, step_.scratch.sines[rope] + first, k.indexer->interleaved});
}

// As many rows at a time as there is room for scores. Pieces with the same keys follow each other.
void Indexer::choose(const StepWalk& w, size_t layer) {
  if (rows_.empty()) return;
  const Scratch& s = step_.scratch;
  const auto count = static_cast<int64_t>(rows_.size());
  const Range rotated = step_.mine(w, w.rows);
  rotate(kind(layer), static_cast<float*>(s.index_queries.data), s.index_queries.stride, kind(layer).indexer->heads,
         rotated);
  step_.barrier(w);
  for (int64_t first = 0; first < count; first += s.index_rows) {
    const int64_t rows = std::min(s.index_rows, count - first);
    const auto row_at = [&](int64_t i) { return rows_[static_cast<size_t>(first + i)]; };
    const auto scores_of = [&](int64_t i) {
      return static_cast<float*>(s.index_scores.data) + i * s.index_scores.stride;
    };
    int64_t longest = 0;
    for (int64_t i = 0; i < rows; ++i) longest = std::max<int64_t>(longest, step_.batch().position[row_at(i).row] + 1);
    const Range mine = share((longest + kScoredKeys - 1) / kScoredKeys * rows, 1, w.member, step_.pool.threads());
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t begin = i / rows * kScoredKeys;
      score(w.member, layer, row_at(i % rows), scores_of(i % rows), {begin, begin + kScoredKeys});
    }
    step_.barrier(w);
    const Range own = share(rows, 1, w.member, step_.pool.threads());
    for (int64_t i = own.begin; i < own.end; ++i)
      choose_largest(scores_of(i), step_.batch().position[row_at(i).row] + 1, kind(layer).indexer->chosen,
                     s.mixer(w.member), s.chosen_keys(row_at(i).row));
    step_.barrier(w);
  }
}

void Indexer::score(int member, size_t layer, const LongRow& row, float* scores, Range keys) const {
  const Scratch& s = step_.scratch;
  const IndexerKind& own = *kind(layer).indexer;
  const int64_t end = std::min<int64_t>(keys.end, step_.batch().position[row.row] + 1);
  if (keys.begin >= end) return;
  step_.kernel.index_scores(
      {kv_.index(layer), step_.batch().block + row.first_block,
       static_cast<const float*>(s.index_queries.data) + row.row * s.index_queries.stride,
       static_cast<const float*>(s.index_in.data) + row.row * s.index_in.stride + IndexColumns(own).weights, own.heads,
       own.head_dim, keys.begin, end, scores, s.attend(member)});
}

}  // namespace forearm
