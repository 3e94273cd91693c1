#include "sampling/adjust.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace forearm {

namespace {

using Ids = std::span<const int32_t>;

Ids line_of(const int32_t* starts, const int32_t* ids, int64_t line) {
  return {ids + starts[line], ids + starts[line + 1]};
}

// Marks of a token, cleared before a line ends.
constexpr int32_t kRepeated = 1;  // the repetition penalty has been applied
constexpr int32_t kOnce = 2;      // times this often in the output

// Keskar et al. 2019, arXiv:1909.05858, section 4.1; negative logits are multiplied, as in transformers and vLLM.
void penalize_repetition(Ids ids, float penalty, float* row, int32_t* marks) {
  for (const int32_t id : ids) {
    if (marks[id] & kRepeated) continue;
    marks[id] |= kRepeated;
    row[id] = row[id] > 0 ? row[id] / penalty : row[id] * penalty;
  }
}

// OpenAI's penalties: frequency times the count, and presence once.
void penalize_output(Ids output, float frequency, float presence, float* row, int32_t* marks) {
  for (const int32_t id : output) marks[id] += kOnce;
  for (const int32_t id : output) {
    const int32_t count = marks[id] / kOnce;
    marks[id] &= kRepeated;
    if (count) row[id] -= frequency * static_cast<float>(count) + presence;
  }
}

// row = raw at the allowed ids, or everywhere if the list is empty.
void copy_allowed(Ids allowed, const float* raw, int64_t vocab, float* row) {
  if (allowed.empty()) {
    std::copy_n(raw, vocab, row);
    return;
  }
  std::fill_n(row, vocab, -INFINITY);
  for (const int32_t id : allowed) row[id] = raw[id];
}

bool counted(const SamplingColumns& s, int64_t line) { return s.frequency[line] != 0.0f || s.presence[line] != 0.0f; }

}  // namespace

Row adjust(const Kernels& kernels, const SamplingColumns& s, int64_t line, const Row& raw, SamplerScratch& scratch) {
  const Ids prompt = line_of(s.prompt_starts, s.prompt_ids, line),
            output = line_of(s.output_starts, s.output_ids, line);
  const Ids biased = line_of(s.bias_starts, s.bias_ids, line), allowed = line_of(s.allowed_starts, s.allowed_ids, line);
  const uint32_t* mask = s.mask[line] < 0 ? nullptr : s.masks + s.mask[line] * s.mask_words;
  const bool repetition = s.repetition[line] != 1.0f;
  const bool penalized = counted(s, line);
  const int64_t vocab = raw.logits.n;
  if (biased.empty() && allowed.empty() && !repetition && !penalized)
    return {{raw.logits.x, vocab, mask}, raw.maxima, 0};

  copy_allowed(allowed, raw.logits.x, vocab, scratch.row);
  const float* bias = s.bias + s.bias_starts[line];
  for (size_t i = 0; i < biased.size(); ++i) scratch.row[biased[i]] += bias[i];
  if (repetition) {
    penalize_repetition(prompt, s.repetition[line], scratch.row, scratch.marks);
    penalize_repetition(output, s.repetition[line], scratch.row, scratch.marks);
  }
  if (penalized) penalize_output(output, s.frequency[line], s.presence[line], scratch.row, scratch.marks);
  for (const int32_t id : prompt) scratch.marks[id] = 0;
  for (const int32_t id : output) scratch.marks[id] = 0;
  kernels.row_maxima({scratch.row, vocab}, scratch.maxima);
  return {{scratch.row, vocab, mask}, scratch.maxima, 0};
}

}  // namespace forearm
