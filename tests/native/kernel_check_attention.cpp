// write_kv, attend and merge: the same bits as scalar where the tier multiplies floats, near float64 where it
// multiplies bf16; and in every tier the same bits for a token whoever shares its tile and however its chunks are
// divided.
#include <math.h>

#include <algorithm>
#include <bit>

#include "kernel_check.h"
#include "kernels/pack.h"

namespace forearm::checks {
namespace {

struct Shape {
  int64_t head_dim, kv_heads, group, context, tokens, window;
  bool capped, sinks;
  bool both_ways = false;
  int64_t reach = 0;  // of a bias by distance; 0: none
  int64_t latent = 0;
  int64_t value = 0;  // numbers of a value; 0: those of a key

  int64_t value_dim() const { return latent ? latent : value ? value : head_dim; }
};

constexpr float kCap = 4.0f;

// One layer's inputs: `context` keys before the step's own tokens.
struct Problem {
  Shape shape;
  DType dtype;
  std::vector<float> q, k, v, sinks, biases, gate;
  float scale;

  Problem(const Shape& s, DType type) : shape(s), dtype(type), scale(1.0f / sqrtf(static_cast<float>(s.head_dim))) {
    Random random(s.head_dim * 31 + s.tokens);
    q = random.floats(s.tokens * heads() * s.head_dim, 3.0f);
    k = random.floats(keys() * s.kv_heads * s.head_dim, 3.0f);
    v = random.floats(keys() * s.kv_heads * s.head_dim);
    sinks = random.floats(heads());
    const std::vector<float> own = random.floats(heads() * (2 * s.reach + 1), 2.0f);
    for (int64_t head = 0; head < heads(); ++head)
      for (int64_t i = -15; i < 2 * s.reach + 16; ++i)
        biases.push_back(own[head * (2 * s.reach + 1) + std::clamp<int64_t>(i, 0, 2 * s.reach)]);
    if (s.tokens % 2 && !s.latent) gate = random.floats(s.tokens * heads() * s.head_dim, 3.0f);  // of some shapes
  }
  // The values, with zeros in place of what narrow ones leave of a key's width.
  std::vector<float> narrow_values() const {
    std::vector<float> kept = v;
    for (size_t i = 0; i < kept.size() && shape.value; ++i)
      if (static_cast<int64_t>(i) % shape.head_dim >= shape.value) kept[i] = 0.0f;
    return kept;
  }
  DistanceBias bias() const { return {shape.reach ? biases.data() : nullptr, shape.reach}; }
  int64_t heads() const { return shape.kv_heads * shape.group; }
  int64_t keys() const { return shape.context + shape.tokens; }
  int64_t out_columns() const { return heads() * shape.value_dim(); }
  // Of a head: one, or one for each number.
  int64_t gates() const { return shape.context % 2 ? 1 : shape.value_dim(); }
  Gate gate_kind() const { return shape.window ? Gate::softplus : Gate::sigmoid; }
  double gate_factor(int64_t token, int64_t head, int64_t d) const {
    if (gate.empty()) return 1;
    const double x = gate[token * heads() * shape.head_dim + head * gates() + (gates() == 1 ? 0 : d)];
    return gate_kind() == Gate::softplus ? log1p(exp(x)) : 1 / (1 + exp(-x));
  }
};

// The cache of one tier, its blocks in descending order, written in two calls.
class Cache {
 public:
  Cache(const Kernels& tier, const Problem& p) : tier_(tier), problem_(p) {
    const int64_t blocks = (p.keys() + kBlockTokens - 1) / kBlockTokens, padded = round_up(p.shape.head_dim, 16);
    const int64_t head_bytes = kv_head_bytes(p.dtype, padded), bytes = head_bytes * p.shape.kv_heads;
    keys_.resize(bytes * blocks + 64);
    values_.resize(bytes * blocks + 64);
    cache = {aligned(keys_), p.shape.latent ? nullptr : aligned(values_),
             bytes,          head_bytes,
             p.dtype,        padded,
             p.shape.latent, false,
             p.shape.value};
    for (int64_t b = blocks; b-- > 0;) this->blocks.push_back(static_cast<int32_t>(b));
    for (int64_t i = 0; i < p.keys(); ++i) {
      slots_.push_back(this->blocks[i / kBlockTokens] * static_cast<int32_t>(kBlockTokens) +
                       static_cast<int32_t>(i % kBlockTokens));
    }
    for (int64_t head = 0; head < p.shape.kv_heads; ++head) {
      write(head, 0, p.keys() / 2);
      write(head, p.keys() / 2, p.keys());
    }
  }

  // What stands in the cache, token by token: keys and values of each head, with the padding.
  std::vector<float> contents() const {
    std::vector<float> all;
    const int64_t dim = cache.head_dim;
    for (const int32_t slot : slots_) {
      const int64_t block = slot / kBlockTokens, token = slot % kBlockTokens;
      for (int64_t head = 0; head < problem_.shape.kv_heads; ++head) {
        const int64_t offset = block * cache.block_bytes + head * cache.head_bytes;
        const float key_scale = scale(cache.keys + offset, token);
        for (int64_t d = 0; d < dim; ++d)
          all.push_back(key_scale * element(key_dtype(cache.dtype), cache.keys + offset, token, d, dim));
        if (cache.latent) continue;
        const float value_scale = scale(cache.values + offset, token);
        for (int64_t d = 0; d < dim; ++d)
          all.push_back(value_scale * element(cache.dtype, cache.values + offset, d, token, kBlockTokens));
      }
    }
    return all;
  }

  KvCache cache;
  std::vector<int32_t> blocks;

 private:
  static char* aligned(std::vector<char>& bytes) {
    return bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
  }
  void write(int64_t head, int64_t begin, int64_t end) {
    const int64_t dim = problem_.shape.head_dim, stride = problem_.shape.kv_heads * dim,
                  at = begin * stride + head * dim;
    tier_.write_kv(
        {cache, problem_.k.data() + at, problem_.v.data() + at, stride, end - begin, dim, head, slots_.data() + begin});
  }
  float element(DType dtype, const char* packed, int64_t n, int64_t k, int64_t depth) const {
    const DType order = is_float(dtype) ? dtype : tier_.wide;
    const int64_t quantum = tier_.layout[static_cast<int>(order)].quantum;
    const int64_t at = n / 16 * 16 * depth + k / quantum * quantum * 16 + n % 16 * quantum + k % quantum;
    if (dtype == DType::f32) return reinterpret_cast<const float*>(packed)[at];
    if (is_float(dtype)) return widen(reinterpret_cast<const uint16_t*>(packed)[at], dtype);
    if (dtype == DType::int8) return reinterpret_cast<const int8_t*>(packed)[at];
    return widen_fp8(reinterpret_cast<const uint8_t*>(packed)[at], dtype);
  }
  float scale(const char* packed, int64_t token) const {
    if (!has_scales(cache.dtype)) return 1.0f;
    return reinterpret_cast<const float*>(packed + kBlockTokens * cache.head_dim)[token];
  }

  const Kernels& tier_;
  const Problem& problem_;
  std::vector<char> keys_, values_;
  std::vector<int32_t> slots_;
};

// How the work is divided; nothing of it may show in the result.
struct Division {
  int64_t tokens;                       // of a task
  bool chunks;                          // each by itself, then merged
  bool by_key = false, by_row = false;  // the bias is given as one of each row and key, or of each row and distance
};

void attend_chunks(const Kernels& tier, AttendTask task) {
  const int64_t rows = (task.token_end - task.token_begin) * task.group;
  MergeTask merge{task, task.chunk_end, rows * (2 + task.cache.value_dim()) + 5};
  std::vector<float> partials(merge.chunks * merge.chunk_stride, NAN);
  for (int64_t chunk = merge.chunks; chunk-- > 0;) {
    task.chunk_begin = chunk;
    task.chunk_end = chunk + 1;
    task.partials = partials.data() + chunk * merge.chunk_stride;
    tier.attend(task);
  }
  merge.attend.partials = partials.data();
  tier.merge(merge);
}

// KeyBias::values of the rows of tokens begin .. end - 1 and a kv head, by key, or by distance as those of heads are.
std::vector<float> key_biases(const Problem& p, int64_t kv_head, int64_t begin, int64_t end, bool by_row) {
  std::vector<float> values;
  const int64_t reach = p.shape.reach, stride = p.bias().stride(), first = kv_head * p.shape.group;
  for (int64_t token = begin; token < end; ++token)
    for (int64_t head = first; head < first + p.shape.group; ++head) {
      const auto own = p.biases.begin() + head * stride;
      if (by_row) values.insert(values.end(), own, own + stride);
      for (int64_t key = 0; key < round_up(p.keys(), 2 * kBlockTokens) && !by_row; ++key)
        values.push_back(key < p.keys() ? own[std::clamp(key - p.shape.context - token, -reach, reach) + reach + 15]
                                        : NAN);
    }
  return values;
}

std::vector<float> attend(const Kernels& tier, const Problem& p, const Cache& cache, Form form, Division division) {
  const Shape& s = p.shape;
  const Rows out(form, s.tokens + 1, p.out_columns());
  std::vector<float> memory(tier.attend_scratch_bytes(cache.cache.head_dim) / 4 + 16,
                            NAN);  // nothing is expected of it
  float* scratch = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64 / 4;
  for (int64_t head = 0; head < s.kv_heads; ++head) {
    for (int64_t token = 0; token < s.tokens; token += division.tokens) {
      const int64_t end = std::min(s.tokens, token + division.tokens);
      const int64_t chunks = ((s.both_ways ? p.keys() : s.context + end) - 1) / kChunkTokens + 1;
      AttendTask task{cache.cache,
                      cache.blocks.data(),
                      p.q.data(),
                      p.heads() * s.head_dim,
                      s.head_dim,
                      head,
                      s.group,
                      token,
                      end,
                      s.context,
                      s.window,
                      s.both_ways ? p.keys() : 0,
                      p.scale,
                      s.capped ? kCap : 0.0f,
                      s.sinks ? p.sinks.data() : nullptr,
                      p.bias(),
                      0,
                      chunks,
                      nullptr,
                      out.operand(),
                      1,
                      scratch,
                      p.gate.empty() ? nullptr : p.gate.data()};
      task.gate_kind = p.gate_kind();
      task.gates = p.gates();
      std::vector<float> terms;
      if (division.by_key || division.by_row) {
        terms = key_biases(p, head, token, end, division.by_row);
        task.bias = {};
        task.key_bias = {terms.data(), std::ssize(terms) / ((end - token) * s.group), 0, division.by_row ? s.reach : 0};
      }
      division.chunks ? attend_chunks(tier, task) : tier.attend(task);
    }
  }
  auto values = out.values();  // row 0 of `out` is nobody's
  return {values.begin() + p.out_columns(), values.end()};
}

// One row in float64, and how far products of bf16 may be from it: q and the weights are rounded to bf16 (half of 2^-8
// of each), products of bf16 are exact, sums take two roundings a product at most.
struct Exact {
  const Problem& p;
  const std::vector<float> keys = kept(p.k, p.shape.head_dim, key_dtype(p.dtype)),
                           values = kept(p.narrow_values(), p.shape.head_dim, p.dtype);
  std::vector<double> wanted{}, tolerance{};

  double dot(int64_t token, int64_t head, int64_t key, double* magnitude) const {
    const int64_t dim = p.shape.head_dim;
    const float* q = p.q.data() + (token * p.heads() + head) * dim;
    const float* k = keys.data() + (key * p.shape.kv_heads + head / p.shape.group) * dim;
    double sum = 0;
    *magnitude = 0;
    for (int64_t d = 0; d < dim; ++d) {
      sum += static_cast<double>(q[d]) * p.scale * k[d];
      *magnitude += fabs(static_cast<double>(q[d]) * p.scale * k[d]);
    }
    return sum;
  }

  void add_row(int64_t token, int64_t head) {
    const Shape& s = p.shape;
    const int64_t position = s.context + token, dim = s.value_dim(), width = s.head_dim;
    const std::vector<float>& all = s.latent ? keys : values;
    const int64_t begin = s.window > 0 ? std::max<int64_t>(0, position - s.window + 1) : 0;
    const int64_t behind = s.window > 0 ? std::min(p.keys(), position + s.window) : p.keys();
    std::vector<double> weight;
    double top = s.sinks ? p.sinks[head] : -INFINITY, error = 0;
    for (int64_t key = begin; key < (s.both_ways ? behind : position + 1); ++key) {
      double magnitude;
      double score = dot(token, head, key, &magnitude);
      if (s.capped) score = kCap * tanh(score / kCap);
      if (s.reach > 0) {
        const double bias =
            p.biases[head * p.bias().stride() + std::clamp(key - position, -s.reach, s.reach) + s.reach + 15];
        score += bias;
        magnitude += fabs(bias);
      }
      error = fmax(error, magnitude * (0x1p-9 + 2 * static_cast<double>(dim + 4) * kUnit));
      weight.push_back(score);
      top = fmax(top, score);
    }
    double total = s.sinks ? exp(p.sinks[head] - top) : 0;
    for (double& w : weight) total += w = exp(w - top);
    for (int64_t d = 0; d < dim; ++d) {
      double sum = 0, spread = 0;
      for (size_t i = 0; i < weight.size(); ++i) {
        const double value = all[((begin + i) * s.kv_heads + head / s.group) * width + d];
        sum += weight[i] / total * value;
        spread += weight[i] / total * fabs(value);
      }
      const double gate = p.gate_factor(token, head, d);
      wanted.push_back(gate * sum);
      tolerance.push_back(gate * spread * (2 * error + 0x1p-9 + 300 * kUnit) + 0x1p-126);
    }
  }
};

void check_case(Report& report, const Kernels& tier, const Kernels& scalar, const Shape& s, DType dtype) {
  report.begin(sizes({{"dtype", static_cast<int>(dtype)},
                      {"head_dim", s.head_dim},
                      {"group", s.group},
                      {"context", s.context},
                      {"tokens", s.tokens},
                      {"window", s.window},
                      {"capped", s.capped},
                      {"both ways", s.both_ways},
                      {"reach", s.reach},
                      {"latent", s.latent},
                      {"value", s.value}}));
  const Problem p(s, dtype);
  const Cache cache(tier, p), scalar_cache(scalar, p);
  report.same_bits(cache.contents(), scalar_cache.contents(), "write_kv");

  const auto whole = attend(tier, p, cache, Form::f32_rows, {s.tokens, false});
  report.same_bits(attend(tier, p, cache, Form::f32_rows, {s.tokens, true}), whole, "attend by chunks, merged");
  report.same_bits(attend(tier, p, cache, Form::f32_rows, {1, false}), whole, "attend token by token");
  report.same_bits(attend(tier, p, cache, Form::f32_rows, {3, true}), whole, "attend by threes and chunks");
  for (const bool by_row : {false, true})
    if (s.reach > 0)
      report.same_bits(attend(tier, p, cache, Form::f32_rows, {5, true, !by_row, by_row}), whole, "attend with biases");
  for (const Form form : {Form::bf16_rows, Form::bf16_pairs, Form::f16_rows}) {
    report.same_bits(attend(tier, p, cache, form, {2, false}), rounded(whole, operand_dtype(form)),
                     "attend to 16 bits");
  }

  if (tier.layout[static_cast<int>(is_float(dtype) ? dtype : tier.wide)].form == Form::f32_rows) {
    report.same_bits(attend(scalar, p, scalar_cache, Form::f32_rows, {s.tokens, false}), whole,
                     "attend as scalar does");
  } else {
    Exact exact{p};
    for (int64_t token = 0; token < s.tokens; ++token) {
      for (int64_t head = 0; head < p.heads(); ++head) exact.add_row(token, head);
    }
    report.within(whole, exact.wanted, exact.tolerance, "attend against float64");
  }
}

// Halfway cases and subnormals, stored and read again as pack.h narrows them, or as Operand has it.
void check_narrowing(Report& report, const Kernels& tier, DType dtype) {
  report.begin(sizes({{"narrowing to dtype", static_cast<int>(dtype)}}));
  Problem p({64, 1, 1, 0, 40, 0, false, false}, dtype);
  Random random(9);
  for (size_t i = 0; i < p.k.size(); ++i) {
    const float value = ldexpf(random.next(), static_cast<int>(i % 60) - 35);
    const uint32_t tie = (std::bit_cast<uint32_t>(value) & 0xfffff000u) | 0x8000u >> i % 4 * 4;
    p.k[i] = i % 2 ? value : std::bit_cast<float>(tie);
  }
  if (is_float(dtype)) {  // otherwise it would make the whole row NaN
    p.k[5] = INFINITY;
    p.k[6] = -INFINITY;
  }
  p.k[7] = 65519.996f;  // the last float that float16 holds as a number
  p.k[8] = 65520.0f;
  p.v = p.k;
  const auto contents = Cache(tier, p).contents();
  const auto keys = kept(p.k, 64, key_dtype(dtype)), values = kept(p.v, 64, dtype);
  for (int64_t token = 0; token < p.keys(); ++token) {
    const auto got = contents.begin() + token * 128, key = keys.begin() + token * 64,
               value = values.begin() + token * 64;
    report.same_bits(std::vector<float>(got, got + 64), std::vector<float>(key, key + 64), "key");
    report.same_bits(std::vector<float>(got + 64, got + 128), std::vector<float>(value, value + 64), "value");
  }
}

constexpr Shape kShapes[] = {
    {8, 2, 1, 0, 1, 0, false, false},
    {8, 1, 2, 31, 3, 0, false, true},
    {20, 2, 3, 33, 5, 0, false, false},
    {64, 1, 8, 64, 2, 0, false, false},
    {64, 2, 4, 0, 40, 0, false, true},
    {80, 1, 1, 10, 7, 0, true, false},
    {96, 1, 5, 50, 3, 20, true, true},
    {128, 1, 6, 100, 2, 0, false, false},
    {128, 1, 12, 3, 9, 33, false, false},
    {256, 1, 2, 40, 3, 0, true, false},
    {10, 1, 3, 20, 4, 0, false, false},
    // Encoders: a whole prompt, every key or those on both sides within the window.
    {32, 2, 1, 0, 1, 0, false, false, true},
    {32, 2, 1, 0, 33, 0, false, false, true},
    {64, 1, 2, 0, 70, 0, true, false, true},
    {24, 3, 1, 0, 100, 9, false, false, true},
    {64, 2, 1, 0, 130, 65, false, false, true},
    // A bias by distance: keys nearer and farther than its reach on both sides.
    {64, 2, 1, 0, 1, 0, false, false, true, 8},
    {32, 3, 1, 0, 77, 0, false, false, true, 20},
    {20, 2, 3, 0, 130, 0, false, false, true, 128},
    {24, 1, 2, 40, 30, 25, true, true, false, 5},
    // Latent caches: values are the first numbers of the keys.
    {20, 1, 3, 33, 5, 0, false, false, false, 0, 16},
    {60, 1, 5, 70, 3, 0, false, false, false, 0, 48},
    {576, 1, 16, 90, 2, 0, false, false, false, 0, 512},
    {288, 1, 40, 3, 7, 0, false, false, false, 0, 256},
    // Values narrower than keys.
    {36, 2, 3, 33, 5, 0, false, true, false, 0, 0, 20},
    {24, 1, 2, 40, 20, 9, false, false, false, 0, 0, 16},
    {192, 1, 16, 90, 3, 20, false, true, false, 0, 0, 128},
};
constexpr Shape kLong[] = {
    {16, 1, 2, 511, 3, 0, false, false},
    {16, 2, 1, 1100, 4, 0, false, true},
    {24, 1, 1, 1030, 20, 70, false, false},
    {16, 1, 1, 0, 1040, 0, false, false, true},
    {16, 1, 1, 0, 530, 40, false, false, true},
    {16, 2, 1, 0, 530, 0, false, false, true, 128},
    {40, 1, 4, 1030, 3, 0, false, false, false, 0, 32},
    {64, 1, 4, 1030, 3, 0, false, false, false, 0, 0, 24},
};

// A share: each shape with one dtype or two. A million pairs of a token and a key take longer than all else: 1040
// tokens that see each other are left out where 530 of another shape cross the border of a chunk as well.
bool is_chosen(const Report& report, const Shape& shape, int turn) {
  return !report.few() || (turn % 4 == 0 && shape.tokens < 1000);
}

}  // namespace

void check_attention(Report& report, const Kernels& tier, const Kernels& scalar) {
  int turn = 0;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::int8, DType::fp8_e4m3, DType::fp8_e5m2}) {
    check_narrowing(report, tier, dtype);
    for (const Shape& shape : kShapes) {
      if (is_chosen(report, shape, turn++)) check_case(report, tier, scalar, shape, dtype);
    }
    for (const Shape& shape : kLong) {
      if (is_chosen(report, shape, turn++)) check_case(report, tier, scalar, shape, dtype);
    }
  }
}

}  // namespace forearm::checks
