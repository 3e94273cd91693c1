#include "model/mixers/compressed_attention.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "model/mixers/indexer.h"
#include "model/step/multiply.h"
#include "model/step/multiply_heads.h"

namespace forearm {
namespace {

// Rows of heads of an item: as many as attention computes together (AttendTask), if these are not one token's.
constexpr int64_t kItemRows = 96;
// Heads that an item has at the least, where few items leave members without work (AttentionPlan).
constexpr int64_t kItemHeads = 8;
// Rows that share the gathering of the keys that they are scored with.
constexpr int64_t kScoredRows = 16;

}  // namespace

CompressedAttention::CompressedAttention(const Weights& weights, const KvBlocks& kv, const States& states, Step& step)
    : weights_(weights), kv_(kv), step_(step), compressor_(weights, kv, states, step) {
  const Config& c = step.config;
  if (!c.compressed()) return;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const CompressedKind& k = kind(i);
    const CompressedColumns at(k, c.head_dim);
    const std::string layer = "layers." + std::to_string(i) + ".";
    const auto linear = [&](const char* name, int64_t columns, int64_t width, int64_t count = 1) {
      return &weights.linear(layer + name, columns, width, count);
    };
    LayerMatrices& own = layers_.emplace_back();
    own.in = linear("latent_in", at.end, c.hidden);
    if (k.ratio) own.entry_in = linear("entry_in", at.entry_end, c.hidden);
    own.q = linear("q_up", c.heads * c.head_dim, k.q_rank);
    if (k.chosen) own.index_q = linear("index_q", k.index_heads * k.index_dim, k.q_rank);
    own.groups = linear("groups", k.group_rank, c.heads / k.groups * c.head_dim, k.groups);
    own.o = linear("o", c.hidden, k.groups * k.group_rank);
    const bool last = i + 1 == c.layers.size();
    const auto same = [&](const Plan& one) {
      return one.ratio == k.ratio && one.chosen == k.chosen && one.for_logits == last;
    };
    const auto found = std::find_if(plans_.begin(), plans_.end(), same);
    plan_of_.push_back(static_cast<size_t>(found - plans_.begin()));
    if (found == plans_.end()) plans_.push_back({k.ratio, k.chosen, last, {}, {}});
  }
  std::iota(step.scratch.gathered_blocks, step.scratch.gathered_blocks + kChunkTokens / kBlockTokens, 0);
}

CompressedAttention::Sizes CompressedAttention::sizes(const Config& c, const Limits& limits) {
  Sizes most;
  int64_t chunks = 0;
  for (const LayerKind& layer : c.layers) {
    const auto* k = layer.mixer_as<CompressedKind>();
    if (!k) return most;
    const int64_t entries = k->entries(limits.max_model_len);
    most.columns = std::max(most.columns, k->ratio ? CompressedColumns(*k, c.head_dim).entry_end : 0);
    most.queries = std::max(most.queries, k->index_heads * k->index_dim);
    most.index = std::max(most.index, k->index_dim);
    most.chosen = std::max(most.chosen, std::min(k->chosen, entries));
    if (k->chosen && entries > k->chosen) most.scores = std::max(most.scores, round_up(entries, 2 * kBlockTokens));
    const int64_t seen = k->chosen ? std::min(k->chosen, entries) : entries;
    const int64_t window = (std::min(k->window, limits.max_model_len) + kItemRows) / kChunkTokens + 2;
    chunks = std::max(chunks, window + (seen + kChunkTokens - 1) / kChunkTokens);
  }
  most.partials = round_up(chunks * std::max(kItemRows, c.heads) * (2 + c.head_dim), 32);
  return most;
}

int64_t CompressedAttention::scratch_floats(const Config& c, const Limits& limits) {
  const Sizes most = sizes(c, limits);
  return std::max(most.scores, most.columns ? std::max(c.head_dim, most.index) : 0);
}

void CompressedAttention::plan() {
  for (Plan& own : plans_) plan(own);
}

void CompressedAttention::plan(Plan& own) const {
  const Batch& b = step_.batch();
  own.items.clear();
  own.long_rows.clear();
  for (int64_t s = 0; s < b.sequences && own.chosen; ++s)
    for (int64_t r = b.start[s]; r < b.start[s + 1]; ++r)
      if (const int64_t entries = (b.position[r] + 1) / own.ratio; entries > own.chosen)
        own.long_rows.push_back({r, b.block_start[s], entries});
  if (own.for_logits) {
    for (int64_t s = 0, i = 0; i < b.logits; ++i) {
      while (b.start[s + 1] <= b.logit_row[i]) ++s;
      add_items(own, s, {b.logit_row[i], b.logit_row[i] + 1}, i);
    }
  } else {
    for (int64_t s = 0; s < b.sequences; ++s) add_items(own, s, {b.start[s], b.start[s + 1]}, b.start[s]);
  }
  // Few items are divided by heads, so that all members have work: rows are computed each by itself.
  const auto count = static_cast<int64_t>(own.items.size());
  const int64_t heads = step_.config.heads, most = (heads + kItemHeads - 1) / kItemHeads;
  const int64_t parts = std::clamp<int64_t>((step_.pool.threads() + count - 1) / std::max<int64_t>(count, 1), 1, most);
  std::vector<Item> whole;
  whole.swap(own.items);
  for (auto item = whole.rbegin(); item != whole.rend(); ++item)  // the last tokens see most: long work comes first
    for (int64_t part = 0; part < parts; ++part) {
      const Range own_heads = share(heads, 1, part, parts);
      item->head = own_heads.begin;
      item->heads = own_heads.size();
      own.items.push_back(*item);
    }
}

// Adds items of neighbouring rows that see the same entries.
void CompressedAttention::add_items(Plan& own, int64_t sequence, Range rows, int64_t out_row) const {
  const Batch& b = step_.batch();
  const int64_t most = std::max<int64_t>(kItemRows / step_.config.heads, 1);
  const auto entries_at = [&](int64_t row) { return own.ratio ? (b.position[row] + 1) / own.ratio : 0; };
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t entries = entries_at(row);
    const bool chosen = own.chosen && entries > own.chosen;
    int64_t end = row + 1;
    while (!chosen && end < std::min(row + most, rows.end) && entries_at(end) == entries) ++end;
    own.items.push_back({row, end - row, out_row + row - rows.begin, b.position[row], b.block_start[sequence],
                         chosen ? own.chosen : entries, chosen});
    row = end;
  }
}

const Norm* CompressedAttention::mix(StepWalk& w, size_t layer, const Norm* add) {
  const LayerMatrices& m = layers_[layer];
  const LayerNorms& norms = weights_.norms(layer);
  const Operand rows = step_.stream(w, add, norms.input, m.in->matrix);
  step_.multiply(w, *m.in, rows, step_.scratch.mixer_in);
  if (m.entry_in) project_entries(w, layer, rows);
  step_.barrier(w);
  store_keys(w, layer);
  if (m.entry_in) compressor_.move_states(w, layer);
  step_.barrier(w);
  if (m.entry_in) compressor_.store(w, layer);
  project_queries(w, layer);
  step_.barrier(w);
  if (m.index_q) choose(w, layer);
  attend(w, layer);
  if (layer + 1 == layers_.size()) step_.keep_logit_rows(w);
  step_.barrier(w);
  multiply_groups(w, layer);
  step_.barrier(w);
  const Norm* after = step_.config.joins_behind() ? &norms.post_attention : norms.post_attention.if_there();
  step_.project_back(w, step_.output(w, step_.scratch.mixed, m.o->matrix), *m.o, after);
  step_.barrier(w);
  return after;
}

// Multiplies the rows of the stream with the matrix that entries are made by. ready: those rows for the other matrix.
void CompressedAttention::project_entries(StepWalk& w, size_t layer, const Operand& ready) const {
  const Matrix &before = layers_[layer].in->matrix, &own = layers_[layer].entry_in->matrix;
  const Operand rows = step_.stream_again(w, weights_.norms(layer).input, own, before, ready);
  step_.multiply(w, *layers_[layer].entry_in, rows, step_.scratch.index_in);
}

// Normalizes the latents of queries and the keys of the member's rows, rotates the keys and stores them.
void CompressedAttention::store_keys(const StepWalk& w, size_t layer) const {
  const Config& c = step_.config;
  const CompressedKind& k = kind(layer);
  const LayerNorms& norms = weights_.norms(layer);
  const LayerMatrices& m = layers_[layer];
  const Operand& in = step_.scratch.mixer_in;
  const Range rows = step_.mine(w, w.rows);
  const auto normalize = [&](int64_t column, int64_t width, const Norm& norm, const Operand& out) {
    step_.kernel.norm({floats_at(in, 0, column), in.stride, rows.begin, rows.end, width, norm.weight.data(), nullptr,
                       c.norm_eps, false, out});
  };
  const Operand latent = step_.scratch.inner.target(m.q->matrix);
  normalize(0, k.q_rank, norms.q, latent);
  if (m.index_q) {
    const Operand own = step_.scratch.inner.target(m.index_q->matrix);
    if (own.data != latent.data) normalize(0, k.q_rank, norms.q, own);  // one is floats, the other codes
  }
  const int64_t at = CompressedColumns(k, c.head_dim).key;
  normalize(at, c.head_dim, norms.k, part_of(in, 0, at));
  rotate(k.rope, floats_at(in, rows.begin, at), in.stride, rows.begin, rows.size(), 1, c.head_dim);
  step_.kernel.write_kv({kv_.layer(static_cast<int64_t>(layer), 0), floats_at(in, rows.begin, at), nullptr, in.stride,
                         rows.size(), c.head_dim, 0, step_.slots(kv_.group(layer)) + rows.begin});
}

// Rotates the last numbers of heads of `dim` numbers, of rows from `row` on; x: the first head of the first row.
void CompressedAttention::rotate(int rope, float* x, int64_t stride, int64_t row, int64_t rows, int64_t heads,
                                 int64_t dim) const {
  const auto i = static_cast<size_t>(rope);
  const auto pairs = static_cast<int64_t>(step_.config.ropes[i].inv_freq.size());
  step_.kernel.rope({x + dim - 2 * pairs, stride, rows, heads, dim, 2 * pairs, step_.scratch.cosines[i] + row * pairs,
                     step_.scratch.sines[i] + row * pairs, step_.config.ropes[i].interleaved});
}

void CompressedAttention::project_queries(StepWalk& w, size_t layer) const {
  const LayerMatrices& m = layers_[layer];
  const Operand latents = step_.output(w, step_.scratch.inner, m.q->matrix);
  step_.multiply(w, *m.q, latents, step_.scratch.queries);
  if (!m.index_q || plan_of(layer).long_rows.empty()) return;
  const Operand own = step_.output_again(w, step_.scratch.inner, m.index_q->matrix, m.q->matrix, latents);
  step_.multiply(w, *m.index_q, own, step_.scratch.index_queries);
}

// Chooses the entries of all rows that have too many; as many rows at a time as there is room for scores. Ends with a
// barrier if there are any.
void CompressedAttention::choose(const StepWalk& w, size_t layer) const {
  const std::vector<LongRow>& all = plan_of(layer).long_rows;
  if (all.empty()) return;
  const Scratch& s = step_.scratch;
  const CompressedKind& k = kind(layer);
  const Range rotated = step_.mine(w, step_.batch().tokens);
  rotate(k.rope, floats_at(s.index_queries, rotated.begin, 0), s.index_queries.stride, rotated.begin, rotated.size(),
         k.index_heads, k.index_dim);
  step_.barrier(w);
  for (size_t first = 0; first < all.size(); first += static_cast<size_t>(s.index_rows)) {
    const LongRow* rows = all.data() + first;
    const int64_t count = std::min(s.index_rows, static_cast<int64_t>(all.size() - first));
    int64_t longest = 0, runs = 0;
    std::vector<Range> of_run;  // rows of one sequence that are scored together
    for (int64_t i = 0; i < count; ++i) {
      longest = std::max(longest, rows[i].entries);
      const bool goes_on =
          i > 0 && rows[i].first_block == rows[i - 1].first_block && i - of_run.back().begin < kScoredRows;
      if (goes_on)
        of_run.back().end = i + 1;
      else
        of_run.push_back({i, i + 1});
    }
    runs = static_cast<int64_t>(of_run.size());
    const Range mine = share((longest + kChunkTokens - 1) / kChunkTokens * runs, 1, w.member, step_.pool.threads());
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const Range run = of_run[static_cast<size_t>(i % runs)];
      score(w.member, layer, rows + run.begin, run.size(), run.begin, i / runs * kChunkTokens);
    }
    step_.barrier(w);
    const Range own = share(count, 1, w.member, step_.pool.threads());
    for (int64_t i = own.begin; i < own.end; ++i)
      choose_largest(floats_at(s.index_scores, i, 0), rows[i].entries, k.chosen, s.mixer(w.member),
                     s.chosen_keys(rows[i].row));
    step_.barrier(w);
  }
}

// Scores up to kChunkTokens entries from `begin` on, for `count` rows of one sequence, into rows of scores from `slot`.
void CompressedAttention::score(int member, size_t layer, const LongRow* rows, int64_t count, int64_t slot,
                                int64_t begin) const {
  const Scratch& s = step_.scratch;
  const CompressedKind& k = kind(layer);
  const int64_t end = std::min(begin + kChunkTokens, rows[count - 1].entries);  // the last row has the most
  if (begin >= end) return;
  const int64_t weights = CompressedColumns(k, step_.config.head_dim).weights;
  const Item item{.row = 0,
                  .tokens = 1,
                  .out_row = 0,
                  .position = 0,
                  .first_block = rows->first_block,
                  .entries = end,
                  .chosen = false};
  const KvCache keys = gather(member, kv_.index(layer), item, layer, {begin, end});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t own = std::min(end, rows[i].entries) - begin;
    if (own <= 0) continue;
    step_.kernel.index_scores({keys, s.gathered_blocks, floats_at(s.index_queries, rows[i].row, 0),
                               floats_at(s.index_in, rows[i].row, weights), k.index_heads, k.index_dim, 0, own,
                               floats_at(s.index_scores, slot + i, begin), s.attend(member)});
  }
}

// Packs entries of the item's, at most kChunkTokens, as keys of the member's own, counted from 0.
KvCache CompressedAttention::gather(int member, const KvCache& from, const Item& item, size_t layer,
                                    Range entries) const {
  const Scratch& s = step_.scratch;
  const int32_t* blocks = step_.batch().table(kv_.entry_group(layer)) + item.first_block;
  int32_t places[kChunkTokens];
  const int32_t* chosen = item.chosen ? s.chosen_keys(item.row) : nullptr;
  for (int64_t i = entries.begin; i < entries.end; ++i)
    places[i - entries.begin] = entry_place(chosen ? chosen[i] : i, kind(layer).ratio);
  KvCache own = from;
  own.by_token = false;
  own.block_keys = kBlockTokens;
  own.keys = s.gathered(member);
  own.block_bytes = own.head_bytes = kv_head_bytes(own.dtype, own.head_dim);
  step_.kernel.gather_keys({from, own, blocks, 0, places, 0, entries.size()});
  return own;
}

void CompressedAttention::attend(StepWalk& w, size_t layer) const {
  const std::vector<Item>& items = plan_of(layer).items;
  const int owner = kv_.rank_of(layer, 0);
  step_.hand_out(
      w, [&](int rank) { return rank == owner ? static_cast<int64_t>(items.size()) : 0; },
      [&](int, int64_t i) { attend_item(w.member, layer, items[static_cast<size_t>(i)]); });
  ++w.phase;
}

void CompressedAttention::attend_item(int member, size_t layer, const Item& item) const {
  const Config& c = step_.config;
  const CompressedKind& k = kind(layer);
  const Scratch& s = step_.scratch;
  turn_queries(layer, item);
  AttendTask task{};
  task.cache = kv_.layer(static_cast<int64_t>(layer), 0);
  task.blocks = step_.batch().table(kv_.group(layer)) + item.first_block;
  task.q = floats_at(s.queries, item.row, item.head * c.head_dim);
  task.q_stride = s.queries.stride;
  task.head_dim = c.head_dim;
  task.group = item.heads;
  task.token_end = item.tokens;
  task.first_position = item.position;
  task.window = k.window;
  task.scale = c.attention_scale;
  const std::vector<float>& sinks = weights_.sinks(layer);
  task.sinks = sinks.empty() ? nullptr : sinks.data() + item.head;
  task.out = part_of(s.attended, 0, item.head * c.head_dim);
  task.out_row = item.out_row;
  task.scratch = s.attend(member);

  const int64_t stride = item.tokens * item.heads * (2 + c.head_dim);
  int64_t chunks = 0;
  const auto attend_chunk = [&](int64_t chunk) {
    task.chunk_begin = chunk;
    task.chunk_end = chunk + 1;
    task.partials = s.own_partials(member) + chunks++ * stride;
    step_.kernel.attend(task);
  };
  const int64_t first = task.first_key(item.position) / kChunkTokens;
  for (int64_t chunk = first; chunk <= (item.position + item.tokens - 1) / kChunkTokens; ++chunk) attend_chunk(chunk);
  task.window = 0;
  for (int64_t begin = 0; begin < item.entries; begin += kChunkTokens) {
    const Range entries{begin, std::min(begin + kChunkTokens, item.entries)};
    task.cache = gather(member, kv_.entries(layer), item, layer, entries);
    task.blocks = s.gathered_blocks;
    task.keys = entries.size();
    attend_chunk(0);
  }
  task.partials = s.own_partials(member);
  step_.kernel.merge({task, chunks, stride});
  turn_back(layer, item, task.out);
}

// Normalizes, without weights, and rotates the item's queries: no other item has them.
void CompressedAttention::turn_queries(size_t layer, const Item& item) const {
  const Config& c = step_.config;
  const Operand& q = step_.scratch.queries;
  float* x = floats_at(q, item.row, item.head * c.head_dim);
  step_.kernel.head_norm({x, q.stride, item.tokens, item.heads, c.head_dim, nullptr, c.norm_eps});
  rotate(kind(layer).rope, x, q.stride, item.row, item.tokens, item.heads, c.head_dim);
}

void CompressedAttention::turn_back(size_t layer, const Item& item, const Operand& out) const {
  rotate(kind(layer).back, floats_at(out, item.out_row, 0), out.stride, item.row, item.tokens, item.heads,
         step_.config.head_dim);
}

// Multiplies each group of heads' results with the group's matrix.
void CompressedAttention::multiply_groups(StepWalk& w, size_t layer) const {
  const LayerMatrices& m = layers_[layer];
  const Operand out = step_.scratch.mixed.target(m.o->matrix);
  const Matrix& matrix = m.groups->matrix;
  each_head(w, step_, matrix, [&](int64_t group, Range rows, Range columns) {
    multiply_head(w.member, step_, matrix, group, columns,
                  part_of(step_.scratch.attended, rows.begin, group * matrix.k), rows.size(),
                  part_of(out, rows.begin, group * matrix.n));
  });
}

}  // namespace forearm
