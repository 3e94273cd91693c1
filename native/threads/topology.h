// The part of the machine that this process may use: CPUs, their cores and NUMA nodes, and memory, after affinity,
// cpusets and cgroup limits (version 1 and 2). Read from /sys and /proc alone, so that tests can pass a tree of their
// own.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace forearm {

struct Cpu {
  int id;
  int core;       // lowest CPU id of the same physical core
  int node;       // NUMA node
  int64_t speed;  // compares kinds of cores on one machine: cpu_capacity, or the highest frequency in kHz; 0: unknown
  uint64_t kind;  // MIDR of an Arm core; 0: unknown
};

struct Memory {
  int64_t total_bytes;      // the least of the machine, the nodes allowed and the cgroups' limits
  int64_t available_bytes;  // of it, without what others and this process use; file caches count as free
};

struct Topology {
  std::vector<Cpu> cpus;              // those this process may run on, ascending
  std::vector<int> memory_nodes;      // NUMA nodes whose memory this process may use
  std::map<int, Memory> node_memory;  // of every node
  std::optional<double> quota_cpus;   // CPU time a second, from cpu.max or cfs_quota; none: no limit
  Memory machine;                     // MemTotal, MemAvailable
  std::optional<Memory> cgroup;       // the tightest memory limit; none: no limit
};

// `root` is prepended to every path; "" is this machine. Throws std::runtime_error naming the file when there is no
// list of CPUs.
Topology read_topology(const std::string& root);

// "0-2,5" as {0, 1, 2, 5}. Throws std::invalid_argument naming the text.
std::vector<int> parse_id_list(const std::string& text);

}  // namespace forearm
