#include "threads/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
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

// Sleeps until woken while the word still holds `seen`, at most 10 ms: a member that fails does not know where others
// sleep.
void sleep_on(const void* word, uint32_t seen) {
  const timespec limit{0, 10'000'000};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
}

void wake_from(const void* word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

cpu_set_t only(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return set;
}

// Pins the calling thread to the first core of the plan for the life of this object; an empty plan pins nothing.
class Pinned {
 public:
  explicit Pinned(const std::vector<int>& cores) : pinned_(!cores.empty()) {
    if (!pinned_) return;
    pthread_getaffinity_np(pthread_self(), sizeof before_, &before_);
    const cpu_set_t set = only(cores[0]);
    pinned_ = !CPU_EQUAL(&set, &before_);
    if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  }
  ~Pinned() {
    if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  bool pinned_;
  cpu_set_t before_;
};

void check_plan(int threads, const std::vector<int>& cores) {
  if (threads < 1) throw std::invalid_argument("threads is " + std::to_string(threads) + "; at least 1 is needed");
  if (!cores.empty() && cores.size() != static_cast<size_t>(threads))
    throw std::invalid_argument(std::to_string(cores.size()) + " cores for " + std::to_string(threads) +
                                " threads; give one core for each thread, or none");
  cpu_set_t allowed;
  pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed);
  for (const int core : cores)
    if (core < 0 || core >= CPU_SETSIZE || !CPU_ISSET(core, &allowed))
      throw std::invalid_argument("core " + std::to_string(core) + " is not among the cores that this process may use");
}

}  // namespace

Pool::Pool(int threads, std::vector<int> cores, bool waits_for_store)
    : threads_(threads), cores_(std::move(cores)), waits_for_store_(waits_for_store) {
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
  wait_on(finished_, [this](int finished) { return finished == threads_; });
  task_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Pool::work(int member) {
  if (!cores_.empty()) {
    const cpu_set_t set = only(cores_[static_cast<size_t>(member)]);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  }
  for (uint32_t seen = 0;; ++seen) {
    if (!await_job(seen)) job_.wait(seen, std::memory_order_acquire);
    if (closing_.load(std::memory_order_relaxed)) return;
    perform(member);
  }
}

// How long an idle member waits awake. Where other work has taken a core, the next wait gives it the core early.
Pool::Clock::duration Pool::idle_spin() const {
  return cores_.empty() || crowded_.load(std::memory_order_relaxed) > 0 ? kSpin : kGap;
}

// Waits at most idle_spin() for the job after `seen`; returns whether it has come. The clock also tells a lost time
// slice, as in spin_until().
bool Pool::await_job(uint32_t seen) const {
  const auto called = [this, seen] { return job_.load(std::memory_order_acquire) != seen; };
  if (!waits_for_store_) return spin_until(called, idle_spin(), true);
  const Clock::time_point begin = Clock::now(), end = begin + idle_spin();
  for (Clock::time_point now = begin; now < end; now = Clock::now()) {
    if (called()) return true;
    wait_for_store(job_, seen, end - now);
  }
  if (Clock::now() - end > kLostSlice) crowded_.store(kCrowdedWaits, std::memory_order_relaxed);
  return called();
}

void Pool::perform(int member) {
  try {
    (*task_)(member);
  } catch (const TaskFailed&) {
    // The member that threw first is reported.
  } catch (...) {
    fail(std::current_exception());
  }
  finished_.fetch_add(1);
  wake_sleepers(finished_);
}

void Pool::fail(std::exception_ptr error) {
  const std::lock_guard<std::mutex> lock(error_mutex_);
  if (!error_) error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

// After a failure members are at different barriers. By now all wait in work(), so the caller may reset the lines.
void Pool::start_epochs_over() {
  for (int member = 0; member < threads_; ++member) {
    arrive_[member].epoch = 0;
    arrive_[member].value.store(0, std::memory_order_relaxed);
  }
  for (int group = 0; group * kGroup < threads_; ++group) release_[group].value.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
}

// Polls until ready() or for at most `limit`; returns whether it is ready. The clock is read every 64 polls (a read
// costs about as much as ten polls). offers_core: other work that waits for this core gets it, which ends the polling.
template <class Ready>
bool Pool::spin_until(const Ready& ready, Clock::duration limit, bool offers_core) const {
  Clock::time_point end{}, last{};
  for (uint32_t look = 1;; ++look) {
    if (ready()) return true;
    FOREARM_PAUSE();
    if (look % 64 != 0) continue;
    const Clock::time_point now = Clock::now();
    if (end == Clock::time_point{}) end = now + limit, last = now;
    if (now - last > kLostSlice) crowded_.store(kCrowdedWaits, std::memory_order_relaxed);
    if (now >= end) return false;
    last = now;
    if (!offers_core) continue;
    sched_yield();
    if (Clock::now() - now > kTaken) return ready();
  }
}

// Waits until ready(value). Sleepers count themselves before the kernel compares the value again: a thread that changes
// the value either sees the sleeper or is seen by it.
template <class T, class Ready>
void Pool::wait_on(const std::atomic<T>& value, const Ready& ready) const {
  const bool crowded = crowded_.load(std::memory_order_relaxed) > 0;
  const auto is_ready = [&] { return ready(value.load(std::memory_order_acquire)); };
  if (crowded) crowded_.fetch_sub(1, std::memory_order_relaxed);
  if (spin_until(is_ready, crowded ? kSpin : kPatience)) return;
  for (T seen = value.load(); !ready(seen); seen = value.load()) {
    sleepers_.fetch_add(1);
    sleep_on(&value, static_cast<uint32_t>(seen));  // of 64 bits the lower half, which comes first
    sleepers_.fetch_sub(1);
  }
}

// Wakes sleepers after a change of the value.
template <class T>
void Pool::wake_sleepers(const std::atomic<T>& value) const {
  if (sleepers_.load() > 0) wake_from(&value);
}

template <class T>
void Pool::wait_until(const std::atomic<T>& value, T wanted) const {
  wait_on(value, [&](T is) { return is == wanted || failed_.load(std::memory_order_acquire); });
  if (value.load(std::memory_order_acquire) != wanted) throw TaskFailed{};
}

void Pool::wait_for(const std::atomic<int64_t>& count, int64_t wanted) const { wait_until(count, wanted); }

void Pool::add(std::atomic<int64_t>& count, int64_t more) const {
  count.fetch_add(more);
  wake_sleepers(count);
}

void Pool::set(Line& line, uint32_t epoch) const {
  line.value.store(epoch);
  wake_sleepers(line.value);
}

void Pool::barrier(int member) {
  const uint32_t epoch = ++arrive_[member].epoch;
  Line& release = release_[member / kGroup];
  if (member % kGroup != 0) {
    set(arrive_[member], epoch);
    wait_until(release.value, epoch);
    return;
  }
  const int group_end = std::min(member + kGroup, threads_);
  for (int mate = member + 1; mate < group_end; ++mate) wait_until(arrive_[mate].value, epoch);
  if (member != 0) {
    set(arrive_[member], epoch);
    wait_until(release.value, epoch);
    return;
  }
  for (int first = kGroup; first < threads_; first += kGroup) wait_until(arrive_[first].value, epoch);
  ++barriers_;
  for (int group = 0; group * kGroup < threads_; ++group) set(release_[group], epoch);
}

}  // namespace forearm
