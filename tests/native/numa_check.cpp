// Ranks on NUMA nodes: threads run where they should, and each rank's weights, keys and values lie on its node, packed
// as well as copied from a file; the logits are those of one rank.
//
//   numa_check [NODES]     fails where this machine has another number of nodes
//
// Where there is one node two ranks share it: the logits, the affinity and the file are checked all the same. Several
// nodes on any machine: tests/native/run_numa.sh, in an emulated one.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "model_check.h"
#include "threads/topology.h"

namespace forearm::checks {
namespace {

constexpr double kLeastShare = 0.95;  // of a rank's pages, on its node
constexpr int64_t kPage = 4096, kPrompt = 40, kSteps = 4, kBlocks = 256;

int cases = 0, failures = 0;

void expect(bool holds, const std::string& what) {
  ++cases;
  failures += !holds;
  std::printf("%s %s\n", holds ? "ok    " : "FAILED:", what.c_str());
}

// Matrices of 0.5 to 6 MB in int8, so that huge pages lie within a rank's part and across two; heads for two ranks.
// Codes, because emulated cores multiply them twenty times as fast as bfloat16.
Config sized() {
  Config c{};
  c.vocab_size = 2048;
  c.hidden = 1024;
  c.heads = 8;
  c.kv_heads = 4;
  c.head_dim = 64;
  c.max_positions = 128;
  c.ropes.push_back({std::vector<float>(32, 0.25f), 1.0f, false});
  c.layers = {{AttentionKind{0, 0}, FeedForwardKind{2816}}, {AttentionKind{0, 0}, FeedForwardKind{2816}}};
  c.attention_scale = 0.125f;
  c.matrices = dense_matrices(c);
  return c;
}

void load(Executor& executor) {
  const Config& c = executor.config();
  Random random;
  for (const MatrixSpec& spec : c.matrices)
    for (const MatrixPart& part : spec.parts) {
      const float scale = 1.7f / std::sqrt(static_cast<float>(spec.k));
      const std::vector<float> values = random.floats(part.rows * spec.k, 0.0f, scale);
      executor.load_matrix(part.name, {values.data(), DType::f32, part.rows, spec.k}, 0);
    }
  for (const char* name :
       {"final_norm", "layers.0.input_norm", "layers.0.pre_mlp_norm", "layers.1.input_norm", "layers.1.pre_mlp_norm"})
    executor.load_vector(name, random.floats(c.hidden, 1.0f, 0.3f).data(), c.hidden);
}

// A prompt and some tokens after it, in blocks far from each other.
Logits generate(Executor& executor) {
  executor.finish_loading();
  executor.allocate_kv(kBlocks);
  Logits out;
  const int32_t blocks[] = {7, kBlocks - 1};
  for (int64_t step = 0, first = 0; step < kSteps; ++step) {
    const int64_t count = step == 0 ? kPrompt : 1;
    std::vector<int32_t> tokens, positions(static_cast<size_t>(count));
    for (int64_t i = first; i < first + count; ++i) tokens.push_back(static_cast<int32_t>(i * 31 % 2048));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
    const int32_t starts[] = {0, static_cast<int32_t>(count)}, block_starts[] = {0, 2};
    const auto last = static_cast<int32_t>(count - 1);
    executor.forward({count, 1, 1, tokens.data(), positions.data(), starts, block_starts, 2, blocks, &last});
    out.insert(out.end(), executor.logits(), executor.logits() + executor.config().vocab_size);
    first += count;
  }
  return out;
}

// Pages wholly within some ranges, by the node on which they lie; -1: nowhere yet.
class Pages {
 public:
  void add(const char* begin, const char* end) {
    auto at = (reinterpret_cast<uintptr_t>(begin) + kPage - 1) / kPage * kPage;
    for (; at + kPage <= reinterpret_cast<uintptr_t>(end); at += kPage) pages_.push_back(reinterpret_cast<void*>(at));
  }

  // How many lie somewhere, and the share of these on `node`. move_pages(2) without nodes tells and moves nothing.
  std::pair<int64_t, double> on(int node) const {
    std::vector<int> status(pages_.size(), -1);
    if (syscall(SYS_move_pages, 0, pages_.size(), pages_.data(), nullptr, status.data(), 0) != 0) return {0, 0.0};
    int64_t there = 0, mine = 0;
    for (const int found : status) {
      there += found >= 0;
      mine += found == node;
    }
    return {there, there ? static_cast<double>(mine) / static_cast<double>(there) : 0.0};
  }

 private:
  std::vector<void*> pages_;
};

Pages weight_pages(const Executor& executor, int rank) {
  Pages pages;
  for (const MatrixSpec& spec : executor.config().matrices) {
    const Matrix& matrix = executor.matrix_of(spec.parts[0].name);
    matrix.each_piece(matrix.columns_of(executor.ranks().members(rank)),
                      [&](const char* begin, const char* end) { pages.add(begin, end); });
  }
  return pages;
}

Pages kv_pages(const Executor& executor, int rank) {
  Pages pages;
  const Range heads = executor.kv().heads(0, rank);
  for (int64_t layer = 0; layer < 2; ++layer) {
    const KvCache cache = executor.kv().layer(layer, heads.begin);
    for (const char* data : {cache.keys, cache.values}) {
      const char* begin = data + heads.begin * cache.head_bytes;
      pages.add(begin, begin + kBlocks * cache.block_bytes);
    }
  }
  return pages;
}

struct Machine {
  std::vector<int> cores, ranks, nodes;  // cores by rank; threads of each rank, and its node
  int count;                             // of nodes
};

Machine machine() {
  std::map<int, std::vector<int>> by_node;
  for (const Cpu& cpu : read_topology("").cpus) by_node[cpu.node].push_back(cpu.id);
  Machine found{{}, {}, {}, static_cast<int>(by_node.size())};
  for (const auto& [node, cores] : by_node) {
    found.cores.insert(found.cores.end(), cores.begin(), cores.end());
    found.ranks.push_back(static_cast<int>(cores.size()));
    found.nodes.push_back(node);
  }
  if (found.count > 1) return found;
  const auto cores = static_cast<int>(found.cores.size());
  if (cores == 1) found.cores.clear();  // two threads on one core: not pinned
  found.ranks = {std::max(1, cores / 2), std::max(1, cores - cores / 2)};
  found.nodes = {found.nodes[0], found.nodes[0]};
  return found;
}

void check_threads(Executor& executor, const Machine& m) {
  std::vector<int> cpus(static_cast<size_t>(executor.pool().threads())), allowed = cpus;
  executor.pool().run([&](int member) {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    cpus[static_cast<size_t>(member)] = sched_getcpu();
    allowed[static_cast<size_t>(member)] = CPU_COUNT(&set);
  });
  if (m.cores.empty()) return;
  expect(cpus == m.cores, "each member runs on the core of the plan");
  expect(allowed == std::vector<int>(cpus.size(), 1), "each member may run on one core alone");
}

void check_pages(const Executor& executor, const Machine& m, const std::string& what) {
  for (size_t rank = 0; rank < m.ranks.size(); ++rank) {
    const auto report = [&](const char* name, const Pages& pages) {
      const auto [there, share] = pages.on(m.nodes[rank]);
      char text[160];
      std::snprintf(text, sizeof text, "%s: rank %zu, %.1f %% of %lld pages of its %s lie on node %d", what.c_str(),
                    rank, 100 * share, static_cast<long long>(there), name, m.nodes[rank]);
      expect(there > 0 && (share >= kLeastShare || m.count == 1), text);
    };
    report("weights", weight_pages(executor, static_cast<int>(rank)));
    report("keys and values", kv_pages(executor, static_cast<int>(rank)));
  }
}

bool same_bits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check_format(const char* name, const Format& format, DType kv, const Machine& m, const std::string& folder) {
  const Limits limits{kv, 128, 2, 2, 128};
  const std::string what = name, path = folder + "/" + name;
  Executor alone(sized(), uniform(sized(), format), limits, {}, 1);
  load(alone);
  const Logits expected = generate(alone);
  {
    Executor executor(sized(), uniform(sized(), format), limits, m.cores, Ranks(m.ranks));
    load(executor);
    expect(same_bits(generate(executor), expected), what + ": the logits of ranks are those of one thread");
    check_threads(executor, m);
    check_pages(executor, m, what);
    executor.save_weights(path, what);
  }
  Executor mapped(sized(), uniform(sized(), format), limits, m.cores, Ranks(m.ranks));
  mapped.map_weights(path, what);
  expect(same_bits(generate(mapped), expected), what + " from a file: the logits are the same");
  check_pages(mapped, m, what + " from a file");
  unlink(path.c_str());
}

}  // namespace
}  // namespace forearm::checks

int main(int argc, char** argv) {
  using namespace forearm;
  using namespace forearm::checks;
  const Machine m = machine();
  std::printf("numa_check: tier %s, %d nodes\n", kernels().tier, m.count);
  if (argc > 1) expect(m.count == std::atoi(argv[1]), std::string("this machine has ") + argv[1] + " NUMA nodes");
  char folder[] = "/tmp/numa_check.XXXXXX";
  if (!mkdtemp(folder)) return std::perror(folder), 1;
  check_format("int8", {DType::int8}, DType::bf16, m, folder);
  check_format("int8-g32", {DType::int8, 32, DType::f16}, DType::int8, m, folder);
  check_format("int4-g128", {DType::int4, 128, DType::f16}, DType::fp8_e4m3, m, folder);
  rmdir(folder);
  std::printf("numa_check: %d cases, %d failed%s\n", cases, failures,
              m.count == 1 ? "; one node: where pages lie was not checked" : "");
  return failures == 0 && cases > 0 ? 0 : 1;
}
