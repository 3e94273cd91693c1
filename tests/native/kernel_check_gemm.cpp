// gemm and embed: the same bits as scalar where A is rows, within BFMMLA's rounding where it is bf16 pairs.
#include <math.h>
#include <string.h>

#include "kernel_check.h"

namespace forearm::checks {
namespace {

struct Shape {
  int64_t m, n, k;
  DType dtype;
  Epilogue epilogue;
  Activation activation;
  bool bias;
};

// One multiplication's inputs, unpacked. Gated: rows of W in packed order, gate and up panels alternating, and n is the
// count of packed columns less what the last pair lacks.
constexpr Xielu kXielu{0.8f, 1.3f, 0.5f, -1e-6f};

struct Problem {
  Shape shape;
  std::vector<float> a, w, bias, residual;
  float scale, softcap;

  Problem(const Shape& s, uint64_t seed, DType operand) : shape(s), scale(0.75f), softcap(2.5f) {
    Random random(seed);
    a = rounded(random.floats(s.m * s.k), operand);
    w = rounded(random.floats(packed_rows() * s.k, 0.5f), s.dtype);
    bias = random.floats(packed_rows());
    residual = random.floats(s.m * out_columns());
  }
  bool gated() const { return shape.epilogue == Epilogue::gated; }
  int64_t packed_rows() const { return gated() ? round_up(out_columns(), 16) * 2 : shape.n; }
  int64_t out_columns() const { return gated() ? shape.n / 2 : shape.n; }
};

struct Cut {
  int64_t row_begin, row_end, n_begin, n_end;
};

// The output of the cuts of one problem, in `form`.
std::vector<float> multiply(const Kernels& tier, const Problem& p, Form form, const std::vector<Cut>& cuts,
                            bool* padding_is_zero = nullptr) {
  const Shape& s = p.shape;
  const Rows a(tier.layout[static_cast<int>(s.dtype)].form, s.m, s.k, &p.a);
  Packed w(tier, s.dtype, p.w, p.packed_rows(), s.k);
  const bool adds = s.epilogue == Epilogue::add;
  const Rows out(form, s.m, p.out_columns(), adds ? &p.residual : nullptr);
  for (const Cut& cut : cuts) {
    tier.gemm({a.operand(),
               cut.row_begin,
               cut.row_end,
               {w.data(), s.dtype, s.n, s.k},
               cut.n_begin,
               cut.n_end,
               s.bias ? p.bias.data() : nullptr,
               s.epilogue,
               s.activation,
               p.scale,
               p.softcap,
               out.operand(),
               nullptr,
               &kXielu});
  }
  if (padding_is_zero) *padding_is_zero = out.padding_is_zero();
  return out.values();
}

double activated(Activation kind, double x) {
  switch (kind) {
    case Activation::none:
      return x;
    case Activation::silu:
      return x / (1 + exp(-x));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf:
      return 0.5 * x * (1 + erf(x * 0.7071067811865476));
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::relu_squared:
      return x > 0 ? x * x : 0;
    case Activation::xielu:
      return kXielu.linear * x + (x > 0 ? kXielu.positive * x * x : kXielu.negative * (expm1(x) - x));
    case Activation::swiglu_oai:  // has no half of its own: tests/kernels/test_gemm.py
      return x;
  }
  return 0;
}

// A sum in float64, and how far a tier's sum may be from it.
struct Sum {
  double value, error;
};

// f32_rows: k roundings to nearest, so at most k units of the sum of magnitudes (Higham, Accuracy and Stability of
// Numerical Algorithms, section 3.1). bf16_rows (VDPBF16PS, TDPBF16PS): the same, since products of bf16 are exact.
// bf16_pairs: per two k one addition of products and one to the sum, each rounded to odd, two units at most.
Sum exact_sum(const Problem& p, int64_t row, int64_t column, Form form) {
  double sum = 0, magnitude = 0;
  for (int64_t k = 0; k < p.shape.k; ++k) {
    const double product = static_cast<double>(p.a[row * p.shape.k + k]) * p.w[column * p.shape.k + k];
    sum += product;
    magnitude += fabs(product);
  }
  const double roundings = form == Form::bf16_pairs ? 2 * (p.shape.k + 4) : p.shape.k;
  if (p.shape.bias) sum += p.bias[column];
  return {sum, roundings * kUnit * magnitude + kUnit * fabs(sum)};
}

// What `f` makes of a sum's error, with `ulps` roundings of its own.
template <typename F>
void expect(F f, const Sum& sum, double ulps, std::vector<double>* wanted, std::vector<double>* tolerance) {
  const double value = f(sum.value);
  const double spread = fmax(fabs(f(sum.value + sum.error) - value), fabs(f(sum.value - sum.error) - value));
  wanted->push_back(value);
  tolerance->push_back(2 * spread + ulps * kUnit * (fabs(value) + fabs(sum.value)) + 0x1p-126);
}

void against_float64(Report& report, const Problem& p, const std::vector<float>& got, Form form) {
  const Shape& s = p.shape;
  std::vector<double> wanted, tolerance;
  for (int64_t row = 0; row < s.m; ++row) {
    for (int64_t column = 0; column < p.out_columns(); ++column) {
      if (p.gated()) {
        const int64_t packed = column / 16 * 32 + column % 16;
        const Sum up = exact_sum(p, row, packed + 16, form);
        const double gate_limit = fabs(activated(s.activation, p.scale * exact_sum(p, row, packed, form).value));
        expect([&](double x) { return activated(s.activation, p.scale * x) * up.value; },
               exact_sum(p, row, packed, form), 16, &wanted, &tolerance);
        tolerance.back() += gate_limit * up.error + 16 * kUnit * fabs(up.value);
        continue;
      }
      const Sum sum = exact_sum(p, row, column, form);
      const double residual = s.epilogue == Epilogue::add ? p.residual[row * s.n + column] : 0;
      expect(
          [&](double x) {
            if (s.epilogue == Epilogue::activate) return activated(s.activation, x);
            if (s.epilogue == Epilogue::softcap) return p.softcap * tanh(p.scale * x / p.softcap);
            return p.scale * x + residual;
          },
          sum, 16, &wanted, &tolerance);
    }
  }
  report.within(got, wanted, tolerance, "out against float64");
}

// The same problem with each pair of k exchanged: scalar adds the products, which are exact in float32, in the order in
// which VDPBF16PS does.
Problem odd_first(Problem p) {
  const auto exchanged = [&](const std::vector<float>& values) {
    const int64_t k = p.shape.k, even = round_up(k, 2);
    std::vector<float> out(static_cast<int64_t>(values.size()) / k * even);
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) out[i / k * even + (i % k ^ 1)] = values[i];
    return out;
  };
  p.a = exchanged(p.a);
  p.w = exchanged(p.w);
  p.shape.k = round_up(p.shape.k, 2);
  return p;
}

// As TDPBF16PS adds up 32 k: a chain of the even ones, one of the odd ones, and their sum to what was there (Intel's
// manual, volume 2B); products of bf16 are exact in float32.
float sum_in_steps(const float* a, const float* w, int64_t k) {
  float sum = 0;
  for (int64_t first = 0; first < k; first += 32) {
    float even = 0, odd = 0;
    for (int64_t i = first; i < first + 32; i += 2) {
      even += a[i] * w[i];
      odd += a[i + 1] * w[i + 1];
    }
    sum += even + odd;
  }
  return sum;
}

// The same problem with those sums as its weights and the identity as its rows.
Problem summed_in_steps(Problem p) {
  const int64_t m = p.shape.m, k = p.shape.k;
  std::vector<float> sums(static_cast<size_t>(p.packed_rows() * m)), identity(static_cast<size_t>(m * m));
  for (int64_t row = 0; row < m; ++row) {
    identity[row * m + row] = 1;
    for (int64_t n = 0; n < p.packed_rows(); ++n) sums[n * m + row] = sum_in_steps(&p.a[row * k], &p.w[n * k], k);
  }
  p.a = identity;
  p.w = sums;
  p.shape.k = m;
  p.shape.dtype = DType::f32;
  return p;
}

// The problem that scalar computes to the same bits, for a tier that takes rows of this form.
Problem same_for_scalar(const Kernels& tier, const Problem& p, Form form) {
  if (form != Form::bf16_rows) return p;
  const bool in_steps = strcmp(tier.tier, "avx512_amx") == 0 && p.shape.k % 32 == 0;
  return in_steps ? summed_in_steps(p) : odd_first(p);
}

// Rows cut at odd places and columns at every panel (or pair of panels), last piece first.
std::vector<Cut> pieces(const Problem& p) {
  const int64_t width = p.gated() ? 32 : 16;
  std::vector<Cut> cuts;
  int64_t row_begin = 0;
  for (int64_t row_end = p.shape.m; row_end > 0; row_end = row_begin) {
    row_begin = row_end < 3 ? 0 : row_end - row_end % 3 - 1;
    const int64_t columns = p.gated() ? p.packed_rows() : p.shape.n;
    for (int64_t n = (columns - 1) / width * width; n >= 0; n -= width) {
      cuts.push_back({row_begin, row_end, n, n + width < columns ? n + width : columns});
    }
  }
  return cuts;
}

void check_shape(Report& report, const Kernels& tier, const Kernels& scalar, const Shape& s) {
  report.begin(sizes({{"m", s.m},
                      {"n", s.n},
                      {"k", s.k},
                      {"dtype", static_cast<int>(s.dtype)},
                      {"epilogue", static_cast<int>(s.epilogue)},
                      {"activation", static_cast<int>(s.activation)},
                      {"bias", s.bias}}));
  const Form form = tier.layout[static_cast<int>(s.dtype)].form;
  const Problem p(s, static_cast<uint64_t>(s.m * 7919 + s.n * 31 + s.k), operand_dtype(form));
  const Cut whole = {0, s.m, 0, p.gated() ? p.packed_rows() : s.n};

  bool padding_is_zero = false;
  const std::vector<float> out = multiply(tier, p, Form::f32_rows, {whole}, &padding_is_zero);
  report.holds(padding_is_zero, "nothing is written beyond the columns");
  against_float64(report, p, out, form);
  if (form != Form::bf16_pairs) {
    report.same_bits(out, multiply(scalar, same_for_scalar(tier, p, form), Form::f32_rows, {whole}), "out");
  }
  report.same_bits(multiply(tier, p, Form::f32_rows, pieces(p)), out, "out in slices");
  if (s.epilogue == Epilogue::add) return;
  for (const Form narrow : {Form::bf16_rows, Form::bf16_pairs, Form::f16_rows}) {
    report.same_bits(multiply(tier, p, narrow, {whole}, &padding_is_zero), rounded(out, operand_dtype(narrow)),
                     "out in 16 bits");
    report.holds(padding_is_zero, "nothing is written beyond the columns of 16 bits");
  }
}

}  // namespace

void check_gemm(Report& report, const Kernels& tier, const Kernels& scalar) {
  constexpr Epilogue kEpilogues[] = {Epilogue::store, Epilogue::add, Epilogue::activate, Epilogue::gated,
                                     Epilogue::softcap};
  constexpr Activation kActivations[] = {Activation::none,     Activation::silu, Activation::gelu_tanh,
                                         Activation::gelu_erf, Activation::relu, Activation::relu_squared,
                                         Activation::xielu};
  int turn = 0;
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 25, 37, 53}) {
      for (int64_t n : {1, 16, 34, 160, 272}) {
        for (int64_t k : {1, 2, 3, 5, 96, 131}) {
          if (const int at = turn++; !report.few() || at % 7 % 3 == 0) {
            const Epilogue epilogue = kEpilogues[at % 5];
            const int64_t columns = epilogue == Epilogue::gated ? round_up(n, 2) : n;
            check_shape(report, tier, scalar,
                        {m, columns, k, dtype, epilogue, kActivations[at / 5 % (epilogue == Epilogue::gated ? 6 : 7)],
                         at % 3 != 0});
          }
        }
      }
    }
  }
}

void check_embed(Report& report, const Kernels& tier, const Kernels&) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (int64_t n : {1, 16, 45}) {
      for (int64_t k : {1, 2, 3, 16, 97}) {
        report.begin(sizes({{"n", n}, {"k", k}, {"dtype", static_cast<int>(dtype)}}));
        const std::vector<float> table = rounded(Random(static_cast<uint64_t>(n + k)).floats(n * k), dtype);
        Packed w(tier, dtype, table, n, k);
        const std::vector<int32_t> tokens = {static_cast<int32_t>(n - 1), 0, static_cast<int32_t>(n / 2)};
        const Rows out(Form::f32_rows, 3, k);
        const auto stride = out.operand().stride;
        tier.embed({tokens.data(), 3, {w.data(), dtype, n, k}, 1.5f, static_cast<float*>(out.operand().data), stride});

        std::vector<float> wanted;
        for (int32_t token : tokens) {
          for (int64_t i = 0; i < k; ++i) wanted.push_back(1.5f * table[token * k + i]);
        }
        report.same_bits(out.values(), wanted, "rows");
        report.holds(out.padding_is_zero(), "nothing is written beyond the columns");
      }
    }
  }
}

}  // namespace forearm::checks
