// The self-test's cases of RWKV's operations.
#include "kernels/self_test_cases.h"

namespace forearm::self_test {
namespace {

constexpr int64_t kRows = 5, kDim = 83;

}  // namespace

// Rows that are mixed with those before them.
Floats shifted(const Kernels& k, int variant) {
  const Floats x = numbers(kRows * kDim, 58), before = numbers(kDim, 59), mix = numbers(kDim, 60);
  TestRows out(static_cast<Form>(variant / 2), kRows, kDim);
  k.token_shift({x.data(), kDim, kRows, 0, variant % 2 ? before.data() : nullptr, mix.data(), 0, kDim, out.operand, 0});
  return out.all();
}

Floats squashed(const Kernels& k, int variant) {
  const Floats x = numbers(kRows * kDim, 61);
  TestRows out(static_cast<Form>(variant / 3), kRows, kDim);
  k.squash({x.data(), kDim, 0, kRows, kDim, static_cast<Squash>(variant % 3), out.operand});
  return out.all();
}

// What the time mixing of RWKV-7 makes of rows, and the state after them.
Floats time_mixed(const Kernels& k, int variant) {
  std::vector<Floats> rows, vectors;
  for (uint32_t i = 0; i < 8; ++i) rows.push_back(numbers(kRows * kDim, 62 + i));
  for (uint32_t i = 0; i < 5; ++i) vectors.push_back(numbers(kDim, 70 + i));
  Floats state(rwkv7_state_floats(kDim)), room(kRows * rwkv7_room_floats(kDim));
  TestRows out(static_cast<Form>(variant / 2), kRows, kDim);
  const auto row = [&](size_t i) { return rows[i].data(); };
  k.rwkv7({row(0),
           row(1),
           row(2),
           row(3),
           row(4),
           row(5),
           variant % 2 ? row(6) : nullptr,
           row(7),
           kDim,
           kDim,
           kRows,
           kDim,
           0,
           vectors[0].data(),
           vectors[1].data(),
           vectors[2].data(),
           vectors[3].data(),
           vectors[4].data(),
           1e-5f,
           state.data(),
           room.data(),
           out.operand,
           0,
           0});
  Floats all = out.all();
  all.insert(all.end(), state.begin(), state.end());
  return all;
}

}  // namespace forearm::self_test
