// What the files of the self-test share: numbers and memory of its cases, and the cases of attention.
#pragma once
#include <stddef.h>

#include <vector>

#include "kernels/chosen_formats.h"
#include "kernels/kernels.h"

namespace forearm::self_test {

using Floats = std::vector<float>;

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Numbers in [-1, 1) that bf16, and so every form except fp8, holds exactly (pack.h rounds to fp8).
Floats numbers(int64_t count, uint32_t seed);

// Zeroed memory that begins at a cache line.
class Bytes {
 public:
  explicit Bytes(int64_t count) : bytes_(static_cast<size_t>(count) + 64) {}
  char* data() { return bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64; }

 private:
  std::vector<char> bytes_;
};

// An operand of any form, and its memory.
struct TestRows {
  TestRows(Form form, int64_t rows, int64_t dim, int64_t group = 0)
      : size(round_up(rows, 2) * round_up(dim, 64) * 4), bytes(size) {
    const int64_t groups = group ? (dim + group - 1) / group : 0;
    scales.resize(static_cast<size_t>(round_up(rows, 2) * digits_of(form) * groups));
    sums.resize(scales.size());
    operand = {bytes.data(), round_up(dim, 64), form, group, scales.data(), sums.data()};
  }
  TestRows(const TestRows&) = delete;

  // All bytes, scales and sums of the operand, as numbers.
  Floats all() {
    const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
    Floats out(first, first + size);
    out.insert(out.end(), scales.begin(), scales.end());
    out.insert(out.end(), sums.begin(), sums.end());
    return out;
  }
  Floats floats() {
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    return {first, first + size / 4};
  }

  int64_t size;
  Bytes bytes;
  Floats scales;
  std::vector<int32_t> sums;
  Operand operand;
};

// Each case runs one operation with the variant-th of its settings and returns all that it wrote.

// One slice after a context, its keys written by write_kv: whole, with a window, and as partial results that are
// merged. Of each dtype of caches so many variants.
constexpr int kAttentions = 3;
constexpr ChosenFormats kCaches{[](DType d) { return number_format(d).in_cache; }};
Floats attended(const Kernels& k, int variant);
// Chosen keys that were gathered, as what their bytes differ by from those of the same keys that write_kv packs.
Floats gathered(const Kernels& k, int variant);
// The scores of a token's keys.
Floats index_scored(const Kernels& k, int variant);

Floats shifted(const Kernels& k, int variant);
Floats squashed(const Kernels& k, int variant);
Floats time_mixed(const Kernels& k, int variant);

}  // namespace forearm::self_test
