#include "model/executor.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace forearm {
namespace {

Config checked(Config config, const Limits& limits) {
  check(config, limits);
  return config;
}

}  // namespace

Executor::Executor(Config config, const Formats& formats, const Limits& limits, std::vector<int> cores,
                   const Ranks& ranks, const Executor* beside)
    : config_(checked(std::move(config), limits)),
      limits_(limits),
      ranks_(ranks),
      pool_(beside ? beside->pool_ : std::make_shared<Pool>(ranks.threads(), std::move(cores))),
      weights_(std::make_shared<Weights>(config_, formats, ranks_, beside ? beside->weights_ : nullptr)),
      kv_(config_, limits.kv_dtype, ranks_, limits.kv_groups),
      states_(config_),
      scratch_(config_, limits, matrix_inputs(config_, formats), kv_.padded_head_dim(), ranks_.threads()),
      pooling_(config_, *weights_, ranks_.threads()) {
  if (config_.modules)
    modules_.emplace(config_, ranks_, *weights_, kv_, scratch_, *pool_);
  else
    forward_.emplace(config_, ranks_, *weights_, kv_, states_, scratch_, *pool_);
  if (beside && beside->ranks_ != ranks_)
    throw std::invalid_argument("an executor beside another has its threads, divided into the same ranks");
  check_memory(0, 0);
}

// Pages are allocated when they are first written, so each mapping succeeds alone; this checks that all fit together.
void Executor::check_memory(int64_t kv_bytes, int64_t state_bytes) const {
  const int64_t fixed = weights_->bytes() + scratch_.bytes() + state_bytes, machine = machine_bytes();
  if (fixed > machine || kv_bytes > machine - fixed)
    throw OutOfMemory("weights " + gib(weights_->bytes()) + " + scratch " + gib(scratch_.bytes()) +
                      (state_bytes ? " + states " + gib(state_bytes) : "") + " + KV cache " + gib(kv_bytes) +
                      " do not fit; this machine has " + gib(machine));
}

void Executor::finish_loading() {
  weights_->finish();
  loaded_ = true;
}

void Executor::allocate_kv(int64_t blocks) {
  const int64_t most =
      std::min<int64_t>(INT32_MAX / kBlockTokens, INT64_MAX / kv_.bytes_per_block());  // slots are 32-bit
  if (blocks < 1 || blocks > most)
    throw std::invalid_argument("blocks is " + std::to_string(blocks) + "; it must be 1 to " + std::to_string(most));
  check_memory(blocks * kv_.bytes_per_block(), states_.bytes());
  kv_.allocate(blocks);
}

void Executor::allocate_states(int64_t slots) {
  if (states_.bytes_per_slot() == 0) throw std::logic_error("no layer of this model keeps a state");
  const int64_t most = std::min<int64_t>(INT32_MAX, INT64_MAX / states_.bytes_per_slot());
  if (slots < 1 || slots > most)
    throw std::invalid_argument("slots is " + std::to_string(slots) + "; it must be 1 to " + std::to_string(most));
  check_memory(kv_.blocks() * kv_.bytes_per_block(), slots * states_.bytes_per_slot());
  states_.allocate(slots);
}

void Executor::copy_state(int64_t from, int64_t to) {
  for (const int64_t slot : {from, to})
    if (slot < 0 || slot >= states_.slots())
      throw std::invalid_argument("slot " + std::to_string(slot) + "; " + std::to_string(states_.slots()) +
                                  " slots were allocated");
  pool_->run(
      [&](int member) { states_.copy(from, to, share(states_.bytes_per_slot(), 64, member, pool_->threads())); });
}

void Executor::check_ready(const Batch& batch) const {
  if (!loaded_) throw std::logic_error("a step before finish_loading");
  if (kv_.blocks() == 0) throw std::logic_error("a step before allocate_kv");
  if (config_.has_states() && states_.slots() == 0) throw std::logic_error("a step before allocate_states");
  check(batch, config_, limits_, kv_, states_.slots());
}

void Executor::forward(const Batch& batch) {
  if (!forward_) throw std::logic_error("this model's modules are computed elsewhere: call begin");
  check_ready(batch);
  logit_rows_ = tokens_ = 0;
  forward_->run(batch);
  logit_rows_ = batch.logits;
  tokens_ = batch.tokens;
}

Modules& Executor::modules() {
  if (!modules_) throw std::logic_error("this executor computes the model itself: call forward");
  return *modules_;
}

void Executor::begin(const Batch& batch) {
  check_ready(batch);
  logit_rows_ = 0;
  modules().begin(batch);
}

void Executor::take_logits(const float* logits, int64_t rows) {
  if (rows > limits_.step_logit_rows)
    throw std::invalid_argument(std::to_string(rows) + " rows of logits; this executor takes at most " +
                                std::to_string(limits_.step_logit_rows) + " a step");
  modules().take_logits(logits, rows);
  logit_rows_ = rows;
}

void Executor::record_inputs() {
  for (const MatrixSpec& spec : config_.matrices)
    if (const Matrix& matrix = weights_->matrix_of(spec.parts[0].name); matrix.form() != Form::f32_rows)
      throw std::invalid_argument("inputs of '" + spec.name + "' can't be recorded: its format is not float32");
  forward_.value().record_inputs();
}

// Calls work(line, scratch of the member) once for each line. A single line is not worth waking the team.
template <class Work>
void Executor::each_line(int64_t lines, const Work& work) {
  std::atomic<int64_t> next{0};
  const auto take_lines = [&](int member) {
    SamplerScratch scratch = sampler_scratch(scratch_.sampler(member), config_.vocab_size);
    for (int64_t line = next++; line < lines; line = next++) work(line, scratch);
  };
  if (lines > 1)
    pool_->run(take_lines);
  else
    take_lines(0);
}

void Executor::check_pooled(bool wanted) const {
  if (config_.pooled != wanted)
    throw std::logic_error(wanted ? "this model gives logits, not rows to pool" : "this model has no logits");
}

void Executor::sample(const SamplingColumns& sampling, const SampledColumns& out) {
  check_pooled(false);
  check(sampling, logit_table());
  each_line(sampling.lines, [&](int64_t line, SamplerScratch& scratch) {
    forearm::sample(kernels(), logit_table(), sampling, line, line + 1, out, scratch);
  });
}

void Executor::score(const int32_t* rows, const int32_t* tokens, int64_t lines, const ScoredColumns& out) {
  check_pooled(false);
  check(rows, tokens, lines, logit_table());
  each_line(lines, [&](int64_t line, SamplerScratch& scratch) {
    forearm::score(kernels(), logit_table(), rows, tokens, line, line + 1, out, scratch);
  });
}

void Executor::pool(const int32_t* starts, int64_t texts, int64_t head, float* out) {
  check_pooled(true);
  for (int64_t i = 0; i < texts; ++i)
    if (starts[i] < (i ? starts[i - 1] + 1 : 0) || starts[i + 1] <= starts[i] || starts[i + 1] > logit_rows_)
      throw std::invalid_argument("text " + std::to_string(i) + " has rows " + std::to_string(starts[i]) + " to " +
                                  std::to_string(starts[i + 1] - 1) + "; the last step has " +
                                  std::to_string(logit_rows_));
  std::atomic<int64_t> next{0};
  pool_->run([&](int member) {
    for (int64_t i = next++; i < texts; i = next++)
      pooling_.pool(member, scratch_.logits, {starts[i], starts[i + 1]}, head, out + i * config_.pooled_columns(head));
  });
}

}  // namespace forearm
