#include "threads/topology.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace forearm {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::optional<int64_t> read_number(const fs::path& path) {
  const auto text = read_text(path);
  if (!text) return std::nullopt;
  try {
    return static_cast<int64_t>(std::stoull(*text, nullptr, 0));
  } catch (const std::exception&) {
    return std::nullopt;  // "max", "-1": no number, no limit
  }
}

// The ids of a list file; empty when there is none.
std::vector<int> read_ids(const fs::path& path) {
  const auto text = read_text(path);
  return text ? parse_id_list(*text) : std::vector<int>{};
}

std::vector<int> common(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

// "MemTotal: 123 kB" of meminfo, "Cpus_allowed_list: 0-3" of status: what follows `key`, without blanks before it.
std::optional<std::string> field_of(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(key);
    if (at == std::string::npos || (at > 0 && line[at - 1] != ' ')) continue;
    const size_t value = line.find_first_not_of(" \t", at + key.size());
    return value == std::string::npos ? "" : line.substr(value);
  }
  return std::nullopt;
}

int64_t kib_of(const std::string& text, const std::string& key) {
  const auto value = field_of(text, key);
  return value ? std::stoll(*value) * 1024 : 0;
}

// One hierarchy of cgroups: this process's group and its ancestors, as far as they are visible from here. In a
// container the path in /proc/self/cgroup may be the host's: missing directories are skipped.
std::vector<fs::path> groups(const fs::path& mount, const std::string& own) {
  std::vector<fs::path> found;
  for (fs::path path = fs::path(own).relative_path();; path = path.parent_path()) {
    const fs::path group = path.empty() ? mount : mount / path;
    std::error_code unseen;
    if (fs::is_directory(group, unseen)) found.push_back(group);
    if (path.empty()) return found;
  }
}

// Directories of one version 1 controller, or of version 2 (`controller` empty).
std::vector<fs::path> groups_of(const fs::path& root, const std::string& controller) {
  std::istringstream lines(read_text(root / "proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + controller + ",") == std::string::npos) continue;
    const std::string own = line.substr(second + 1);
    const fs::path top = root / "sys/fs/cgroup";
    if (controller.empty()) return groups(fs::exists(top / "unified") ? top / "unified" : top, own);
    for (const std::string& mount : {controller, controllers.substr(1, controllers.size() - 2)}) {
      if (fs::exists(top / mount)) return groups(top / mount, own);
    }
  }
  return {};
}

void tighten(std::optional<double>& quota, double cpus) { quota = quota ? std::min(*quota, cpus) : cpus; }

std::optional<double> read_quota(const fs::path& root) {
  std::optional<double> quota;
  for (const fs::path& group : groups_of(root, "")) {
    std::istringstream text(read_text(group / "cpu.max").value_or("max"));
    double time_us = 0, period_us = 0;
    if (text >> time_us >> period_us && period_us > 0) tighten(quota, time_us / period_us);
  }
  for (const fs::path& group : groups_of(root, "cpu")) {
    const auto text = read_text(group / "cpu.cfs_quota_us");
    const auto period_us = read_number(group / "cpu.cfs_period_us");
    if (!text || text->empty() || text->front() == '-' || period_us.value_or(0) <= 0) continue;
    tighten(quota, std::stod(*text) / static_cast<double>(*period_us));
  }
  return quota;
}

// Bytes of file cache that the kernel drops when a group needs memory.
int64_t droppable(const fs::path& group) {
  std::istringstream text(read_text(group / "memory.stat").value_or(""));
  int64_t bytes = 0, value = 0;
  for (std::string key; text >> key >> value;) {
    if (key == "active_file" || key == "inactive_file") bytes += value;
  }
  return bytes;
}

std::optional<Memory> read_cgroup_memory(const fs::path& root, int64_t machine_bytes) {
  std::optional<Memory> tightest;
  const auto look = [&](const fs::path& group, const char* limit_file, const char* used_file) {
    const auto limit = read_number(group / limit_file);
    if (!limit || *limit <= 0 || *limit >= machine_bytes) return;
    const int64_t used = read_number(group / used_file).value_or(0) - droppable(group);
    const int64_t available = std::max<int64_t>(0, *limit - std::max<int64_t>(0, used));
    if (!tightest || available < tightest->available_bytes) tightest = Memory{*limit, available};
  };
  for (const fs::path& group : groups_of(root, "")) look(group, "memory.max", "memory.current");
  for (const fs::path& group : groups_of(root, "memory")) look(group, "memory.limit_in_bytes", "memory.usage_in_bytes");
  return tightest;
}

std::vector<int> allowed_cpus(const fs::path& root) {
  std::vector<int> cpus = read_ids(root / "sys/devices/system/cpu/online");
  if (cpus.empty()) throw std::runtime_error("no CPUs in " + (root / "sys/devices/system/cpu/online").string());
  const auto narrow = [&](const std::vector<int>& ids) {
    if (!ids.empty()) cpus = common(cpus, ids);
  };
  const std::string status = read_text(root / "proc/self/status").value_or("");
  narrow(parse_id_list(field_of(status, "Cpus_allowed_list:").value_or("")));
  for (const fs::path& group : groups_of(root, "")) narrow(read_ids(group / "cpuset.cpus.effective"));
  for (const fs::path& group : groups_of(root, "cpuset")) narrow(read_ids(group / "cpuset.cpus"));
  return cpus;
}

// Node by CPU id; a kernel without NUMA has no node directory: all are node 0.
std::map<int, int> nodes_of_cpus(const fs::path& nodes, const std::vector<int>& ids) {
  std::map<int, int> node_of;
  for (int node : ids) {
    for (int cpu : read_ids(nodes / ("node" + std::to_string(node)) / "cpulist")) node_of[cpu] = node;
  }
  return node_of;
}

Cpu read_cpu(const fs::path& cpus, int id, int node) {
  const fs::path one = cpus / ("cpu" + std::to_string(id));
  std::vector<int> siblings = read_ids(one / "topology/core_cpus_list");
  if (siblings.empty()) siblings = read_ids(one / "topology/thread_siblings_list");
  const auto capacity = read_number(one / "cpu_capacity");
  const auto frequency_khz = read_number(one / "cpufreq/cpuinfo_max_freq");
  const auto midr = read_number(one / "regs/identification/midr_el1");
  return Cpu{
      .id = id,
      .core = siblings.empty() ? id : siblings.front(),
      .node = node,
      .speed = capacity ? *capacity : frequency_khz.value_or(0),
      .kind = static_cast<uint64_t>(midr.value_or(0)),
  };
}

Memory read_node_memory(const fs::path& node) {
  const std::string text = read_text(node / "meminfo").value_or("");
  const int64_t files = kib_of(text, "Active(file):") + kib_of(text, "Inactive(file):");
  return Memory{kib_of(text, "MemTotal:"), kib_of(text, "MemFree:") + files};
}

}  // namespace

std::vector<int> parse_id_list(const std::string& text) {
  std::vector<int> ids;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream range(part);
    int first = 0, last = 0;
    char dash = 0;
    if (!(range >> first)) throw std::invalid_argument("not a list of ids: " + text);
    last = first;
    if (range >> dash && (dash != '-' || !(range >> last) || last < first)) {
      throw std::invalid_argument("not a list of ids: " + text);
    }
    for (int id = first; id <= last; ++id) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Topology read_topology(const std::string& root_text) {
  const fs::path root = root_text + "/";
  const fs::path nodes = root / "sys/devices/system/node";
  const std::vector<int> node_ids = read_ids(nodes / "online");
  const std::map<int, int> node_of = nodes_of_cpus(nodes, node_ids);

  Topology topology;
  for (int id : allowed_cpus(root)) {
    const auto node = node_of.find(id);
    topology.cpus.push_back(read_cpu(root / "sys/devices/system/cpu", id, node == node_of.end() ? 0 : node->second));
  }
  const std::string status = read_text(root / "proc/self/status").value_or("");
  const std::vector<int> allowed = parse_id_list(field_of(status, "Mems_allowed_list:").value_or(""));
  topology.memory_nodes = allowed.empty() ? node_ids : common(node_ids, allowed);
  for (int node : node_ids) {
    topology.node_memory[node] = read_node_memory(nodes / ("node" + std::to_string(node)));
  }
  const std::string meminfo = read_text(root / "proc/meminfo").value_or("");
  topology.machine = Memory{kib_of(meminfo, "MemTotal:"), kib_of(meminfo, "MemAvailable:")};
  topology.cgroup = read_cgroup_memory(root, topology.machine.total_bytes);
  topology.quota_cpus = read_quota(root);
  return topology;
}

}  // namespace forearm
