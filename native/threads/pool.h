// A persistent team of threads that start a task together and meet at barriers inside it.
//
// The caller of run() is member 0: a step costs no hand-over to another core. While a task runs it is pinned to the
// first core of the plan; afterwards it has its own affinity back. The others are pinned once, for good.
//
// Barriers are two-level and store-only: members of a group of eight report to its first, those to member 0, release
// goes the other way. Each flag has 128 bytes of its own (two lines: x86 prefetches pairs, Arm servers have 64 or 128),
// so a waiting core reads its own cache until the one store it waits for. Idle members sleep on a futex after kSpin, or
// after kGap if they have cores of their own, and spend it in WFET rather than in a loop where the CPU has that
// (store_wait.h); members that wait inside a task sleep after kPatience, because a wake-up takes longer than members
// with cores of their own are apart. When a member loses its core to other work, all members sleep after kSpin for a
// while: a sleeper gets its core back at once when it is woken, a spinning thread only after the time slice of its
// neighbour.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "threads/store_wait.h"

namespace forearm {

class Pool {
 public:
  // cores: empty (not pinned), or one CPU id a thread. waits_for_store: idle members wait as store_wait.h does.
  // Throws std::invalid_argument if the numbers don't fit or a core can't be used.
  Pool(int threads, std::vector<int> cores, bool waits_for_store = can_wait_for_store());
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Runs task(member) on every member, 0 .. threads - 1, and returns when all have finished. Not reentrant; one
  // caller at a time. The first exception that a member threw is thrown here; the others leave at their next barrier.
  void run(const std::function<void(int)>& task);

  // Called inside a task by every member: returns when all members have called it.
  void barrier(int member);

  // Inside a task: waits until calls of add() have brought `count` to `wanted`. Only the caller waits.
  void wait_for(const std::atomic<int64_t>& count, int64_t wanted) const;
  void add(std::atomic<int64_t>& count, int64_t more) const;

  // Barriers passed since the pool was made.
  int64_t barriers() const { return barriers_; }

 private:
  static constexpr int kGroup = 8;
  using Clock = std::chrono::steady_clock;
  // kSpin is longer than a wake-up (about 50 us) and shorter than any idle time that a user notices. kGap is longer
  // than Python takes between two calls of a step (0.3 ms for 8 sequences, 0.9 ms for 32: bench/process.py).
  static constexpr std::chrono::microseconds kSpin{100}, kGap{1000}, kPatience{2000};
  // A time slice of Linux's scheduler is 3 ms. After a lost slice this many waits give the core away early: some 20
  // steps of 30 layers. Where other guests of a host take a slice now and then, most steps are not crowded.
  static constexpr std::chrono::microseconds kLostSlice{1000};
  static constexpr int kCrowdedWaits = 3000;
  // sched_yield returns in less than a microsecond where nothing else waits for the core.
  static constexpr std::chrono::microseconds kTaken{5};

  struct alignas(128) Line {
    std::atomic<uint32_t> value{0};
    uint32_t epoch = 0;  // of an arrival line: barriers its member has entered; the member's own
  };
  struct TaskFailed {};  // ends a member whose team mate threw

  void work(int member);
  bool await_job(uint32_t seen) const;
  Clock::duration idle_spin() const;
  void perform(int member);
  void fail(std::exception_ptr error);
  void start_epochs_over();
  template <class Ready>
  bool spin_until(const Ready& ready, Clock::duration limit, bool offers_core = false) const;
  template <class T, class Ready>
  void wait_on(const std::atomic<T>& value, const Ready& ready) const;
  template <class T>
  void wait_until(const std::atomic<T>& value, T wanted) const;
  template <class T>
  void wake_sleepers(const std::atomic<T>& value) const;
  void set(Line& line, uint32_t epoch) const;

  const int threads_;
  const std::vector<int> cores_;
  const bool waits_for_store_;
  std::unique_ptr<Line[]> arrive_;   // by member
  std::unique_ptr<Line[]> release_;  // by group
  alignas(128) std::atomic<uint32_t> job_{0};
  alignas(128) std::atomic<int> finished_{0};
  alignas(128) std::atomic<bool> failed_{false};
  alignas(128) mutable std::atomic<int> sleepers_{0}, crowded_{0};  // inside a task; waits left
  std::atomic<bool> closing_{false};
  const std::function<void(int)>* task_ = nullptr;
  std::exception_ptr error_;
  std::mutex error_mutex_;
  int64_t barriers_ = 0;
  std::vector<std::thread> workers_;
};

}  // namespace forearm
