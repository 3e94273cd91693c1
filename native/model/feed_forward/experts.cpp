#include "model/feed_forward/experts.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/step/multiply.h"

namespace forearm {
namespace {

bool is_pairs(Form form) { return form == Form::bf16_pairs || form == Form::i8_pairs; }

// The rows from `row` on; of a form in pairs an even one.
Operand from_row(Operand rows, int64_t row, int64_t groups) {
  rows.data = static_cast<char*>(rows.data) + row * rows.stride * form_bytes(rows.form);
  const int64_t scales = row * groups * digits_of(rows.form);
  if (rows.scales) rows.scales += scales;
  if (rows.sums) rows.sums += scales;
  return rows;
}

}  // namespace

Experts::Experts(const Weights& weights, Step& step) : weights_(weights), step_(step), router_(weights, step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    if (!c.layers[i].experts) continue;
    const ExpertsKind& experts = kind(i);
    const std::string layer = "layers." + std::to_string(i) + ".";
    const auto up_columns = [](const FeedForwardKind& f) { return f.gated ? 2 * round_up(f.width, kPanel) : f.width; };
    const FeedForwardKind& each = *c.layers[i].feed_forward;
    const int64_t columns = experts.shared_gate ? experts.gate_column() + kPanel : experts.choices();
    if (!experts.router_rank) own.router = &weights.linear(layer + "router", columns, c.hidden);
    own.up = &weights.linear(layer + "experts.up", up_columns(each), c.hidden, experts.count);
    own.down = &weights.linear(layer + "experts.down", c.hidden, each.width, experts.count);
    if (!experts.shared) continue;
    own.shared_up = &weights.linear(layer + "shared.up", up_columns(*experts.shared), c.hidden);
    own.shared_down = &weights.linear(layer + "shared.down", c.hidden, experts.shared->width);
  }
  const ExpertSizes& sizes = step.scratch.experts;
  sorted_.assign(static_cast<size_t>(step.pool.threads()), RowsByExpert(sizes.count));
  ones_.assign(static_cast<size_t>(sizes.rows * sizes.slots), 1.0f);
}

int64_t Experts::phases(const Config& c, int64_t step_tokens) {
  // Rows and multiplication of router, and twice of the shared expert; up, rows, down.
  constexpr int64_t kRows = 6, kBlock = 3;
  int64_t most = 0;
  for (const LayerKind& layer : c.layers) {
    if (!layer.experts) continue;
    const int64_t rows = expert_block_rows(*layer.experts, step_tokens);
    const int64_t router = layer.experts->router_rank ? RouterMlp::kPhases : 0;
    most = std::max(most, kRows + router + kBlock * ((step_tokens + rows - 1) / rows));
  }
  return most;
}

const Norm* Experts::apply(StepWalk& w, size_t layer, const Norm* add) {
  const Norm* after = norm_behind(layer);
  if (w.rows == 0) return after;
  if (!kind(layer).ahead) {
    multiply_router(w, layer, add);
    step_.barrier(w);
  }
  const LayerMatrices& own = layers_[layer];
  const Operand shared =
      own.shared_down ? step_.output(w, step_.scratch.activated, own.shared_down->matrix) : Operand{};
  if (shared.data && !kind(layer).apart) step_.record(w, own.shared_down->matrix, shared, w.rows);
  const int64_t block_rows = expert_block_rows(kind(layer), step_.scratch.step_tokens);
  for (int64_t first = 0; first < w.rows; first += block_rows) {
    const Range rows{first, std::min(first + block_rows, w.rows)};
    const bool few = rows.size() <= kOwnRows;
    // A table may have an expert twice for a token: two results of one row.
    const bool one_row = rows.size() == 1 && !kind(layer).scales_input && !kind(layer).by_token;
    const Block block{layer, rows, few ? step_.scratch.own_routes(w.member) : step_.scratch.routes,
                      sorted_[static_cast<size_t>(w.member)], one_row && !own.up->matrix.format.ordered};
    const Operand in = sort_rows(w, block);
    multiply_up(w, block, in);
    step_.barrier(w);
    multiply_down(w, block, activated(w, block), shared);
    step_.barrier(w);
  }
  if (kind(layer).apart) add_shared(w, layer, shared);
  return after;
}

void Experts::route_ahead(StepWalk& w, size_t layer, const Norm* add) {
  multiply_router(w, layer, add);
  step_.barrier(w);  // the mixer's rows take the place of the router's
}

// Normalizes the experts' results and those of the shared feed-forward, and adds them up.
void Experts::add_shared(StepWalk& w, size_t layer, const Operand& shared) {
  GemmTask task{};
  task.a = shared;
  task.row_end = w.rows;
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.out = step_.scratch.beside_experts;
  step_.multiply(w, *layers_[layer].shared_down, task);
  step_.barrier(w);
  const Config& c = step_.config;
  const Norm& norm = weights_.norms(layer).post_shared;
  const Range rows = step_.mine(w, w.rows);
  const Operand& sum = step_.scratch.projected;
  step_.normalize(weights_.norms(layer).post_experts, step_.projected_row(0), rows, sum);
  step_.kernel.add_norm({{static_cast<const float*>(task.out.data), task.out.stride, rows.begin, rows.end, c.hidden,
                          norm.weight.data(), or_null(norm.bias), c.norm_eps, c.layer_norm, sum},
                         1.0f});
  step_.barrier(w);
}

// Multiplies all rows with the router, and with the first half of the shared expert.
void Experts::multiply_router(StepWalk& w, size_t layer, const Norm* add) {
  if (kind(layer).router_rank) return router_.apply(w, layer, add, weights_.norms(layer).pre_mlp);
  const LayerMatrices& own = layers_[layer];
  const LayerNorms& norms = weights_.norms(layer);
  GemmTask task{};
  const bool apart = kind(layer).apart;
  task.a = kind(layer).ahead ? step_.prepare_stream(w, add, nullptr, own.router->matrix)
                             : step_.stream(w, add, apart ? norms.router : norms.pre_mlp, own.router->matrix);
  task.row_end = w.rows;
  task.epilogue = Epilogue::store;
  task.scale = apart ? 1.0f / std::sqrt(static_cast<float>(step_.config.hidden)) : 1.0f;
  task.out = step_.scratch.router;
  step_.multiply(w, *own.router, task);
  if (!own.shared_up) return;
  if (apart) step_.barrier(w);  // rows of another norm take the place of the router's
  const Matrix& up = own.shared_up->matrix;
  const Norm* norm = norms.pre_mlp.in_residual ? nullptr : norms.pre_mlp.if_there();
  if (apart || up.form() != own.router->matrix.form() || up.format.ordered)
    task.a = step_.prepare_stream(w, nullptr, norm, up);
  const FeedForwardKind& shared = *kind(layer).shared;
  task.epilogue = shared.gated ? Epilogue::gated : Epilogue::activate;
  task.activation = shared.activation;
  task.scale = 1.0f;
  task.gate_limit = shared.gate_limit;
  task.limit = shared.limit;
  task.out = step_.scratch.activated.target(own.shared_down->matrix);
  step_.multiply(w, *own.shared_up, task);
}

// Chooses the experts of some rows of the block.
void Experts::route(const StepWalk& w, const Block& block, Range rows) const {
  const ExpertsKind& k = kind(block.layer);
  const std::vector<float>& correction = weights_.correction(block.layer);
  const Operand logits = from_row(step_.scratch.router, block.rows.begin, 0);
  RouteTask task{};
  task.logits = static_cast<const float*>(logits.data);
  task.stride = logits.stride;
  task.row_begin = rows.begin;
  task.row_end = rows.end;
  task.experts = k.choices();
  task.active = k.active;
  task.slots = k.slots();
  task.score = k.score;
  task.correction = or_null(correction);
  task.groups = k.groups;
  task.groups_kept = k.groups_kept;
  task.group_best = k.group_best;
  task.renormalized = k.renormalized;
  task.sum_epsilon = k.sum_epsilon;
  task.scale = k.scale;
  task.jitter = k.jitter;
  task.chosen = block.routes.chosen;
  task.weights = block.routes.weights;
  task.scratch = step_.scratch.route(w.member);
  if (k.by_token)
    look_up(block, rows);
  else
    step_.kernel.route(task);
  for (int64_t i = rows.begin * task.slots; i < rows.end * task.slots && k.skips; ++i)
    if (task.chosen[i] >= k.count) task.weights[i] = 0.0f;
  const std::vector<float>& scale = weights_.expert_scale(block.layer);
  for (int64_t i = rows.begin * task.slots; i < rows.end * task.slots && k.apart; ++i)
    task.weights[i] *= scale[static_cast<size_t>(task.chosen[i])];
  if (!k.shared || k.apart) return;
  task.chosen += k.active;
  task.weights += k.active;
  for (int64_t row = rows.begin; row < rows.end; ++row) task.weights[row * task.slots] = k.shared->out_scale;
  if (!k.shared_gate) return;
  // The gate's sigmoid is the score of a single expert.
  task.logits += k.gate_column();
  task.experts = task.active = task.groups = 1;
  task.score = Score::sigmoid;
  task.correction = nullptr;
  task.renormalized = false;
  task.scale = 1.0f;
  step_.kernel.route(task);
}

// Takes the experts of some rows of the block from the table, and weighs them by their scores, as RouteTask does.
void Experts::look_up(const Block& block, Range rows) const {
  const ExpertsKind& k = kind(block.layer);
  const float* table = weights_.experts_by_token(block.layer).data();
  const Batch& batch = step_.batch();
  const bool last = block.layer + 1 == step_.config.layers.size();  // whose rows are those of logits
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t at = block.rows.begin + row, token = batch.token[last ? batch.logit_row[at] : at];
    const float* logits = static_cast<float*>(step_.scratch.router.data) + at * step_.scratch.router.stride;
    float* weights = block.routes.weights + row * k.slots();
    float sum = 0.0f;
    for (int64_t i = 0; i < k.active; ++i) {
      const auto expert = static_cast<int32_t>(table[token * k.active + i]);
      const float x = logits[expert];
      block.routes.chosen[row * k.slots() + i] = expert;
      weights[i] = std::sqrt(std::fmax(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))));
      sum += weights[i];
    }
    for (int64_t i = 0; i < k.active; ++i) weights[i] *= k.scale / (sum + k.sum_epsilon);
  }
}

// Chooses the experts of all rows and returns the rows by expert, in the form that their matrices take. With few rows
// every member chooses for itself.
Operand Experts::sort_rows(StepWalk& w, const Block& block) {
  const int64_t rows = block.rows.size();
  const bool few = rows <= kOwnRows;
  const Range own = step_.mine(w, rows), routed = few ? Range{0, rows} : own;
  route(w, block, routed);
  if (!few) step_.barrier(w);
  const LayerMatrices& m = layers_[block.layer];
  const Matrix& up = m.up->matrix;
  const int64_t unit = is_pairs(up.form()) || is_pairs(m.down->matrix.form()) ? 2 : 1;
  block.sorted.sort(block.routes, kind(block.layer), rows, unit, routed);
  if (block.one_row) {
    const Operand out = step_.scratch.by_expert.own[static_cast<size_t>(w.member)].operand(up);
    copy_row(w, block, 0, out);
    return out;
  }
  const Operand out = step_.scratch.by_expert.shared.operand(up);
  for (int64_t row = own.begin; row < own.end; ++row) copy_row(w, block, row, out);
  step_.barrier(w);
  return out;
}

// Writes a row of the residual, normalized, to its experts' positions; a block's only row to the first position. Where
// experts may pass it on, it also takes the place of the result.
void Experts::copy_row(const StepWalk& w, const Block& block, int64_t row, const Operand& out) const {
  const ExpertsKind& k = kind(block.layer);
  const Matrix& up = layers_[block.layer].up->matrix;
  const Norm& norm = norm_before(block.layer);
  const int64_t at = block.rows.begin + row;
  const float* x = step_.residual_row(at);
  if (norm.gated) {
    x = static_cast<const float*>(step_.scratch.gated.data) + at * step_.scratch.gated.stride;
  } else if (norm.if_there() && !norm.in_residual) {
    float* own = step_.scratch.row(w.member);
    step_.normalize(norm, step_.residual_row(0), {at, at + 1}, {own, 0, Form::f32_rows});
    x = own;
  }
  if (k.zeros && (!block.one_row || w.member == 0)) std::copy_n(x, up.k, step_.projected_row(at));
  float* turned = up.format.turned ? step_.scratch.results(w.member) : nullptr;
  if (block.one_row) return step_.kernel.quantize({x, 0, 0, 1, up.k, nullptr, out, turned});
  for (int64_t i = row * k.slots(); i < row * k.slots() + k.active; ++i) {
    if (block.routes.chosen[i] >= k.count) continue;
    const float* from = x;
    if (k.scales_input) {
      float* scaled = step_.scratch.results(w.member);
      std::transform(x, x + up.k, scaled, [&](float value) { return value * block.routes.weights[i]; });
      from = scaled;
    }
    const int64_t to = block.routes.place[i];
    step_.kernel.quantize({from, 0, to, to + 1, up.k, up.order_of(block.routes.chosen[i]), out, turned});
  }
}

void Experts::multiply_up(StepWalk& w, const Block& block, const Operand& in) const {
  const LayerMatrices& m = layers_[block.layer];
  const Matrix &up = m.up->matrix, &down = m.down->matrix;
  const FeedForwardKind& each = *step_.config.layers[block.layer].feed_forward;
  const Operand out = step_.scratch.expert_activated.target(down);
  const int64_t unit = each.gated ? 2 * kPanel : kPanel;
  const int64_t near_rows = std::max(kNearBytes / (in.stride * form_bytes(in.form)), kLeastRows);
  for (const ExpertRows& rows : block.sorted.experts())
    step_.record_expert(w, up, rows.expert, from_row(in, block.one_row ? 0 : rows.begin, up.groups()), rows.rows);
  GemmTask task{};
  task.epilogue = each.gated ? Epilogue::gated : Epilogue::activate;
  task.activation = each.activation;
  task.scale = 1.0f;
  task.gate_limit = each.gate_limit;
  task.limit = each.limit;
  task.scratch = step_.scratch.gemm(w.member);
  const auto columns_of = [&](int rank) { return up.columns_of(step_.ranks.members(rank)); };
  const auto multiply = [&](int rank, int64_t piece, int64_t pieces) {
    const Range columns = columns_of(rank);
    block.sorted.piece(piece, pieces, (columns.size() + unit - 1) / unit, near_rows,
                       [&](const ExpertRows& rows, Range units) {
                         task.a = from_row(in, block.one_row ? 0 : rows.begin, up.groups());
                         task.row_end = rows.rows;
                         task.w = up.weights(rows.expert);
                         task.n_begin = columns.begin + units.begin * unit;
                         task.n_end = std::min(columns.begin + units.end * unit, columns.end);
                         task.bias = m.up->bias_of(rows.expert);
                         task.out = from_row(out, rows.begin, 0);
                         step_.kernel.gemm(task);
                       });
  };
  // Pieces of a member, at most: of more rows than these, the experts' blocks are many pieces anyway.
  constexpr int64_t kMostPieces = 64;
  const auto pieces_of = [&](int rank) {
    const int64_t columns = static_cast<int64_t>(block.sorted.experts().size()) * columns_of(rank).size();
    const int64_t each_member = step_.ranks.members(rank).size() * Step::piece_columns(1);
    return std::clamp<int64_t>((columns + each_member - 1) / each_member, 1, kMostPieces);
  };
  if (block.rows.size() <= kStaticRows) {
    const int rank = step_.ranks.of(w.member);
    const Range mates = step_.ranks.members(rank);
    const int64_t pieces = pieces_of(rank);
    step_.take_own(
        w, [&](int) { return pieces; },
        [&](int owner, int64_t i) { multiply(rank, (owner - mates.begin) * pieces + i, mates.size() * pieces); });
  } else {
    const auto all_pieces = [&](int rank) { return pieces_of(rank) * step_.ranks.members(rank).size(); };
    step_.hand_out(w, all_pieces, [&](int rank, int64_t i) { multiply(rank, i, all_pieces(rank)); });
  }
  ++w.phase;
}

// Returns the experts' activated rows in the form that the second matrix takes.
Operand Experts::activated(StepWalk& w, const Block& block) const {
  const Matrix& down = layers_[block.layer].down->matrix;
  const Site& site = step_.scratch.expert_activated;
  if (Site::is_direct(down)) return site.shared.operand(down);
  float* turned = down.format.turned ? step_.scratch.row(w.member) : nullptr;
  const auto prepare = [&](Range positions, const Operand& out) {
    for (const ExpertRows& rows : block.sorted.experts()) {
      const Range part{std::max(positions.begin, rows.begin), std::min(positions.end, rows.begin + rows.rows)};
      if (part.begin >= part.end) continue;
      step_.kernel.quantize({static_cast<const float*>(site.raw.data), site.raw.stride, part.begin, part.end, down.k,
                             down.order_of(rows.expert), out, turned});
    }
  };
  const int64_t positions = block.sorted.positions();
  if (positions <= 2 * step_.scratch.experts.slots && positions * down.k <= kOwnValues) {
    const Operand own = site.own[static_cast<size_t>(w.member)].operand(down);
    prepare({0, positions}, own);
    return own;
  }
  const Operand out = site.shared.operand(down);
  step_.make_together(w, positions, [&](Range part) { prepare(part, out); });
  return out;
}

// Multiplies with the second matrices and adds up, piece by piece of columns.
void Experts::multiply_down(StepWalk& w, const Block& block, const Operand& in, const Operand& shared) const {
  const Matrix& down = layers_[block.layer].down->matrix;
  const int64_t rows = block.rows.size(), results = block.sorted.positions() + rows;
  const int64_t fit = step_.scratch.own_results / results / kPanel * kPanel;
  constexpr int64_t kMostColumns = 512;
  for (const ExpertRows& own : block.sorted.experts())
    step_.record_expert(w, down, own.expert, from_row(in, own.begin, down.groups()), own.rows);
  const auto work = [&](Range columns) { add_results(w, block, in, shared, columns); };
  if (rows <= kStaticRows) {
    // Reading starts anew with each expert of a piece: pieces are long, but leave some for others to take.
    const int64_t own = down.n / step_.pool.threads(),
                  piece = std::clamp(own / 4, Step::piece_columns(1), kMostColumns);
    step_.take_own_columns(w, down, std::min(fit, piece / kPanel * kPanel), work);
  } else {
    const int64_t piece = std::min(fit, kResultColumns);
    const auto columns_of = [&](int rank) { return down.columns_of(step_.ranks.members(rank)); };
    step_.hand_out(
        w, [&](int rank) { return (columns_of(rank).size() + piece - 1) / piece; },
        [&](int rank, int64_t i) {
          const Range columns = columns_of(rank);
          const int64_t first = columns.begin + i * piece;
          work({first, std::min(first + piece, columns.end)});
        });
  }
  ++w.phase;
}

void Experts::add_results(const StepWalk& w, const Block& block, const Operand& in, const Operand& shared,
                          Range columns) const {
  const LayerMatrices& m = layers_[block.layer];
  const Matrix& down = m.down->matrix;
  const ExpertsKind& k = kind(block.layer);
  float* results = step_.scratch.results(w.member);
  const int64_t stride = round_up(columns.size(), kPanel);
  GemmTask task{};
  task.epilogue = Epilogue::store;
  task.scale = 1.0f;
  task.scratch = step_.scratch.gemm(w.member);
  task.n_begin = columns.begin;
  task.n_end = columns.end;
  const auto multiply = [&](const Operand& a, int64_t rows, const Linear& linear, int64_t expert, int64_t at) {
    task.a = a;
    task.row_end = rows;
    task.w = linear.matrix.weights(expert);
    task.bias = linear.bias_of(expert);
    task.out = {results + at * stride - columns.begin, stride, Form::f32_rows};
    step_.kernel.gemm(task);
  };
  for (const ExpertRows& rows : block.sorted.experts())
    multiply(from_row(in, rows.begin, down.groups()), rows.rows, *m.down, rows.expert, rows.begin);
  const int64_t rows = block.rows.size();
  if (k.shared && !k.apart)
    multiply(from_row(shared, block.rows.begin, m.shared_down->matrix.groups()), rows, *m.shared_down, 0,
             block.sorted.positions());
  for (int64_t row = 0; row < rows && k.zeros; ++row)
    std::copy_n(step_.projected_row(block.rows.begin + row) + columns.begin, columns.size(),
                results + (block.sorted.positions() + row) * stride);
  const bool normed = norm_behind(block.layer);
  step_.kernel.combine({results, stride, 0, rows, k.slots(), k.scales_input ? ones_.data() : block.routes.weights,
                        block.routes.place, columns.begin, columns.end, normed ? 1.0f : step_.config.residual_scale,
                        !normed,
                        from_row(normed ? step_.scratch.projected : step_.scratch.residual, block.rows.begin, 0)});
}

}  // namespace forearm
