// quantize and round: the same bits as scalar, and scalar as their definitions say.
#include <math.h>

#include "kernel_check_quantized.h"

namespace forearm::checks {
namespace {

std::vector<float> as_floats(const std::vector<int8_t>& codes) { return {codes.begin(), codes.end()}; }

void check_operand(Report& report, const Kernels& tier, Form form, int64_t rows, int64_t dim, int64_t group,
                   bool ordered) {
  report.begin(sizes({{"form", static_cast<int>(form)}, {"rows", rows}, {"dim", dim}, {"group", group}}));
  std::vector<float> x = Random(static_cast<uint64_t>(dim)).floats(rows * dim, 4.0f);
  for (int64_t i = 0; i < group && i < dim; ++i) x[i] = 0.0f;  // a group of zeros
  std::vector<int32_t> order(dim);
  for (int64_t i = 0; i < dim; ++i) order[i] = static_cast<int32_t>((i * 7 + 3) % dim);
  const auto at = [&](int64_t row, int64_t k) { return x[row * dim + (ordered ? order[k] : k)]; };

  const CodeRows out(form, rows, dim, group);
  tier.quantize({x.data(), dim, 0, rows, dim, ordered ? order.data() : nullptr, out.operand()});

  const int64_t digits = digits_of(form);
  const float top = digits == 2 ? 32512.0f : 127.0f;
  std::vector<float> codes, scales(out.scales().size());
  std::vector<int32_t> sums(out.sums().size());
  for (int64_t i = 0; i < rows * digits * dim; ++i) {
    const int64_t row = i / dim / digits, k = i % dim, g = k / group, to = i / dim * out.groups() + g;
    const bool high = digits == 2 && i / dim % 2 == 0;
    float largest = 0.0f;
    for (int64_t j = g * group; j < dim && j < (g + 1) * group; ++j) largest = fmaxf(largest, fabsf(at(row, j)));
    scales[to] = largest / top * (high ? 255.0f : 1.0f);
    const float code = largest == 0 ? 0.0f : rintf(at(row, k) * (top / largest)), upper = rintf(code / 255.0f);
    codes.push_back((high ? upper : digits == 2 ? code - 255.0f * upper : code) + 0.0f);  // no -0
    sums[to] += static_cast<int32_t>(codes.back());
  }
  report.same_bits(out.codes(), codes, "codes");
  report.same_bits(out.scales(), scales, "scales");
  report.holds(out.sums() == sums, "sums are those of the codes");
  report.holds(out.padding_is_zero(), "nothing is written beyond the columns");
}

// Rows that are turned have the scalar tier's bits (tests/kernels/test_quantized.py compares those with products of
// matrices); a row may be turned where it stands.
void check_turned(Report& report, const Kernels& tier, const Kernels& scalar, Form form, int64_t rows, int64_t dim,
                  int64_t group) {
  report.begin(sizes({{"turned form", static_cast<int>(form)}, {"rows", rows}, {"dim", dim}, {"group", group}}));
  std::vector<float> x = Random(static_cast<uint64_t>(dim)).floats(rows * dim, 4.0f);
  std::vector<float> room(dim);
  const CodeRows got(form, rows, dim, group), wanted(form, rows, dim, group), in_place(form, rows, dim, group);
  tier.quantize({x.data(), dim, 0, rows, dim, nullptr, got.operand(), room.data()});
  scalar.quantize({x.data(), dim, 0, rows, dim, nullptr, wanted.operand(), room.data()});
  for (int64_t row = 0; row < rows; ++row) {
    float* own = x.data() + row * dim;  // a stride of 0 maps every row to it
    tier.quantize({own, 0, row, row + 1, dim, nullptr, in_place.operand(), own});
  }
  for (const CodeRows* codes : {&got, &in_place}) {
    report.same_bits(codes->codes(), wanted.codes(), "codes");
    report.same_bits(codes->scales(), wanted.scales(), "scales");
    report.holds(codes->sums() == wanted.sums(), "sums");
    report.holds(codes->padding_is_zero(), "nothing is written beyond the columns");
  }
}

void check_not_finite(Report& report, const Kernels& tier, Form form) {
  report.begin("infinity and NaN");
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> x = Random(9).floats(64);
    x[37] = bad;
    const CodeRows out(form, 1, 64, 32);
    tier.quantize({x.data(), 64, 0, 1, 64, nullptr, out.operand()});
    for (int64_t row = 0; row < digits_of(form); ++row) {
      const float whole = out.scales()[2 * row], broken = out.scales()[2 * row + 1];
      report.holds(isfinite(whole) && !isfinite(broken), "the group's scale is not finite");
      report.holds(isnan(bad) == isnan(broken), "a NaN gives a NaN");
    }
  }
}

void check_float_form(Report& report, const Kernels& tier, Form form, int64_t dim) {
  report.begin(sizes({{"form", static_cast<int>(form)}, {"dim", dim}}));
  const std::vector<float> x = Random(3).floats(3 * dim, 4.0f);
  const Rows out(form, 3, dim);
  tier.quantize({x.data(), dim, 0, 3, dim, nullptr, out.operand()});
  report.same_bits(out.values(), rounded(x, operand_dtype(form)), "rows");
  report.holds(out.padding_is_zero(), "nothing is written beyond the columns");
}

struct Rounded {
  std::vector<int8_t> codes;
  std::vector<float> scales;
};

Rounded round(const Kernels& tier, const std::vector<float>& w, int64_t rows, int64_t k, int64_t group, DType dtype,
              DType scale_dtype, const float* importance = nullptr, const float* feedback = nullptr) {
  const int64_t groups = (k + group - 1) / group;
  Rounded out{std::vector<int8_t>(rows * k), std::vector<float>(rows * groups)};
  tier.round({w.data(), rows, k, group, dtype, scale_dtype, out.codes.data(), out.scales.data(), importance, feedback});
  return out;
}

double squared_error(const Rounded& r, const std::vector<float>& w, int64_t k, int64_t group) {
  const int64_t groups = (k + group - 1) / group;
  double error = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(w.size()); ++i) {
    const double d = w[i] - static_cast<double>(r.scales[i / k * groups + i % k / group]) * r.codes[i];
    error += d * d;
  }
  return error;
}

void check_round(Report& report, const Kernels& tier, const Kernels& scalar, int64_t k, int64_t group, DType dtype,
                 DType scale_dtype) {
  constexpr int64_t kRows = 5;
  report.begin(sizes({{"k", k}, {"group", group}, {"dtype", static_cast<int>(dtype)}}));
  Random random(static_cast<uint64_t>(k + group));
  std::vector<float> w;  // near to normal
  for (int64_t i = 0; i < kRows * k; ++i)
    w.push_back(0.02f * (random.next() + random.next() + random.next() + random.next()));
  for (int64_t i = 0; i < k; ++i) w[k + i] = 0.0f;  // a row of zeros
  const Rounded got = round(tier, w, kRows, k, group, dtype, scale_dtype);
  const Rounded wanted = round(scalar, w, kRows, k, group, dtype, scale_dtype);
  report.same_bits(got.scales, wanted.scales, "scales");
  report.same_bits(as_floats(got.codes), as_floats(wanted.codes), "codes");
  report.same_bits(got.scales, rounded(got.scales, scale_dtype), "scales are of their dtype");

  // Plain rounding, the largest weight at the lowest code: int8 is that, int4 must be better.
  Rounded plain = got;
  const int64_t groups = (k + group - 1) / group;
  for (int64_t i = 0; i < kRows * k; ++i) {
    const int64_t row = i / k, g = i % k / group;
    float extreme = 0;
    for (int64_t j = g * group; j < k && j < (g + 1) * group; ++j) {
      if (fabsf(w[row * k + j]) > fabsf(extreme)) extreme = w[row * k + j];
    }
    const float scale = rounded({dtype == DType::int4 ? extreme / -8 : fabsf(extreme) / 127}, scale_dtype)[0];
    plain.scales[row * groups + g] = scale;
    const float code = scale == 0 ? 0 : rintf(w[i] / scale);
    plain.codes[i] =
        static_cast<int8_t>(dtype == DType::int4 ? fminf(fmaxf(code, -8), 7) : fminf(fmaxf(code, -127), 127));
  }
  const double error = squared_error(got, w, k, group), of_plain = squared_error(plain, w, k, group);
  report.holds(error <= of_plain * (dtype == DType::int4 && group >= 32 && k >= 32 ? 0.98 : 1.0001),
               "rounding is as good as it should be");
}

// With importance: the same bits in every tier, and less of the error that is meant.
void check_calibrated_round(Report& report, const Kernels& tier, const Kernels& scalar, int64_t rows, int64_t k,
                            int64_t group, DType dtype) {
  report.begin(sizes({{"rows", rows}, {"k", k}, {"group", group}, {"dtype", static_cast<int>(dtype)}}));
  Random random(static_cast<uint64_t>(k + group + rows));
  std::vector<float> w(rows * k), importance(k);
  for (float& value : w) value = 0.02f * (random.next() + random.next() + random.next() + random.next());
  for (float& value : importance) value = expf(3.0f * random.next());
  const Rounded weighed = round(tier, w, rows, k, group, dtype, DType::f16, importance.data());
  const Rounded same = round(scalar, w, rows, k, group, dtype, DType::f16, importance.data());
  report.same_bits(weighed.scales, same.scales, "weighed scales");
  report.same_bits(as_floats(weighed.codes), as_floats(same.codes), "weighed codes");
  const std::vector<float> ones(k, 1.0f);
  const Rounded equal = round(tier, w, rows, k, group, dtype, DType::f16, ones.data());
  report.same_bits(equal.scales, round(tier, w, rows, k, group, dtype, DType::f16).scales,
                   "an importance of 1 is none");
}

// With feedback: the same bits in every tier; feedback of zeros is none.
void check_feedback(Report& report, const Kernels& tier, const Kernels& scalar, int64_t rows, int64_t k, int64_t group,
                    DType dtype) {
  report.begin(sizes({{"feedback rows", rows}, {"k", k}, {"group", group}, {"dtype", static_cast<int>(dtype)}}));
  Random random(static_cast<uint64_t>(k + group + rows));
  std::vector<float> w(rows * k), feedback(2 * k * kFeedback);
  for (float& value : w) value = 0.02f * (random.next() + random.next());
  for (int64_t i = 0; i < k; ++i) w[i] = 0.0f;  // a row of zeros
  for (float& value : feedback) value = random.next() * powf(static_cast<float>(k), -0.5f);
  const Rounded got = round(tier, w, rows, k, group, dtype, DType::f32, nullptr, feedback.data());
  const Rounded wanted = round(scalar, w, rows, k, group, dtype, DType::f32, nullptr, feedback.data());
  report.same_bits(got.scales, wanted.scales, "scales");
  report.same_bits(as_floats(got.codes), as_floats(wanted.codes), "codes");
  const Rounded plain = round(tier, w, rows, k, group, dtype, DType::f32);
  report.holds(k < 64 || rows == 1 || plain.codes != got.codes, "feedback changes codes");
  const std::vector<float> zeros(2 * k * kFeedback, 0.0f);
  const Rounded none = round(tier, w, rows, k, group, dtype, DType::f32, nullptr, zeros.data());
  report.same_bits(as_floats(none.codes), as_floats(plain.codes), "codes with feedback of zeros");
}

}  // namespace

void check_quantize(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const Form form : {Form::i8_rows, Form::i8_pairs, Form::i16_rows, Form::i16_pairs}) {
    for (const int64_t dim : {1, 15, 16, 37, 128, 517}) {
      for (const int64_t group : {16, 32, 128, 1000}) {
        for (const int64_t rows : {1, 2, 5}) check_operand(report, tier, form, rows, dim, group, rows == 2);
      }
    }
    for (const int64_t rows : {1, 2, 5}) {
      for (const int64_t dim : {64, 128, 256, 576, 640, 704, 896, 2048, 2944})
        check_turned(report, tier, scalar, form, rows, dim, dim);
      for (const int64_t dim : {192, 576, 1280})
        check_turned(report, tier, scalar, form, rows, dim, dim == 1280 ? 512 : 192);
    }
    check_not_finite(report, tier, form);
  }
  for (const Form form : {Form::f32_rows, Form::bf16_rows, Form::bf16_pairs, Form::f16_rows}) {
    for (const int64_t dim : {1, 16, 37, 130}) check_float_form(report, tier, form, dim);
  }
}

void check_round(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const DType dtype : {DType::int8, DType::int4}) {
    for (const DType scale_dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const int64_t k : {16, 37, 256, 1000}) {
        for (const int64_t group : {16, 32, 128, 1000}) check_round(report, tier, scalar, k, group, dtype, scale_dtype);
      }
    }
    for (const int64_t k : {16, 37, 64, 200, 256}) {
      for (const int64_t group : {16, 128})
        check_calibrated_round(report, tier, scalar, k % 3 ? 5 : 17, k, group, dtype);
      for (const int64_t group : {16, 128, 1000}) check_feedback(report, tier, scalar, k % 3 ? 5 : 17, k, group, dtype);
    }
  }
}

}  // namespace forearm::checks
