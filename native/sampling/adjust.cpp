#include "sampling/adjust.h"

#include <algorithm>
#include <bit>
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

// row = raw where the mask has a bit, -infinity elsewhere. A word of 32 is copied or filled, then its exceptions are
// gone through: most words are almost empty or almost full.
void copy_masked(const uint32_t* mask, const float* raw, int64_t vocab, float* row) {
  for (int64_t begin = 0; begin < vocab; begin += 32) {
    const int64_t size = std::min<int64_t>(32, vocab - begin);
    const uint32_t bits = size == 32 ? ~0u : (1u << size) - 1, word = mask[begin / 32] & bits;
    const bool mostly = std::popcount(word) > 16;
    if (mostly) {
      std::copy_n(raw + begin, size, row + begin);
    } else {
      std::fill_n(row + begin, size, -INFINITY);
    }
    for (uint32_t rest = mostly ? ~word & bits : word; rest; rest &= rest - 1) {
      const int64_t id = begin + std::countr_zero(rest);
      row[id] = mostly ? -INFINITY : raw[id];
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

bool counted(const SamplingColumns& s, int64_t line) { return s.frequency[line] != 0.0f || s.presence[line] != 0.0f; }

}  // namespace

bool only_masked(const SamplingColumns& s, int64_t line) {
  return s.mask[line] >= 0 && s.repetition[line] == 1.0f && !counted(s, line) &&
         line_of(s.bias_starts, s.bias_ids, line).empty() && line_of(s.allowed_starts, s.allowed_ids, line).empty();
}

const float* adjust(const SamplingColumns& s, int64_t line, const float* raw, int64_t vocab, SamplerScratch& scratch) {
  const Ids prompt = line_of(s.prompt_starts, s.prompt_ids, line),
            output = line_of(s.output_starts, s.output_ids, line);
  const Ids biased = line_of(s.bias_starts, s.bias_ids, line), allowed = line_of(s.allowed_starts, s.allowed_ids, line);
  const uint32_t* mask = s.mask[line] < 0 ? nullptr : s.masks + s.mask[line] * s.mask_words;
  const bool repetition = s.repetition[line] != 1.0f;
  const bool penalised = counted(s, line);
  if (biased.empty() && allowed.empty() && !mask && !repetition && !penalised) return raw;

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
  if (penalised) penalise_output(output, s.frequency[line], s.presence[line], scratch.row, scratch.marks);
  for (const int32_t id : prompt) scratch.marks[id] = 0;
  for (const int32_t id : output) scratch.marks[id] = 0;
  return scratch.row;
}

}  // namespace forearm
