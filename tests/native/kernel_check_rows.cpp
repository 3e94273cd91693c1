// row_max, row_exp_sum and row_collect: the same bits as scalar.
#include <math.h>

#include "kernel_check.h"

namespace forearm::checks {
namespace {

// Logits with equal ones among them, and with a few of `special`.
std::vector<float> logits(int64_t n, float special) {
  Random random(n);
  std::vector<float> x(n);
  for (float& value : x) value = roundf(random.next() * 40.0f) / 2;
  for (int64_t i = n / 2; i < n; i += 37) x[i] = special;
  return x;
}

struct Collected {
  int64_t count;
  std::vector<float> index, value;
};

Collected collect(const Kernels& tier, const std::vector<float>& x, float threshold, int64_t room) {
  std::vector<int32_t> index(x.size(), -1);
  Collected all{0, {}, std::vector<float>(x.size(), -1.0f)};
  all.count =
      tier.row_collect(x.data(), static_cast<int64_t>(x.size()), threshold, index.data(), all.value.data(), room);
  all.index.assign(index.begin(), index.end());
  return all;
}

void check_length(Report& report, const Kernels& tier, const Kernels& scalar, int64_t n, float special) {
  report.begin(sizes({{"n", n}, {"special", isnan(special) ? 1 : special == 0 ? 0 : -1}}));
  const std::vector<float> x = logits(n, special);
  const RowMax max = tier.row_max(x.data(), n), wanted = scalar.row_max(x.data(), n);
  report.holds(max.nan == wanted.nan && max.nan == isnan(special), "row_max sees NaN and nothing else as NaN");
  if (!max.nan) report.holds(max.index == wanted.index && max.value == wanted.value, "row_max is scalar's");
  if (isnan(special)) return;
  const float top = fmaxf(wanted.value, -1e30f);  // a row may hold nothing but -infinity

  const auto terms = [&](const Kernels& k) {
    std::vector<float> out(n + 1, 7.0f);
    out[n] = k.row_exp_sum(x.data(), n, top, 0.8f, out.data());
    return out;
  };
  report.same_bits(terms(tier), terms(scalar), "row_exp_sum's terms and sum");
  report.holds(tier.row_exp_sum(x.data(), n, top, 0.8f, nullptr) == terms(tier)[n], "row_exp_sum without terms");

  for (const float threshold : {-INFINITY, 0.5f, 100.0f}) {
    for (const int64_t room : {n, n / 3}) {
      const Collected got = collect(tier, x, threshold, room), from_scalar = collect(scalar, x, threshold, room);
      report.holds(got.count == from_scalar.count, "row_collect counts");
      report.same_bits(got.index, from_scalar.index, "row_collect's indices, and no more than there is room for");
      report.same_bits(got.value, from_scalar.value, "row_collect's values, and no more than there is room for");
    }
  }
}

}  // namespace

void check_rows(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t n : {1, 2, 15, 16, 17, 31, 100, 1024, 5003}) {
    for (const float special : {0.0f, -INFINITY, NAN}) check_length(report, tier, scalar, n, special);
  }
}

}  // namespace forearm::checks
