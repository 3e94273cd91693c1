#include "threads/idle.h"

#include <sched.h>

#include <exception>
#include <thread>

namespace forearm {

void run_idle(const std::function<void()>& work) {
  std::exception_ptr failed;
  std::thread thread([&] {
    const sched_param none{};
    sched_setscheduler(0, SCHED_IDLE, &none);  // of this thread alone; errors are ignored
    try {
      work();
    } catch (...) {
      failed = std::current_exception();
    }
  });
  thread.join();
  if (failed) std::rethrow_exception(failed);
}

}  // namespace forearm
