#include "model/scratch.h"

#include <algorithm>

#include "model/partition.h"
#include "sampling/sampler.h"

namespace forearm {

// Takes pieces in a first pass, and turns them into pointers in a second one, once the region is there.
class Carver {
 public:
  explicit Carver(char* base) : base_(reinterpret_cast<uintptr_t>(base)) {}
  template <class T>
  T* take(int64_t bytes) {
    return reinterpret_cast<T*>(base_ + static_cast<uintptr_t>(pieces_.take(bytes)));
  }
  char* take_each(int threads, int64_t bytes) { return take<char>(threads * bytes); }
  Operand floats(int64_t rows, int64_t columns) {
    return {take<void>(rows * odd_lines(columns) * 4), odd_lines(columns), Form::f32_rows};
  }
  // Every form that is needed, [rows, columns] each.
  void take(Inputs& inputs, int64_t rows) {
    for (size_t form = 0; form < kForms; ++form)
      if (inputs.groups_[form]) inputs.forms_[form] = operand(static_cast<Form>(form), round_up(rows, 2), inputs);
  }
  int64_t bytes() const { return pieces_.bytes(); }

 private:
  Operand operand(Form form, int64_t rows, const Inputs& inputs) {
    if (form == Form::f32_rows) return floats(rows, inputs.columns_);
    const int64_t width = form_bytes(form);
    const int64_t stride = odd_lines((inputs.columns_ * width + 3) / 4) * 4 / width;
    Operand operand{take<void>(rows * stride * width), stride, form};
    if (!is_quantized(form)) return operand;
    const int64_t groups = inputs.groups_[static_cast<size_t>(form)];
    operand.scales = take<float>(rows * groups * 4);
    operand.sums = take<int32_t>(rows * groups * 4);
    return operand;
  }

  uintptr_t base_;
  Pieces pieces_;
};

namespace {

// Partial results of attention take at most this: enough for a million tokens of context on 8 threads, Llama-8B's
// heads.
constexpr int64_t kMostPartialFloats = int64_t{16} << 20;

// So that one long sequence keeps all threads busy: two items a thread, each cut into the chunks of the whole context.
int64_t partials_wanted(const Config& c, const Limits& limits, int64_t padded_head_dim, int threads) {
  const int64_t chunks = (limits.max_model_len + kChunkTokens - 1) / kChunkTokens;
  const int64_t item = c.group() * (2 + padded_head_dim);
  return std::min((2 * threads + c.kv_heads) * chunks * item, kMostPartialFloats);
}

}  // namespace

void Inputs::need(const Matrix& matrix) {
  columns_ = matrix.k;
  int64_t& groups = groups_[static_cast<size_t>(matrix.form())];
  groups = std::max(groups, is_quantized(matrix.form()) ? matrix.groups() : 1);
}

Operand Inputs::operand(const Matrix& matrix) const {
  Operand operand = forms_[static_cast<size_t>(matrix.form())];
  operand.group = is_quantized(operand.form) ? matrix.group() : 0;
  return operand;
}

Scratch::Scratch(const Config& c, const Limits& limits, const Weights& weights, int64_t padded_head_dim, int threads)
    : partial_floats(partials_wanted(c, limits, padded_head_dim, threads)) {
  cosines.resize(c.ropes.size());
  sines.resize(c.ropes.size());
  own_row_bytes_ = round_up(c.hidden * 4, 128);
  own_attend_bytes_ = round_up(kernels().attend_scratch_bytes(padded_head_dim), 128);
  own_sampler_bytes_ = c.pooled ? 0 : round_up(sampler_scratch_bytes(c.vocab_size), 128);
  add_needs(weights, c.layers.size(), c.pooled, threads);
  Carver sizes(nullptr);
  carve(sizes, c, limits, threads);
  region_ = Region("the scratch of a step of " + std::to_string(limits.step_tokens) + " tokens and " +
                       std::to_string(limits.step_logit_rows) + " logit rows",
                   sizes.bytes());
  Carver pieces(region_.data());
  carve(pieces, c, limits, threads);
}

// Which forms the matrices take, and how much room it takes to multiply codes.
void Scratch::add_needs(const Weights& weights, size_t layers, bool pooled, int threads) {
  const auto need = [&](Site& site, const Matrix& matrix) {
    site.own.resize(static_cast<size_t>(threads));
    site.shared.need(matrix);
    site.prepares = site.prepares || !Site::is_direct(matrix);
    for (Inputs& own : site.own) own.need(matrix);
    if (matrix.is_codes())
      own_gemm_bytes_ = std::max(own_gemm_bytes_, round_up(kernels().gemm_scratch_bytes(matrix.k), 128));
  };
  for (size_t i = 0; i < layers; ++i) {
    const LayerWeights& layer = weights.layer(i);
    need(stream, layer.qkv);
    need(attention, layer.o);
    need(stream, layer.up);
    need(activated, layer.down);
  }
  if (!pooled) need(stream, weights.head());
}

void Scratch::carve(Carver& carver, const Config& c, const Limits& limits, int threads) {
  const int64_t tokens = round_up(limits.step_tokens, 2);
  residual = carver.floats(tokens, c.hidden);
  qkv = carver.floats(tokens, QkvColumns(c).end);
  projected = carver.floats(c.norm_after() || c.learned_positions || c.token_types > 0 ? tokens : 0, c.hidden);
  logits = carver.floats(limits.step_logit_rows, c.out_columns());
  maxima = carver.floats(c.pooled ? 0 : limits.step_logit_rows, maxima_of(c.vocab_size));
  carve_sites(carver, c, limits);
  for (size_t i = 0; i < c.ropes.size(); ++i) {
    const auto pairs = static_cast<int64_t>(c.ropes[i].inv_freq.size());
    cosines[i] = carver.take<float>(tokens * pairs * 4);
    sines[i] = carver.take<float>(tokens * pairs * 4);
  }
  slots = carver.take<int32_t>(tokens * 4);
  partials = carver.take<float>(partial_floats * 4);
  own_row_ = carver.take_each(threads, own_row_bytes_);
  own_attend_ = carver.take_each(threads, own_attend_bytes_);
  own_gemm_ = carver.take_each(threads, own_gemm_bytes_);
  own_sampler_ = carver.take_each(threads, own_sampler_bytes_);
}

void Scratch::carve_sites(Carver& carver, const Config& c, const Limits& limits) {
  const int64_t tokens = round_up(limits.step_tokens, 2);
  carver.take(stream.shared, std::max(tokens, limits.step_logit_rows));
  carver.take(attention.shared, tokens);
  carver.take(activated.shared, tokens);
  for (Site* site : {&stream, &attention, &activated})
    for (Inputs& own : site->own) carver.take(own, kOwnRows);
  stream.raw = residual;
  attention.raw = carver.floats(attention.prepares ? tokens : 0, c.heads * c.head_dim);
  activated.raw = carver.floats(activated.prepares ? tokens : 0, c.intermediate);
}

}  // namespace forearm
