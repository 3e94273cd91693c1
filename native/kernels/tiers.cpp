// Chooses the kernel tier: which tiers this CPU runs, and which one is in use. No other file asks for CPU features.
#include <stdlib.h>
#include <string.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/self_test.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace forearm {

// A build with sanitizers has no tier that is not sanitized (CMakeLists.txt): there its table's address is null.
#ifdef FOREARM_SANITIZED
#define FOREARM_TIER_LINKAGE __attribute__((weak))
#else
#define FOREARM_TIER_LINKAGE
#endif

extern const Kernels scalar_tier;
#if defined(__x86_64__)
extern const Kernels avx2_tier FOREARM_TIER_LINKAGE;
extern const Kernels avx512_tier FOREARM_TIER_LINKAGE;
extern const Kernels avx512_vnni_tier FOREARM_TIER_LINKAGE;
extern const Kernels avx512_bf16_tier FOREARM_TIER_LINKAGE;
extern const Kernels avx512_amx_tier FOREARM_TIER_LINKAGE;
#elif defined(__aarch64__)
extern const Kernels neon_tier FOREARM_TIER_LINKAGE;
extern const Kernels neon_dot_tier FOREARM_TIER_LINKAGE;
extern const Kernels neon_fp16_tier FOREARM_TIER_LINKAGE;
extern const Kernels neon_mm_tier FOREARM_TIER_LINKAGE;
extern const Kernels sve256_tier FOREARM_TIER_LINKAGE;
#endif

namespace {

bool always() { return true; }

#if defined(__x86_64__)
constexpr bool has(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

struct CpuId {
  uint32_t eax, ebx, ecx, edx;
};

CpuId cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  CpuId id{};
  if (leaf <= static_cast<uint32_t>(__get_cpuid_max(0, nullptr)))
    __cpuid_count(leaf, subleaf, id.eax, id.ebx, id.ecx, id.edx);
  return id;
}

// Register files that the operating system saves and restores. A CPU may have AVX-512 under a system that does not.
uint64_t saved_state() {
  constexpr uint32_t kOsXsave = 1u << 27;
  if (!has(cpuid(1).ecx, kOsXsave)) return 0;
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Bits of leaf 1 (ecx) and leaf 7 (ebx): Intel's manual, volume 2A, CPUID; of XCR0: volume 1, section 13.3.
bool runs_avx2() {
  constexpr uint32_t kFmaAvxF16c = 1u << 12 | 1u << 28 | 1u << 29;
  constexpr uint32_t kAvx2 = 1u << 5;
  constexpr uint64_t kYmm = 0x6;
  return has(saved_state(), kYmm) && has(cpuid(1).ecx, kFmaAvxF16c) && has(cpuid(7).ebx, kAvx2);
}

bool runs_avx512() {
  constexpr uint32_t kF_DQ_CD_BW_VL = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
  constexpr uint64_t kZmm = 0xe6;
  return runs_avx2() && has(saved_state(), kZmm) && has(cpuid(7).ebx, kF_DQ_CD_BW_VL);
}

// Leaf 7: VNNI in ecx of subleaf 0, BF16 in eax of subleaf 1.
bool runs_avx512_vnni() {
  constexpr uint32_t kVnni = 1u << 11;
  return runs_avx512() && has(cpuid(7).ecx, kVnni);
}
bool runs_avx512_bf16() {
  constexpr uint32_t kBf16 = 1u << 5;
  return runs_avx512_vnni() && cpuid(7).eax >= 1 && has(cpuid(7, 1).eax, kBf16);
}

// Leaf 7, edx: AMX-BF16, AMX-TILE, AMX-INT8. A process requests the tile registers, once for all of its threads (Linux,
// Documentation/arch/x86/xstate.rst); if the request is refused, the next best tier runs.
bool runs_avx512_amx() {
  constexpr uint32_t kBf16_Tile_Int8 = 1u << 22 | 1u << 24 | 1u << 25;
  constexpr uint64_t kTiles = 0x60000;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (!runs_avx512_bf16() || !has(saved_state(), kTiles) || !has(cpuid(7).edx, kBf16_Tile_Int8)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Intel's VDPBF16PS multiplies half as much a cycle as its two FMA units: 107 against 216 GFLOP/s a core of a Sapphire
// Rapids, and bf16 at 512 rows 97 against 140 (kernel_bench -t 1 -d bf16). AMD's (Zen 4) multiplies twice as much.
bool bf16_beats_fma() {
  const CpuId id = cpuid(0);
  return id.ebx == signature_AMD_ebx && id.ecx == signature_AMD_ecx && id.edx == signature_AMD_edx;
}
#elif defined(__aarch64__)
// Also for neon_fp16. -march=armv8.2-a lets the compiler use atomics and rounding multiplies as well.
bool runs_neon_dot() {
  constexpr unsigned long kNeeded = HWCAP_ATOMICS | HWCAP_ASIMDRDM | HWCAP_FPHP | HWCAP_ASIMDHP | HWCAP_ASIMDDP;
  return (getauxval(AT_HWCAP) & kNeeded) == kNeeded;
}

bool runs_neon_mm() {
  constexpr unsigned long kNeeded = HWCAP2_I8MM | HWCAP2_BF16;
  return runs_neon_dot() && (getauxval(AT_HWCAP2) & kNeeded) == kNeeded;
}

// The tier is compiled for registers of 256 bits; what length a process gets is the kernel's setting, not the CPU's
// alone (Linux, Documentation/arch/arm64/sve.rst).
bool runs_sve256() {
  constexpr unsigned long kNeeded = HWCAP2_SVEI8MM | HWCAP2_SVEBF16;
  constexpr int kBytes = 256 / 8;
  if (!runs_neon_mm() || !(getauxval(AT_HWCAP) & HWCAP_SVE) || (getauxval(AT_HWCAP2) & kNeeded) != kNeeded)
    return false;
  const int length = prctl(PR_SVE_GET_VL);
  return length >= 0 && (length & PR_SVE_VL_LEN_MASK) == kBytes;
}
#endif

struct Tier {
  const Kernels* table;
  bool (*cpu_runs)();
  bool (*is_quick_here)() = always;  // else it is taken only when it is named

  bool runs_here() const { return table && cpu_runs(); }
};

// Best first.
constexpr Tier kTiers[] = {
#if defined(__x86_64__)
    {&avx512_amx_tier, runs_avx512_amx},
    {&avx512_bf16_tier, runs_avx512_bf16, bf16_beats_fma},
    {&avx512_vnni_tier, runs_avx512_vnni},
    {&avx512_tier, runs_avx512},
    {&avx2_tier, runs_avx2},
#elif defined(__aarch64__)
    {&sve256_tier, runs_sve256},     {&neon_mm_tier, runs_neon_mm}, {&neon_fp16_tier, runs_neon_dot},
    {&neon_dot_tier, runs_neon_dot}, {&neon_tier, always},
#endif
    {&scalar_tier, always},
};
constexpr int kTierCount = sizeof kTiers / sizeof kTiers[0];

std::string names_of_tiers() {
  std::string names;
  for (const char* const* name = tier_names(); *name; ++name) names += (names.empty() ? "" : ", ") + std::string(*name);
  return names;
}

struct TierChoice {
  const Kernels* table;
  std::vector<Quarantined> wrong;
};

// Returns the fastest tier for this CPU, or the one that FOREARM_TIER names; if the self-test finds it wrong, the
// fastest below it.
TierChoice choose() {
  const char* wanted = getenv("FOREARM_TIER");
  const Kernels* asked = wanted && *wanted ? find_tier(wanted) : nullptr;
  if (wanted && *wanted && !asked)
    throw std::runtime_error("FOREARM_TIER is '" + std::string(wanted) + "', which this build or this CPU can't run; " +
                             "unset it, or set it to one of: " + names_of_tiers());
  std::vector<const Kernels*> candidates;
  bool below = !asked;
  for (const Tier& tier : kTiers) {
    if ((asked && tier.table == asked) || (below && tier.runs_here() && tier.is_quick_here()))
      candidates.push_back(tier.table);
    below = below || tier.table == asked;
  }
  TierChoice choice{};
  choice.table = &first_sound(candidates, scalar_tier, &choice.wrong);
  return choice;
}

const TierChoice& chosen() {
  static const TierChoice once = choose();
  return once;
}

}  // namespace

const Kernels& kernels() { return *chosen().table; }

const std::vector<Quarantined>& quarantined() { return chosen().wrong; }

const Kernels* find_tier(const char* name) {
  for (const Tier& tier : kTiers) {
    if (tier.runs_here() && strcmp(tier.table->tier, name) == 0) return tier.table;
  }
  return nullptr;
}

const char* const* tier_names() {
  struct Names {
    const char* of[kTierCount + 1] = {};
    Names() {
      int count = 0;
      for (const Tier& tier : kTiers) {
        if (tier.runs_here()) of[count++] = tier.table->tier;
      }
    }
  };
  static const Names names;
  return names.of;
}

}  // namespace forearm
