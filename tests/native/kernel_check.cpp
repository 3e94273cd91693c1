// Checks every kernel tier that this CPU runs: against the scalar tier, and scalar against float64.
//
// kernel_check [--few] [TIER [GROUP]]    all of them without a name; exit status 0 when every case holds
//
// --few: of codes, one case in seven, of float matrices, three in seven, of attention and of its keys, one in four. For
// emulated CPUs and under sanitizers. Several tiers run beside each other, as many as there are CPUs.
#include "kernel_check.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

namespace forearm::checks {

void check_pack(Report&, const Kernels& tier, const Kernels& scalar);
void check_gemm(Report&, const Kernels& tier, const Kernels& scalar);
void check_embed(Report&, const Kernels& tier, const Kernels& scalar);
void check_codes(Report&, const Kernels& tier, const Kernels& scalar);
void check_scaled(Report&, const Kernels& tier, const Kernels& scalar);
void check_pack_scaled(Report&, const Kernels& tier, const Kernels& scalar);
void check_wide(Report&, const Kernels& tier, const Kernels& scalar);
void check_embed_codes(Report&, const Kernels& tier, const Kernels& scalar);
void check_quantize(Report&, const Kernels& tier, const Kernels& scalar);
void check_round(Report&, const Kernels& tier, const Kernels& scalar);
void check_pack_codes(Report&, const Kernels& tier, const Kernels& scalar);
void check_norm(Report&, const Kernels& tier, const Kernels& scalar);
void check_rope(Report&, const Kernels& tier, const Kernels& scalar);
void check_rows(Report&, const Kernels& tier, const Kernels& scalar);
void check_attention(Report&, const Kernels& tier, const Kernels& scalar);
void check_chosen_keys(Report&, const Kernels& tier, const Kernels& scalar);
void check_index_scores(Report&, const Kernels& tier, const Kernels& scalar);
void check_route(Report&, const Kernels& tier, const Kernels& scalar);
void check_combine(Report&, const Kernels& tier, const Kernels& scalar);
void check_short_conv(Report&, const Kernels& tier, const Kernels& scalar);
void check_mamba2(Report&, const Kernels& tier, const Kernels& scalar);
void check_selective_scan(Report&, const Kernels& tier, const Kernels& scalar);
void check_rg_lru(Report&, const Kernels& tier, const Kernels& scalar);
void check_token_shift(Report&, const Kernels& tier, const Kernels& scalar);
void check_squash(Report&, const Kernels& tier, const Kernels& scalar);
void check_rwkv7(Report&, const Kernels& tier, const Kernels& scalar);
void check_gated_norm(Report&, const Kernels& tier, const Kernels& scalar);
void check_delta_rule(Report&, const Kernels& tier, const Kernels& scalar);
void check_sampling(Report&, const Kernels& tier, const Kernels& scalar);
void check_self_test(Report&, const Kernels& tier, const Kernels& scalar);

namespace {

constexpr struct {
  const char* name;
  Group run;
} kGroups[] = {
    {"pack", check_pack},
    {"pack_codes", check_pack_codes},
    {"gemm", check_gemm},
    {"codes", check_codes},
    {"scaled", check_scaled},
    {"pack_scaled", check_pack_scaled},
    {"wide", check_wide},
    {"embed", check_embed},
    {"embed_codes", check_embed_codes},
    {"quantize", check_quantize},
    {"round", check_round},
    {"norm", check_norm},
    {"rope", check_rope},
    {"rows", check_rows},
    {"attention", check_attention},
    {"chosen_keys", check_chosen_keys},
    {"index_scores", check_index_scores},
    {"route", check_route},
    {"combine", check_combine},
    {"short_conv", check_short_conv},
    {"mamba2", check_mamba2},
    {"selective_scan", check_selective_scan},
    {"rg_lru", check_rg_lru},
    {"token_shift", check_token_shift},
    {"squash", check_squash},
    {"rwkv7", check_rwkv7},
    {"gated_norm", check_gated_norm},
    {"delta_rule", check_delta_rule},
    {"sampling", check_sampling},
    {"self_test", check_self_test},
};

int check_tier(const Kernels& tier, const char* only_group, bool few) {
  int failures = 0, groups = 0;
  for (const auto& group : kGroups) {
    if (only_group && strcmp(only_group, group.name) != 0) continue;
    ++groups;
    Report report(tier.tier, group.name, few);
    group.run(report, tier, *find_tier("scalar"));
    const bool ran = report.cases() > 0;
    if (!ran) printf("FAIL %s %s: ran no case\n", tier.tier, group.name);
    failures += report.failures() + !ran;
    printf("%-11s %-12s %5d cases, %d failed, worst error %.2f of its tolerance\n", tier.tier, group.name,
           report.cases(), report.failures(), report.worst());
  }
  if (groups == 0) printf("FAIL there is no group %s\n", only_group);
  return failures + !groups;
}

// A tier's check in a process of its own, which prints into a file.
struct Begun {
  const char* tier;
  FILE* output;
  pid_t process;
};

Begun begin(const char* tier, const char* only_group, bool few) {
  const Begun begun = {tier, tmpfile(), fork()};
  if (!begun.output || begun.process < 0) {
    perror("kernel_check");
    exit(1);
  }
  if (begun.process == 0) {
    dup2(fileno(begun.output), STDOUT_FILENO);
    exit(check_tier(*find_tier(tier), only_group, few) ? 1 : 0);
  }
  return begun;
}

// Prints what it has printed. Returns whether it failed.
bool end(const Begun& begun) {
  int status = 0;
  waitpid(begun.process, &status, 0);
  rewind(begun.output);
  char line[1024];
  while (fgets(line, sizeof line, begun.output)) fputs(line, stdout);
  fclose(begun.output);
  if (WIFSIGNALED(status)) printf("FAIL %s: ended by signal %d\n", begun.tier, WTERMSIG(status));
  fflush(stdout);
  return status != 0;
}

// Prints the last line. Returns the exit status.
int finished(int failures) {
  printf("kernel_check: %s\n", failures ? "FAILED" : "all cases hold");
  return failures ? 1 : 0;
}

int run(const char* only_tier, const char* only_group, bool few) {
  printf("tiers:");
  for (const char* const* name = tier_names(); *name; ++name) printf(" %s", *name);
  printf("\n");
  std::vector<const char*> tiers;  // scalar first: it takes as long as all others
  for (const char* const* name = tier_names(); *name; ++name)
    if (!only_tier || strcmp(only_tier, *name) == 0) tiers.insert(tiers.begin(), *name);
  if (tiers.empty()) printf("FAIL this CPU does not run tier %s\n", only_tier);
  fflush(stdout);

  if (tiers.size() == 1) return finished(check_tier(*find_tier(tiers[0]), only_group, few));

  cpu_set_t cpus;
  const size_t together = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
  std::vector<Begun> begun;
  int failures = 0;
  for (size_t i = 0; i < tiers.size(); ++i) {
    while (begun.size() < tiers.size() && begun.size() < i + together)
      begun.push_back(begin(tiers[begun.size()], only_group, few));
    failures += end(begun[i]);
  }
  return finished(failures + tiers.empty());
}

}  // namespace
}  // namespace forearm::checks

int main(int argc, char** argv) {
  const bool few = argc > 1 && strcmp(argv[1], "--few") == 0;
  const char* const* names = argv + 1 + few;  // argv ends with a null
  return forearm::checks::run(names[0], names[0] ? names[1] : nullptr, few);
}
