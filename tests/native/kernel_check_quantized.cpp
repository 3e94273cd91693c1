// gemm and embed of codes: integers by 8 or 16 bits the same bits as scalar in every tier, fp8 where the tier widens to
// float32, else within its roundings; all near float64, whatever rows and columns go together.
#include "kernel_check_quantized.h"

#include <math.h>

namespace forearm::checks {
namespace {

struct Case {
  int64_t m;
  CodeShape w;  // gated: packed rows, whole pairs of panels
  Epilogue epilogue;
  bool wide;  // activations of 16 bits, of fp8 always floats

  bool floats() const { return is_fp8(w.dtype); }
};

// A case with its inputs. The operand is quantized, or rounded to its form, by the tier itself.
class Problem {
 public:
  Problem(const Case& c, const Kernels& tier)
      : case_(c), matrix_(c.w, static_cast<uint64_t>(c.m * 31 + c.w.n * 7 + c.w.k)), packed_(tier, matrix_) {
    Random random(static_cast<uint64_t>(c.m + c.w.k));
    a_ = random.floats(c.m * c.w.k, 3.0f);
    bias_ = random.floats(c.w.n);
    residual_ = random.floats(c.m * columns());
    scratch_.resize(tier.gemm_scratch_bytes(c.w.k) + 64, 0x7f);
    form_ = tier.layout[static_cast<int>(c.floats() ? tier.wide : c.w.dtype)].form;
    if (c.wide && !c.floats()) form_ = in_16_bits(form_);
  }
  int64_t columns() const { return case_.epilogue == Epilogue::gated ? case_.w.n / 2 : case_.w.n; }

  // Rows and columns by pieces of at most so many.
  std::vector<float> multiply(const Kernels& tier, int64_t row_piece, int64_t column_piece) {
    const Rows floats(case_.floats() ? form_ : Form::f32_rows, case_.m, case_.w.k, &a_);
    CodeRows codes(case_.floats() ? Form::i8_rows : form_, case_.m, case_.w.k, case_.w.group);
    if (!case_.floats()) {
      tier.quantize({a_.data(), case_.w.k, 0, case_.m, case_.w.k, nullptr, codes.operand()});
    }
    const Rows out(Form::f32_rows, case_.m, columns(), case_.epilogue == Epilogue::add ? &residual_ : nullptr);
    GemmTask task{};
    task.a = case_.floats() ? floats.operand() : codes.operand();
    task.w = packed_.weights();
    task.bias = bias_.data();
    task.epilogue = case_.epilogue;
    task.activation = Activation::silu;
    task.scale = 0.75f;
    task.softcap = 2.5f;
    task.out = out.operand();
    task.scratch = aligned(scratch_);
    for (int64_t row = 0; row < case_.m; row += row_piece) {
      for (int64_t n = 0; n < case_.w.n; n += column_piece) {
        task.row_begin = row;
        task.row_end = row + row_piece < case_.m ? row + row_piece : case_.m;
        task.n_begin = n;
        task.n_end = n + column_piece < case_.w.n ? n + column_piece : case_.w.n;
        tier.gemm(task);
      }
    }
    return out.values();
  }

  // Epilogue store alone: other epilogues are checked against it by kernel_check_gemm.
  void against_float64(Report& report, const Kernels& tier, const std::vector<float>& got) const {
    const std::vector<double> a = operand(false), of_a = operand(true);
    const std::vector<double> w = weights(&CodeMatrix::value), sizes = weights(&CodeMatrix::magnitude);
    // Of a sum: groups (fp8: k) roundings of it, of its products two each; bf16 rounds weights to 2^-8.
    const bool bf16 = case_.floats() && tier.wide == DType::bf16;
    const double relative =
        (case_.floats() ? 2.0 * case_.w.k + 8 : 4.0 * case_.w.groups() + 9) * kUnit + (bf16 ? 0x1p-8 : 0);
    std::vector<double> wanted, tolerance;
    for (int64_t r = 0; r < case_.m; ++r) {
      for (int64_t n = 0; n < case_.w.n; ++n) {
        const double *x = a.data() + r * case_.w.k, *of_x = of_a.data() + r * case_.w.k;
        const double *y = w.data() + n * case_.w.k, *z = sizes.data() + n * case_.w.k;
        double sum = bias_[n], magnitude = fabs(sum);
        for (int64_t k = 0; k < case_.w.k; ++k) {
          sum += x[k] * y[k];
          magnitude += of_x[k] * z[k];
        }
        wanted.push_back(0.75 * sum);
        tolerance.push_back(relative * magnitude);
      }
    }
    report.within(got, wanted, tolerance, "out against float64");
  }

 private:
  // What is multiplied, [m, k], or its size: sums of digits with their scales, or floats rounded to the form.
  std::vector<double> operand(bool size) const {
    const auto part = [size](double x) { return size ? fabs(x) : x; };
    std::vector<double> values;
    if (case_.floats()) {
      for (const float x : Rows(form_, case_.m, case_.w.k, &a_).values()) values.push_back(part(x));
      return values;
    }
    const int64_t digits = digits_of(form_);
    CodeRows codes(digits == 2 ? Form::i16_rows : Form::i8_rows, case_.m, case_.w.k, case_.w.group);
    find_tier("scalar")->quantize({a_.data(), case_.w.k, 0, case_.m, case_.w.k, nullptr, codes.operand()});
    for (int64_t r = 0; r < case_.m; ++r) {
      for (int64_t k = 0; k < case_.w.k; ++k) {
        double value = 0;
        for (int64_t d = r * digits; d < (r + 1) * digits; ++d)
          value += part(static_cast<double>(codes.code(d, k)) * codes.scales()[d * codes.groups() + k / case_.w.group]);
        values.push_back(value);
      }
    }
    return values;
  }

  // Of each weight [n, k], once for all rows.
  std::vector<double> weights(double (CodeMatrix::*of)(int64_t n, int64_t k) const) const {
    std::vector<double> values;
    for (int64_t n = 0; n < case_.w.n; ++n) {
      for (int64_t k = 0; k < case_.w.k; ++k) values.push_back((matrix_.*of)(n, k));
    }
    return values;
  }

  Case case_;
  CodeMatrix matrix_;
  PackedCodes packed_;
  std::vector<float> a_, bias_, residual_;
  std::vector<char> scratch_;
  Form form_;
};

void check_case(Report& report, const Kernels& tier, const Kernels& scalar, const Case& c) {
  report.begin(sizes({{"m", c.m},
                      {"n", c.w.n},
                      {"k", c.w.k},
                      {"group", c.w.group},
                      {"dtype", static_cast<int>(c.w.dtype)},
                      {"scale", static_cast<int>(c.w.scale_dtype)},
                      {"zero", static_cast<int>(c.w.zero)},
                      {"epilogue", static_cast<int>(c.epilogue)},
                      {"wide", c.wide}}));
  Problem problem(c, tier);
  const std::vector<float> out = problem.multiply(tier, c.m, c.w.n);
  if (c.epilogue == Epilogue::store) problem.against_float64(report, tier, out);
  const int64_t width = c.epilogue == Epilogue::gated ? 32 : 16;
  report.same_bits(problem.multiply(tier, c.m > 8 ? 7 : 2, 2 * width), out, "out in pieces");
  report.same_bits(problem.multiply(tier, 1, c.w.n), out, "out row by row");
  if (!c.floats() || tier.wide == scalar.wide) {
    report.same_bits(out, Problem(c, scalar).multiply(scalar, c.m, c.w.n), "out");
  }
}

// Shapes, groups, scales, zeros and epilogues in turn, so that each meets each within a few hundred cases.
void check_dtype(Report& report, const Kernels& tier, const Kernels& scalar, DType dtype, bool wide) {
  constexpr Epilogue kEpilogues[] = {Epilogue::store, Epilogue::add, Epilogue::activate, Epilogue::gated,
                                     Epilogue::softcap};
  constexpr DType kScales[] = {DType::f32, DType::f16, DType::bf16, DType::e8m0};
  const bool fp8 = is_fp8(dtype);
  int turn = 0;
  for (int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 25, 40, 53}) {
    for (int64_t n : {1, 48, 137, 272}) {
      for (int64_t k : {16, 37, 256, 517}) {
        for (int64_t group : {16, 32, 64, 128, 600}) {
          if (turn++ % 3 || (report.few() && turn / 3 % 7)) continue;
          const Epilogue epilogue = kEpilogues[turn / 3 % 5];
          const int64_t columns = epilogue == Epilogue::gated ? round_up(n, 32) : n;
          const int64_t values = group == 128 && turn / 15 % 2 ? 192 : group;
          const Zero zero = fp8 ? Zero::none : static_cast<Zero>(turn / 9 % 3);
          check_case(report, tier, scalar,
                     {m, {columns, k, values, dtype, kScales[turn / 6 % 4], zero}, epilogue, wide});
        }
      }
    }
  }
  // More k than a strip and more rows than a block (ops/gemm/gemm_dequant.h).
  const CodeShape large = {64, report.few() ? 656 : 2304, 128, dtype, DType::bf16, Zero::none};
  for (int64_t m : {1, 6, report.few() ? 98 : 130}) check_case(report, tier, scalar, {m, large, Epilogue::store, wide});
}

}  // namespace

void check_codes(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (DType dtype : {DType::int8, DType::int6, DType::int4, DType::fp4_e2m1})
    check_dtype(report, tier, scalar, dtype, false);
}

void check_wide(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (DType dtype : {DType::int8, DType::int6, DType::int4, DType::fp4_e2m1, DType::fp8_e4m3, DType::fp8_e5m2}) {
    check_dtype(report, tier, scalar, dtype, true);
  }
}

void check_embed_codes(Report& report, const Kernels& tier, const Kernels&) {
  for (DType dtype : {DType::int8, DType::int6, DType::int4, DType::fp4_e2m1, DType::fp8_e4m3, DType::fp8_e5m2}) {
    for (int64_t k : {16, 37, 256}) {
      for (int64_t group : {16, 32, 300}) {
        for (Zero zero : {Zero::none, Zero::zeros, Zero::offsets}) {
          const CodeShape shape = {45, k, group, dtype, DType::f16, zero};
          report.begin(sizes({{"k", k}, {"group", group}, {"dtype", static_cast<int>(dtype)}}));
          const CodeMatrix matrix(shape, static_cast<uint64_t>(k));
          const PackedCodes packed(tier, matrix);
          const std::vector<int32_t> tokens = {44, 0, 17};
          const Rows out(Form::f32_rows, 3, k);
          tier.embed({tokens.data(), 3, packed.weights(), 1.5f, static_cast<float*>(out.operand().data),
                      out.operand().stride});
          std::vector<float> wanted;
          for (int32_t token : tokens) {
            for (int64_t i = 0; i < k; ++i) {
              const auto value =
                  fmaf(static_cast<float>(matrix.scale(token, i)), static_cast<float>(matrix.code(token, i)),
                       static_cast<float>(matrix.offset(token, i)));
              wanted.push_back(1.5f * value);
            }
          }
          report.same_bits(out.values(), wanted, "rows");
        }
      }
    }
  }
}

}  // namespace forearm::checks
