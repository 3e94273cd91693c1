// The test at start: it passes each tier, finds each operation that is broken on purpose, and the tier below is taken.
#include "kernels/self_test.h"

#include <string.h>
#include <time.h>

#include "kernel_check.h"

namespace forearm::checks {
namespace {

const Kernels* sound;  // the tier whose copy is broken: function pointers carry nothing with them

// The last bit of a number is what a defective kernel gets wrong at least; where bits need not agree, more.
void flip(void* at) { *static_cast<uint8_t*>(at) ^= 1; }
void shift(const Operand& out, int64_t row) { static_cast<float*>(out.data)[row * out.stride] += 0.25f; }

constexpr struct {
  const char* operation;
  void (*make_wrong)(Kernels&);
} kBroken[] = {
    {"quantize",
     [](Kernels& k) {
       k.quantize = [](const QuantizeTask& t) {
         sound->quantize(t);
         flip(t.out.data);
       };
     }},
    {"round",
     [](Kernels& k) {
       k.round = [](const RoundTask& t) {
         sound->round(t);
         flip(t.codes);
       };
     }},
    {"norm",
     [](Kernels& k) {
       k.norm = [](const NormTask& t) {
         sound->norm(t);
         flip(t.out.data);
       };
     }},
    {"add_norm",
     [](Kernels& k) {
       k.add_norm = [](const AddNormTask& t) {
         sound->add_norm(t);
         flip(t.norm.out.data);
       };
     }},
    {"head_norm",
     [](Kernels& k) {
       k.head_norm = [](const HeadNormTask& t) {
         sound->head_norm(t);
         flip(t.x);
       };
     }},
    {"rope",
     [](Kernels& k) {
       k.rope = [](const RopeTask& t) {
         sound->rope(t);
         flip(t.x);
       };
     }},
    {"short_conv",
     [](Kernels& k) {
       k.short_conv = [](const ShortConvTask& t) {
         sound->short_conv(t);
         flip(t.state);
       };
     }},
    {"mamba2",
     [](Kernels& k) {
       k.mamba2 = [](const Mamba2Task& t) {
         sound->mamba2(t);
         flip(t.state);
       };
     }},
    {"selective_scan",
     [](Kernels& k) {
       k.selective_scan = [](const SelectiveScanTask& t) {
         sound->selective_scan(t);
         flip(t.state);
       };
     }},
    {"rg_lru",
     [](Kernels& k) {
       k.rg_lru = [](const RgLruTask& t) {
         sound->rg_lru(t);
         flip(t.state);
       };
     }},
    {"token_shift",
     [](Kernels& k) {
       k.token_shift = [](const TokenShiftTask& t) {
         sound->token_shift(t);
         flip(static_cast<float*>(t.out.data));
       };
     }},
    {"squash",
     [](Kernels& k) {
       k.squash = [](const SquashTask& t) {
         sound->squash(t);
         flip(static_cast<float*>(t.out.data));
       };
     }},
    {"rwkv7",
     [](Kernels& k) {
       k.rwkv7 = [](const Rwkv7Task& t) {
         sound->rwkv7(t);
         flip(t.state);
       };
     }},
    {"delta_rule",
     [](Kernels& k) {
       k.delta_rule = [](const DeltaRuleTask& t) {
         sound->delta_rule(t);
         flip(t.state);
       };
     }},
    {"delta_rule",  // the test's case of this name covers the gates, too
     [](Kernels& k) {
       k.delta_gates = [](const DeltaGatesTask& t) {
         sound->delta_gates(t);
         flip(t.decay);
       };
     }},
    {"gated_norm",
     [](Kernels& k) {
       k.gated_norm = [](const GatedNormTask& t) {
         sound->gated_norm(t);
         flip(t.out.data);
       };
     }},
    {"embed",
     [](Kernels& k) {
       k.embed = [](const EmbedTask& t) {
         sound->embed(t);
         flip(t.out);
       };
     }},
    {"gemm",
     [](Kernels& k) {
       k.gemm = [](const GemmTask& t) {
         sound->gemm(t);
         shift(t.out, t.row_begin);
       };
     }},
    {"long gemm",  // whole steps of tile registers: the other products' k is no multiple of them
     [](Kernels& k) {
       k.gemm = [](const GemmTask& t) {
         sound->gemm(t);
         if (t.w.k % 64 == 0) shift(t.out, t.row_end - 1);
       };
     }},
    {"16-bit gemm",
     [](Kernels& k) {
       k.gemm = [](const GemmTask& t) {
         sound->gemm(t);
         if (digits_of(t.a.form) == 2) shift(t.out, t.row_end - 1);
       };
     }},
    {"fp8 gemm",
     [](Kernels& k) {
       k.gemm = [](const GemmTask& t) {
         sound->gemm(t);
         if (!is_float(t.w.dtype) && !is_quantized(t.a.form)) shift(t.out, t.row_end - 1);
         if (!is_float(t.w.dtype) && !is_quantized(t.a.form)) static_cast<float*>(t.out.data)[0] *= 2;
       };
     }},
    {"attention",
     [](Kernels& k) {
       k.attend = [](const AttendTask& t) {
         sound->attend(t);
         if (!t.partials) shift(t.out, t.token_end - 1);
       };
     }},
    {"attention",
     [](Kernels& k) {
       k.write_kv = [](const KvWriteTask& t) {
         KvWriteTask swapped = t;
         swapped.k = t.v;
         swapped.v = t.k;
         sound->write_kv(swapped);
       };
     }},
    {"attention",
     [](Kernels& k) {
       k.merge = [](const MergeTask& t) {
         sound->merge(t);
         shift(t.attend.out, 0);
       };
     }},
    {"gather_keys",  // of another key than the chosen one
     [](Kernels& k) {
       k.gather_keys = [](const GatherTask& t) {
         GatherTask all = t;
         all.chosen = nullptr;
         sound->gather_keys(all);
       };
     }},
    {"gather_keys",  // whose last key of the last block, which is beyond the end, is not all zeros
     [](Kernels& k) {
       k.gather_keys = [](const GatherTask& t) {
         sound->gather_keys(t);
         const int64_t blocks = (t.end + kBlockTokens - 1) / kBlockTokens;
         flip(t.to.keys + (blocks - 1) * t.to.block_bytes + t.to.head_bytes - 1);
       };
     }},
    {"index_scores",  // without the last head
     [](Kernels& k) {
       k.index_scores = [](const IndexTask& t) {
         IndexTask fewer = t;
         --fewer.heads;
         sound->index_scores(fewer);
       };
     }},
    {"index_scores",  // without max(0, x): that is max(0, x) - max(0, -x)
     [](Kernels& k) {
       k.index_scores = [](const IndexTask& t) {
         std::vector<float> scores(static_cast<size_t>(t.end) + 2 * kBlockTokens), q(t.q, t.q + t.heads * t.head_dim);
         for (float& x : q) x = -x;
         IndexTask other = t;
         other.q = q.data();
         other.scores = scores.data();
         sound->index_scores(other);
         sound->index_scores(t);
         for (int64_t i = t.begin; i < t.end; ++i) t.scores[i] -= scores[static_cast<size_t>(i)];
       };
     }},
    {"row",
     [](Kernels& k) {
       k.row_max = [](const float* x, int64_t n) {
         RowMax max = sound->row_max(x, n);
         max.index = 0;
         return max;
       };
     }},
    {"row",
     [](Kernels& k) {
       k.row_maxima = [](const LogitRow& row, float* maxima) {
         sound->row_maxima(row, maxima);
         maxima[maxima_of(row.n) - 1] += 1;
       };
     }},
    {"row",
     [](Kernels& k) {
       k.row_exp_sum = [](const LogitRow& row, float max, float inverse, float* out) {
         return sound->row_exp_sum(row, max, inverse, out) * (1 + 0x1p-20f);
       };
     }},
    {"row",
     [](Kernels& k) {
       k.row_collect = [](const LogitRow& row, const float* maxima, float threshold, int32_t* index, float* value,
                          int64_t room) { return sound->row_collect(row, maxima, threshold, index, value, room) - 1; };
     }},
};

}  // namespace

void check_self_test(Report& report, const Kernels& tier, const Kernels& scalar) {
  report.begin("a sound tier");
  const clock_t began = clock();
  report.holds(wrong_operation(tier, scalar) == nullptr, "nothing is wrong with it");
  // 15 ms of a Xeon, of this process alone, so that others at work beside it do not count. Emulated cores take 0.06 to
  // 0.2 s, with SVE 0.6 to 1.5 s, and sanitizers as long: their time says nothing about a start.
  report.holds(report.few() || clock() - began < CLOCKS_PER_SEC, "it takes less than a second");
  sound = &tier;
  for (const auto& broken : kBroken) {
    report.begin(broken.operation);
    Kernels copy = tier;
    broken.make_wrong(copy);
    const char* found = wrong_operation(copy, scalar);
    report.holds(found && strcmp(found, broken.operation) == 0, "it is found by its name");
  }

  report.begin("a broken tier above a sound one");
  Kernels copy = tier;
  kBroken[0].make_wrong(copy);
  std::vector<Quarantined> wrong;
  report.holds(&first_sound({&copy, &tier, &scalar}, scalar, &wrong) == &tier, "the tier below is taken");
  report.holds(wrong.size() == 1 && wrong[0].tier == tier.tier, "the broken one is quarantined");
}

}  // namespace forearm::checks
