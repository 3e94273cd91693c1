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

// Keskar et al. 2019, arXiv:1909.05858, section 4.1; negative logits are multiplied, as everybody does since.
void penalise_repetition(Ids ids, float penalty, float* row, int32_t* marks) {
  for (const int32_t id : ids) {
    if (marks[id] & kRepeated) continue;
    marks[id] |= kRepeated;
    row[id] = row[id] > 0 ? row[id] / penalty : row[id] * penalty;
  }
}

// OpenAI's penalties: frequency times the count, and presence once.
void penalise_output(Ids output, float frequency, float presence, float* row, int32_t* marks) {
  for (const int32_t id : output) marks[id] += kOnce;
  for (const int32_t id : output) {
    const int32_t count = marks[id] / kOnce;
    marks[id] &= kRepeated;
    if (count) row[id] -= frequency * static_cast<float>(count) + presence;
  }
}

// row = raw where the mask has a bit, -infinity elsewhere. Most words of a mask are empty or full.
void copy_masked(const uint32_t* mask, const float* raw, int64_t vocab, float* row) {
  for (int64_t begin = 0; begin < vocab; begin += 32) {
    const uint32_t word = mask[begin / 32];
    const int64_t size = std::min<int64_t>(32, vocab - begin);
    if (word == 0) {
      std::fill_n(row + begin, size, -INFINITY);
    } else if (word == ~0u) {
      std::copy_n(raw + begin, size, row + begin);
    } else {
      for (int64_t i = 0; i < size; ++i) row[begin + i] = word >> i & 1 ? raw[begin + i] : -INFINITY;
    }
  }
}

// row = raw at the allowed ids that the mask, if there is one, has as well.
void copy_allowed(Ids allowed, const uint32_t* mask, const float* raw, int64_t vocab, float* row) {
  std::fill_n(row, vocab, -INFINITY);
  for (const int32_t id : allowed) {
    if (!mask || mask[id / 32] >> id % 32 & 1) row[id] = raw[id];
  }
}

}  // namespace

const float* adjust(const SamplingColumns& s, int64_t line, const float* raw, int64_t vocab, SamplerScratch& scratch) {
  const Ids prompt = line_of(s.prompt_starts, s.prompt_ids, line),
            output = line_of(s.output_starts, s.output_ids, line);
  const Ids biased = line_of(s.bias_starts, s.bias_ids, line), allowed = line_of(s.allowed_starts, s.allowed_ids, line);
  const uint32_t* mask = s.mask[line] < 0 ? nullptr : s.masks + s.mask[line] * s.mask_words;
  const bool repetition = s.repetition[line] != 1.0f;
  const bool counted = s.frequency[line] != 0.0f || s.presence[line] != 0.0f;
  if (biased.empty() && allowed.empty() && !mask && !repetition && !counted) return raw;

  if (!allowed.empty()) {
    copy_allowed(allowed, mask, raw, vocab, scratch.row);
  } else if (mask) {
    copy_masked(mask, raw, vocab, scratch.row);
  } else {
    std::copy_n(raw, vocab, scratch.row);
  }
  const float* bias = s.bias + s.bias_starts[line];
  for (size_t i = 0; i < biased.size(); ++i) scratch.row[biased[i]] += bias[i];
  if (repetition) {
    penalise_repetition(prompt, s.repetition[line], scratch.row, scratch.marks);
    penalise_repetition(output, s.repetition[line], scratch.row, scratch.marks);
  }
  if (counted) penalise_output(output, s.frequency[line], s.presence[line], scratch.row, scratch.marks);
  for (const int32_t id : prompt) scratch.marks[id] = 0;
  for (const int32_t id : output) scratch.marks[id] = 0;
  return scratch.row;
}

}  // namespace forearm
