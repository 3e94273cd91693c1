// What a team of threads gets out of this machine with the tier in use.
#pragma once
#include "threads/pool.h"

namespace forearm {

struct MachineLimits {
  double read_gb_s;   // memory read by all threads, each its own part
  double fma_gflops;  // float32 multiply-adds on registers, all threads
};

// Best of all passes that fit in `seconds` each. Reads `megabytes` MB in all, which must be well beyond the caches.
MachineLimits measure_limits(Pool& pool, int64_t megabytes, double seconds);

}  // namespace forearm
