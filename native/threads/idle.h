// Work that only idle cores do.
#pragma once
#include <functional>

namespace forearm {

// Runs `work` on a thread of its own that gets a core only while nothing else wants it (SCHED_IDLE), and waits for it.
// Throws what `work` throws.
void run_idle(const std::function<void()>& work);

}  // namespace forearm
