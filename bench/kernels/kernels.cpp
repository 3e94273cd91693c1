// Measures matrix multiplication as a share of the machine's limits:
//
//   kernel_bench [-t THREADS] [-d DTYPE]... [-m ROWS]... [TIER...]     2 threads, all dtypes and the tier in use
//
// int8 has one scale per column, int4 one for each 128 k, int6 for each 16. Each multiplication reads packed weights
// that are in no CPU cache. Its limit is the longer of two times: to read the weights at the read bandwidth of the same
// threads, and to do the multiply-adds at the peak of the instruction that multiplies the format. On a shared machine
// limits change within seconds, so each pass runs between passes of its limits. Every figure is the best of its passes,
// in time that the threads had a core, because other work on the machine can only make a pass slower.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/pack.h"
#include "timing.h"

namespace forearm {
namespace {

constexpr int64_t kWeightBytes = int64_t{256} << 20;  // larger than any CPU cache
constexpr int64_t kScaleBytes = int64_t{8} << 20, kScratchBytes = int64_t{8} << 20;
constexpr int kPasses = 7;

struct Wanted {
  int threads = 2;
  std::vector<DType> dtypes;
  std::vector<int64_t> rows;
  std::vector<const char*> tiers;
};

struct Machine {
  const Kernels& tier;
  int threads;
  char* weights;  // [kWeightBytes]
  char* rows;
  char* scales;  // all 1; scales of weights and rows
  char* scratch;

  double read_s() const {  // seconds per byte, all threads together
    const int64_t share = kWeightBytes / threads / 4096 * 4096;
    std::vector<float> kept(threads * 64);  // more than a cache line for each thread
    return timed(threads, [&](int t) { kept[t * 64] = tier.read_all(weights + t * share, share); }) / (share * threads);
  }
  double multiply_s(Form form) const {  // seconds per operation
    std::vector<float> kept(threads * 64);
    std::vector<int64_t> operations(threads * 64);
    const auto work = [&](int t) { kept[t * 64] = tier.multiply_rounds(form, 500'000, &operations[t * 64]); };
    return timed(threads, work) / (operations[0] * threads);
  }
};

// An m x n x k multiplication; the weights have as many matrices, one after another, as a pass needs.
struct Multiplication {
  const Machine& machine;
  DType dtype;
  int64_t m, n, k;

  bool codes() const { return !is_float(dtype); }
  int64_t group() const { return dtype == DType::int4 ? std::min<int64_t>(128, k) : dtype == DType::int6 ? 16 : k; }
  Layout layout() const { return machine.tier.layout[static_cast<int>(dtype)]; }
  int64_t bytes() const { return packed_bytes(dtype, n, k, layout().quantum); }
  double operations() const { return 2.0 * static_cast<double>(m * n * k); }
  // Returns the first panel of thread t; panels are divided in pairs.
  int64_t first_column(int t) const { return t == machine.threads ? n : n / 32 * t / machine.threads * 32; }

  double pass_s() const {
    // Rows have an odd number of cache lines, as operands of a step have (model/scratch.cpp).
    const int64_t width = form_bytes(layout().form), stride = ((k * width + 63) / 64 | 1) * 64 / width;
    const int64_t copies = std::max<int64_t>(1, std::min(kWeightBytes / bytes(), 512 / m));
    const Operand a{machine.rows,
                    stride,
                    layout().form,
                    group(),
                    reinterpret_cast<float*>(machine.scales),
                    reinterpret_cast<int32_t*>(machine.scales)};
    const Operand out{machine.rows + (m + 1) * stride * width, n + 16, Form::f32_rows};
    const auto work = [&](int t) {
      for (int64_t copy = 0; copy < copies; ++copy) {
        GemmTask task{};
        task.a = a;
        task.row_end = m;
        const DType scales = dtype == DType::int6 ? DType::f16 : DType::f32;
        task.w = {machine.weights + copy * bytes(), dtype, n, k, group(), machine.scales, scales};
        task.scratch = machine.scratch + t * kScratchBytes;
        task.n_begin = first_column(t);
        task.n_end = first_column(t + 1);
        task.scale = 1.0f;
        task.out = out;
        machine.tier.gemm(task);
      }
    };
    return timed(machine.threads, work) / static_cast<double>(copies);
  }
};

constexpr const char* kNames[kDTypes] = {"f32",      "f16",        "bf16",     "int8", "int4", "fp8_e4m3",
                                         "fp8_e5m2", "f16_scaled", "fp4_e2m1", "e8m0", "int6"};

void report(const Multiplication& one) {
  double read_s = 1, multiply_s = 1, pass_s = 1;
  for (int pass = 0; pass < kPasses; ++pass) {
    if (one.m <= 64) read_s = std::min(read_s, one.machine.read_s());
    multiply_s = std::min(multiply_s, one.machine.multiply_s(one.layout().form));
    pass_s = std::min(pass_s, one.pass_s());
  }
  const double bytes = static_cast<double>(one.bytes());
  const double limit_s = std::max(one.m <= 64 ? bytes * read_s : 0.0, one.operations() * multiply_s);
  printf(
      "  %-4s m=%-3ld n=%-4ld k=%-4ld  %6.1f GB/s %6.0f GFLOP/s  = %3.0f %% of the limit (%3.0f GB/s, %.0f GFLOP/s)\n",
      kNames[static_cast<int>(one.dtype)], one.m, one.n, one.k, 1e-9 * bytes / pass_s, 1e-9 * one.operations() / pass_s,
      100 * limit_s / pass_s, 1e-9 / read_s, 1e-9 / multiply_s);
  fflush(stdout);
}

void bench(const Machine& machine, const Wanted& wanted) {
  printf("%s, %d threads\n", machine.tier.tier, machine.threads);
  constexpr struct {
    int64_t n, k;
  } kShapes[] = {{8960, 1536}, {1536, 8960}, {4864, 896}};
  for (const DType dtype : wanted.dtypes) {
    for (const auto& [n, k] : kShapes) {
      for (const int64_t m : wanted.rows) report({machine, dtype, m, n, k});
    }
  }
}

[[noreturn]] void refuse(const char* what, const char* value) {
  fprintf(stderr, "error: %s %s\n", what, value);
  exit(1);
}

DType dtype_named(const char* name) {
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (strcmp(name, kNames[i]) == 0 && (is_float(dtype) || is_integer(dtype))) return dtype;
  }
  refuse("there is no dtype", name);
}

Wanted parse(int argc, char** argv) {
  Wanted wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word[0] != '-') {
      wanted.tiers.push_back(argv[i]);
      continue;
    }
    if (i + 1 == argc || (word != "-t" && word != "-d" && word != "-m")) refuse("cannot read", argv[i]);
    const char* value = argv[++i];
    if (word == "-t") wanted.threads = atoi(value);
    if (word == "-d") wanted.dtypes.push_back(dtype_named(value));
    if (word == "-m") wanted.rows.push_back(atoll(value));
  }
  if (wanted.dtypes.empty()) wanted.dtypes = {DType::bf16, DType::f16, DType::f32, DType::int8, DType::int4};
  if (wanted.rows.empty()) wanted.rows = {1, 2, 4, 8, 16, 32, 512};
  if (wanted.tiers.empty()) wanted.tiers = {kernels().tier};
  return wanted;
}

}  // namespace
}  // namespace forearm

int main(int argc, char** argv) {
  using namespace forearm;
  const Wanted wanted = parse(argc, argv);
  char* weights = allocate(kWeightBytes);
  // The time does not depend on the weights' bits; these are small numbers in every float type.
  for (int64_t i = 0; i < kWeightBytes / 4; ++i) reinterpret_cast<uint32_t*>(weights)[i] = 0x3c003c00;
  char* rows = allocate(int64_t{96} << 20);
  char* scales = allocate(kScaleBytes);
  std::fill_n(reinterpret_cast<float*>(scales), kScaleBytes / 4, 1.0f);
  char* scratch = allocate(kScratchBytes * wanted.threads);
  for (const char* name : wanted.tiers) {
    const Kernels* tier = find_tier(name);
    if (!tier) refuse("this CPU has no tier", name);
    bench({*tier, wanted.threads, weights, rows, scales, scratch}, wanted);
  }
}
