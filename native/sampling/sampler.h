// Choosing tokens from logits, and log-probabilities: one line is one task of any thread.
//
// A line's order of steps is vLLM's (docs.vllm.ai, v1 Sampler): allowed tokens and its mask, biases, penalties
// (repetition, then frequency and presence); at temperature 0 the largest logit, the lowest id of equals; else
// temperature, min-p, top-k, top-p, and a draw. min_p compares with the likeliest token; top_p takes shares of what
// top-k and min-p left. Both top-k and top-p take tokens from the likeliest down, lower ids first among equals, and
// leave at least one. A line depends on its own columns and its row of logits alone.
#pragma once
#include <stdint.h>

#include "kernels/kernels.h"

namespace forearm {

// float32 [rows][stride], the first `vocab` of each, and what row_maxima gives for each row, [rows][maxima_stride].
struct LogitRows {
  const float* data;
  int64_t rows, stride, vocab;
  const float* maxima;
  int64_t maxima_stride;
};

// The columns of engine/batch.py's Sampling.
struct SamplingColumns {
  int64_t lines;
  const int32_t* row;
  const float* temperature;  // below 1e-5 is taken as 0, as vLLM does
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const float* presence;
  const float* frequency;
  const float* repetition;
  const uint64_t* seed;
  const uint64_t* counter;
  const int32_t *prompt_starts, *prompt_ids;
  const int32_t *output_starts, *output_ids;
  const int32_t *bias_starts, *bias_ids;
  const float* bias;
  const int32_t *allowed_starts, *allowed_ids;
  const int32_t* logprobs;
  const int32_t* mask;    // of each line, which mask; below 0: none
  const uint32_t* masks;  // [mask_count][mask_words]: bit i % 32 of word i / 32 is set where token i is allowed
  int64_t mask_count, mask_words;
};

// Log-probabilities from the raw logits. Where a line wants fewer alternatives than there is room for, the rest of its
// row is 0. The rank counts equal logits of lower ids: it is the token's place in the list of alternatives.
struct ScoredColumns {
  float* logprob;
  int32_t* rank;
  int32_t* top_ids;     // [lines][alternatives]
  float* top_logprobs;  // likewise
  int64_t alternatives;
};

// The columns of engine/batch.py's Sampled. `nan`: the raw row holds a NaN or infinity above, or no token is left; the
// line's other columns are 0.
struct SampledColumns {
  int32_t* token;
  bool* nan;
  ScoredColumns scored;
};

// One thread's memory for lines of one vocabulary.
struct SamplerScratch {
  float* row;       // [vocab] adjusted logits
  float* maxima;    // [maxima_of(vocab)] theirs
  int32_t* marks;   // [vocab] zero between lines
  int32_t* index;   // [vocab] candidates, ids ascending
  float* value;     // [vocab] their logits
  float* weight;    // [vocab] their exp
  int32_t* order;   // [vocab] positions of candidates
  double* partial;  // [ceil(vocab / 1024)] sums of weights
};
int64_t sampler_scratch_bytes(int64_t vocab);
// `zeroed`: sampler_scratch_bytes(vocab) bytes of zeros, 64-byte aligned; most of it is only touched when needed.
SamplerScratch sampler_scratch(void* zeroed, int64_t vocab);

// Throws std::invalid_argument naming the column, the line and the value: a row or a token id out of range.
void check(const SamplingColumns& sampling, const LogitRows& logits);
void check(const int32_t* rows, const int32_t* tokens, int64_t lines, const LogitRows& logits);

// Lines [begin, end) of `sampling`.
void sample(const Kernels& kernels, const LogitRows& logits, const SamplingColumns& sampling, int64_t begin,
            int64_t end, SampledColumns out, SamplerScratch& scratch);

// Log-probabilities of tokens[i] in row rows[i], i in [begin, end). A row with a NaN gives NaN.
void score(const Kernels& kernels, const LogitRows& logits, const int32_t* rows, const int32_t* tokens, int64_t begin,
           int64_t end, ScoredColumns out, SamplerScratch& scratch);

}  // namespace forearm
