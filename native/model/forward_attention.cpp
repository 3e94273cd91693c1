// From queries, keys and values to what attention gives.
#include <algorithm>

#include "model/forward_multiply.h"

namespace forearm {

void Forward::project_qkv(Walk& w, size_t layer, const Operand& in) {
  const LayerWeights& weights = weights_.layer(layer);
  GemmTask task{};
  task.a = in;
  task.row_end = batch_->tokens;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.out = s_.qkv;
  if (c_.qk_norm != QkNorm::full)
    return multiply(w, weights.qkv, weights.qkv_bias, task,
                    [this, layer](Range rows, int64_t row_block, Range columns) {
                      finish_columns(layer, rows, row_block, columns);
                    });
  multiply(w, weights.qkv, weights.qkv_bias, task);
  barrier(w);  // the norm is over all heads of a row
  finish_heads(layer, mine(w, batch_->tokens), {0, c_.heads}, {0, c_.kv_heads});
}

// These columns are there. Whoever brings the last ones of a unit of heads finishes it.
void Forward::finish_columns(size_t layer, Range rows, int64_t row_block, Range columns) {
  units_.each(columns, [&](int64_t index, int64_t count) {
    const HeadUnit& unit = units_[index];
    std::atomic<int64_t>& finished = finished_[static_cast<size_t>(row_block * units_.count() + index)];
    if (finished.fetch_add(count, std::memory_order_acq_rel) + count < unit.columns) return;
    finished.store(0, std::memory_order_relaxed);  // for the next layer, which is barriers away
    finish_heads(layer, rows, unit.query, unit.kv);
  });
}

// Norms and rotates these rows of these heads, and stores keys and values.
void Forward::finish_heads(size_t layer, Range rows, Range query, Range kv) {
  if (rows.size() == 0) return;
  normalise_heads(weights_.layer(layer), rows, query, kv);
  if (const auto rope = c_.layers[layer].rope) {
    rotate(static_cast<size_t>(*rope), rows, query.begin * c_.head_dim, query.size());
    rotate(static_cast<size_t>(*rope), rows, at_.key + kv.begin * c_.head_dim, kv.size());
  }
  for (int64_t h = kv.begin; h < kv.end; ++h)
    k_.write_kv({kv_.layer(static_cast<int64_t>(layer), h), qkv_at(rows.begin, at_.key + h * c_.head_dim),
                 qkv_at(rows.begin, at_.value + h * c_.head_dim), s_.qkv.stride, rows.size(), c_.head_dim, h,
                 s_.slots + rows.begin});
}

void Forward::normalise_heads(const LayerWeights& weights, Range rows, Range query, Range kv) {
  const auto per_head = [&](const Norm& norm, int64_t column, int64_t heads) {
    if (heads == 0) return;
    k_.head_norm(
        {qkv_at(rows.begin, column), s_.qkv.stride, rows.size(), heads, c_.head_dim, norm.weight.data(), c_.norm_eps});
  };
  const auto whole = [&](const Norm& norm, int64_t column, int64_t heads) {
    Operand out = s_.qkv;
    out.data = qkv_at(0, column);
    k_.norm({qkv_at(0, column), s_.qkv.stride, rows.begin, rows.end, heads * c_.head_dim, norm.weight.data(), nullptr,
             c_.norm_eps, false, out});
  };
  if (c_.qk_norm == QkNorm::head) {
    per_head(weights.q_norm, query.begin * c_.head_dim, query.size());
    per_head(weights.k_norm, at_.key + kv.begin * c_.head_dim, kv.size());
  } else if (c_.qk_norm == QkNorm::full) {  // rows are divided, so these are all heads
    whole(weights.q_norm, 0, c_.heads);
    whole(weights.k_norm, at_.key, c_.kv_heads);
  }
}

void Forward::rotate(size_t rope, Range rows, int64_t column, int64_t heads) {
  if (heads == 0) return;
  const auto pairs = static_cast<int64_t>(c_.ropes[rope].inv_freq.size());
  k_.rope({qkv_at(rows.begin, column), s_.qkv.stride, rows.size(), heads, c_.head_dim, 2 * pairs,
           s_.cosines[rope] + rows.begin * pairs, s_.sines[rope] + rows.begin * pairs, c_.ropes[rope].interleaved});
}

void Forward::attend(Walk& w, size_t layer) {
  const AttentionPlan& plan = layer + 1 == c_.layers.size() ? last_plan_ : plan_;
  hand_out(
      w, [&plan](int rank) { return static_cast<int64_t>(plan.work(rank).size()); },
      [&](int rank, int64_t i) { attend_one(w.member, layer, plan, plan.work(rank)[static_cast<size_t>(i)]); });
  ++w.phase;
}

// The residual of the rows that want logits becomes its first rows, in each member's columns: ascending, so that a row
// is read before it is written. Attention's output has these rows alone already (AttentionPlan::make_for_logits).
void Forward::keep_logit_rows(Walk& w) {
  w.rows = batch_->logits;
  const Range columns = share(c_.hidden, kPanel, w.member, pool_.threads());
  for (int64_t i = 0; i < w.rows; ++i) {
    const float* from = residual_row(batch_->logit_row[i]);
    if (batch_->logit_row[i] != i) std::copy(from + columns.begin, from + columns.end, residual_row(i) + columns.begin);
  }
}

void Forward::attend_one(int member, size_t layer, const AttentionPlan& plan, const AttentionWork& work) {
  const AttentionItem& item = plan.item(work);
  const int64_t window = c_.layers[layer].window;
  AttendTask task{};
  task.cache = kv_.layer(static_cast<int64_t>(layer), item.kv_head);
  task.blocks = batch_->block + item.first_block;
  task.q = qkv_at(item.row, 0);
  task.q_stride = s_.qkv.stride;
  task.head_dim = c_.head_dim;
  task.kv_head = item.kv_head;
  task.group = c_.group();
  task.token_end = item.tokens;
  task.first_position = item.first_position;
  task.window = window;
  task.keys = item.keys;
  task.scale = c_.attention_scale;
  task.softcap = c_.attention_softcap;
  task.chunk_begin = item.chunk_begin(window);
  task.chunk_end = item.chunk_end(window);
  task.out = s_.attention.target(weights_.layer(layer).o);
  task.out_row = item.out_row;
  task.scratch = s_.attend(member);
  if (!work.split) return k_.attend(task);

  const int64_t first = task.chunk_begin, chunks = task.chunk_end - first;
  if (work.chunk < first || work.chunk >= task.chunk_end) return;
  const int64_t stride = item.tokens * plan.floats_per_token();
  float* partials = s_.partials + item.partials;
  task.chunk_begin = work.chunk;
  task.chunk_end = work.chunk + 1;
  task.partials = partials + work.chunk * stride;
  k_.attend(task);
  if (!plan.finish_chunk(work, chunks)) return;
  task.partials = partials + first * stride;
  k_.merge({task, chunks, stride});
}

}  // namespace forearm
