// Everything a step writes besides the KV cache, allocated once for the largest step.
//
// Rows are an odd number of 64-byte lines apart: at a power of two they would share a few sets of the caches.
#pragma once
#include <vector>

#include "model/config.h"
#include "model/memory.h"
#include "model/weights.h"

namespace forearm {

// Up to so many rows every thread normalises all of them for itself: cheaper than a barrier.
constexpr int64_t kOwnNormRows = 4;

constexpr int64_t odd_lines(int64_t columns) { return ((columns + 15) / 16 | 1) * 16; }

class Scratch {
 public:
  Scratch(const Config& config, const Limits& limits, const Weights& weights, int64_t padded_head_dim, int threads);

  int64_t bytes() const { return region_.bytes(); }

  Operand residual;   // [step_tokens, hidden], f32_rows: the residual stream
  Operand normed;     // [step_tokens or step_logit_rows, hidden], the form the weights are multiplied with
  Operand qkv;        // [step_tokens, QkvColumns], f32_rows
  Operand attention;  // [step_tokens, heads * head_dim]
  Operand activated;  // [step_tokens, intermediate]
  Operand projected;  // [step_tokens, hidden], f32_rows: what a norm follows; learned positions
  Operand logits;     // [step_logit_rows, vocab], f32_rows
  std::vector<float*> cosines, sines;  // by rope: [step_tokens, rotary_dim / 2]
  int32_t* slots;                      // [step_tokens]
  float* partials;                     // [partial_floats]: attention of one chunk of keys each
  int64_t partial_floats;

  // Of one member: its own norm of up to kOwnNormRows rows, and what attend and sample work in.
  Operand own_normed(int member) const;
  void* attend(int member) const { return own_attend_ + member * own_attend_bytes_; }
  void* sampler(int member) const { return own_sampler_ + member * own_sampler_bytes_; }

 private:
  Operand own_normed_;
  char *own_attend_, *own_sampler_;
  int64_t own_normed_bytes_, own_attend_bytes_, own_sampler_bytes_;
  Region region_;
};

}  // namespace forearm
