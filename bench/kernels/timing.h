// Shared by the native benchmarks: memory as the engine allocates it, and threads that start together.
#pragma once
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace forearm {

// Returns the seconds that the calling thread had a core; other work on the machine does not count.
inline double core_time_s() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Allocates zeroed memory in huge pages, as for weights and activations.
inline char* allocate(int64_t bytes) {
  constexpr int64_t kHuge = 2 << 20;
  void* memory = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) abort();
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + kHuge - 1) / kHuge * kHuge);
  madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

// Runs work(thread) on `threads` pinned threads that start together; returns the seconds of the slowest.
inline double timed(int threads, const std::function<void(int)>& work) {
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

}  // namespace forearm
