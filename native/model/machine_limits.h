// What a team of threads gets out of this machine with the tier in use.
#pragma once
#include "threads/pool.h"

namespace forearm {

struct MachineLimits {
  double read_gb_s;  // memory read by all threads, each its own part
  // Multiply-adds on registers, two operations each, all threads: float32, and by the instructions that multiply bf16
  // and int8 weights.
  double fma_gflops, bf16_gflops, int8_gops;
};

// Best of all passes that fit in `seconds` each. Reads `megabytes` MB in all, which must be well beyond the caches.
MachineLimits measure_limits(Pool& pool, int64_t megabytes, double seconds);

}  // namespace forearm
