// Multiplication against what the machine can do, all measured in the same run:
//
//   kernel_bench [THREADS [TIER...]]      2 threads and the tier in use unless given
//
// decode: m rows by bf16 matrices that no cache holds, as a share of the read bandwidth of the same threads.
// prefill: 512 rows, as a share of the float32 multiply-add peak of the same threads. Each figure is the best of its
// rounds, in time that the threads had a core: other work on the machine only ever takes away.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/pack.h"

namespace forearm {
namespace {

double core_time_s() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Zeroed memory in huge pages, as weights and activations have it.
char* allocate(int64_t bytes) {
  constexpr int64_t kHuge = 2 << 20;
  void* memory = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) abort();
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + kHuge - 1) / kHuge * kHuge);
  madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

// Runs work(thread) on `threads` pinned threads that start together; seconds of the one that took longest.
double timed(int threads, const std::function<void(int)>& work) {
  std::atomic<int> ready{0};
  std::vector<double> took(threads);
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      cpu_set_t cpu;
      CPU_ZERO(&cpu);
      CPU_SET(t, &cpu);
      pthread_setaffinity_np(pthread_self(), sizeof cpu, &cpu);
      ++ready;
      while (ready.load() < threads) std::this_thread::yield();
      const double begin = core_time_s();
      work(t);
      took[t] = core_time_s() - begin;
    });
  }
  for (std::thread& thread : team) thread.join();
  return *std::max_element(took.begin(), took.end());
}

double best(int rounds, int threads, const std::function<void(int)>& work) {
  double least = 1e30;
  for (int r = 0; r < rounds; ++r) least = std::min(least, timed(threads, work));
  return least;
}

struct Machine {
  int threads;
  char* weights;  // kWeightBytes, more than any cache
  double read_gb_s, peak_gflops;
};
constexpr int64_t kWeightBytes = int64_t{512} << 20;

void measure_limits(const Kernels& tier, Machine* m) {
  const int64_t share = kWeightBytes / m->threads / 4096 * 4096;
  std::vector<float> kept(m->threads * 64);  // a cache line and more for each thread
  m->read_gb_s = 1e-9 * share * m->threads /
                 best(7, m->threads, [&](int t) { kept[t * 64] = tier.read_all(m->weights + t * share, share); });
  int64_t flops = 0;
  const int64_t rounds = 3'000'000;
  const double seconds = best(7, m->threads, [&](int t) {
    int64_t mine = 0;
    kept[t * 64] = tier.fma_rounds(rounds, &mine);
    if (t == 0) flops = mine;
  });
  m->peak_gflops = 1e-9 * flops * m->threads / seconds;
}

// Panels [begin, end) of thread t, in pairs.
int64_t slice(int64_t n, int t, int threads) { return t == threads ? n : n / 32 * t / threads * 32; }

// Seconds of one m x n x k multiplication; `copies` matrices stand behind each other in the weights.
double multiply(const Kernels& tier, const Machine& machine, DType dtype, int64_t m, int64_t n, int64_t k,
                int64_t copies, int rounds) {
  const Layout layout = tier.layout[static_cast<int>(dtype)];
  const int64_t element = layout.form == Form::f32_rows ? 4 : 2, stride = k + 16;
  static char* rows = allocate(int64_t{64} << 20);
  Operand a{rows, stride, layout.form};
  Operand out{rows + (m + 1) * stride * element / 64 * 64 + 64, n + 16, Form::f32_rows};
  const int64_t bytes = packed_elements(n, k, layout.quantum) * dtype_bytes(dtype);
  return best(rounds, machine.threads,
              [&](int t) {
                for (int64_t copy = 0; copy < copies; ++copy) {
                  tier.gemm({a, 0, m, {machine.weights + copy * bytes, dtype, n, k}, slice(n, t, machine.threads),
                             slice(n, t + 1, machine.threads), nullptr, Epilogue::store, Activation::none, 1, 0, out, nullptr});
                }
              }) /
         static_cast<double>(copies);
}

void bench(const Kernels& tier, Machine machine) {
  measure_limits(tier, &machine);
  printf("%s, %d threads: read %.1f GB/s, float32 multiply-add %.0f GFLOP/s\n", tier.tier, machine.threads,
         machine.read_gb_s, machine.peak_gflops);
  constexpr struct {
    int64_t n, k;
  } kShapes[] = {{8960, 1536}, {1536, 8960}, {1536, 1536}};
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const char* name = dtype == DType::bf16 ? "bf16" : dtype == DType::f16 ? "f16" : "f32";
    for (const auto& [n, k] : kShapes) {
      const int64_t bytes = packed_elements(n, k, 4) * dtype_bytes(dtype);
      for (int64_t m : {1, 2, 4, 8}) {
        const double seconds = multiply(tier, machine, dtype, m, n, k, kWeightBytes / bytes, 5);
        printf("  %-4s m=%-3ld n=%ld k=%ld  %6.1f GB/s   = %3.0f %% of read bandwidth\n", name, m, n, k,
               1e-9 * bytes / seconds, 100e-9 * bytes / seconds / machine.read_gb_s);
      }
      for (int64_t m : {12, 32, 512}) {
        const double seconds = multiply(tier, machine, dtype, m, n, k, m < 512 ? 4 : 1, 5);
        const double gflops = 2e-9 * m * n * k / seconds;
        printf("  %-4s m=%-3ld n=%ld k=%ld  %6.0f GFLOP/s = %3.0f %% of peak\n", name, m, n, k, gflops,
               100 * gflops / machine.peak_gflops);
      }
      fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace forearm

int main(int argc, char** argv) {
  using namespace forearm;
  Machine machine{argc > 1 ? atoi(argv[1]) : 2, allocate(kWeightBytes), 0, 0};
  // Whatever bits stand in a weight, widening takes as long; these are small numbers in every type.
  for (int64_t i = 0; i < kWeightBytes / 4; ++i) reinterpret_cast<uint32_t*>(machine.weights)[i] = 0x3c003c00;
  if (argc < 3) bench(kernels(), machine);
  for (int i = 2; i < argc; ++i) {
    const Kernels* tier = find_tier(argv[i]);
    if (!tier) {
      fprintf(stderr, "error: this CPU has no tier %s\n", argv[i]);
      return 1;
    }
    bench(*tier, machine);
  }
}
