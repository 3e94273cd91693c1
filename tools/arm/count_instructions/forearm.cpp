// Our model between the marks: the Qwen2.5-0.5B shape, a prompt, then one token after it.
//
//   forearm_count bfloat16|int4 LAYERS PROMPT_TOKENS
//
// int4 is what --quantization int4 makes: groups of 128 with float16 scales, embedding and head int8 for each row.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "marks.h"
#include "model/executor.h"

namespace {

using namespace forearm;

Config config_of(int64_t layers) {
  Config c{};
  c.vocab_size = 151936;
  c.hidden = 896;
  c.intermediate = 4864;
  c.heads = 14;
  c.kv_heads = 2;
  c.head_dim = 64;
  c.max_positions = 4096;
  Rope rope;
  for (int i = 0; i < 32; ++i) rope.inv_freq.push_back(1.0f / static_cast<float>(1 << (i / 2)));
  c.ropes.push_back(rope);
  c.layers.assign(static_cast<size_t>(layers), {0, 0});
  c.qkv_bias = true;
  c.tied_head = true;
  c.attention_scale = 0.125f;
  return c;
}

Formats formats_of(const Config& c, bool codes) {
  Format embed, layer;
  embed.dtype = codes ? DType::int8 : DType::bf16;
  layer.dtype = codes ? DType::int4 : DType::bf16;
  if (codes) {
    layer.group = 128;
    layer.scale_dtype = DType::f16;
  }
  Formats formats{{"embed", embed}};
  for (size_t i = 0; i < c.layers.size(); ++i)
    for (const char* name : {"qkv", "o", "up", "down"}) formats["layers." + std::to_string(i) + "." + name] = layer;
  return formats;
}

// Bytes that look random, and are the same on every machine.
std::vector<uint8_t> noise(size_t count) {
  std::vector<uint8_t> bytes(count);
  uint32_t state = 1;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  return bytes;
}

class Loader {
 public:
  Loader(Executor& executor, bool codes) : executor_(executor), codes_(codes), noise_(noise(1 << 20)) {}

  void matrix(const std::string& name, int64_t rows, int64_t k) {
    constexpr int64_t kPiece = 1024;
    for (int64_t row = 0; row < rows; row += kPiece) piece(name, row, std::min(kPiece, rows - row), k);
  }
  void vector(const std::string& name, int64_t n, float value) {
    executor_.load_vector(name, std::vector<float>(static_cast<size_t>(n), value).data(), n);
  }

 private:
  void piece(const std::string& name, int64_t row, int64_t rows, int64_t k) {
    const bool head = name == "embed";
    const size_t count = static_cast<size_t>(rows * k);
    if (!codes_) {
      std::vector<uint16_t> bits(count);  // bfloat16 of 2^-6 .. 2^-4, either sign
      for (size_t i = 0; i < count; ++i) {
        const uint32_t b = noise_[i % noise_.size()];
        bits[i] = static_cast<uint16_t>((b & 1) << 15 | 0x3C80 | b);
      }
      executor_.load_matrix(name, {bits.data(), DType::bf16, rows, k}, row);
      return;
    }
    std::vector<int8_t> values(count);
    for (size_t i = 0; i < count; ++i) {
      const auto b = static_cast<int8_t>(noise_[i % noise_.size()]);
      values[i] = head ? std::max<int8_t>(b, -127) : static_cast<int8_t>(b / 16);
    }
    const std::vector<float> scales(static_cast<size_t>(rows * (head ? 1 : (k + 127) / 128)),
                                    head ? 0x1p-12f : 0x1p-8f);
    executor_.load_codes(name, {values.data(), rows, k, scales.data(), nullptr, nullptr}, nullptr, row);
  }

  Executor& executor_;
  const bool codes_;
  const std::vector<uint8_t> noise_;
};

void load(Executor& executor, bool codes) {
  const Config& c = executor.config();
  Loader load(executor, codes);
  const int64_t kv = c.kv_heads * c.head_dim;
  load.matrix("embed", c.vocab_size, c.hidden);
  load.vector("final_norm", c.hidden, 1.0f);
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    for (const auto& [name, rows] : {std::pair{"q", c.hidden}, {"k", kv}, {"v", kv}}) {
      load.matrix(layer + name, rows, c.hidden);
      load.vector(layer + name + ".bias", rows, 0.0f);
    }
    load.matrix(layer + "o", c.hidden, c.hidden);
    load.matrix(layer + "gate", c.intermediate, c.hidden);
    load.matrix(layer + "up", c.intermediate, c.hidden);
    load.matrix(layer + "down", c.hidden, c.intermediate);
    load.vector(layer + "input_norm", c.hidden, 1.0f);
    load.vector(layer + "pre_mlp_norm", c.hidden, 1.0f);
  }
  executor.finish_loading();
  executor.allocate_kv(16);
}

void step(Executor& executor, int32_t first, int32_t count) {
  std::vector<int32_t> token(static_cast<size_t>(count)), position(token.size()), block(16);
  std::iota(position.begin(), position.end(), first);
  std::iota(block.begin(), block.end(), 0);
  for (size_t i = 0; i < token.size(); ++i) token[i] = 300 + 31 * (first + static_cast<int32_t>(i));
  const int32_t start[] = {0, count}, block_start[] = {0, 16}, last = count - 1;
  executor.forward({count, 1, 1, token.data(), position.data(), start, block_start, 16, block.data(), &last});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const bool codes = std::strcmp(argv[1], "int4") == 0;
  const int prompt = std::atoi(argv[3]);
  const Config config = config_of(std::atoi(argv[2]));
  Executor executor(config, formats_of(config, codes), {DType::bf16, 512, 1, 1, 512}, {}, 1);
  load(executor, codes);

  step(executor, 0, 1);  // pages are touched
  mark(Mark::before_prefill);
  step(executor, 0, prompt);
  mark(Mark::after_prefill);
  step(executor, prompt, 1);
  mark(Mark::after_decode);
  std::printf("%s %g\n", kernels().tier, static_cast<double>(executor.logits()[0]));
}
