#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "sampling/adjust.h"
#include "sampling/draw.h"
#include "sampling/philox.h"

namespace forearm {

namespace {

constexpr float kGreedyBelow = 1e-5f;
constexpr int64_t kFewOf = 32;  // of a mask that allows less than one token in 32, only the allowed ones are read

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// NaN, or infinity, or nothing but -infinity: no distribution.
bool unusable(const RowMax& max) { return max.nan || !std::isfinite(max.value); }

enum class MaskedChoice { none, made, open };

// Chooses the token of a line that has only a mask: if it allows few tokens, only those are read; otherwise the result
// is `open`.
MaskedChoice choose_of_few(const Kernels& kernels, const LogitRow& row, const Draw& draw, SamplerScratch& scratch,
                           int32_t* token) {
  if (allows_more(row, row.n / kFewOf)) return MaskedChoice::open;
  float max;
  const int64_t count = collect_masked(row, &max, scratch);
  if (!std::isfinite(max)) return MaskedChoice::none;
  if (draw.temperature < kGreedyBelow) {
    *token = scratch.index[std::max_element(scratch.value, scratch.value + count) - scratch.value];
  } else {
    *token = draw_candidate(kernels, count, max, draw, scratch);
  }
  return MaskedChoice::made;
}

bool is_allowed(const LogitRow& row, int32_t id) { return row.mask[id / 32] >> id % 32 & 1; }

// The line's token, from its raw row and the largest of that; false if nothing can be chosen.
bool choose(const Kernels& kernels, const SamplingColumns& s, int64_t line, const Row& raw, const RowMax& raw_max,
            SamplerScratch& scratch, int32_t* token) {
  const Draw draw{s.temperature[line], s.top_k[line], s.top_p[line], s.min_p[line],
                  uniform(s.seed[line], s.counter[line])};
  const bool greedy = draw.temperature < kGreedyBelow;
  Row row = adjust(kernels, s, line, raw, scratch);
  RowMax max = raw_max;
  if (row.logits.x == raw.logits.x && row.logits.mask) {
    if (greedy && is_allowed(row.logits, raw_max.index)) {
      *token = raw_max.index;  // the largest of all is the largest of those allowed
      return true;
    }
    const MaskedChoice choice = choose_of_few(kernels, row.logits, draw, scratch, token);
    if (choice != MaskedChoice::open) return choice == MaskedChoice::made;
  }
  if (row.logits.x != raw.logits.x || row.logits.mask) max = largest(kernels, row);
  if (unusable(max)) return false;
  row.max = max.value;
  *token = greedy ? max.index : draw_token(kernels, row, draw, scratch);
  return true;
}

int32_t rank_of(const Kernels& kernels, const Row& row, int32_t token, SamplerScratch& scratch) {
  const float value = row.logits.x[token];
  const int64_t count = collect(kernels, row, value, scratch);
  int32_t rank = 1;
  for (int64_t i = 0; i < count; ++i) rank += scratch.value[i] > value || scratch.index[i] < token;
  return rank;
}

// Line i of `out`: the token's log-probability and the first `alternatives` of the row.
void score_token(const Kernels& kernels, const Row& row, int32_t token, int64_t alternatives, int64_t i,
                 const ScoredColumns& out, SamplerScratch& scratch) {
  const double log_sum = std::log(exp_sum(kernels, row.logits, row.max, 1.0f, nullptr, nullptr));
  const auto logprob = [&](float logit) { return static_cast<float>(double{logit} - row.max - log_sum); };
  out.logprob[i] = logprob(row.logits.x[token]);
  out.rank[i] = rank_of(kernels, row, token, scratch);
  alternatives = std::min({alternatives, out.alternatives, row.logits.n});
  if (alternatives == 0) return;
  const int64_t count = collect(kernels, row, bound_of_top(kernels, row, alternatives, scratch), scratch);
  sort_top(count, alternatives, scratch);
  for (int64_t a = 0; a < alternatives; ++a) {
    const int32_t at = scratch.order[a];
    out.top_ids[i * out.alternatives + a] = scratch.index[at];
    out.top_logprobs[i * out.alternatives + a] = logprob(scratch.value[at]);
  }
}

void clear_line(const ScoredColumns& out, int64_t i) {
  out.logprob[i] = 0;
  out.rank[i] = 0;
  std::fill_n(out.top_ids + i * out.alternatives, out.alternatives, 0);
  std::fill_n(out.top_logprobs + i * out.alternatives, out.alternatives, 0.0f);
}

Row row_of(const LogitRows& logits, int32_t row) {
  return {{logits.data + row * logits.stride, logits.vocab}, logits.maxima + row * logits.maxima_stride, 0};
}

void check_within(const char* column, int64_t line, int32_t value, int64_t limit) {
  if (value >= 0 && value < limit) return;
  throw std::invalid_argument(std::string(column) + " of line " + std::to_string(line) + " has " +
                              std::to_string(value) + "; it must be below " + std::to_string(limit));
}

void check_ids(const char* column, const int32_t* starts, const int32_t* ids, int64_t lines, int64_t vocab) {
  for (int64_t line = 0; line < lines; ++line) {
    for (int32_t i = starts[line]; i < starts[line + 1]; ++i) check_within(column, line, ids[i], vocab);
  }
}

}  // namespace

int64_t sampler_scratch_bytes(int64_t vocab) {
  const int64_t partial = (vocab + kSumBlock - 1) / kSumBlock * 8;
  return 6 * whole_lines(vocab * 4) + whole_lines(maxima_of(vocab) * 4) + whole_lines(partial);
}

SamplerScratch sampler_scratch(void* zeroed, int64_t vocab) {
  char* at = static_cast<char*>(zeroed);
  const auto floats = [&] { return reinterpret_cast<float*>(std::exchange(at, at + whole_lines(vocab * 4))); };
  const auto ints = [&] { return reinterpret_cast<int32_t*>(std::exchange(at, at + whole_lines(vocab * 4))); };
  SamplerScratch s{};
  s.row = floats();
  s.marks = ints();
  s.index = ints();
  s.value = floats();
  s.weight = floats();
  s.order = ints();
  s.partial = reinterpret_cast<double*>(std::exchange(at, at + whole_lines((vocab + kSumBlock - 1) / kSumBlock * 8)));
  s.maxima = reinterpret_cast<float*>(at);
  return s;
}

void check(const SamplingColumns& s, const LogitRows& logits) {
  for (int64_t line = 0; line < s.lines; ++line) check_within("row", line, s.row[line], logits.rows);
  check_ids("prompt_ids", s.prompt_starts, s.prompt_ids, s.lines, logits.vocab);
  check_ids("output_ids", s.output_starts, s.output_ids, s.lines, logits.vocab);
  check_ids("bias_ids", s.bias_starts, s.bias_ids, s.lines, logits.vocab);
  check_ids("allowed_ids", s.allowed_starts, s.allowed_ids, s.lines, logits.vocab);
  for (int64_t line = 0; line < s.lines; ++line) {
    if (s.mask[line] >= 0) check_within("mask", line, s.mask[line], s.mask_count);
  }
  if (s.mask_count > 0 && s.mask_words * 32 < logits.vocab) {
    throw std::invalid_argument("masks have " + std::to_string(s.mask_words) + " words; the vocabulary needs " +
                                std::to_string((logits.vocab + 31) / 32));
  }
}

void check(const int32_t* rows, const int32_t* tokens, int64_t lines, const LogitRows& logits) {
  for (int64_t line = 0; line < lines; ++line) {
    check_within("rows", line, rows[line], logits.rows);
    check_within("tokens", line, tokens[line], logits.vocab);
  }
}

void sample(const Kernels& kernels, const LogitRows& logits, const SamplingColumns& s, int64_t begin, int64_t end,
            SampledColumns out, SamplerScratch& scratch) {
  for (int64_t line = begin; line < end; ++line) {
    Row raw = row_of(logits, s.row[line]);
    const RowMax max = largest(kernels, raw);
    raw.max = max.value;
    out.token[line] = 0;
    clear_line(out.scored, line);
    out.nan[line] = unusable(max) || !choose(kernels, s, line, raw, max, scratch, out.token + line);
    if (out.nan[line] || s.logprobs[line] < 0) continue;
    score_token(kernels, raw, out.token[line], s.logprobs[line], line, out.scored, scratch);
  }
}

void score(const Kernels& kernels, const LogitRows& logits, const int32_t* rows, const int32_t* tokens, int64_t begin,
           int64_t end, ScoredColumns out, SamplerScratch& scratch) {
  for (int64_t i = begin; i < end; ++i) {
    Row raw = row_of(logits, rows[i]);
    const RowMax max = largest(kernels, raw);
    raw.max = max.value;
    clear_line(out, i);
    if (unusable(max)) {
      out.logprob[i] = NAN;
    } else {
      score_token(kernels, raw, tokens[i], out.alternatives, i, out, scratch);
    }
  }
}

}  // namespace forearm
