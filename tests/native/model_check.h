// What model_check's parts share: kinds of models, random numbers, how weights are named.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "dense_matrices.h"
#include "model/executor.h"

namespace forearm::checks {

using Logits = std::vector<float>;

constexpr int64_t kVocab = 97, kTexts = 7;

// What is computed: logits of a decoder, dense, with experts or to keys that an indexer chooses, or an encoder's
// vectors.
enum class Shape { decoder, experts, indexed, bert, modern };

// How the weights are kept. Where activations are int8 all tiers multiply integers: codes give the same everywhere but
// for what a KV cache of bfloat16 rounds.
struct Kind {
  const char* name;
  Format format;
  DType kv;
  Shape shape = Shape::decoder;
};

// Numbers in [-1, 1), exact in float32, the same on every machine.
class Random {
 public:
  float next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 40) - (1 << 23)) / (1 << 23);
  }
  std::vector<float> floats(int64_t count, float around, float scale) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = around + scale * next();
    return values;
  }

 private:
  uint64_t state_ = 1;
};

// Vectors of kTexts texts, kVocab values each: all in one step, or each in its own.
Logits encode(const Kind& kind, const Ranks& ranks, bool together);

}  // namespace forearm::checks
