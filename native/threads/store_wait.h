// Waiting for a store of another core with the core asleep, where the CPU can: WFET of Arm (FEAT_WFXT; Neoverse V3, so
// Graviton5), which ends at a store to the watched cache line or when its time is over.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace forearm {

// Returns whether this CPU has the instruction and the kernel says so.
bool can_wait_for_store();

// Waits while `word` holds `seen`, for at most `limit`; may return before either, so call it in a loop.
// Only where can_wait_for_store(): elsewhere it is an illegal instruction, or returns at once (x86-64).
void wait_for_store(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds limit);

}  // namespace forearm
