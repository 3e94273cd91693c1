// write_kv by token, gather_keys and index_scores: gathered keys have the same bits as keys that write_kv packs, and so
// has attention to them; scores are near float64, the same bits as scalar where the tier multiplies floats, and the
// same bits however their keys are divided.
#include <math.h>
#include <string.h>

#include <algorithm>

#include "kernel_check.h"

namespace forearm::checks {
namespace {

constexpr DType kDTypesOfCaches[] = {DType::f32,  DType::f16,      DType::bf16,
                                     DType::int8, DType::fp8_e4m3, DType::fp8_e5m2};
constexpr int kPoison = 0xff;  // a NaN in every float dtype

// Memory for a task that expects nothing of it, aligned as a thread's scratch is, with a border behind it.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : count_(bytes / 4), floats_(count_ + 2 * kBorder, NAN) {}
  float* data() { return floats_.data() + (64 - reinterpret_cast<uintptr_t>(floats_.data()) % 64) % 64 / 4; }
  bool border_is_whole() {
    return std::all_of(data() + count_, floats_.data() + floats_.size(), [](float x) { return isnan(x); });
  }

 private:
  static constexpr int64_t kBorder = 16;
  int64_t count_;
  std::vector<float> floats_;
};

// The cache of keys alone. Behind each block are bytes that are of no block.
class KeyCache {
 public:
  KeyCache(DType dtype, int64_t head_dim, int64_t latent, int64_t kv_heads, int64_t keys, bool by_token)
      : count_((keys + kBlockTokens - 1) / kBlockTokens), head_dim_(head_dim), kv_heads_(kv_heads) {
    const int64_t padded = round_up(head_dim, 16), head_bytes = kv_head_bytes(dtype, padded);
    cache = {nullptr, nullptr, kv_heads * head_bytes + kBetween, head_bytes, dtype, padded, latent, by_token};
    bytes_.resize(count_ * cache.block_bytes + 64, static_cast<char>(kPoison));
    cache.keys = bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64;
    for (int64_t b = 0; b < count_; ++b) blocks.push_back(static_cast<int32_t>(b));
  }
  KeyCache(const KeyCache&) = delete;

  void turn_blocks() { std::reverse(blocks.begin(), blocks.end()); }

  // Stores keys [..][kv_heads][head_dim] in zeroed blocks, by two calls a head.
  void write(const Kernels& tier, const std::vector<float>& rows) {
    for (int64_t b = 0; b < count_; ++b)
      memset(cache.keys + b * cache.block_bytes, 0, static_cast<size_t>(kv_heads_ * cache.head_bytes));
    const int64_t stride = kv_heads_ * head_dim_, keys = static_cast<int64_t>(rows.size()) / stride;
    std::vector<int32_t> slots;
    for (int64_t i = 0; i < keys; ++i)
      slots.push_back(blocks[i / kBlockTokens] * static_cast<int32_t>(kBlockTokens) +
                      static_cast<int32_t>(i % kBlockTokens));
    for (int64_t head = 0; head < kv_heads_; ++head)
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t begin = half * (keys / 2), end = half ? keys : keys / 2;
        tier.write_kv({cache, rows.data() + begin * stride + head * head_dim_, nullptr, stride, end - begin, head_dim_,
                       head, slots.data() + begin});
      }
  }

  // Makes the first blocks what they were before they were written.
  void poison(int64_t count) { memset(cache.keys, kPoison, static_cast<size_t>(count * cache.block_bytes)); }

  // All bytes of the blocks and between them.
  std::vector<uint16_t> contents() const {
    std::vector<uint16_t> all(count_ * cache.block_bytes / 2);
    memcpy(all.data(), cache.keys, all.size() * 2);
    return all;
  }

  KvCache cache;
  std::vector<int32_t> blocks;

 private:
  static constexpr int64_t kBetween = 64;
  int64_t count_, head_dim_, kv_heads_;
  std::vector<char> bytes_;
};

struct Gathering {
  int64_t head_dim, latent, kv_heads, keys, begin, end;
  bool chosen;
};

// `count` keys of `keys`, ascending, the gaps at random (Knuth, TAOCP 2, 3.4.2, algorithm S).
std::vector<int32_t> chosen_of(int64_t keys, int64_t count, Random& random) {
  std::vector<int32_t> chosen;
  for (int64_t key = 0; key < keys; ++key) {
    const auto left = static_cast<float>(keys - key), wanted = static_cast<float>(count) - chosen.size();
    if (left * 0.5f * (random.next() + 1.0f) < wanted) chosen.push_back(static_cast<int32_t>(key));
  }
  return chosen;
}

// Partial results of one token for the chunks from `begin` on, and the folded ones if those are all.
std::vector<float> attend(Report& report, const Kernels& tier, const Gathering& s, const KeyCache& cache) {
  constexpr int64_t kGroup = 5;
  Random random(s.end);
  const std::vector<float> q = random.floats(kGroup * s.head_dim, 3.0f);
  const int64_t partial = kGroup * (2 + s.latent);
  std::vector<float> out((s.end / kChunkTokens + 2) * partial);
  Scratch scratch(tier.attend_scratch_bytes(cache.cache.head_dim));
  AttendTask task{};
  task.cache = cache.cache;
  task.blocks = cache.blocks.data();
  task.q = q.data();
  task.q_stride = kGroup * s.head_dim;
  task.head_dim = s.head_dim;
  task.group = kGroup;
  task.token_end = 1;
  task.first_position = s.end - 1;
  task.scale = 1.0f / sqrtf(static_cast<float>(s.head_dim));
  task.out = {out.data(), kGroup * s.latent, Form::f32_rows};
  task.scratch = scratch.data();
  task.chunk_end = (s.end + kChunkTokens - 1) / kChunkTokens;
  if (s.begin == 0) tier.attend(task);
  const int64_t chunks = task.chunk_end;
  for (int64_t chunk = s.begin / kChunkTokens; chunk < chunks; ++chunk) {
    task.chunk_begin = chunk;
    task.chunk_end = chunk + 1;
    task.partials = out.data() + (1 + chunk) * partial;
    tier.attend(task);
  }
  report.holds(scratch.border_is_whole(), "attend keeps to its scratch");
  return out;
}

// Gathers in pieces of so many blocks; 0: at once.
void gather(const Kernels& tier, const Gathering& s, const KeyCache& from, int64_t kv_head, const int32_t* chosen,
            int64_t blocks, KeyCache& to) {
  const int64_t step = blocks ? blocks * kBlockTokens : s.end;
  for (int64_t begin = s.begin; begin < s.end; begin += step)
    tier.gather_keys({from.cache, to.cache, from.blocks.data(), kv_head, chosen, begin, std::min(s.end, begin + step)});
}

void check_gathering(Report& report, const Kernels& tier, const Gathering& s, DType dtype) {
  report.begin(sizes({{"dtype", static_cast<int>(dtype)},
                      {"head_dim", s.head_dim},
                      {"kv_heads", s.kv_heads},
                      {"keys", s.keys},
                      {"begin", s.begin},
                      {"end", s.end},
                      {"chosen", s.chosen}}));
  Random random(s.head_dim * 31 + s.end);
  const std::vector<float> rows = random.floats(s.keys * s.kv_heads * s.head_dim, 3.0f);
  const std::vector<int32_t> list = chosen_of(s.keys, s.end, random);
  report.holds(static_cast<int64_t>(list.size()) == s.end, "the check chooses as many keys as it should");
  KeyCache from(dtype, s.head_dim, s.latent, s.kv_heads, s.keys, true);
  from.turn_blocks();
  from.write(tier, rows);

  for (int64_t head = 0; head < s.kv_heads; ++head) {
    std::vector<float> own;
    for (int64_t i = 0; i < s.end; ++i) {
      const auto at = rows.begin() + ((s.chosen ? list[i] : i) * s.kv_heads + head) * s.head_dim;
      own.insert(own.end(), at, at + s.head_dim);
    }
    KeyCache wanted(dtype, s.head_dim, s.latent, 1, s.end, false), got(dtype, s.head_dim, s.latent, 1, s.end, false);
    wanted.write(tier, own);
    gather(tier, s, from, head, s.chosen ? list.data() : nullptr, 0, got);
    if (s.begin % kChunkTokens == 0)
      report.same_bits(attend(report, tier, s, got), attend(report, tier, s, wanted), "attend to gathered keys");

    wanted.poison(s.begin / kBlockTokens);
    report.same_bits(got.contents(), wanted.contents(), "gather_keys");
    for (const int64_t blocks : {1, 2}) {
      KeyCache pieces(dtype, s.head_dim, s.latent, 1, s.end, false);
      gather(tier, s, from, head, s.chosen ? list.data() : nullptr, blocks, pieces);
      report.same_bits(pieces.contents(), wanted.contents(), "gather_keys in pieces");
    }
  }
}

constexpr Gathering kGatherings[] = {
    {576, 512, 1, 70, 0, 70, false},     {576, 512, 1, 300, 0, 90, true},    {7, 16, 1, 1, 0, 1, false},
    {7, 16, 2, 90, 0, 31, true},         {20, 16, 3, 40, 0, 33, false},      {20, 16, 2, 150, 64, 97, true},
    {33, 32, 2, 64, 0, 64, false},       {33, 32, 1, 200, 0, 64, true},      {75, 64, 1, 130, 32, 63, true},
    {75, 64, 2, 130, 96, 129, false},    {24, 16, 1, 70, 0, 70, true},       {128, 128, 1, 1000, 64, 65, true},
    {288, 256, 1, 700, 512, 599, false}, {40, 32, 1, 2000, 512, 1100, true}, {24, 16, 1, 600, 0, 530, true},
};

// The keys of an indexer and the queries of one token, which sees the first `end` of them.
struct Scoring {
  int64_t head_dim, heads, end;
  DType dtype;
  float least;  // a single head's products are added as they are
  std::vector<float> q, weights, keys;

  Scoring(int64_t dim, int64_t count, int64_t last, DType type)
      : head_dim(dim), heads(count), end(last), dtype(type), least(count == 1 ? -INFINITY : 0.0f) {
    Random random(dim * 31 + count * 7 + last);
    q = random.floats(heads * dim, 3.0f);
    weights = random.floats(heads);
    keys = random.floats((end + 40) * dim, 3.0f);  // later tokens of a prompt have theirs
  }
};

// Pieces of so many keys; 0: all at once.
std::vector<float> score(Report& report, const Kernels& tier, const Scoring& p, const KeyCache& cache, int64_t step) {
  constexpr int64_t kPair = 2 * kBlockTokens;
  const int64_t readable = round_up(p.end, kPair);
  std::vector<float> scores(readable + kPair, NAN);
  Scratch scratch(tier.attend_scratch_bytes(cache.cache.head_dim));
  const int64_t pieces = step ? (p.end + step - 1) / step : 1;
  for (int64_t i = pieces; i-- > 0;)  // a piece that wrote before its first key would spoil no later one
    tier.index_scores({cache.cache, cache.blocks.data(), p.q.data(), p.weights.data(), p.heads, p.head_dim, i * step,
                       step ? std::min(p.end, (i + 1) * step) : p.end, scores.data(), scratch.data(), p.least});
  report.holds(scratch.border_is_whole(), "index_scores keeps to its scratch");
  report.holds(std::all_of(scores.begin() + readable, scores.end(), [](float x) { return isnan(x); }),
               "index_scores keeps to its pairs of blocks");
  scores.resize(p.end);
  return scores;
}

// Scores in float64, of q as the form has it and keys as they are stored, and how far the tier's may be from them.
// Products of bf16 are exact; a head's sum takes two roundings a product at most (kernel_check_gemm.cpp); a reference
// of codes takes two for a key's number, the tier one for a score. max(0, x) carries an error over as it is. Adding a
// head rounds the sum once.
void check_scores(Report& report, const Scoring& p, Form form, const std::vector<float>& got) {
  const std::vector<float> q = rounded(p.q, operand_dtype(form)), keys = kept(p.keys, p.head_dim, key_dtype(p.dtype));
  std::vector<double> wanted, tolerance;
  for (int64_t key = 0; key < p.end; ++key) {
    double sum = 0, error = 0, spread = 0;
    for (int64_t head = 0; head < p.heads; ++head) {
      double dot = 0, magnitude = 0;
      for (int64_t d = 0; d < p.head_dim; ++d) {
        const double product = static_cast<double>(q[head * p.head_dim + d]) * keys[key * p.head_dim + d];
        dot += product;
        magnitude += fabs(product);
      }
      const double weight = p.weights[head], own = magnitude * (2 * static_cast<double>(p.head_dim + 4) + 3) * kUnit;
      const double counted = fmax(p.least, dot);
      sum += weight * counted;
      error += fabs(weight) * own;
      spread += fabs(weight) * (fabs(counted) + own);
    }
    wanted.push_back(sum);
    tolerance.push_back(error + static_cast<double>(p.heads) * kUnit * spread + 0x1p-126);
  }
  report.within(got, wanted, tolerance, "index_scores against float64");
}

void check_scoring(Report& report, const Kernels& tier, const Kernels& scalar, const Scoring& p) {
  report.begin(
      sizes({{"dtype", static_cast<int>(p.dtype)}, {"head_dim", p.head_dim}, {"heads", p.heads}, {"end", p.end}}));
  const auto written = [&p](const Kernels& k, KeyCache& cache) {
    cache.turn_blocks();
    cache.write(k, p.keys);
  };
  const int64_t keys = static_cast<int64_t>(p.keys.size()) / p.head_dim, padded = round_up(p.head_dim, 16);
  KeyCache cache(p.dtype, p.head_dim, padded, 1, keys, false),
      scalar_cache(p.dtype, p.head_dim, padded, 1, keys, false);
  written(tier, cache);
  written(scalar, scalar_cache);
  const std::vector<float> whole = score(report, tier, p, cache, 0);
  for (const int64_t step : {64, 128, 320})
    report.same_bits(score(report, tier, p, cache, step), whole, "index_scores in pieces");

  const Form form = tier.layout[static_cast<int>(is_float(p.dtype) ? p.dtype : tier.wide)].form;
  if (form == Form::f32_rows)
    report.same_bits(score(report, scalar, p, scalar_cache, 0), whole, "index_scores as scalar has them");
  check_scores(report, p, form, whole);
}

// A share: each shape with one dtype or two.
bool is_chosen(const Report& report, int turn) { return !report.few() || turn % 4 == 0; }

}  // namespace

void check_chosen_keys(Report& report, const Kernels& tier, const Kernels&) {
  int turn = 0;
  for (const DType dtype : kDTypesOfCaches)
    for (const Gathering& shape : kGatherings)
      if (is_chosen(report, turn++)) check_gathering(report, tier, shape, dtype);
}

void check_index_scores(Report& report, const Kernels& tier, const Kernels& scalar) {
  constexpr int64_t kEnds[] = {1, 33, 64, 95, 130, 200, 413};
  int turn = 0;
  for (const DType dtype : kDTypesOfCaches)
    for (const int64_t head_dim : {32, 64, 128, 48, 20})
      for (const int64_t heads : {1, 5, 32, 64, 100})
        for (int more = 0; more < 2; ++more, ++turn)
          if (is_chosen(report, turn)) check_scoring(report, tier, scalar, {head_dim, heads, kEnds[turn % 7], dtype});
}

}  // namespace forearm::checks
