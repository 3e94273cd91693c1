// The thread pool: barriers order memory, jobs wake sleepers, exceptions reach the caller. Built with TSan in CI.
//
//   pool_check [wfet]   all checks, each with 1 .. 19 threads (more than this machine has, and more than two groups)
//
// wfet: idle members wait by WFET even if the kernel does not report it (qemu's user mode has it and reports nothing).
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "threads/pool.h"

namespace {

using forearm::Pool;

bool waits_for_store = forearm::can_wait_for_store();
int cases = 0;
int failures = 0;

void expect(bool holds, const std::string& what) {
  ++cases;
  if (holds) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

std::string with(int threads) { return " with " + std::to_string(threads) + " threads"; }

void every_member_runs_each_job_once(int threads) {
  Pool pool(threads, {}, waits_for_store);
  std::vector<int> runs(static_cast<size_t>(threads));
  for (int job = 0; job < 200; ++job) pool.run([&](int member) { ++runs[static_cast<size_t>(member)]; });
  expect(runs == std::vector<int>(static_cast<size_t>(threads), 200),
         "every member runs each job once" + with(threads));
}

// Plain ints: what a member wrote before a barrier, all others must see after it (and TSan must not object).
void a_barrier_shows_everyone_what_was_written(int threads) {
  Pool pool(threads, {}, waits_for_store);
  constexpr int kRounds = 50;
  std::vector<int> cells(static_cast<size_t>(threads));
  std::atomic<int> wrong{0};
  pool.run([&](int member) {
    for (int round = 1; round <= kRounds; ++round) {
      cells[static_cast<size_t>(member)] = round * (member + 1);
      pool.barrier(member);
      const int sum = std::accumulate(cells.begin(), cells.end(), 0);
      if (sum != round * threads * (threads + 1) / 2) ++wrong;
      pool.barrier(member);
    }
  });
  expect(wrong == 0, "a barrier shows everyone what was written" + with(threads));
  expect(pool.barriers() == 2 * kRounds, "barriers are counted" + with(threads));
}

void the_first_exception_reaches_the_caller_and_the_pool_goes_on(int threads) {
  Pool pool(threads, {}, waits_for_store);
  for (int thrower = 0; thrower < threads; ++thrower) {
    std::string caught;
    try {
      pool.run([&](int member) {
        pool.barrier(member);
        if (member == thrower) throw std::runtime_error("member " + std::to_string(member));
        pool.barrier(member);  // never complete: they must leave, not wait
      });
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    expect(caught == "member " + std::to_string(thrower), "the exception reaches the caller" + with(threads));
    std::atomic<int> after{0};
    pool.run([&](int member) {
      pool.barrier(member);
      ++after;
      pool.barrier(member);
    });
    expect(after == threads, "the pool goes on after an exception" + with(threads));
  }
}

void sleepers_wake(int threads) {
  Pool pool(threads, {}, waits_for_store);
  std::atomic<int> runs{0};
  for (int job = 0; job < 10; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than the spin: they sleep
    pool.run([&](int) { ++runs; });
  }
  expect(runs == 10 * threads, "sleepers wake" + with(threads));
}

int64_t thread_cpu_us() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return used.tv_sec * 1000000 + used.tv_nsec / 1000;
}

void who_waits_at_a_barrier_or_for_a_count_sleeps() {
  Pool pool(2, {}, waits_for_store);
  std::atomic<int64_t> count{0};
  int64_t used = 0;
  pool.run([&](int member) {
    const auto hold_up = [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
    const int64_t before = thread_cpu_us();
    if (member == 0) hold_up();
    pool.barrier(member);
    if (member == 0) {
      hold_up();
      pool.add(count, 3);
    } else {
      pool.wait_for(count, 3);
      used = thread_cpu_us() - before;
    }
  });
  expect(used < 12000, "who waits takes less than a fifth of a core: " + std::to_string(used) + " us of 60 ms");
}

void sleepers_leave_when_another_throws(int threads) {
  Pool pool(threads, {}, waits_for_store);
  bool caught = false;
  try {
    pool.run([&](int member) {
      if (member == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));  // longer than their patience: they sleep
        throw std::runtime_error("too late");
      }
      pool.barrier(member);
    });
  } catch (const std::runtime_error&) {
    caught = true;
  }
  expect(caught, "sleepers leave when another throws" + with(threads));
}

void an_idle_pool_takes_no_time() {
  Pool pool(8, {}, waits_for_store);
  pool.run([](int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto cpu_us = [] {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000 + use.ru_utime.tv_usec + use.ru_stime.tv_usec;
  };
  const auto before = cpu_us();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto used = cpu_us() - before;
  expect(used < 3000, "idle takes less than 1 % of a core: " + std::to_string(used) + " us of 300 ms");
}

// Each wait is longer than the test may take: it ends because of the store, or before it, never by its limit.
void a_wait_ends_at_a_store() {
  std::atomic<uint32_t> turn{0};
  const auto take_turns = [&turn](uint32_t first) {
    for (uint32_t mine = first; mine < 1000; mine += 2) {
      for (uint32_t now = turn.load(); now != mine; now = turn.load())
        forearm::wait_for_store(turn, now, std::chrono::minutes(1));
      turn.store(mine + 1);
    }
  };
  std::thread other(take_turns, 1);
  take_turns(0);
  other.join();
  expect(turn == 1000, "a wait ends at a store");
}

void a_wait_ends_at_its_limit_or_where_the_word_has_changed_before() {
  const std::atomic<uint32_t> word{7};
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) forearm::wait_for_store(word, 7, std::chrono::microseconds(100));
  forearm::wait_for_store(word, 6, std::chrono::minutes(1));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  expect(took.count() < 10, "a wait ends at its limit: " + std::to_string(took.count()) + " s for 10 ms");
}

void pinned_members_run_where_told() {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  Pool pool(static_cast<int>(cores.size()), cores, waits_for_store);
  std::vector<int> ran(cores.size());
  pool.run([&](int member) { ran[static_cast<size_t>(member)] = sched_getcpu(); });
  expect(ran == cores, "pinned members run where told");
  cpu_set_t after;
  sched_getaffinity(0, sizeof after, &after);
  expect(CPU_EQUAL(&allowed, &after) != 0, "the caller has its own affinity back");
}

void wrong_plans_are_refused() {
  const auto refused = [](int threads, std::vector<int> cores) {
    try {
      Pool pool(threads, std::move(cores));
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  expect(refused(0, {}), "no threads");
  expect(refused(2, {0}), "fewer cores than threads");
  expect(refused(1, {CPU_SETSIZE + 1}), "a core that can't be");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "wfet") waits_for_store = true;
  for (const int threads : {1, 2, 3, 7, 8, 9, 17, 19}) {
    every_member_runs_each_job_once(threads);
    a_barrier_shows_everyone_what_was_written(threads);
    the_first_exception_reaches_the_caller_and_the_pool_goes_on(threads);
    sleepers_wake(threads);
    sleepers_leave_when_another_throws(threads);
  }
  who_waits_at_a_barrier_or_for_a_count_sleeps();
  an_idle_pool_takes_no_time();
  if (waits_for_store) {
    a_wait_ends_at_a_store();
    a_wait_ends_at_its_limit_or_where_the_word_has_changed_before();
  }
  pinned_members_run_where_told();
  wrong_plans_are_refused();
  std::printf("pool_check: idle members %s; %d checks, %d failed\n", waits_for_store ? "wait by WFET" : "poll", cases,
              failures);
  return failures == 0 && cases > 0 ? 0 : 1;
}
