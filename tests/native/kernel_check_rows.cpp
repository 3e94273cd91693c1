// Passes over a row of logits: the same bits as scalar, with a mask and without.
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

// About half of the logits; whole words of 0 and of 1 are among it.
std::vector<uint32_t> mask_of(int64_t n) {
  Random random(n + 1);
  std::vector<uint32_t> mask(n / 32 + 1);
  for (uint32_t& word : mask) {
    const float any = random.next();
    word = any < -0.5f ? 0 : any > 0.5f ? ~0u : static_cast<uint32_t>((random.next() + 1) * 0x7fffff00);
  }
  return mask;
}

std::vector<float> maxima_by(const Kernels& tier, const LogitRow& row) {
  std::vector<float> maxima(maxima_of(row.n) + 1, 7.0f);  // one more, to see that it stays
  tier.row_maxima(row, maxima.data());
  return maxima;
}

// What kernels.h says of row_maxima, one logit after the other.
std::vector<float> plain_maxima(const LogitRow& row) {
  std::vector<float> maxima(maxima_of(row.n), -INFINITY);
  for (int64_t i = 0; i < row.n; ++i) {
    float& max = maxima[i / kMaximumLogits];
    const bool counts = !row.mask || row.mask[i / 32] >> i % 32 & 1;
    if (counts && !isnan(max) && !(row.x[i] <= max)) max = row.x[i];
  }
  maxima.push_back(7.0f);
  return maxima;
}

struct Collected {
  int64_t count;
  std::vector<float> index, value;
};

Collected collect(const Kernels& tier, const LogitRow& row, const float* maxima, float threshold, int64_t room) {
  std::vector<int32_t> index(row.n, -1);
  Collected all{0, {}, std::vector<float>(row.n, -1.0f)};
  all.count = tier.row_collect(row, maxima, threshold, index.data(), all.value.data(), room);
  all.index.assign(index.begin(), index.end());
  return all;
}

void check_passes(Report& report, const Kernels& tier, const Kernels& scalar, const LogitRow& row, float top) {
  const auto terms = [&](const Kernels& k) {
    std::vector<float> out(row.n + 1, 7.0f);
    out[row.n] = k.row_exp_sum(row, top, 0.8f, out.data());
    return out;
  };
  const std::vector<float> of_tier = terms(tier);
  report.same_bits(of_tier, terms(scalar), "row_exp_sum's terms and sum");
  report.holds(tier.row_exp_sum(row, top, 0.8f, nullptr) == of_tier[row.n], "row_exp_sum without terms");
  for (int64_t i = 0; row.mask && i < row.n; ++i)
    if (!(row.mask[i / 32] >> i % 32 & 1)) report.holds(of_tier[i] == 0, "row_exp_sum has 0 for what does not count");

  const std::vector<float> maxima = maxima_by(scalar, {row.x, row.n});
  for (const float threshold : {-INFINITY, 0.5f, 9.0f, 100.0f}) {
    for (const int64_t room : {row.n, row.n / 3}) {
      const Collected got = collect(tier, row, maxima.data(), threshold, room);
      const Collected from_scalar = collect(scalar, row, nullptr, threshold, room);
      report.holds(got.count == from_scalar.count, "row_collect counts");
      report.same_bits(got.index, from_scalar.index, "row_collect's indices, and no more than there is room for");
      report.same_bits(got.value, from_scalar.value, "row_collect's values, and no more than there is room for");
    }
  }
}

void check_length(Report& report, const Kernels& tier, const Kernels& scalar, int64_t n, float special) {
  report.begin(sizes({{"n", n}, {"special", isnan(special) ? 1 : special == 0 ? 0 : -1}}));
  const std::vector<float> x = logits(n, special);
  const std::vector<uint32_t> mask = mask_of(n);
  const RowMax max = tier.row_max(x.data(), n), wanted = scalar.row_max(x.data(), n);
  report.holds(max.nan == wanted.nan && max.nan == isnan(special), "row_max sees NaN and nothing else as NaN");
  if (!max.nan) report.holds(max.index == wanted.index && max.value == wanted.value, "row_max is scalar's");
  for (const LogitRow& row : {LogitRow{x.data(), n}, LogitRow{x.data(), n, mask.data()}}) {
    const std::vector<float> maxima = maxima_by(tier, row), plain = plain_maxima(row);
    for (size_t b = 0; b < plain.size(); ++b)
      report.holds(maxima[b] == plain[b] || (isnan(maxima[b]) && isnan(plain[b])), "row_maxima");
    // A row may hold nothing but -infinity.
    if (!isnan(special)) check_passes(report, tier, scalar, row, fmaxf(wanted.value, -1e30f));
  }
}

}  // namespace

void check_rows(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t n : {1, 2, 15, 16, 17, 31, 63, 64, 65, 100, 1024, 5003}) {
    for (const float special : {0.0f, -INFINITY, NAN}) check_length(report, tier, scalar, n, special);
  }
}

}  // namespace forearm::checks
