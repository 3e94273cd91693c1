#include "threads/pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#ifdef __has_builtin
#if __has_builtin(__builtin_ia32_pause)
#define FOREARM_PAUSE() __builtin_ia32_pause()
#endif
#endif
#ifndef FOREARM_PAUSE
#define FOREARM_PAUSE() static_cast<void>(0)  // Arm's yield is a no-op on cores without SMT
#endif

namespace forearm {
namespace {

using Clock = std::chrono::steady_clock;

// Waits until ready(): first spinning, for `spin`, then giving the core away between looks. False if `patience` comes
// first: ready() is then still false. The clock is read every 64 looks (a read costs about as much as ten looks).
template <class Ready>
bool spin_until(const Ready& ready, Clock::duration spin, bool forever) {
  Clock::time_point end{};
  bool yielding = false;
  for (uint32_t look = 1;; ++look) {
    if (ready()) return true;
    if (yielding) {
      sched_yield();
      continue;
    }
    FOREARM_PAUSE();
    if (look % 64 != 0) continue;
    const Clock::time_point now = Clock::now();
    if (end == Clock::time_point{}) end = now + spin;
    if (now < end) continue;
    if (!forever) return false;
    yielding = true;
  }
}

cpu_set_t only(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return set;
}

// Puts the calling thread on one core while it lives, if there is one to put it on.
class Pinned {
 public:
  explicit Pinned(const std::vector<int>& cores) : pinned_(!cores.empty()) {
    if (!pinned_) return;
    pthread_getaffinity_np(pthread_self(), sizeof before_, &before_);
    const cpu_set_t set = only(cores[0]);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  }
  ~Pinned() {
    if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  const bool pinned_;
  cpu_set_t before_;
};

void check_plan(int threads, const std::vector<int>& cores) {
  if (threads < 1) throw std::invalid_argument("threads is " + std::to_string(threads) + "; at least 1 is needed");
  if (!cores.empty() && cores.size() != static_cast<size_t>(threads))
    throw std::invalid_argument(std::to_string(cores.size()) + " cores for " + std::to_string(threads) +
                                " threads; give one a thread, or none");
  cpu_set_t allowed;
  pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed);
  for (const int core : cores)
    if (core < 0 || core >= CPU_SETSIZE || !CPU_ISSET(core, &allowed))
      throw std::invalid_argument("core " + std::to_string(core) + " is not among those this process may use");
}

}  // namespace

Pool::Pool(int threads, std::vector<int> cores) : threads_(threads), cores_(std::move(cores)) {
  check_plan(threads_, cores_);
  arrive_ = std::make_unique<Line[]>(static_cast<size_t>(threads_));
  release_ = std::make_unique<Line[]>(static_cast<size_t>((threads_ + kGroup - 1) / kGroup));
  for (int member = 1; member < threads_; ++member) workers_.emplace_back([this, member] { work(member); });
}

Pool::~Pool() {
  closing_.store(true, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run(const std::function<void(int)>& task) {
  const Pinned pinned(cores_);
  if (failed_.load(std::memory_order_relaxed)) start_epochs_over();
  task_ = &task;
  finished_.store(0, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  perform(0);
  spin_until([this] { return finished_.load(std::memory_order_acquire) == threads_; }, kSpin, true);
  task_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Pool::work(int member) {
  if (!cores_.empty()) {
    const cpu_set_t set = only(cores_[static_cast<size_t>(member)]);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  }
  for (uint32_t seen = 0;; ++seen) {
    const auto called = [this, seen] { return job_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(called, kSpin, false)) job_.wait(seen, std::memory_order_acquire);
    if (closing_.load(std::memory_order_relaxed)) return;
    perform(member);
  }
}

void Pool::perform(int member) {
  try {
    (*task_)(member);
  } catch (const TaskFailed&) {
    // The one who threw is the one to report.
  } catch (...) {
    fail(std::current_exception());
  }
  finished_.fetch_add(1, std::memory_order_acq_rel);
}

void Pool::fail(std::exception_ptr error) {
  const std::lock_guard<std::mutex> lock(error_mutex_);
  if (!error_) error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

// After a failure members stand at different barriers. All sleep or spin in work() now: the lines are the caller's.
void Pool::start_epochs_over() {
  for (int member = 0; member < threads_; ++member) {
    arrive_[member].epoch = 0;
    arrive_[member].value.store(0, std::memory_order_relaxed);
  }
  for (int group = 0; group * kGroup < threads_; ++group) release_[group].value.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
}

void Pool::wait_for(const Line& line, uint32_t epoch) const {
  const auto reached = [&] {
    return line.value.load(std::memory_order_acquire) == epoch || failed_.load(std::memory_order_acquire);
  };
  spin_until(reached, kSpin, true);
  if (line.value.load(std::memory_order_acquire) != epoch) throw TaskFailed{};
}

void Pool::wait_for(const std::atomic<int64_t>& count, int64_t wanted) const {
  const auto reached = [&] {
    return count.load(std::memory_order_acquire) == wanted || failed_.load(std::memory_order_acquire);
  };
  spin_until(reached, kSpin, true);
  if (count.load(std::memory_order_acquire) != wanted) throw TaskFailed{};
}

void Pool::barrier(int member) {
  const uint32_t epoch = ++arrive_[member].epoch;
  Line& release = release_[member / kGroup];
  if (member % kGroup != 0) {
    arrive_[member].value.store(epoch, std::memory_order_release);
    wait_for(release, epoch);
    return;
  }
  const int group_end = std::min(member + kGroup, threads_);
  for (int mate = member + 1; mate < group_end; ++mate) wait_for(arrive_[mate], epoch);
  if (member != 0) {
    arrive_[member].value.store(epoch, std::memory_order_release);
    wait_for(release, epoch);
    return;
  }
  for (int first = kGroup; first < threads_; first += kGroup) wait_for(arrive_[first], epoch);
  ++barriers_;
  for (int group = 0; group * kGroup < threads_; ++group) release_[group].value.store(epoch, std::memory_order_release);
}

}  // namespace forearm
