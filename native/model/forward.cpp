#include <algorithm>
#include <cmath>

#include "model/forward_multiply.h"

namespace forearm {
namespace {

// Handed out in a layer: four times rows, and then the multiplication of them; attention.
constexpr int64_t kPhases = 9;

const Norm* if_there(const Norm& norm) { return norm.weight.empty() ? nullptr : &norm; }

}  // namespace

Forward::Forward(const Config& config, const Ranks& ranks, const Weights& weights, const KvBlocks& kv, Scratch& scratch,
                 Pool& pool)
    : c_(config),
      ranks_(ranks),
      weights_(weights),
      kv_(kv),
      s_(scratch),
      pool_(pool),
      k_(kernels()),
      at_(config),
      units_(config),
      plan_(config, kv, scratch.partial_floats, pool.threads()),
      last_plan_(config, kv, scratch.partial_floats, pool.threads()),
      counters_(std::make_unique<Counter[]>(static_cast<size_t>(2 * kPhases * (pool.threads() + 1)))),
      finished_(std::make_unique<std::atomic<int64_t>[]>(
          static_cast<size_t>(kRowBlocksPerThread * pool.threads() * units_.count()))) {}

void Forward::run(const Batch& batch) {
  if (batch.tokens == 0) return;
  batch_ = &batch;
  plan_.make(batch);
  last_plan_.make_for_logits(batch);
  pool_.run([this](int member) { walk({member, batch_->tokens}); });
}

void Forward::walk(Walk w) {
  clear_counters(w.member, 0);
  begin(w);
  barrier(w);
  const Norm* add = nullptr;  // to be added to the residual before it is read
  for (size_t i = 0; i < c_.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layer(i);
    enter_layer(w, i);
    project_qkv(w, i, stream(w, add, layer.input_norm, layer.qkv));
    barrier(w);
    attend(w, i);
    if (i + 1 == c_.layers.size()) keep_logit_rows(w);
    barrier(w);
    add = if_there(layer.post_attention_norm);
    project_back(w, output(w, s_.attention, layer.o), layer.o, layer.o_bias, add);
    barrier(w);
    project_up(w, layer, stream(w, add, layer.pre_mlp_norm, layer.up));
    barrier(w);
    add = if_there(layer.post_mlp_norm);
    project_back(w, output(w, s_.activated, layer.down), layer.down, layer.down_bias, add);
    barrier(w);
  }
  enter_layer(w, c_.layers.size());
  if (w.rows == 0) return;
  c_.pooled ? hidden(w, add) : head(w, add);
}

// Counters of even and odd layers alternate: nobody is in the layer before any more, nor in the next one yet.
void Forward::enter_layer(Walk& w, size_t layer) {
  w.phase = layer % 2 ? kPhases : 0;
  clear_counters(w.member, layer % 2 ? 0 : kPhases);
}

void Forward::clear_counters(int member, int64_t first_phase) {
  for (int64_t phase = first_phase; phase < first_phase + kPhases; ++phase) {
    counter(phase, member).store(0, std::memory_order_relaxed);
    if (member == 0) ready(phase).store(0, std::memory_order_relaxed);
  }
}

void Forward::begin(const Walk& w) {
  const Range rows = mine(w, batch_->tokens);
  embed(rows);
  angles(rows);
  each_slot(rows, [&](int64_t r, int64_t block, int64_t offset) {
    s_.slots[r] = static_cast<int32_t>(block * kBlockTokens + offset);
  });
  const int rank = ranks_.of(w.member);
  const Range mates = ranks_.members(rank);
  each_slot(share(batch_->tokens, 2, w.member - mates.begin, mates.size()),
            [&](int64_t, int64_t block, int64_t offset) {
              if (offset == 0) kv_.clear(block, rank);
            });
}

// visit(row, block, offset in it): where keys and values of these rows go.
template <class Visit>
void Forward::each_slot(Range rows, const Visit& visit) const {
  for (int64_t s = 0; s < batch_->sequences; ++s) {
    const int32_t* blocks = batch_->block + batch_->block_start[s];
    const int64_t first = std::max<int64_t>(rows.begin, batch_->start[s]);
    const int64_t end = std::min<int64_t>(rows.end, batch_->start[s + 1]);
    for (int64_t r = first; r < end; ++r)
      visit(r, int64_t{blocks[batch_->position[r] / kBlockTokens]}, batch_->position[r] % kBlockTokens);
  }
}

void Forward::embed(Range rows) {
  const auto table = [&](const Matrix& matrix, const int32_t* ids, float scale, float* out, int64_t stride) {
    k_.embed({ids, rows.size(), matrix.weights(), scale, out, stride});
  };
  table(weights_.embed(), batch_->token + rows.begin, c_.embedding_scale, residual_row(rows.begin), s_.residual.stride);
  int32_t* ids = s_.slots + rows.begin;  // begin sets the slots afterwards
  const auto add_rows_of = [&](const Matrix& matrix) {
    table(matrix, ids, 1.0f, projected_row(rows.begin), s_.projected.stride);
    for (int64_t r = rows.begin; r < rows.end; ++r)
      for (int64_t i = 0; i < c_.hidden; ++i) residual_row(r)[i] += projected_row(r)[i];
  };
  if (c_.token_types > 0) {
    for (int64_t r = rows.begin; r < rows.end; ++r) s_.slots[r] = batch_->type ? batch_->type[r] : 0;
    add_rows_of(weights_.types());
  }
  if (!c_.learned_positions) return;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    s_.slots[r] = batch_->position[r] + static_cast<int32_t>(c_.position_offset);
  add_rows_of(weights_.positions());
}

// The angle is the float32 product that transformers takes; cosine and sine of it are exact to a float.
void Forward::angles(Range rows) {
  for (size_t i = 0; i < c_.ropes.size(); ++i) {
    const Rope& rope = c_.ropes[i];
    const size_t pairs = rope.inv_freq.size();
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      float* cosines = s_.cosines[i] + r * static_cast<int64_t>(pairs);
      float* sines = s_.sines[i] + r * static_cast<int64_t>(pairs);
      for (size_t p = 0; p < pairs; ++p) {
        const float angle = static_cast<float>(batch_->position[r]) * rope.inv_freq[p];
        cosines[p] = static_cast<float>(std::cos(static_cast<double>(angle))) * rope.scale;
        sines[p] = static_cast<float>(std::sin(static_cast<double>(angle))) * rope.scale;
      }
    }
  }
}

// residual += scale * (in W^T + bias), or, where a norm follows the layer, projected = in W^T + bias, which is normed
// and added when the residual is read next.
void Forward::project_back(Walk& w, const Operand& in, const Matrix& matrix, const std::vector<float>& bias,
                           bool normed) {
  GemmTask task{};
  task.a = in;
  task.row_end = w.rows;
  task.epilogue = normed ? Epilogue::store : Epilogue::add;
  task.scale = normed ? 1.0f : c_.residual_scale;
  task.out = normed ? s_.projected : s_.residual;
  multiply(w, matrix, bias, task);
}

void Forward::project_up(Walk& w, const LayerWeights& weights, const Operand& in) {
  GemmTask task{};
  task.a = in;
  task.row_end = w.rows;
  task.epilogue = c_.gated ? Epilogue::gated : Epilogue::activate;
  task.activation = c_.activation;
  task.scale = 1.0f;
  task.out = s_.activated.target(weights.down);
  multiply(w, weights.up, weights.up_bias, task);
}

void Forward::head(Walk& w, const Norm* add) {
  const Norm* norm = c_.final_norm ? &weights_.final_norm() : nullptr;
  GemmTask task{};
  task.a = prepare(w, {s_.stream, w.rows, add, norm}, weights_.head());
  task.row_end = w.rows;
  task.epilogue = c_.logits_softcap > 0.0f ? Epilogue::softcap : Epilogue::store;
  task.scale = c_.logits_scale;
  task.softcap = c_.logits_softcap;
  task.out = s_.logits;
  multiply(w, weights_.head(), weights_.head_bias(), task,
           [&](Range rows, int64_t, Range columns) { find_maxima(rows, columns); });
}

// What the sampler needs to know of a piece of the logits, while it is in a near cache.
void Forward::find_maxima(Range rows, Range columns) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* logits = static_cast<float*>(s_.logits.data) + r * s_.logits.stride;
    float* maxima = static_cast<float*>(s_.maxima.data) + r * s_.maxima.stride;
    k_.row_maxima({logits + columns.begin, columns.size()}, maxima + columns.begin / kMaximumLogits);
  }
}

// Instead of logits: the rows themselves, after the last norm.
void Forward::hidden(const Walk& w, const Norm* add) {
  const Range rows = mine(w, w.rows);
  if (add) add_projected(*add, rows);
  if (c_.final_norm) return normalise(weights_.final_norm(), residual_row(0), rows, s_.logits);
  for (int64_t r = rows.begin; r < rows.end; ++r)
    std::copy_n(residual_row(r), c_.hidden, static_cast<float*>(s_.logits.data) + r * s_.logits.stride);
}

}  // namespace forearm
