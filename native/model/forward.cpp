// Reading order: run, walk, then the phases in the order in which walk meets them.
#include "model/forward.h"

#include <cmath>

#include "kernels/pack.h"

namespace forearm {
namespace {

// Up to so many rows a step is bound by reading the weights, and every member multiplies its own columns first. Beyond,
// blocks of rows and columns are handed out to whoever is free.
constexpr int64_t kStaticRows = 32;
constexpr int64_t kPieceColumns = 8 * kPanel;  // the widest tile of one row
constexpr int kHelped = 3;                     // neighbours: each look at another's counter is a cache miss
constexpr int64_t kBlockColumns = 4 * kPanel;
constexpr int64_t kBlockRows = 48;  // a multiple of every tile's height

const float* or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

// x as the left side of a multiplication, rounded where the tier rounds; no norm in between.
void copy_rows(const float* x, int64_t stride, Range rows, int64_t dim, const Operand& out) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    if (out.form == Form::f32_rows) {
      std::copy_n(x + r * stride, dim, static_cast<float*>(out.data) + r * out.stride);
      continue;
    }
    const bool pairs = out.form == Form::bf16_pairs;
    uint16_t* row = static_cast<uint16_t*>(out.data) + (pairs ? r / 2 * out.stride * 2 + r % 2 * 4 : r * out.stride);
    for (int64_t k = 0; k < dim; ++k) row[pairs ? k / 4 * 8 + k % 4 : k] = narrow(x[r * stride + k], DType::bf16);
  }
}

}  // namespace

Forward::Forward(const Config& config, const Weights& weights, const KvBlocks& kv, Scratch& scratch, Pool& pool)
    : c_(config),
      weights_(weights),
      kv_(kv),
      s_(scratch),
      pool_(pool),
      k_(kernels()),
      at_(config),
      plan_(config, kv.padded_head_dim(), scratch.partial_floats, pool.threads()),
      phases_(5 * static_cast<int64_t>(config.layers.size()) + 2),
      counters_(std::make_unique<Counter[]>(static_cast<size_t>(phases_ * pool.threads()))) {}

void Forward::run(const Batch& batch) {
  if (batch.tokens == 0) return;
  batch_ = &batch;
  plan_.make(batch);
  pool_.run([this](int member) { walk({member}); });
}

void Forward::walk(Walk w) {
  for (int phase = 0; phase < phases_; ++phase) counter(phase, w.member).store(0, std::memory_order_relaxed);
  prepare(w);
  barrier(w);
  for (size_t i = 0; i < c_.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layer(i);
    project_qkv(w, i, input(w, layer.input_norm));
    barrier(w);
    attend(w, i);
    barrier(w);
    project_back(w, s_.attention, layer.o, layer.o_bias, layer.post_attention_norm);
    barrier(w);
    project_up(w, layer, input(w, layer.pre_mlp_norm));
    barrier(w);
    project_back(w, s_.activated, layer.down, layer.down_bias, layer.post_mlp_norm);
    barrier(w);
  }
  if (batch_->logits > 0) head(w);
}

void Forward::prepare(const Walk& w) {
  const Range rows = mine(w, batch_->tokens);
  embed(rows);
  angles(rows);
  for (int64_t s = 0; s < batch_->sequences; ++s) {
    const int32_t* blocks = batch_->block + batch_->block_start[s];
    const int64_t begin = std::max<int64_t>(rows.begin, batch_->start[s]);
    const int64_t end = std::min<int64_t>(rows.end, batch_->start[s + 1]);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t position = batch_->position[r], offset = position % kBlockTokens;
      const int64_t block = blocks[position / kBlockTokens];
      s_.slots[r] = static_cast<int32_t>(block * kBlockTokens + offset);
      if (offset == 0) kv_.clear(block);
    }
  }
}

void Forward::embed(Range rows) {
  const auto table = [&](const Matrix& matrix, const int32_t* ids, float scale, float* out, int64_t stride) {
    k_.embed({ids, rows.size(), matrix.weights(), scale, out, stride});
  };
  table(weights_.embed(), batch_->token + rows.begin, c_.embedding_scale, residual_row(rows.begin), s_.residual.stride);
  if (!c_.learned_positions) return;
  float* learned = static_cast<float*>(s_.projected.data);
  for (int64_t r = rows.begin; r < rows.end; ++r)
    s_.slots[r] = batch_->position[r] + static_cast<int32_t>(c_.position_offset);  // prepare sets the slots afterwards
  table(weights_.positions(), s_.slots + rows.begin, 1.0f, learned + rows.begin * s_.projected.stride,
        s_.projected.stride);
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t i = 0; i < c_.hidden; ++i) residual_row(r)[i] += learned[r * s_.projected.stride + i];
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

// The residual stream as the left side of the next multiplication, normalised if there is a norm. Few rows: every
// member makes its own copy and needs to wait for nobody.
Operand Forward::input(const Walk& w, const Norm& norm) {
  const int64_t rows = batch_->tokens;
  const bool plain = norm.weight.empty();
  if (plain && s_.normed.form == Form::f32_rows) return s_.residual;
  const bool own = rows <= kOwnNormRows;
  const Operand out = own ? s_.own_normed(w.member) : s_.normed;
  const Range part = own ? Range{0, rows} : mine(w, rows);
  if (plain)
    copy_rows(residual_row(0), s_.residual.stride, part, c_.hidden, out);
  else
    normalise(norm, residual_row(0), part, out);
  if (!own) barrier(w);
  return out;
}

void Forward::normalise(const Norm& norm, const float* x, Range rows, const Operand& out) {
  k_.norm({x, s_.residual.stride, rows.begin, rows.end, c_.hidden, norm.weight.data(), or_null(norm.bias), c_.norm_eps,
           c_.layer_norm, out});
}

void Forward::project_qkv(Walk& w, size_t layer, const Operand& in) {
  const LayerWeights& weights = weights_.layer(layer);
  GemmTask task{};
  task.a = in;
  task.row_end = batch_->tokens;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.out = s_.qkv;
  multiply(w, weights.qkv, weights.qkv_bias, task);

  const HeadPlan& plan = weights_.heads();
  const HeadShare& share = plan.shares[static_cast<size_t>(w.member)];
  const Range rows{0, batch_->tokens};
  const bool few = batch_->tokens <= kStaticRows;
  if (few && plan.fused) return finish_heads(layer, rows, share.query, share.kv);
  barrier(w);
  if (few && c_.qk_norm != QkNorm::full) return finish_heads(layer, rows, share.query, share.kv);
  finish_heads(layer, mine(w, batch_->tokens), {0, c_.heads}, {0, c_.kv_heads});
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
    k_.write_kv({kv_.layer(static_cast<int64_t>(layer)), qkv_at(rows.begin, at_.key + h * c_.head_dim),
                 qkv_at(rows.begin, at_.value + h * c_.head_dim), s_.qkv.stride, rows.size(), c_.head_dim, h,
                 s_.slots + rows.begin});
}

void Forward::normalise_heads(const LayerWeights& weights, Range rows, Range query, Range kv) {
  const auto per_head = [&](const Norm& norm, int64_t column, int64_t heads) {
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
  const auto pairs = static_cast<int64_t>(c_.ropes[rope].inv_freq.size());
  k_.rope({qkv_at(rows.begin, column), s_.qkv.stride, rows.size(), heads, c_.head_dim, 2 * pairs,
           s_.cosines[rope] + rows.begin * pairs, s_.sines[rope] + rows.begin * pairs, c_.ropes[rope].interleaved});
}

void Forward::attend(Walk& w, size_t layer) {
  const std::vector<AttentionWork>& work = plan_.work();
  const auto pieces = static_cast<int64_t>(work.size());
  for (int64_t i = next(w); i < pieces; i = next(w)) attend_one(w.member, layer, work[static_cast<size_t>(i)]);
  ++w.phase;
}

void Forward::attend_one(int member, size_t layer, const AttentionWork& work) {
  const AttentionItem& item = plan_.item(work);
  const int64_t window = c_.layers[layer].window;
  AttendTask task{};
  task.cache = kv_.layer(static_cast<int64_t>(layer));
  task.blocks = batch_->block + item.first_block;
  task.q = qkv_at(item.row, 0);
  task.q_stride = s_.qkv.stride;
  task.head_dim = c_.head_dim;
  task.kv_head = item.kv_head;
  task.group = c_.group();
  task.token_end = item.tokens;
  task.first_position = item.first_position;
  task.window = window;
  task.scale = c_.attention_scale;
  task.softcap = c_.attention_softcap;
  task.chunk_begin = item.chunk_begin(window);
  task.chunk_end = item.chunk_end();
  task.out = s_.attention;
  task.out_row = item.row;
  task.scratch = s_.attend(member);
  if (!work.split) return k_.attend(task);

  const int64_t first = task.chunk_begin, chunks = task.chunk_end - first;
  if (work.chunk < first) return;
  const int64_t stride = item.tokens * plan_.floats_per_token();
  float* partials = s_.partials + item.partials;
  task.chunk_begin = work.chunk;
  task.chunk_end = work.chunk + 1;
  task.partials = partials + work.chunk * stride;
  k_.attend(task);
  if (!plan_.finish_chunk(work, chunks)) return;
  task.partials = partials + first * stride;
  k_.merge({task, chunks, stride});
}

// residual += scale * (in W^T + bias), or, where a norm follows the layer, residual += scale * norm(in W^T + bias).
void Forward::project_back(Walk& w, const Operand& in, const Matrix& matrix, const std::vector<float>& bias,
                           const Norm& norm) {
  const bool normed = !norm.weight.empty();
  GemmTask task{};
  task.a = in;
  task.row_end = batch_->tokens;
  task.epilogue = normed ? Epilogue::store : Epilogue::add;
  task.scale = normed ? 1.0f : c_.residual_scale;
  task.out = normed ? s_.projected : s_.residual;
  multiply(w, matrix, bias, task);
  if (!normed) return;
  barrier(w);
  const Range rows = mine(w, batch_->tokens);
  k_.add_norm({{static_cast<const float*>(s_.projected.data), s_.projected.stride, rows.begin, rows.end, c_.hidden,
                norm.weight.data(), or_null(norm.bias), c_.norm_eps, c_.layer_norm, s_.residual},
               c_.residual_scale});
}

void Forward::project_up(Walk& w, const LayerWeights& weights, const Operand& in) {
  GemmTask task{};
  task.a = in;
  task.row_end = batch_->tokens;
  task.epilogue = c_.gated ? Epilogue::gated : Epilogue::activate;
  task.activation = c_.activation;
  task.scale = 1.0f;
  task.out = s_.activated;
  multiply(w, weights.up, weights.up_bias, task);
}

void Forward::head(Walk& w) {
  const int64_t rows = batch_->logits;
  const bool own = rows <= kOwnNormRows;
  const Operand in = own ? s_.own_normed(w.member) : s_.normed;
  const Range part = own ? Range{0, rows} : mine(w, rows);
  for (int64_t i = part.begin; i < part.end; ++i) {
    const float* x = residual_row(batch_->logit_row[i] - i);  // row i of x and of `in` is the i-th wanted one
    if (c_.final_norm)
      normalise(weights_.final_norm(), x, {i, i + 1}, in);
    else
      copy_rows(x, s_.residual.stride, {i, i + 1}, c_.hidden, in);
  }
  if (!own) barrier(w);
  GemmTask task{};
  task.a = in;
  task.row_end = rows;
  task.epilogue = c_.logits_softcap > 0.0f ? Epilogue::softcap : Epilogue::store;
  task.scale = c_.logits_scale;
  task.softcap = c_.logits_softcap;
  task.out = s_.logits;
  multiply(w, weights_.head(), weights_.head_bias(), task);
}

void Forward::multiply_piece(GemmTask& task, Range columns) {
  task.n_begin = columns.begin;
  task.n_end = columns.end;
  if (columns.size() > 0) k_.gemm(task);
}

// A member's own columns piece by piece, then pieces that its neighbours have not come to yet: a core that other work
// holds up (HTTP on a small machine, a hypervisor) does not hold up the step.
void Forward::multiply_columns(const Walk& w, const Matrix& matrix, GemmTask task) {
  for (int i = 0; i <= std::min(kHelped, pool_.threads() - 1); ++i) {
    const int owner = (w.member + i) % pool_.threads();
    const Range columns = matrix.partition[static_cast<size_t>(owner)].front();
    for (;;) {
      const int64_t begin = columns.begin + kPieceColumns * take(w.phase, owner);
      if (begin >= columns.end) break;
      multiply_piece(task, {begin, std::min(begin + kPieceColumns, columns.end)});
    }
  }
}

// The whole multiplication that `task` describes but for the matrix and the columns, divided among the members.
void Forward::multiply(Walk& w, const Matrix& matrix, const std::vector<float>& bias, GemmTask task) {
  task.w = matrix.weights();
  task.bias = or_null(bias);
  const int64_t rows = task.row_end;
  if (rows <= kStaticRows) {
    const auto& own = matrix.partition[static_cast<size_t>(w.member)];
    if (own.size() == 1)
      multiply_columns(w, matrix, task);
    else  // whole heads, which their member goes on with: nobody else may hold them up
      for (const Range columns : own) multiply_piece(task, columns);
    ++w.phase;
    return;
  }
  const int64_t column_blocks = (matrix.n + kBlockColumns - 1) / kBlockColumns;
  int64_t row_blocks = 1;  // as few as keep everybody busy: each one reads the weights again
  while (column_blocks * row_blocks < 4 * pool_.threads() && rows > 2 * row_blocks * kBlockRows) row_blocks *= 2;
  for (int64_t i = next(w); i < column_blocks * row_blocks; i = next(w)) {
    const Range part = share(rows, kBlockRows, i % row_blocks, row_blocks);
    task.row_begin = part.begin;
    task.row_end = part.end;
    task.n_begin = i / row_blocks * kBlockColumns;
    task.n_end = std::min(task.n_begin + kBlockColumns, matrix.n);
    k_.gemm(task);
  }
  ++w.phase;
}

}  // namespace forearm
