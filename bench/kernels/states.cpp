// Measures the recurrences of layers that keep a state, in the prefill of a prompt, beside the same layer's
// projections:
//
//   state_bench [-t THREADS] [-r ROWS] [TIER...]     one thread, 512 rows and the tier in use
//
// Heads are divided among the threads. GFLOP/s count what the definition needs, two operations a multiply-add: for each
// token and value of a state three multiply-adds of the gated delta rule (read with the key, write, read with the
// query; the products with decays of channels do not count) and two of Mamba2, of Mamba's selective scan and of an
// RG-LRU (write, read; the power that a scan takes of each value does not count), and four of RWKV-7's time mixing
// (read with the removal key, remove, write, read), of which the low-rank matrices count as projections. Their limit is
// the peak of the threads' float32 multiply-adds. The projections are an int8 matrix product with as many multiply-adds
// as the layer's. Passes of recurrence, projections and peak alternate; every figure is the best of its passes, in time
// that the threads had a core.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "kernels/kernels.h"
#include "timing.h"

namespace forearm {
namespace {

constexpr int kPasses = 9;
constexpr int64_t kRuleRows = 32;    // rows that the mixer hands to the gated delta rule at once
constexpr int64_t kMixedRows = 512;  // rows of numbers of their own that time mixing reads, which fit kRowBytes
constexpr int64_t kWeightBytes = int64_t{128} << 20, kRowBytes = int64_t{64} << 20, kScratchBytes = int64_t{8} << 20;

struct Shape {
  const char* name;
  int64_t hidden;
  int64_t key_heads, heads;    // no key heads: Mamba2, with one group
  int64_t key_dim, value_dim;  // one value: Mamba's selective scan, or one key, too: an RG-LRU; heads are channels
  bool by_channel = false;     // the gated delta rule has a decay for each channel of its keys
  int64_t ranks = 0;           // of low-rank matrices, together: RWKV-7's time mixing

  static constexpr int64_t kGateWidth = 256;  // channels of a head, which an RG-LRU's gates are made of

  bool gated() const { return key_dim == 1; }
  int64_t inner() const { return heads * value_dim; }
  int64_t dt_rank() const { return hidden / 16; }
  int64_t projected() const {
    if (by_channel)  // gates and decays are made of latents of key_dim numbers
      return 2 * key_heads * key_dim + inner() + 2 * key_dim + heads + 2 * inner() * key_dim / hidden;
    if (ranks) return 3 * inner() + 2 * ranks;
    if (gated()) return 2 * inner() + 2 * kGateWidth * inner() / hidden;
    if (value_dim == 1) return 2 * inner() + (2 * key_dim + 2 * dt_rank()) * inner() / hidden;
    return key_heads ? 2 * key_heads * key_dim + 2 * inner() + 2 * heads : 2 * inner() + 2 * key_dim + heads;
  }
  double multiply_adds() const {  // of the recurrence, for a token
    return (ranks ? 4.0 : key_heads ? 3.0 : 2.0) * static_cast<double>(inner() * key_dim);
  }
};
constexpr Shape kShapes[] = {
    {"qwen3.5-9b", 4096, 16, 32, 128, 128},        {"qwen3-next", 2048, 16, 32, 128, 128},
    {"kimi-linear", 2304, 32, 32, 128, 128, true}, {"granite-4-tiny", 1536, 0, 48, 128, 64},
    {"falcon-h1-1.5b", 2048, 0, 48, 256, 64},      {"mamba-1.4b", 2048, 0, 4096, 16, 1},
    {"recurrentgemma-2b", 2560, 0, 2560, 1, 1},    {"rwkv7-2.9b", 2560, 40, 40, 64, 64, true, 576}};

struct Machine {
  const Kernels& tier;
  int64_t threads;
  int64_t rows;
  char* weights;   // [kWeightBytes]
  char* operand;   // [kRowBytes]: the projections' rows
  float* numbers;  // [kRowBytes / 4]: between -0.15 and 0.15, so that a key of 128 is about one long
  char* scratch;   // [threads][kScratchBytes]: of projections; a head's rows and state

  double multiply_s() const {  // seconds of a float32 multiply-add
    std::vector<float> kept(threads * 64);
    std::vector<int64_t> operations(threads * 64);
    const auto work = [&](int t) { kept[t * 64] = tier.multiply_rounds(Form::f32_rows, 300'000, &operations[t * 64]); };
    return 2 * timed(static_cast<int>(threads), work) / static_cast<double>(operations[0] * threads);
  }

  double project_s(int64_t n, int64_t k) const {
    const Layout layout = tier.layout[static_cast<int>(DType::int8)];
    const int64_t width = form_bytes(layout.form), stride = ((k * width + 63) / 64 | 1) * 64 / width;
    const auto first_column = [&](int t) { return t == threads ? n : n / 32 * t / threads * 32; };
    return timed(static_cast<int>(threads), [&](int t) {
      float* scales = reinterpret_cast<float*>(weights + kWeightBytes / 2);  // all 1
      GemmTask task{};
      task.a = {operand, stride, layout.form, k, scales, reinterpret_cast<int32_t*>(scales)};
      task.row_end = rows;
      task.w = {weights, DType::int8, n, k, k, scales};
      task.scratch = scratch + t * kScratchBytes;
      task.n_begin = first_column(t);
      task.n_end = first_column(t + 1);
      task.scale = 1.0f;
      task.out = {operand + kRowBytes / 2, n + 16, Form::f32_rows};
      tier.gemm(task);
    });
  }

  double recur_s(const Shape& shape) const {
    return timed(static_cast<int>(threads), [&](int t) {
      float* own = reinterpret_cast<float*>(scratch + t * kScratchBytes);
      const int64_t begin = shape.heads * t / threads, end = shape.heads * (t + 1) / threads;
      if (shape.ranks) {
        for (int64_t head = begin; head < end; ++head) mix_head(shape, own, head);
      } else if (shape.key_heads) {
        for (int64_t head = begin; head < end; ++head) rule(shape, own);
      } else if (shape.gated()) {
        move_channels(shape, begin / kPanel * kPanel, end / kPanel * kPanel);
      } else if (shape.value_dim == 1) {
        scan_channels(shape, begin / kPanel * kPanel, end / kPanel * kPanel);
      } else {
        scan(shape, own, begin, end);
      }
    });
  }

 private:
  void mix_head(const Shape& shape, float* own, int64_t head) const {
    const int64_t inner = shape.inner(), dim = shape.key_dim;
    float* state = own + kRuleRows * rwkv7_room_floats(dim);
    std::fill(state, state + rwkv7_state_floats(dim), 0.0f);
    Rwkv7Task task{};
    task.stride = 7 * inner;
    task.first_stride = inner;
    task.dim = dim;
    task.k_k = task.k_a = task.r_k = task.norm = task.norm_bias = numbers;
    task.eps = 64e-5f;
    task.state = state;
    task.room = own;
    task.out = {operand + kMixedRows * task.stride * 4, inner, Form::f32_rows};
    task.out_column = head * dim;
    for (int64_t row = 0; row < rows; row += kRuleRows) {
      const float* at = reinterpret_cast<float*>(operand) + row % kMixedRows * task.stride + head * dim;
      task.rows = std::min(kRuleRows, rows - row);
      task.r = at;
      task.w = at + inner;
      task.k = at + 2 * inner;
      task.v = at + 3 * inner;
      task.a = at + 4 * inner;
      task.g = at + 5 * inner;
      task.mix = at + 6 * inner;
      task.first = numbers + row * inner + head * dim;
      task.out_row = row;
      tier.rwkv7(task);
    }
  }

  void rule(const Shape& shape, float* own) const {
    const int64_t decays = rows * shape.key_dim;
    float *state = own + decays, *out = state + state_floats(shape.key_dim, shape.value_dim);
    for (int64_t i = 0; i < decays; ++i) own[i] = 0.75f + numbers[i];
    std::fill(state, out, 0.0f);
    DeltaRuleTask task{};
    task.qk_stride = shape.key_dim;
    task.v_stride = task.out_stride = shape.value_dim;
    task.by_channel = shape.by_channel;
    task.decay_stride = shape.by_channel ? shape.key_dim : 1;
    task.beta_stride = 1;
    task.key_dim = shape.key_dim;
    task.value_dim = shape.value_dim;
    task.state = state;
    task.out = out;
    for (int64_t row = 0; row < rows; row += kRuleRows) {
      task.rows = std::min(kRuleRows, rows - row);
      task.q = numbers + row * shape.key_dim;
      task.k = task.q + rows * shape.key_dim;
      task.v = task.k + rows * shape.key_dim;
      task.decay = own + row * task.decay_stride;
      task.beta = own + row;
      tier.delta_rule(task);
    }
  }

  void scan(const Shape& shape, float* own, int64_t begin, int64_t end) const {
    Mamba2Task task{};
    task.x = reinterpret_cast<float*>(operand);
    task.stride = shape.inner() + 2 * shape.key_dim;
    task.b = task.x + shape.inner();
    task.c = task.b + shape.key_dim;
    task.dt = numbers;
    task.dt_stride = shape.heads;
    task.rows = rows;
    task.heads = shape.heads;
    task.groups = 1;
    task.head_dim = shape.value_dim;
    task.state_dim = shape.key_dim;
    task.panel_begin = begin * state_panels(shape.value_dim);
    task.panel_end = end * state_panels(shape.value_dim);
    task.dt_bias = task.a_log = task.d = numbers;
    task.dt_scale = 1.0f;
    task.dt_most = 0.1f;  // as most models' steps
    task.state = own;
    tier.mamba2(task);
  }

  void scan_channels(const Shape& shape, int64_t begin, int64_t end) const {
    const int64_t inner = shape.inner();
    float *state = reinterpret_cast<float*>(scratch), *a = state + inner * shape.key_dim;
    std::fill(a + begin * shape.key_dim, a + end * shape.key_dim, -1.0f);
    SelectiveScanTask task{};
    task.x = numbers;
    task.x_stride = inner;
    task.stride = 2 * inner + 2 * shape.key_dim;
    task.dt = reinterpret_cast<float*>(operand);
    task.z = task.dt + inner;
    task.b = task.z + inner;
    task.c = task.b + shape.key_dim;
    task.rows = rows;
    task.state_dim = shape.key_dim;
    task.channel_begin = begin;
    task.channel_end = end;
    task.a = a;
    task.d = numbers;
    task.state = state;
    task.out = {operand + rows * task.stride * 4, inner, Form::f32_rows};
    tier.selective_scan(task);
  }

  void move_channels(const Shape& shape, int64_t begin, int64_t end) const {
    const int64_t inner = shape.inner();
    float *state = reinterpret_cast<float*>(scratch), *rate = state + inner;
    std::fill(rate + begin, rate + end, -1.0f);
    RgLruTask task{};
    task.x = numbers;
    task.x_stride = inner;
    task.stride = 3 * inner;
    task.r = reinterpret_cast<float*>(operand);
    task.i = task.r + inner;
    task.y = task.i + inner;
    task.rows = rows;
    task.channel_begin = begin;
    task.channel_end = end;
    task.rate = rate;
    task.state = state;
    task.out = {operand + rows * task.stride * 4, inner, Form::f32_rows};
    tier.rg_lru(task);
  }
};

void report(const Machine& machine, const Shape& shape) {
  double multiply_s = 1, in_s = 1e9, out_s = 1e9, recur_s = 1e9;
  for (int pass = 0; pass < kPasses; ++pass) {
    multiply_s = std::min(multiply_s, machine.multiply_s());
    in_s = std::min(in_s, machine.project_s(shape.projected(), shape.hidden));
    out_s = std::min(out_s, machine.project_s(shape.hidden, shape.inner()));
    recur_s = std::min(recur_s, machine.recur_s(shape));
  }
  const double tokens = static_cast<double>(machine.rows), done = shape.multiply_adds() * tokens;
  const double project_s = in_s + out_s;
  printf(
      "  %-17s recurrence %6.2f us a token, %6.1f GFLOP/s = %3.0f %% of the peak; projections %6.2f us a token; "
      "recurrence %4.1f %% of both\n",
      shape.name, 1e6 * recur_s / tokens, 2e-9 * done / recur_s, 100 * done * multiply_s / recur_s,
      1e6 * project_s / tokens, 100 * recur_s / (recur_s + project_s));
  fflush(stdout);
}

[[noreturn]] void refuse(const char* what, const char* value) {
  fprintf(stderr, "error: %s %s\n", what, value);
  exit(1);
}

}  // namespace
}  // namespace forearm

int main(int argc, char** argv) {
  using namespace forearm;
  int64_t threads = 1;
  int64_t rows = 512;
  std::vector<const char*> tiers;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word[0] != '-') {
      tiers.push_back(argv[i]);
    } else if (i + 1 < argc && (word == "-t" || word == "-r")) {
      (word == "-t" ? threads : rows) = atoi(argv[++i]);
    } else {
      refuse("cannot read", argv[i]);
    }
  }
  if (threads < 1 || rows < 1 || rows > 1024) refuse("needs a thread or more and 1 to 1024 rows, not", argv[argc - 1]);
  if (tiers.empty()) tiers = {kernels().tier};
  char *weights = allocate(kWeightBytes), *operand = allocate(kRowBytes), *scratch = allocate(threads * kScratchBytes);
  memset(weights, 1, kWeightBytes / 2);
  std::fill_n(reinterpret_cast<float*>(weights + kWeightBytes / 2), kWeightBytes / 8, 1.0f);
  float* numbers = reinterpret_cast<float*>(allocate(kRowBytes));
  for (int64_t i = 0; i < kRowBytes / 4; ++i) numbers[i] = static_cast<float>(i * 7919 % 1021) / 1021 * 0.3f - 0.15f;
  for (const char* name : tiers) {
    const Kernels* tier = find_tier(name);
    if (!tier) refuse("this CPU has no tier", name);
    printf("%s, %ld threads, %ld rows\n", name, threads, rows);
    for (const Shape& shape : kShapes) {
      memcpy(operand, numbers, kRowBytes);
      report({*tier, threads, rows, weights, operand, numbers, scratch}, shape);
    }
  }
}
