#include "threads/store_wait.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace forearm {

#if defined(__aarch64__)
bool can_wait_for_store() {
  constexpr unsigned long kWfxt = 1ul << 31;  // HWCAP2_WFXT (Linux 5.19), which older headers lack
  return (getauxval(AT_HWCAP2) & kWfxt) != 0;
}

// The exclusive load watches the line: a store of another core, also one before WFET begins, ends the wait (Arm ARM,
// "Wait for Event mechanism"). WFET takes the time as a value of the virtual counter. Compilers know its name from
// -march=armv8.7-a on, so it is written as a number: wfet x0.
void wait_for_store(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds limit) {
  static_assert(sizeof word == sizeof(uint32_t));
  uint64_t frequency, now;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(frequency));
  asm volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(now)::"memory");
  const double ticks = 1e-9 * static_cast<double>(limit.count()) * static_cast<double>(frequency);
  register uint64_t end asm("x0") = now + static_cast<uint64_t>(ticks);
  uint32_t value;
  asm volatile("ldaxr %w0, %1" : "=r"(value) : "Q"(word) : "memory");
  if (value == seen) asm volatile(".inst 0xd5031000" ::"r"(end) : "memory");
}
#else
bool can_wait_for_store() { return false; }
void wait_for_store(const std::atomic<uint32_t>&, uint32_t, std::chrono::nanoseconds) {}
#endif

}  // namespace forearm
