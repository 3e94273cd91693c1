// One model in memory with its KV cache and threads; the Python module binds it. Calls must not overlap.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/forward.h"
#include "model/modules.h"
#include "model/pooling.h"
#include "sampling/sampler.h"

namespace forearm {

class Executor {
 public:
  // cores: empty (threads are not pinned), or a CPU id for each thread; those of a rank follow each other.
  // beside: the executor of a model that this one drafts for. Its team computes both, since two teams on the same cores
  // would wait for each other's idle members, and it has the matrices of Config::shared; null: none.
  // Throws std::invalid_argument naming the wrong value, OutOfMemory with the arithmetic.
  Executor(Config config, const Formats& formats, const Limits& limits, std::vector<int> cores, const Ranks& ranks,
           const Executor* beside = nullptr);

  void load_matrix(const std::string& name, const Tensor& tensor, int64_t row, const Rounding& rounding = {}) {
    weights_->load_matrix(name, tensor, row, rounding, *pool_);
  }
  void load_codes(const std::string& name, const CodeRows& codes, const int32_t* order, int64_t row) {
    weights_->load_codes(name, codes, order, row, *pool_);
  }
  const Matrix& matrix_of(const std::string& part) const { return weights_->matrix_of(part); }
  void load_vector(const std::string& name, const float* data, int64_t n, int64_t row = 0) {
    weights_->load_vector(name, data, n, row);
  }
  void save_weights(const std::string& path, const std::string& key) { weights_->save(path, key); }
  void map_weights(const std::string& path, const std::string& key) { weights_->map(path, key, *pool_); }
  void finish_loading();
  // The first tokens' blocks begin in small pages, since clearing a huge page for each layer delays the first answer.
  void allocate_kv(int64_t blocks);
  // Makes a huge page where some of them are, for which 2 MB are copied. Returns whether one was left.
  bool merge_page() { return kv_.merge_page(); }
  // Allocates slots for the states of so many sequences, which models need whose layers keep some.
  void allocate_states(int64_t slots);
  // Copies the states in one slot to another.
  void copy_state(int64_t from, int64_t to);

  // Throws std::invalid_argument if the batch can't be computed, std::logic_error before finish_loading, allocate_kv
  // and allocate_states.
  void forward(const Batch& batch);
  // Keeps what each matrix is multiplied with in later steps, for calibration. Throws std::invalid_argument if the rows
  // before a matrix are not kept as float32.
  void record_inputs();
  // Returns the last step's rows before `matrix`, [rows, k]; empty: it was not multiplied.
  const std::vector<float>& inputs(const Matrix& matrix) const { return forward_.value().inputs(matrix); }

  // Begins a step of a model whose modules are computed elsewhere, as forward does; its modules then call operations of
  // modules(), and take_logits ends the step: logits [rows, vocab_size], at most step_logit_rows. Throws
  // std::logic_error if the executor computes the modules itself.
  void begin(const Batch& batch);
  Modules& modules();
  void take_logits(const float* logits, int64_t rows);

  // A row [hidden] of the last step behind the final norm, with Config::keeps_hidden.
  const float* hidden_row(int64_t row) const {
    return static_cast<const float*>(scratch_.hidden.data) + row * scratch_.hidden.stride;
  }
  int64_t hidden_count() const { return config_.keeps_hidden ? tokens_ : 0; }

  // Logits of the last step, [logit_rows, logit_stride], of which the first vocab_size of a row count; for a pooled
  // model its rows, of which the first hidden values count. They are valid until the next step.
  float* logits() { return static_cast<float*>(scratch_.logits.data); }
  int64_t logit_rows() const { return logit_rows_; }
  int64_t logit_stride() const { return scratch_.logits.stride; }

  // Chooses tokens for `sampling.lines` lines, or computes log-probabilities of `lines` given tokens, from the last
  // step's logits; lines are divided among the team. Throws std::invalid_argument if a row or a token is out of range.
  void sample(const SamplingColumns& sampling, const SampledColumns& out);
  void score(const int32_t* rows, const int32_t* tokens, int64_t lines, const ScoredColumns& out);

  // Pools rows starts[i] .. starts[i + 1] - 1 of the last step for each text, to out
  // [texts, Config::pooled_columns(head)], through the layers of `head`.
  // Throws std::invalid_argument if these are not rows of the step, or a text has none.
  void pool(const int32_t* starts, int64_t texts, int64_t head, float* out);

  const Config& config() const { return config_; }
  const Ranks& ranks() const { return ranks_; }
  const KvBlocks& kv() const { return kv_; }
  Pool& pool() { return *pool_; }
  // Most rows of a multiplication of modules().
  int64_t most_rows() const { return std::max(limits_.step_tokens, limits_.step_logit_rows); }
  int64_t packed_bytes() const { return weights_->bytes(); }
  bool weights_mapped() const { return weights_->mapped(); }
  int64_t scratch_bytes() const { return scratch_.bytes(); }
  int64_t kv_bytes_per_block() const { return kv_.bytes_per_block(); }
  int64_t state_bytes_per_slot() const { return states_.bytes_per_slot(); }

 private:
  void check_memory(int64_t kv_bytes, int64_t state_bytes) const;
  void check_pooled(bool wanted) const;
  void check_ready(const Batch& batch) const;
  LogitRows logit_table() {
    const auto* maxima = static_cast<const float*>(scratch_.maxima.data);
    return {logits(), logit_rows_, logit_stride(), config_.vocab_size, maxima, scratch_.maxima.stride};
  }
  template <class Work>
  void each_line(int64_t lines, const Work& work);

  const Config config_;
  const Limits limits_;
  const Ranks ranks_;
  const std::shared_ptr<Pool> pool_;
  const std::shared_ptr<Weights> weights_;
  KvBlocks kv_;
  States states_;
  Scratch scratch_;
  std::optional<Forward> forward_;
  std::optional<Modules> modules_;  // in the place of forward_
  Pooling pooling_;
  bool loaded_ = false;
  int64_t logit_rows_ = 0, tokens_ = 0;  // of the last step
};

}  // namespace forearm
