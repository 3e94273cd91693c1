// Our model between the marks: a prompt, then one token after it.
//
//   forearm_count SHAPE bfloat16|int4|int4-wide|int6 LAYERS PROMPT_TOKENS       a shape of bench/shapes.py
//
// int4 is what --quantization int4 makes: groups of 128 with float16 scales, embedding and head int8 in groups of 64.
// int4-wide has activations of 16 bits (--quantization-activations float). int6 is what Q6_K becomes: groups of 16.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "dense_matrices.h"
#include "marks.h"
#include "model/executor.h"

namespace {

using namespace forearm;

constexpr int64_t kHeadGroup = 64;

struct Shape {
  const char* name;
  int64_t hidden, heads, kv_heads, head_dim, width;
  bool experts, tied;
};
constexpr Shape kShapes[] = {{"qwen2.5-0.5b", 896, 14, 2, 64, 4864, false, true},
                             {"r1-distill-qwen-1.5b", 1536, 12, 2, 128, 8960, false, false},
                             {"qwen3-30b-a3b", 2048, 32, 4, 128, 768, true, false}};

// The number format of a layer's matrices.
struct Codes {
  const char* name;
  DType dtype;
  int64_t group;
  bool wide;
};
constexpr Codes kCodes[] = {{"bfloat16", DType::bf16, 0, false},
                            {"int4", DType::int4, 128, false},
                            {"int4-wide", DType::int4, 128, true},
                            {"int6", DType::int6, 16, false}};

template <typename Row, size_t kRows>
const Row& row_of(const Row (&rows)[kRows], const char* name) {
  for (const Row& row : rows)
    if (std::strcmp(row.name, name) == 0) return row;
  std::fprintf(stderr, "forearm_count: unknown: %s\n", name);
  std::exit(2);
}

Config config_of(const Shape& shape, int64_t layers) {
  Config c{};
  c.vocab_size = 151936;
  c.hidden = shape.hidden;
  c.heads = shape.heads;
  c.kv_heads = shape.kv_heads;
  c.head_dim = shape.head_dim;
  c.max_positions = 4096;
  Rope rope;
  for (int i = 0; i < c.head_dim / 2; ++i) rope.inv_freq.push_back(1.0f / static_cast<float>(1 << (i / 4)));
  c.ropes.push_back(rope);
  LayerKind layer{AttentionKind{0, 0}, FeedForwardKind{shape.width}};
  if (shape.experts) layer.experts = ExpertsKind{128, 8};
  if (shape.experts) layer.experts->renormalized = true;
  c.layers.assign(static_cast<size_t>(layers), layer);
  c.qk_norm = shape.experts ? QkNorm::head : QkNorm::none;
  c.tied_head = shape.tied;
  c.attention_scale = shape.head_dim == 128 ? 0.08838835f : 0.125f;
  c.matrices = checks::dense_matrices(c, !shape.experts);
  return c;
}

bool is_head(const MatrixSpec& spec) { return spec.role == Role::embedding || spec.role == Role::head; }

Formats formats_of(const Config& c, const Codes& codes) {
  Format format;
  format.dtype = codes.dtype;
  format.group = codes.group;
  format.scale_dtype = codes.group ? DType::f16 : DType::f32;
  format.wide = codes.wide;
  Formats formats = checks::uniform(c, format);
  for (const MatrixSpec& spec : c.matrices) {
    if (!codes.group || !is_head(spec)) continue;
    formats[spec.name].dtype = DType::int8;
    formats[spec.name].group = kHeadGroup;
  }
  return formats;
}

class Loader {
 public:
  Loader(Executor& executor, const Codes& codes) : executor_(executor), codes_(codes), noise_(1 << 20) {
    std::mt19937 random(1);  // the same on every machine
    for (uint8_t& byte : noise_) byte = static_cast<uint8_t>(random() >> 24);
  }

  void matrix(const MatrixSpec& spec, const MatrixPart& part) {
    constexpr int64_t kPiece = 1024;
    for (int64_t expert = 0; expert < spec.experts; ++expert)
      for (int64_t row = 0; row < part.rows; row += kPiece)
        piece(spec, part.name, expert * part.rows + row, std::min(kPiece, part.rows - row));
    if (spec.bias) vector(part.name + ".bias", spec.experts * part.rows, 0.0f);
  }
  void vector(const std::string& name, int64_t n, float value) {
    executor_.load_vector(name, std::vector<float>(static_cast<size_t>(n), value).data(), n);
  }

 private:
  uint8_t next() { return noise_[at_++ % noise_.size()]; }

  void piece(const MatrixSpec& spec, const std::string& name, int64_t row, int64_t rows) {
    at_ += 1021;  // no two pieces begin alike
    const size_t count = static_cast<size_t>(rows * spec.k);
    if (!codes_.group || spec.role == Role::router) {
      std::vector<uint16_t> bits(count);  // bfloat16 of 2^-6 .. 2^-4, either sign
      for (uint16_t& value : bits) {
        const uint32_t b = next();
        value = static_cast<uint16_t>((b & 1) << 15 | 0x3C80 | b);
      }
      executor_.load_matrix(name, {bits.data(), DType::bf16, rows, spec.k}, row);
      return;
    }
    const bool head = is_head(spec);
    std::vector<int8_t> values(count);
    for (int8_t& value : values) {
      const auto b = static_cast<int8_t>(next());
      value = head ? std::max<int8_t>(b, -127) : static_cast<int8_t>(b >> (8 - dtype_bits(codes_.dtype)));
    }
    const int64_t group = head ? kHeadGroup : codes_.group;
    const std::vector<float> scales(static_cast<size_t>(rows * ((spec.k + group - 1) / group)),
                                    head ? 0x1p-12f : 0x1p-8f);
    executor_.load_codes(name, {values.data(), rows, spec.k, scales.data(), nullptr, nullptr}, nullptr, row);
  }

  Executor& executor_;
  const Codes& codes_;
  std::vector<uint8_t> noise_;
  size_t at_ = 0;
};

void load(Executor& executor, const Codes& codes) {
  const Config& c = executor.config();
  Loader load(executor, codes);
  for (const MatrixSpec& spec : c.matrices)
    for (const MatrixPart& part : spec.parts) load.matrix(spec, part);
  load.vector("final_norm", c.hidden, 1.0f);
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    for (const char* norm : {"input_norm", "pre_mlp_norm"}) load.vector(layer + norm, c.hidden, 1.0f);
    if (c.qk_norm == QkNorm::none) continue;
    for (const char* norm : {"q_norm", "k_norm"}) load.vector(layer + norm, c.head_dim, 1.0f);
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
  if (argc != 5) return 2;
  const Codes& codes = row_of(kCodes, argv[2]);
  const int prompt = std::atoi(argv[4]);
  const Config config = config_of(row_of(kShapes, argv[1]), std::atoi(argv[3]));
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
