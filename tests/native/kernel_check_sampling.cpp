// The sampler in every tier: Philox's published numbers, scalar's tokens and log-probabilities, scratch left as found.
#include <algorithm>
#include <array>
#include <memory>

#include "kernel_check.h"
#include "sampling/philox.h"
#include "sampling/sampler.h"

namespace forearm::checks {
namespace {

// Columns of lines that ask for all kinds of things, by the remainders of their number.
struct Lines {
  std::vector<int32_t> row, top_k, logprobs, prompt_starts{0}, prompt, output_starts{0}, output, bias_starts{0}, biased,
      allowed_starts{0}, allowed, mask;
  std::vector<float> temperature, top_p, min_p, presence, frequency, repetition, bias;
  std::vector<uint64_t> seed, counter;
  std::vector<uint32_t> masks;
  int64_t words;

  Lines(int64_t count, int64_t rows, int64_t vocab) : words((vocab + 31) / 32) {
    Random random(vocab);
    constexpr int64_t kMasks = 3;
    for (int64_t i = 0; i < kMasks * words; ++i) {
      const uint32_t some = static_cast<uint32_t>((random.next() + 1) * 0x7fffff00) | 1;
      masks.push_back(i % 4 == 1 ? ~0u : i % 4 == 2 && i % words ? 0 : some);
    }
    const auto id = [&] { return static_cast<int32_t>((random.next() + 1) / 2 * static_cast<float>(vocab - 1)); };
    for (int64_t i = 0; i < count; ++i) {
      row.push_back(static_cast<int32_t>(i % rows));
      temperature.push_back(i % 7 ? 0.3f * static_cast<float>(i % 7) : 0.0f);
      top_k.push_back(static_cast<int32_t>(i % 5 * i % 300));
      top_p.push_back(i % 3 ? 1.0f : 0.93f);
      min_p.push_back(i % 4 ? 0.0f : 0.03f);
      presence.push_back(i % 6 ? 0.0f : 0.5f);
      frequency.push_back(i % 10 ? 0.0f : -0.4f);
      repetition.push_back(i % 8 ? 1.0f : 1.2f);
      logprobs.push_back(static_cast<int32_t>(i % 9) - 1);
      seed.push_back(static_cast<uint64_t>(i) << 40);
      counter.push_back(static_cast<uint64_t>(i * i));
      for (int64_t n = i % 8 ? 0 : 40; n-- > 0;) prompt.push_back(id());
      for (int64_t n = i % 2 ? 0 : 30; n-- > 0;) output.push_back(id());
      for (int64_t n = i % 11 ? 0 : 3; n-- > 0;) {
        biased.push_back(id());
        bias.push_back(random.next() * 5);
      }
      for (int64_t n = i % 13 ? 0 : 2; n-- > 0;) allowed.push_back(id());
      mask.push_back(i % 3 == 1 ? static_cast<int32_t>(i / 3 % kMasks) : -1);
      prompt_starts.push_back(static_cast<int32_t>(prompt.size()));
      output_starts.push_back(static_cast<int32_t>(output.size()));
      bias_starts.push_back(static_cast<int32_t>(biased.size()));
      allowed_starts.push_back(static_cast<int32_t>(allowed.size()));
    }
  }

  SamplingColumns columns() const {
    return {static_cast<int64_t>(row.size()),
            row.data(),
            temperature.data(),
            top_k.data(),
            top_p.data(),
            min_p.data(),
            presence.data(),
            frequency.data(),
            repetition.data(),
            seed.data(),
            counter.data(),
            prompt_starts.data(),
            prompt.data(),
            output_starts.data(),
            output.data(),
            bias_starts.data(),
            biased.data(),
            bias.data(),
            allowed_starts.data(),
            allowed.data(),
            logprobs.data(),
            mask.data(),
            masks.data(),
            static_cast<int64_t>(masks.size()) / words,
            words};
  }
};

struct Drawn {
  std::vector<float> numbers;  // tokens, flags, ranks and ids too: all below 2^24
  bool marks_are_zero;
};

Drawn draw(const Kernels& tier, const LogitRows& logits, const Lines& lines) {
  constexpr int64_t kAlternatives = 8;
  const SamplingColumns columns = lines.columns();
  const int64_t n = columns.lines;
  check(columns, logits);
  std::vector<int32_t> token(n), rank(n), ids(n * kAlternatives);
  std::vector<float> logprob(n), logprobs(n * kAlternatives);
  const auto nan = std::make_unique<bool[]>(n);
  std::vector<char> memory(sampler_scratch_bytes(logits.vocab) + 64);
  char* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  SamplerScratch scratch = sampler_scratch(aligned, logits.vocab);
  const SampledColumns out{
      token.data(), nan.get(), {logprob.data(), rank.data(), ids.data(), logprobs.data(), kAlternatives}};
  for (int64_t line = n; line-- > 0;) sample(tier, logits, columns, line, line + 1, out, scratch);

  Drawn drawn{{token.begin(), token.end()}, true};
  drawn.numbers.insert(drawn.numbers.end(), nan.get(), nan.get() + n);
  drawn.numbers.insert(drawn.numbers.end(), rank.begin(), rank.end());
  drawn.numbers.insert(drawn.numbers.end(), ids.begin(), ids.end());
  drawn.numbers.insert(drawn.numbers.end(), logprob.begin(), logprob.end());
  drawn.numbers.insert(drawn.numbers.end(), logprobs.begin(), logprobs.end());
  for (int64_t i = 0; i < logits.vocab; ++i) drawn.marks_are_zero = drawn.marks_are_zero && scratch.marks[i] == 0;
  return drawn;
}

// Random123's kat_vectors, philox4x32 with 10 rounds.
void check_philox(Report& report) {
  report.begin("philox");
  using Words = std::array<uint32_t, 4>;
  report.holds(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}, "zeros");
  report.holds(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
               "ones");
  report.holds(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
                   Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
               "digits of pi");
}

}  // namespace

void check_sampling(Report& report, const Kernels& tier, const Kernels& scalar) {
  check_philox(report);
  for (const int64_t vocab : {2, 17, 256, 1025, 6000}) {
    constexpr int64_t kRows = 3;
    report.begin(sizes({{"vocab", vocab}}));
    const int64_t stride = vocab + 7;
    const auto values = Random(vocab).floats(kRows * stride, 6.0f);
    std::vector<float> maxima(kRows * maxima_of(vocab));
    for (int64_t r = 0; r < kRows; ++r)
      tier.row_maxima({values.data() + r * stride, vocab}, maxima.data() + r * maxima_of(vocab));
    const LogitRows logits{values.data(), kRows, stride, vocab, maxima.data(), maxima_of(vocab)};
    const Lines lines(120, kRows, vocab);
    const Drawn drawn = draw(tier, logits, lines);
    report.same_bits(drawn.numbers, draw(scalar, logits, lines).numbers, "tokens and log-probabilities");
    report.holds(drawn.marks_are_zero, "marks are zero again");
    report.holds(*std::max_element(drawn.numbers.begin(), drawn.numbers.begin() + 120) < static_cast<float>(vocab),
                 "tokens are of the vocabulary");
  }
}

}  // namespace forearm::checks
