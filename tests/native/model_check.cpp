// The whole model without Python: tiny random ones, a decoder and encoders, computed by every tier of this CPU.
//
//   model_check [TIER]       all checks, of every tier or of one; prints a checksum of the logits for each dtype
//   model_check --expected   prints the table kExpected below, from the scalar tier
//
// Each tier must give what the scalar tier gives: the same bits where it multiplies in float32, and within kRounded
// where it rounds what it multiplies to 16 bits. All must agree with logits that an x86-64 machine computed, so that
// an Arm CPU, or an emulated one, is compared with it. The choice of tier is made once a process, so that each tier
// has one of its own.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "model_check.h"

namespace forearm::checks {
namespace {

constexpr int64_t kPrompt = 45, kDecoded = kTexts - 1;

const Kind kKinds[] = {
    {"float32", {DType::f32}, DType::f32},
    {"float16", {DType::f16}, DType::f16},
    {"bfloat16", {DType::bf16}, DType::bf16},
    {"int8", {DType::int8}, DType::f32},
    {"int8-g32", {DType::int8, 32}, DType::f16},
    {"int4-g16", {DType::int4, 16, DType::f16}, DType::f32},
    {"int8-wide", {DType::int8, 0, DType::bf16, Format::Zero::none, true}, DType::f32},
    {"int4-wide", {DType::int4, 32, DType::f16, Format::Zero::none, true}, DType::f32},
    {"fp8-e4m3", {DType::fp8_e4m3}, DType::f32},
    {"fp8-e5m2", {DType::fp8_e5m2, 48}, DType::f32},
    {"experts-f32", {DType::f32}, DType::f32, Shape::experts},
    {"experts-bf16", {DType::bf16}, DType::f32, Shape::experts},
    {"experts-f16", {DType::f16}, DType::f32, Shape::experts},
    {"experts-i8", {DType::int8}, DType::f32, Shape::experts},
    {"experts-i4", {DType::int4, 16, DType::f16}, DType::f32, Shape::experts},
    {"experts-i4w", {DType::int4, 32, DType::f16, Format::Zero::none, true}, DType::f32, Shape::experts},
    {"experts-fp8", {DType::fp8_e4m3}, DType::f32, Shape::experts},
    {"indexed-f32", {DType::f32}, DType::f32, Shape::indexed},
    {"indexed-i8", {DType::int8}, DType::f32, Shape::indexed},
    {"bert-f32", {DType::f32}, DType::f32, Shape::bert},
    {"bert-bf16", {DType::bf16}, DType::bf16, Shape::bert},
    {"bert-int8", {DType::int8}, DType::f32, Shape::bert},
    {"modern-f32", {DType::f32}, DType::f32, Shape::modern},
    {"modern-f16", {DType::f16}, DType::f16, Shape::modern},
};
constexpr size_t kKindCount = sizeof kKinds / sizeof kKinds[0];

// The last step's first logits, from the scalar tier on x86-64 with gcc 12 (model_check --expected).
constexpr int kExpectedLogits = 6;
constexpr float kExpected[kKindCount][kExpectedLogits] = {
    {-1.552075595e-01f, -1.010086298e+00f, -1.988062859e-01f, -5.736505389e-01f, -1.853828579e-01f, 1.261484742e+00f},
    {-1.529167145e-01f, -1.011314631e+00f, -1.978419274e-01f, -5.751085877e-01f, -1.844967008e-01f, 1.261123419e+00f},
    {-1.543709189e-01f, -9.949843287e-01f, -1.946180761e-01f, -5.648539662e-01f, -1.903292090e-01f, 1.255092621e+00f},
    {-1.424000263e-01f, -1.014415979e+00f, -1.875068098e-01f, -5.830515623e-01f, -1.774779260e-01f, 1.286730766e+00f},
    {-1.378843188e-01f, -9.942652583e-01f, -1.734744459e-01f, -5.770367384e-01f, -2.001956403e-01f, 1.274275064e+00f},
    {-9.779401869e-02f, -1.117687941e+00f, -1.673651487e-01f, -5.285856128e-01f, -3.919199109e-02f, 1.396611214e+00f},
    {-1.448678821e-01f, -1.003803134e+00f, -1.968358308e-01f, -5.494924188e-01f, -1.752513200e-01f, 1.282092690e+00f},
    {1.486034840e-01f, -1.003876328e+00f, -1.991071552e-01f, -9.562230706e-01f, 1.546696872e-01f, 1.077686667e+00f},
    {-1.876924783e-01f, -9.577826262e-01f, -2.448805273e-01f, -6.425073147e-01f, -1.071052402e-01f, 1.299979329e+00f},
    {-2.647435367e-01f, -1.197003961e+00f, -5.844066739e-01f, -3.901510835e-01f, -3.574092984e-01f, 1.289188862e+00f},
    {-1.228277445e+00f, -2.190610915e-01f, -8.668256998e-01f, 1.856660098e-01f, -3.778532743e-01f, 1.670580983e+00f},
    {-1.231665730e+00f, -2.045798898e-01f, -8.634535074e-01f, 1.855286211e-01f, -3.767141998e-01f, 1.673291326e+00f},
    {-1.228433371e+00f, -2.192907631e-01f, -8.666760325e-01f, 1.864866018e-01f, -3.775103390e-01f, 1.670561671e+00f},
    {-1.246390700e+00f, -2.747758925e-01f, -8.432512879e-01f, 2.013702691e-01f, -3.803888857e-01f, 1.687155128e+00f},
    {-9.067435861e-01f, -1.212704480e-01f, -8.324578404e-01f, 1.935425401e-01f, -3.996783197e-01f, 1.739665270e+00f},
    {-1.117166162e+00f, 1.213980615e-01f, -7.482274771e-01f, 4.426056147e-01f, -1.577301323e-01f, 1.697186828e+00f},
    {-1.162162542e+00f, -1.824117005e-01f, -8.219285607e-01f, 1.211307049e-01f, -3.522590399e-01f, 1.643997669e+00f},
    {1.282855988e+00f, -1.707596481e-01f, -9.451393485e-01f, 8.035416007e-01f, 3.795416951e-01f, -1.033508539e+00f},
    {1.296307564e+00f, -1.541413367e-01f, -9.426188469e-01f, 8.100472093e-01f, 3.966570199e-01f, -1.032328606e+00f},
    {-4.474369884e-01f, -4.728244543e-01f, -5.827526450e-01f, 1.052111745e+00f, -8.366521001e-01f, -2.160294652e-01f},
    {-4.475793839e-01f, -4.728295207e-01f, -5.834150314e-01f, 1.049777150e+00f, -8.394122720e-01f, -2.169620991e-01f},
    {-4.425678849e-01f, -4.723451138e-01f, -5.790480971e-01f, 1.040748119e+00f, -8.328057528e-01f, -2.197535336e-01f},
    {1.371899128e+00f, -8.015915751e-03f, -6.349955201e-01f, 2.670335472e-01f, 1.160057306e+00f, -1.179064870e+00f},
    {1.371621490e+00f, -8.173054084e-03f, -6.352010965e-01f, 2.671678960e-01f, 1.159334660e+00f, -1.179155111e+00f},
};

// Logits are about 1, sums of at most 97 terms through 2 layers. Another libm's cosine may differ in the last bit:
// 2^-24 of each rotated value.
constexpr float kSame = 1e-5f;
// Operands rounded to bfloat16 err by up to 2^-9 each; independent, through 8 multiplications in a row.
constexpr float kRounded = 0.05f;

Config tiny() {
  Config c{};
  c.vocab_size = kVocab;
  c.hidden = 52;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 24;
  c.max_positions = 128;
  c.ropes.push_back({{1.0f, 0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f}, 1.0f, false});
  c.layers = {{AttentionKind{0, 0}, FeedForwardKind{88}}, {AttentionKind{0, 20}, FeedForwardKind{88}}};
  c.qk_norm = QkNorm::head;
  c.attention_scale = 0.2f;
  c.matrices = dense_matrices(c, true);
  return c;
}

// A layer with a gated shared expert, and one that chooses by groups and has biases.
Config with_experts(Config c) {
  ExpertsKind first{6, 2}, second{8, 3, Score::sigmoid, true, 4, 2, 2, true};
  first.shared = FeedForwardKind{36};
  first.shared_gate = true;
  second.scale = 1.5f;
  c.layers[0].feed_forward->width = 44;
  c.layers[0].experts = first;
  c.layers[1].feed_forward = FeedForwardKind{20, Activation::swiglu_oai};
  c.layers[1].experts = second;
  c.matrices = dense_matrices(c, true);
  for (MatrixSpec& spec : c.matrices) spec.bias = spec.bias || spec.name.starts_with("layers.1.experts");
  return c;
}

// Latent attention: a layer that chooses 20 keys for each token, and one that takes its choice.
Config with_indexer(Config c) {
  LatentKind latent{0, 32, 8, 12, 16, 28};
  latent.indexer = IndexerKind{5, 16, 20, true};
  c.layers[0].mixer = latent;
  latent.indexer->shared = true;
  c.layers[1].mixer = latent;
  c.kv_heads = 1;
  c.head_dim = latent.rank + latent.rotary;
  c.qk_norm = QkNorm::none;
  c.matrices = dense_matrices(c);
  return c;
}

Config config_of(const Kind& kind) {
  if (kind.shape == Shape::experts) return with_experts(tiny());
  return kind.shape == Shape::indexed ? with_indexer(tiny()) : tiny();
}

void load(Executor& executor) {
  const Config& c = executor.config();
  Random random;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t k) {
    const std::vector<float> values = random.floats(rows * k, 0.0f, 1.7f / std::sqrt(static_cast<float>(k)));
    executor.load_matrix(name, {values.data(), DType::f32, rows, k}, 0);
  };
  const auto vector = [&](const std::string& name, int64_t n, float around) {
    executor.load_vector(name, random.floats(n, around, 0.3f).data(), n);
  };
  matrix("embed", c.vocab_size, c.hidden);
  matrix("head", c.vocab_size, c.hidden);
  vector("final_norm", c.hidden, 1.0f);
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    const auto* latent = c.layers[i].mixer_as<LatentKind>();
    if (!latent) {
      for (const auto& [name, rows] : {std::pair{"q", q}, {"k", kv}, {"v", kv}}) {
        matrix(layer + name, rows, c.hidden);
        vector(layer + name + ".bias", rows, 0.0f);
      }
      matrix(layer + "o", c.hidden, q);
    }
    for (const MatrixSpec& spec : c.matrices)
      if (spec.name.starts_with(layer) && (latent || (spec.role != Role::mixer_in && spec.role != Role::mixer_out)))
        for (const MatrixPart& part : spec.parts) {
          matrix(part.name, spec.experts * part.rows, spec.k);
          if (spec.bias) vector(part.name + ".bias", spec.experts * part.rows, 0.0f);
        }
    if (const auto& experts = c.layers[i].experts; experts && experts->correction)
      vector(layer + "correction", experts->count, 0.0f);
    vector(layer + "input_norm", c.hidden, 1.0f);
    vector(layer + "pre_mlp_norm", c.hidden, 1.0f);
    vector(layer + "q_norm", latent ? latent->q_rank : c.head_dim, 1.0f);
    vector(layer + "k_norm", latent ? latent->rank : c.head_dim, 1.0f);
    if (!latent || latent->indexer->shared) continue;
    vector(layer + "index_norm", latent->indexer->head_dim, 1.0f);
    vector(layer + "index_norm.bias", latent->indexer->head_dim, 0.0f);
  }
  executor.finish_loading();
  executor.allocate_kv(8);
}

// Computes tokens[first ..) of one sequence and adds the last one's logits to `out`.
void step(Executor& executor, const std::vector<int32_t>& tokens, int64_t first, int64_t count, Logits& out) {
  std::vector<int32_t> position(static_cast<size_t>(count));
  std::iota(position.begin(), position.end(), static_cast<int32_t>(first));
  const int32_t start[] = {0, static_cast<int32_t>(count)}, block_start[] = {0, 2}, block[] = {5, 2};
  const int32_t last = static_cast<int32_t>(count) - 1;
  executor.forward({count, 1, 1, tokens.data() + first, position.data(), start, block_start, 2, block, &last});
  out.insert(out.end(), executor.logits(), executor.logits() + kVocab);
}

// Logits of the prompt's last token and of each decoded one: [1 + kDecoded, kVocab].
// Of a model that pools: vectors of kTexts texts, all in one step if `chunks` is one.
Logits generate(const Kind& kind, const Ranks& ranks, const std::vector<int64_t>& chunks) {
  if (kind.shape == Shape::bert || kind.shape == Shape::modern) return encode(kind, ranks, chunks.size() == 1);
  const Config config = config_of(kind);
  Executor executor(config, uniform(config, kind.format), {kind.kv, 64, 4, 4, 64}, {}, ranks);
  load(executor);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kPrompt; ++i) tokens.push_back(i * 31 % kVocab);
  Logits out;
  int64_t done = 0;
  for (const int64_t count : chunks) {
    out.clear();  // of the prompt, only its end counts
    step(executor, tokens, done, count, out);
    done += count;
  }
  for (int64_t i = 0; i < kDecoded; ++i) {
    tokens.push_back(static_cast<int32_t>(i * 17 % kVocab));
    step(executor, tokens, kPrompt + i, 1, out);
  }
  return out;
}

bool same_bits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

float furthest(const float* a, const float* b, size_t count) {
  float worst = 0.0f;
  for (size_t i = 0; i < count; ++i) {
    const float apart = std::fabs(a[i] - b[i]);
    worst = apart <= worst ? worst : apart;  // a NaN wins
  }
  return worst;
}

uint32_t checksum(const Logits& logits) {
  uint32_t sum = 2166136261u;  // FNV-1a
  for (const float value : logits) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    sum = (sum ^ bits) * 16777619u;
  }
  return sum;
}

// Runs in a process of its own, whose tier it is: the logits of each kind; of a tier under test after checking that
// threads and chunks don't change them, which takes four times as long.
std::vector<Logits> compute_with(const char* tier, bool under_test) {
  setenv("FOREARM_TIER", tier, 1);
  std::vector<Logits> all;
  for (const Kind& kind : kKinds) {
    const Logits whole = generate(kind, 1, {kPrompt});
    const bool same =
        !under_test ||
        (same_bits(whole, generate(kind, 3, {kPrompt})) && same_bits(whole, generate(kind, Ranks({2, 1}), {kPrompt})) &&
         same_bits(whole, generate(kind, Ranks({1, 1, 2}), {33, 12})) &&
         same_bits(whole, generate(kind, 2, {1, 2, 30, 12})) && same_bits(whole, generate(kind, 1, {33, 12})));
    if (!same) {
      std::printf("FAILED: %s, %s: threads, ranks or chunks change the logits\n", tier, kind.name);
      std::fflush(stdout);
      _exit(1);
    }
    all.push_back(whole);
  }
  return all;
}

// The logits that a child computes with this tier; empty if it failed.
std::vector<Logits> logits_of(const char* tier, bool under_test) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  std::fflush(stdout);  // or the child would print it again
  const pid_t child = fork();
  if (child == 0) {
    FILE* out = fdopen(ends[1], "wb");
    for (const Logits& logits : compute_with(tier, under_test))
      std::fwrite(logits.data(), sizeof(float), logits.size(), out);
    std::fclose(out);
    _exit(0);
  }
  close(ends[1]);
  FILE* in = fdopen(ends[0], "rb");
  std::vector<Logits> all(kKindCount, Logits((1 + kDecoded) * kVocab));
  bool whole = true;
  for (Logits& logits : all)
    whole = std::fread(logits.data(), sizeof(float), logits.size(), in) == logits.size() && whole;
  std::fclose(in);
  int status = 0;
  waitpid(child, &status, 0);
  return whole && status == 0 ? all : std::vector<Logits>{};
}

// The end of the logits is the last step's.
const float* last_step(const Logits& logits) { return logits.data() + logits.size() - kVocab; }

// Whether a tier rounds what it multiplies to 16 bits, where the scalar tier does not.
bool rounds_operands(const Kernels& tier, const Format& format) {
  if (kept_as(format.dtype, tier) != format.dtype) return true;
  const Form form = tier.layout[static_cast<int>(is_fp8(format.dtype) ? tier.wide : format.dtype)].form;
  return form != Form::f32_rows && !is_quantized(form);
}

// Number of failures of one tier.
int check_tier(const char* tier, const std::vector<Logits>& scalar) {
  const std::vector<Logits> got = logits_of(tier, true);
  if (got.empty()) {
    std::printf("FAILED: %s: no result\n", tier);
    return 1;
  }
  int failures = 0;
  for (size_t i = 0; i < kKindCount; ++i) {
    const Logits &mine = got[i], &reference = scalar[i];
    const bool rounds = rounds_operands(*find_tier(tier), kKinds[i].format);
    const float from_scalar = furthest(mine.data(), reference.data(), mine.size());
    const float from_expected = furthest(last_step(mine), kExpected[i], kExpectedLogits);
    const bool holds =
        (rounds ? from_scalar <= kRounded : same_bits(mine, reference)) && from_expected <= (rounds ? kRounded : kSame);
    std::printf("%s %-11s %-9s checksum %08x, from scalar %.1e, from x86-64's %.1e\n",
                holds ? "ok    " : "FAILED:", tier, kKinds[i].name, checksum(mine), static_cast<double>(from_scalar),
                static_cast<double>(from_expected));
    failures += !holds;
  }
  return failures;
}

}  // namespace
}  // namespace forearm::checks

int main(int argc, char** argv) {
  using namespace forearm;
  using namespace forearm::checks;
  const std::vector<Logits> scalar = logits_of("scalar", false);
  if (scalar.empty()) {
    std::printf("FAILED: scalar: no result\n");
    return 1;
  }
  const std::string word = argc > 1 ? argv[1] : "";
  if (word == "--expected") {
    for (const Logits& logits : scalar) {
      std::printf("{");
      for (int i = 0; i < kExpectedLogits; ++i)
        std::printf("%s%.9ef", i ? ", " : "", static_cast<double>(last_step(logits)[i]));
      std::printf("},\n");
    }
    return 0;
  }
  int failures = 0, tiers = 0;
  for (const char* const* tier = tier_names(); *tier; ++tier) {
    if (!word.empty() && word != *tier) continue;
    failures += check_tier(*tier, scalar);
    ++tiers;
  }
  std::printf("model_check: %d tiers, %d failed\n", tiers, failures);
  return failures == 0 && tiers > 0 ? 0 : 1;
}
