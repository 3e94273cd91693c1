#include "model/step/batch.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace forearm {
namespace {

[[noreturn]] void refuse(const char* array, int64_t index, int64_t value, const std::string& why) {
  throw std::invalid_argument(std::string(array) + "[" + std::to_string(index) + "] is " + std::to_string(value) +
                              "; " + why);
}

void at_most(const char* what, int64_t count, int64_t limit) {
  if (count > limit)
    throw std::invalid_argument(std::to_string(count) + " " + what + "; this executor takes at most " +
                                std::to_string(limit) + " a step");
}

void check_sequence(const Batch& b, int64_t s, const Config& config, const Limits& limits, const KvBlocks& kv) {
  const int64_t first = b.start[s], last = b.start[s + 1] - 1;
  if (last < first) refuse("starts", s + 1, b.start[s + 1], "the sequence has no tokens");
  if (config.pooled && b.position[first] != 0)
    refuse("positions", first, b.position[first], "this model computes prompts whole: they begin with 0");
  for (int64_t t = first; t <= last; ++t) {
    if (b.position[t] < 0 || b.position[t] >= limits.max_model_len)
      refuse("positions", t, b.position[t], "the context is " + std::to_string(limits.max_model_len));
    if (t > first && b.position[t] != b.position[t - 1] + 1)
      refuse("positions", t, b.position[t], "the one before is " + std::to_string(b.position[t - 1]));
  }
  const int64_t blocks = b.block_start[s + 1] - b.block_start[s];
  if (blocks * kBlockTokens <= b.position[last])
    refuse("positions", last, b.position[last], "the sequence has " + std::to_string(blocks) + " blocks of 32");
  for (int64_t group = 0; group < kv.groups(); ++group)
    for (int64_t i = group * b.blocks + b.block_start[s]; i < group * b.blocks + b.block_start[s + 1]; ++i)
      if (b.block[i] < 0 || b.block[i] >= kv.blocks())
        refuse("blocks", i, b.block[i], "the KV cache has " + std::to_string(kv.blocks()));
}

void check_states(const Batch& b, int64_t slots) {
  if (!b.state) throw std::invalid_argument("this model's layers keep states: each sequence needs a slot (states)");
  std::vector<bool> taken(static_cast<size_t>(slots));
  for (int64_t s = 0; s < b.sequences; ++s) {
    const int64_t slot = b.state[s];
    if (slot < 0 || slot >= slots) refuse("states", s, slot, std::to_string(slots) + " slots were allocated");
    if (taken[static_cast<size_t>(slot)]) refuse("states", s, slot, "another sequence of the step has this slot");
    taken[static_cast<size_t>(slot)] = true;
  }
}

}  // namespace

void check(const Batch& b, const Config& config, const Limits& limits, const KvBlocks& kv, int64_t state_slots) {
  at_most("tokens", b.tokens, limits.step_tokens);
  at_most("sequences", b.sequences, limits.step_sequences);
  at_most("logit rows", b.logits, limits.step_logit_rows);
  for (int64_t t = 0; t < b.tokens; ++t)
    if (b.token[t] < 0 || b.token[t] >= config.vocab_size)
      refuse("tokens", t, b.token[t], "the vocabulary has " + std::to_string(config.vocab_size));
  for (int64_t t = 0; b.type && t < b.tokens; ++t)
    if (b.type[t] < 0 || b.type[t] >= config.token_types)
      refuse("types", t, b.type[t], "the model has " + std::to_string(config.token_types));
  for (int64_t s = 0; s < b.sequences; ++s) check_sequence(b, s, config, limits, kv);
  if (config.has_states()) check_states(b, state_slots);
  if (config.fuses != (b.hidden != nullptr))
    throw std::invalid_argument(config.fuses ? "this model reads a row beside each token (hidden)"
                                             : "this model reads tokens alone, without rows beside them (hidden)");
  for (int64_t i = 0; i < b.logits; ++i)
    if (b.logit_row[i] < (i ? b.logit_row[i - 1] + 1 : 0) || b.logit_row[i] >= b.tokens)
      refuse("logit_rows", i, b.logit_row[i], "rows ascend and the step has " + std::to_string(b.tokens));
}

}  // namespace forearm
