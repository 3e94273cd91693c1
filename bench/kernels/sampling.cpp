// Measures sampling from 16 rows of 151,936 logits on one thread:
//
//   sampling_bench [TIER...]     the tier in use
//
// For each kind of sampling it prints microseconds per row: the best of its passes, in time that the thread had a core.
// For comparison it prints the time of the head's work for a row (maxima of pieces in a near cache), and the time to
// read a row once, which is the lower bound of everything that looks at all logits.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "sampling/sampler.h"
#include "timing.h"

namespace forearm {
namespace {

constexpr int64_t kVocab = 151936, kRows = 16;  // Qwen2.5
constexpr int kPasses = 15;
constexpr int32_t kPromptTokens = 300;

struct Wanted {
  const char* name;
  float temperature;
  int32_t top_k;
  float top_p, min_p, repetition;
  int32_t logprobs, mask;  // mask 0: one token in 32 is forbidden; 1: about half of them; 2: all but a few
};
constexpr Wanted kWanted[] = {
    {"greedy", 0, 0, 1, 0, 1, -1, -1},
    {"greedy, 5 logprobs", 0, 0, 1, 0, 1, 5, -1},
    {"temperature 1", 1, 0, 1, 0, 1, -1, -1},
    {"top_k 20, top_p 0.9", 1, 20, 0.9f, 0, 1, -1, -1},
    {"top_k 50", 1, 50, 1, 0, 1, -1, -1},
    {"top_p 0.9", 1, 0, 0.9f, 0, 1, -1, -1},
    {"min_p 0.05", 1, 0, 1, 0.05f, 1, -1, -1},
    {"repetition 1.1, top_k 20", 1, 20, 1, 0, 1.1f, -1, -1},
    {"mask of most", 1, 0, 1, 0, 1, -1, 0},
    {"mask of half", 1, 0, 1, 0, 1, -1, 1},
    {"mask of half, greedy", 0, 0, 1, 0, 1, -1, 1},
    {"mask of most, top_k 20", 1, 20, 1, 0, 1, -1, 0},
    {"mask of few", 1, 0, 1, 0, 1, -1, 2},
};

uint32_t next_random() {
  static uint32_t state = 1;
  return state = state * 1664525u + 1013904223u;
}

// Sums of 8 random numbers: about normal, with a standard deviation of 2.5. Logits of real models fall off faster.
std::vector<float> random_logits() {
  std::vector<float> logits(kRows * kVocab);
  for (float& logit : logits) {
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += static_cast<float>(next_random() >> 8) * 0x1p-24f - 0.5f;
    logit = sum * 2.5f / sqrtf(8.0f / 12.0f);
  }
  return logits;
}

struct Masks {
  static constexpr int64_t kWords = (kVocab + 31) / 32;
  std::vector<uint32_t> words = std::vector<uint32_t>(3 * kWords);
  Masks() {
    for (int64_t i = 0; i < kWords; ++i) {
      const uint32_t one = 1u << (next_random() >> 27), coin = next_random() >> 16;
      words[i] = ~one;
      words[kWords + i] = next_random() ^ coin;
      words[2 * kWords + i] = coin % 64 ? 0 : one;
    }
  }
};

// The sampling columns of one row; `prompt` has the tokens that the repetition penalty applies to.
struct Line {
  int32_t row = 0, none[2] = {}, prompt_starts[2] = {0, kPromptTokens};
  uint64_t seed = 7, counter = 1;
  float zero = 0;

  SamplingColumns columns(const Wanted& wanted, const std::vector<int32_t>& prompt, const Masks& masks) const {
    return {1,
            &row,
            &wanted.temperature,
            &wanted.top_k,
            &wanted.top_p,
            &wanted.min_p,
            &zero,
            &zero,
            &wanted.repetition,
            &seed,
            &counter,
            prompt_starts,
            prompt.data(),
            none,
            none,
            none,
            none,
            &zero,
            none,
            none,
            &wanted.logprobs,
            &wanted.mask,
            masks.words.data(),
            3,
            Masks::kWords};
  }
};

// Returns the best pass over all rows, in microseconds per row.
double row_us(const std::function<void(int64_t)>& work) {
  double best_s = INFINITY;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double begin = core_time_s();
    for (int64_t row = 0; row < kRows; ++row) work(row);
    best_s = std::min(best_s, core_time_s() - begin);
  }
  return 1e6 * best_s / static_cast<double>(kRows);
}

void bench(const Kernels& tier) {
  const std::vector<float> logits = random_logits();
  const Masks masks;
  std::vector<float> maxima(kRows * maxima_of(kVocab));
  std::vector<int32_t> prompt(kPromptTokens);
  for (int32_t& id : prompt) id = static_cast<int32_t>(next_random() % kVocab);
  char* memory = allocate(sampler_scratch_bytes(kVocab));
  SamplerScratch scratch = sampler_scratch(memory, kVocab);

  const auto find_maxima = [&](int64_t row) {
    tier.row_maxima({logits.data() + row * kVocab, kVocab}, maxima.data() + row * maxima_of(kVocab));
  };
  float kept = 0;
  printf("%s, 1 thread, microseconds a row\n", tier.tier);
  printf("  %-26s %8.1f\n", "reading it",
         row_us([&](int64_t row) { kept += tier.read_all(logits.data() + row * kVocab, kVocab * 4 / 4096 * 4096); }));
  printf("  %-26s %8.1f\n", "its maxima, in the head", row_us([&](int64_t) {
           for (int64_t piece = 0; piece < kVocab / 128; ++piece) tier.row_maxima({logits.data(), 128}, maxima.data());
         }));
  for (int64_t row = 0; row < kRows; ++row) find_maxima(row);
  const LogitRows rows{logits.data(), kRows, kVocab, kVocab, maxima.data(), maxima_of(kVocab)};
  for (const Wanted& wanted : kWanted) {
    Line line;
    int32_t token, rank, ids[5];
    float logprob, logprobs[5];
    bool nan;
    const SampledColumns out{&token, &nan, {&logprob, &rank, ids, logprobs, 5}};
    const SamplingColumns columns = line.columns(wanted, prompt, masks);
    printf("  %-26s %8.1f\n", wanted.name, row_us([&](int64_t row) {
             line.row = static_cast<int32_t>(row);
             sample(tier, rows, columns, 0, 1, out, scratch);
           }));
  }
  if (kept == 1.0f) printf("\n");  // so that the compiler keeps the reads
}

}  // namespace
}  // namespace forearm

int main(int argc, char** argv) {
  using namespace forearm;
  if (argc == 1) bench(kernels());
  for (int i = 1; i < argc; ++i) {
    const Kernels* tier = find_tier(argv[i]);
    if (!tier) {
      fprintf(stderr, "error: this CPU or this build has no tier %s\n", argv[i]);
      return 1;
    }
    bench(*tier);
  }
}
