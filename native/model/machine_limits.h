// The memory bandwidth and arithmetic peaks that a team of threads reaches on this machine with the tier in use.
#pragma once
#include "threads/pool.h"

namespace forearm {

struct MachineLimits {
  double read_gb_s;  // memory read by all threads together, each its own part
  // Multiply-adds on registers of all threads, counted as two operations each: in float32, and with the instructions
  // that multiply bf16 and int8 weights.
  double fma_gflops, bf16_gflops, int8_gops;
};

// Measures each limit as the best of the passes that fit in `seconds`. Reads `megabytes` MB, which must exceed the
// caches by far.
MachineLimits measure_limits(Pool& pool, int64_t megabytes, double seconds);

}  // namespace forearm
