// The self-test's cases of attention, and of the keys that are chosen for it.
#include <string.h>

#include "kernels/self_test_cases.h"

namespace forearm::self_test {
namespace {

constexpr int64_t kContext = 45, kTokens = 5, kKeys = kContext + kTokens, kGroupHeads = 3, kAttended = 32, kBlocks = 2;
constexpr int32_t kTurned[kBlocks] = {1, 0}, kInOrder[kBlocks] = {0, 1};

// A cache of one head, in two blocks that hold `byte` before anything is written.
struct TestCache {
  TestCache(DType dtype, int64_t latent, bool by_token, char byte = 0)
      : size(kBlocks * kv_head_bytes(dtype, kAttended)), keys(size), values(size) {
    memset(keys.data(), byte, static_cast<size_t>(size));
    const int64_t head_bytes = size / kBlocks;
    cache = {keys.data(), latent ? nullptr : values.data(), head_bytes, head_bytes, dtype, kAttended, latent, by_token};
  }
  TestCache(const TestCache&) = delete;

  void write(const Kernels& k, const Floats& key, const Floats& value, const int32_t (&blocks)[kBlocks]) {
    const int64_t count = static_cast<int64_t>(key.size()) / kAttended;
    std::vector<int32_t> slots;
    for (int64_t i = 0; i < count; ++i)
      slots.push_back(blocks[i / kBlockTokens] * static_cast<int32_t>(kBlockTokens) +
                      static_cast<int32_t>(i % kBlockTokens));
    k.write_kv({cache, key.data(), value.data(), kAttended, count, kAttended, 0, slots.data()});
  }

  int64_t size;
  Bytes keys, values;
  KvCache cache;
};

}  // namespace

Floats attended(const Kernels& k, int variant) {
  TestCache paged(kCaches.dtypes[variant / kAttentions], 0, false);
  paged.write(k, numbers(kKeys * kAttended, 18), numbers(kKeys * kAttended, 19), kTurned);
  Bytes scratch(k.attend_scratch_bytes(kAttended));
  const Floats q = numbers(kTokens * kGroupHeads * kAttended, 20);
  TestRows out(Form::f32_rows, kTokens, kGroupHeads * kAttended);
  Floats partials(kTokens * kGroupHeads * (2 + kAttended));
  AttendTask task{};
  task.cache = paged.cache;
  task.blocks = kTurned;
  task.q = q.data();
  task.q_stride = kGroupHeads * kAttended;
  task.head_dim = kAttended;
  task.group = kGroupHeads;
  task.token_end = kTokens;
  task.first_position = kContext;
  task.window = variant % kAttentions == 1 ? 20 : 0;
  task.scale = 0.177f;
  task.chunk_end = 1;
  task.out = out.operand;
  task.scratch = scratch.data();
  const bool parted = variant % kAttentions == 2;
  task.partials = parted ? partials.data() : nullptr;
  k.attend(task);
  if (parted) k.merge({task, 1, static_cast<int64_t>(partials.size())});
  return out.floats();
}

Floats gathered(const Kernels& k, int variant) {
  const DType dtype = kCaches.dtypes[variant];
  const Floats key = numbers(kKeys * kAttended, 58);
  TestCache from(dtype, kAttended, true), wanted(dtype, kAttended, false), got(dtype, kAttended, false, '\xff');
  from.write(k, key, {}, kTurned);
  std::vector<int32_t> chosen;
  Floats own;
  for (int32_t i = 0; i < kKeys; ++i) {
    if (i % 5 == 0) continue;
    chosen.push_back(i);
    own.insert(own.end(), key.begin() + i * kAttended, key.begin() + (i + 1) * kAttended);
  }
  wanted.write(k, own, {}, kInOrder);
  k.gather_keys({from.cache, got.cache, kTurned, 0, chosen.data(), 0, static_cast<int64_t>(chosen.size())});
  Floats difference;
  for (int64_t i = 0; i < got.size; ++i)
    difference.push_back(static_cast<float>(got.keys.data()[i] - wanted.keys.data()[i]));
  return difference;
}

Floats index_scored(const Kernels& k, int variant) {
  constexpr int64_t kHeads = 19, kPair = 2 * kBlockTokens;
  TestCache index(kCaches.dtypes[variant], kAttended, false);
  index.write(k, numbers(kKeys * kAttended, 59), {}, kTurned);
  Bytes scratch(k.attend_scratch_bytes(kAttended));
  const Floats q = numbers(kHeads * kAttended, 60), weights = numbers(kHeads, 61);
  Floats scores(static_cast<size_t>(kPair));
  k.index_scores(
      {index.cache, kTurned, q.data(), weights.data(), kHeads, kAttended, 0, kKeys, scores.data(), scratch.data()});
  scores.resize(static_cast<size_t>(kKeys));
  return scores;
}

}  // namespace forearm::self_test
