#include "model/scratch.h"

#include <algorithm>

#include "model/partition.h"
#include "sampling/sampler.h"

namespace forearm {
namespace {

// Partial results of attention take at most this: enough for a million tokens of context on 8 threads, Llama-8B's
// heads.
constexpr int64_t kMostPartialFloats = int64_t{16} << 20;

int64_t operand_bytes(Form form, int64_t rows, int64_t columns) {
  return form == Form::f32_rows ? rows * odd_lines(columns) * 4 : round_up(rows, 2) * odd_lines(columns) * 2;
}

// So that one long sequence keeps all threads busy: two items a thread, each cut into the chunks of the whole context.
int64_t partials_wanted(const Config& c, const Limits& limits, int64_t padded_head_dim, int threads) {
  const int64_t chunks = (limits.max_model_len + kChunkTokens - 1) / kChunkTokens;
  const int64_t item = c.group() * (2 + padded_head_dim);
  return std::min((2 * threads + c.kv_heads) * chunks * item, kMostPartialFloats);
}

// Takes pieces in a first pass, and turns them into pointers in a second one, once the region is there.
class Carver {
 public:
  explicit Carver(char* base) : base_(reinterpret_cast<uintptr_t>(base)) {}
  template <class T>
  T* take(int64_t bytes) {
    return reinterpret_cast<T*>(base_ + static_cast<uintptr_t>(pieces_.take(bytes)));
  }
  Operand operand(Form form, int64_t rows, int64_t columns) {
    return {take<void>(operand_bytes(form, rows, columns)), odd_lines(columns), form};
  }
  int64_t bytes() const { return pieces_.bytes(); }

 private:
  uintptr_t base_;
  Pieces pieces_;
};

}  // namespace

Scratch::Scratch(const Config& c, const Limits& limits, const Weights& weights, int64_t padded_head_dim, int threads)
    : partial_floats(partials_wanted(c, limits, padded_head_dim, threads)) {
  const Form form = weights.head().form();
  const int64_t tokens = round_up(limits.step_tokens, 2), rows = limits.step_logit_rows;
  cosines.resize(c.ropes.size());
  sines.resize(c.ropes.size());
  own_normed_bytes_ = round_up(operand_bytes(form, kOwnNormRows, c.hidden), 128);
  own_attend_bytes_ = round_up(kernels().attend_scratch_bytes(padded_head_dim), 128);
  own_sampler_bytes_ = round_up(sampler_scratch_bytes(c.vocab_size), 128);
  const auto carve = [&](Carver carver) {
    residual = carver.operand(Form::f32_rows, tokens, c.hidden);
    normed = carver.operand(form, std::max(tokens, rows), c.hidden);
    qkv = carver.operand(Form::f32_rows, tokens, QkvColumns(c).end);
    attention = carver.operand(form, tokens, c.heads * c.head_dim);
    activated = carver.operand(form, tokens, round_up(c.intermediate, kPanel));
    projected = carver.operand(Form::f32_rows, tokens, c.hidden);
    logits = carver.operand(Form::f32_rows, rows, c.vocab_size);
    for (size_t i = 0; i < c.ropes.size(); ++i) {
      const auto pairs = static_cast<int64_t>(c.ropes[i].inv_freq.size());
      cosines[i] = carver.take<float>(tokens * pairs * 4);
      sines[i] = carver.take<float>(tokens * pairs * 4);
    }
    slots = carver.take<int32_t>(tokens * 4);
    partials = carver.take<float>(partial_floats * 4);
    own_normed_ = {carver.take<void>(threads * own_normed_bytes_), odd_lines(c.hidden), form};
    own_attend_ = carver.take<char>(threads * own_attend_bytes_);
    own_sampler_ = carver.take<char>(threads * own_sampler_bytes_);
    return carver.bytes();
  };
  region_ = Region(
      "the scratch of a step of " + std::to_string(tokens) + " tokens and " + std::to_string(rows) + " logit rows",
      carve(Carver(nullptr)));
  carve(Carver(region_.data()));
}

Operand Scratch::own_normed(int member) const {
  return {static_cast<char*>(own_normed_.data) + member * own_normed_bytes_, own_normed_.stride, own_normed_.form};
}

}  // namespace forearm
