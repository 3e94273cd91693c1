#include "model/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/kernels.h"
#include "model/memory.h"

namespace forearm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Returns the shortest time of one pass of work(member) by the whole team, of all passes that start within `seconds`.
template <class Work>
double best_pass(Pool& pool, double seconds, const Work& work) {
  double best = 1e30;
  const Clock::time_point begin = Clock::now();
  do {
    Clock::time_point start;
    pool.run([&](int member) {
      pool.barrier(member);
      if (member == 0) start = Clock::now();
      work(member);
    });
    best = std::min(best, seconds_since(start));
  } while (seconds_since(begin) < seconds);
  return best;
}

}  // namespace

MachineLimits measure_limits(Pool& pool, int64_t megabytes, double seconds) {
  const Kernels& k = kernels();
  std::atomic<float> sink{0.0f};  // keeps the compiler from removing the work
  const int64_t bytes = std::max<int64_t>(megabytes * 1000000 / pool.threads() / 4096, 1) * 4096;
  const Region memory("the read measurement", bytes * pool.threads());
  pool.run([&](int member) { std::memset(memory.data() + member * bytes, 1, static_cast<size_t>(bytes)); });
  const double read_s = best_pass(pool, seconds, [&](int member) {
    sink.store(k.read_all(memory.data() + member * bytes, bytes), std::memory_order_relaxed);
  });
  const double threads = pool.threads();
  const auto multiplied = [&](DType dtype) {
    std::atomic<int64_t> operations{0};
    const Form form = dtype == DType::f32 ? Form::f32_rows : k.layout[static_cast<int>(kept_as(dtype, k))].form;
    const double pass_s = best_pass(pool, seconds, [&](int) {
      int64_t done = 0;
      sink.store(k.multiply_rounds(form, 1000000, &done), std::memory_order_relaxed);
      operations.store(done, std::memory_order_relaxed);
    });
    return threads * static_cast<double>(operations.load()) / pass_s / 1e9;
  };
  return {threads * static_cast<double>(bytes) / read_s / 1e9, multiplied(DType::f32), multiplied(DType::bf16),
          multiplied(DType::int8)};
}

}  // namespace forearm
