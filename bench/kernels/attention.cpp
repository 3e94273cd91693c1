// Measures attention over the paged cache as a share of the machine's limits:
//
//   attention_bench [-t THREADS] [-d DTYPE]... [-s SHAPE]... [-c CONTEXT] [-b BATCH]... [-p PROMPT]... [TIER...]
//
// Decode computes one token for each of BATCH sequences (1, 8, 32) at CONTEXT (4096), over KV caches larger than any
// CPU cache. Prefill computes a prompt of PROMPT tokens (512, 2048). Each pass runs between passes of its two limits:
// to read as many bytes at the read bandwidth of the same threads, and to do its multiply-adds (two for each query,
// visible key and value of a head) at the peak of the instruction that the tier multiplies the cache with. Every figure
// is the best of its passes.
#include <stdio.h>
#include <string.h>

#include <numeric>
#include <string>

#include "kernels/kernels.h"
#include "timing.h"

namespace forearm {
namespace {

constexpr int64_t kCacheBytes = int64_t{256} << 20;  // larger than any CPU cache
constexpr int64_t kScratchBytes = 4 << 20;
constexpr int kPasses = 7;
constexpr int64_t kPromptTokens = 32;  // tokens of a work item (model/mixers/attention_plan.cpp)
constexpr const char* kNames[kDTypes] = {"f32", "f16", "bf16", "int8", "int4", "fp8_e4m3", "fp8_e5m2"};

struct Shape {
  const char* name;
  int64_t heads, kv_heads, head_dim;
};
constexpr Shape kShapes[] = {{"0.5b", 14, 2, 64}, {"1.5b", 12, 2, 128}, {"tinyllama", 32, 4, 64}, {"7b", 32, 32, 128}};

struct Wanted {
  int threads = 2;
  int64_t context = 4096;
  std::vector<DType> dtypes;
  std::vector<const Shape*> shapes;
  std::vector<int64_t> batches, prompts;
  std::vector<const char*> tiers;
};

struct Machine {
  const Kernels& tier;
  int threads;
  char* cache;  // [kCacheBytes]
  float* rows;
  char* scratch;  // [threads][kScratchBytes]

  double read_s() const {  // seconds per byte, all threads together
    const int64_t share = kCacheBytes / threads / 4096 * 4096;
    std::vector<float> kept(threads * 64);  // more than a cache line for each thread
    return timed(threads, [&](int t) { kept[t * 64] = tier.read_all(cache + t * share, share); }) / (share * threads);
  }
  double multiply_s(Form form) const {  // seconds per operation
    std::vector<float> kept(threads * 64);
    std::vector<int64_t> operations(threads * 64);
    const auto work = [&](int t) { kept[t * 64] = tier.multiply_rounds(form, 500'000, &operations[t * 64]); };
    return timed(threads, work) / (operations[0] * threads);
  }
};

// `layers` times `sequences` contexts with `tokens` new tokens each; their blocks are shuffled.
class Attention {
 public:
  Attention(const Machine& machine, const Shape& shape, DType dtype, int64_t sequences, int64_t tokens, int64_t context)
      : machine_(machine), shape_(shape), dtype_(dtype), tokens_(tokens), context_(context) {
    const int64_t head_bytes = kv_head_bytes(dtype, shape.head_dim), block_bytes = shape.kv_heads * head_bytes;
    blocks_each_ = (context + kBlockTokens - 1) / kBlockTokens;
    const int64_t room = kCacheBytes / 2 / block_bytes, wanted = sequences * blocks_each_;
    contexts_ = std::max(int64_t{1}, tokens > 1 ? int64_t{1} : room / wanted) * sequences;
    cache_ = {machine.cache, machine.cache + kCacheBytes / 2, block_bytes, head_bytes, dtype, shape.head_dim};
    blocks_.resize(static_cast<size_t>(room));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    for (size_t i = blocks_.size(); i-- > 1;) std::swap(blocks_[i], blocks_[i * 7919 % (i + 1)]);
    split_ = tokens == 1 && sequences == 1;
  }

  Form form() const {
    const DType multiplied = is_float(dtype_) ? dtype_ : machine_.tier.wide;
    return machine_.tier.layout[static_cast<int>(multiplied)].form;
  }
  int64_t bytes() const { return contexts_ * context_ * 2 * shape_.kv_heads * cache_.head_bytes / kBlockTokens; }
  double operations() const {  // a token attends to itself and all tokens before it
    const double seen = static_cast<double>(tokens_ * context_ - tokens_ * (tokens_ - 1) / 2);
    return 4.0 * seen * static_cast<double>(contexts_ * shape_.heads * shape_.head_dim);
  }

  double pass_s() {
    const int64_t parts = split_ ? (context_ - 1) / kChunkTokens + 1 : (tokens_ - 1) / kPromptTokens + 1;
    const int64_t items = contexts_ * shape_.kv_heads * parts;
    std::atomic<int64_t> next{0};
    return timed(machine_.threads, [&](int t) {
      for (int64_t i = next++; i < items; i = next++)
        attend(i / parts, parts - 1 - i % parts, machine_.scratch + t * kScratchBytes);
    });
  }

 private:
  void attend(int64_t item, int64_t part, char* scratch) const {
    AttendTask task{};
    task.cache = cache_;
    task.blocks = blocks_.data() + item / shape_.kv_heads * blocks_each_ % (blocks_.size() - blocks_each_ + 1);
    task.q = machine_.rows;
    task.q_stride = shape_.heads * shape_.head_dim;
    task.head_dim = shape_.head_dim;
    task.kv_head = item % shape_.kv_heads;
    task.group = shape_.heads / shape_.kv_heads;
    task.token_begin = split_ ? 0 : part * kPromptTokens;
    task.token_end = std::min(tokens_, task.token_begin + kPromptTokens);
    task.first_position = context_ - tokens_;
    task.scale = 0.1f;
    task.chunk_begin = split_ ? part : 0;
    task.chunk_end = split_ ? part + 1 : (task.first_position + task.token_end - 1) / kChunkTokens + 1;
    task.scratch = scratch;
    if (split_) task.partials = reinterpret_cast<float*>(scratch + machine_.tier.attend_scratch_bytes(shape_.head_dim));
    task.out = {machine_.rows + (4 << 20), task.q_stride, Form::f32_rows};
    machine_.tier.attend(task);
  }

  const Machine& machine_;
  const Shape& shape_;
  DType dtype_;
  int64_t tokens_, context_, contexts_, blocks_each_;
  KvCache cache_;
  std::vector<int32_t> blocks_;
  bool split_;
};

void report(const char* what, int64_t count, const Shape& shape, DType dtype, Attention one, const Machine& machine) {
  double read_s = 1, multiply_s = 1, pass_s = 1e9;
  for (int pass = 0; pass < kPasses; ++pass) {
    read_s = std::min(read_s, machine.read_s());
    multiply_s = std::min(multiply_s, machine.multiply_s(one.form()));
    pass_s = std::min(pass_s, one.pass_s());
  }
  const double bytes = static_cast<double>(one.bytes());
  printf("  %-9s %-8s %s %-4ld %6.1f GB/s = %3.0f %% of reading  %6.0f GFLOP/s = %3.0f %% of multiplying\n", shape.name,
         kNames[static_cast<int>(dtype)], what, count, 1e-9 * bytes / pass_s, 100 * bytes * read_s / pass_s,
         1e-9 * one.operations() / pass_s, 100 * one.operations() * multiply_s / pass_s);
  fflush(stdout);
}

[[noreturn]] void refuse(const char* what, const char* value) {
  fprintf(stderr, "error: %s %s\n", what, value);
  exit(1);
}

DType dtype_named(const char* name) {
  for (int i = 0; i < kDTypes; ++i) {
    if (strcmp(name, kNames[i]) == 0 && static_cast<DType>(i) != DType::int4) return static_cast<DType>(i);
  }
  refuse("there is no KV dtype", name);
}

const Shape* shape_named(const char* name) {
  for (const Shape& shape : kShapes) {
    if (strcmp(name, shape.name) == 0) return &shape;
  }
  refuse("there is no shape", name);
}

Wanted parse(int argc, char** argv) {
  Wanted wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word[0] != '-') {
      wanted.tiers.push_back(argv[i]);
      continue;
    }
    if (i + 1 == argc || !strchr("tdscbp", word[1])) refuse("cannot read", argv[i]);
    const char* value = argv[++i];
    if (word == "-t") wanted.threads = atoi(value);
    if (word == "-c") wanted.context = atoll(value);
    if (word == "-d") wanted.dtypes.push_back(dtype_named(value));
    if (word == "-s") wanted.shapes.push_back(shape_named(value));
    if (word == "-b") wanted.batches.push_back(atoll(value));
    if (word == "-p") wanted.prompts.push_back(atoll(value));
  }
  if (wanted.dtypes.empty()) wanted.dtypes = {DType::bf16, DType::int8, DType::fp8_e4m3, DType::fp8_e5m2};
  if (wanted.shapes.empty())
    for (const Shape& shape : kShapes) wanted.shapes.push_back(&shape);
  if (wanted.batches.empty() && wanted.prompts.empty()) wanted.batches = {1, 8, 32}, wanted.prompts = {512, 2048};
  if (wanted.tiers.empty()) wanted.tiers = {kernels().tier};
  return wanted;
}

void bench(const Machine& machine, const Wanted& wanted) {
  printf("%s, %d threads; decode at context %ld\n", machine.tier.tier, machine.threads, wanted.context);
  for (const Shape* shape : wanted.shapes) {
    for (const DType dtype : wanted.dtypes) {
      for (const int64_t batch : wanted.batches)
        report("decode ", batch, *shape, dtype, {machine, *shape, dtype, batch, 1, wanted.context}, machine);
      for (const int64_t prompt : wanted.prompts)
        report("prefill", prompt, *shape, dtype, {machine, *shape, dtype, 1, prompt, prompt}, machine);
    }
  }
}

}  // namespace
}  // namespace forearm

int main(int argc, char** argv) {
  using namespace forearm;
  const Wanted wanted = parse(argc, argv);
  char* cache = allocate(kCacheBytes);
  // These bits are small numbers in every dtype; their values do not affect the time.
  for (int64_t i = 0; i < kCacheBytes / 4; ++i) reinterpret_cast<uint32_t*>(cache)[i] = 0x3c003c00 + i % 509;
  float* rows = reinterpret_cast<float*>(allocate(int64_t{64} << 20));
  for (int64_t i = 0; i < 4 << 20; ++i) rows[i] = static_cast<float>(i * 7919 % 1021) / 1021 - 0.5f;
  char* scratch = allocate(wanted.threads * kScratchBytes);
  memset(scratch, 0, wanted.threads * kScratchBytes);  // so that the first pass does not wait for page faults
  for (const char* name : wanted.tiers) {
    const Kernels* tier = find_tier(name);
    if (!tier) refuse("this CPU has no tier", name);
    bench({*tier, wanted.threads, cache, rows, scratch}, wanted);
  }
}
