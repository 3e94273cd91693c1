// f16_scaled: rows and weights by powers of two, products in 16 bits. The same bits as scalar; scalar within the bound
// that the roundings give, which is no wider than what rounding activations to bf16 for BFMMLA costs.
#include <math.h>

#include "kernel_check.h"
#include "kernels/pack.h"

namespace forearm::checks {
namespace {

constexpr double kHalf = 0x1p-11;       // relative error of one rounding to f16
constexpr double kLastPlace = 0x1p-25;  // and the absolute one, of denormals
constexpr double kBfloat = 0x1p-8;      // relative error of one rounding to bf16
constexpr int64_t kManyRows = 97;
constexpr int64_t kTop = int64_t{1} << kScaledTop;

// Rows in the form, zeroed or quantized from values [rows, dim].
struct ScaledRows {
  ScaledRows(const Kernels& tier, int64_t rows, int64_t dim, const std::vector<float>& values,
             const int32_t* order = nullptr)
      : stride(round_up(dim, kScaledBlock) + 32), codes(rows * stride), scales(rows) {
    tier.quantize({values.data(), dim, 0, rows, dim, order, operand()});
  }
  Operand operand() { return {codes.data(), stride, Form::f16_scaled, stride, scales.data(), nullptr}; }
  float value(int64_t row, int64_t k) const { return scales[row] * widen(codes[row * stride + k], DType::f16); }

  int64_t stride;
  std::vector<uint16_t> codes;
  std::vector<float> scales;
};

// Weights of bf16, packed by panels; gated: gate and up panels alternating.
struct ScaledWeights {
  ScaledWeights(const std::vector<float>& values, int64_t n, int64_t k, DType from = DType::f32)
      : codes(packed_elements(n, k, 1)), scales(scales_count(n, 1)) {
    const PackedMatrix to = {codes.data(), DType::f16_scaled, 1, k};
    std::vector<uint16_t> halves;
    for (const float value : values) halves.push_back(from == DType::f32 ? uint16_t{0} : narrow(value, from));
    const void* source = values.data();
    if (from != DType::f32) source = halves.data();
    pack_scaled(source, from, n, to, scales.data(), 0);
    back.resize(values.size());
    unpack_scaled(to, scales.data(), 0, n, back.data());
    weights = {codes.data(), DType::f16_scaled, n, k, k, scales.data()};
  }
  ScaledWeights(const ScaledWeights&) = delete;

  std::vector<uint16_t> codes;
  std::vector<float> scales, back;
  PackedWeights weights;
};

struct Shape {
  int64_t m, n, k;
  Epilogue epilogue;
};

// Activations as models have them: a few columns are a hundred times the others.
std::vector<float> activations(int64_t rows, int64_t k, uint64_t seed) {
  std::vector<float> a = Random(seed).floats(rows * k);
  for (int64_t i = 0; i < rows * k; ++i) a[i] *= i % k % 61 == 7 ? 100.0f : 1.0f;
  return a;
}

std::vector<float> multiply(const Kernels& tier, const Shape& s, ScaledRows& a, const ScaledWeights& w, bool pieces) {
  const int64_t columns = s.epilogue == Epilogue::gated ? s.n / 2 : s.n,
                width = s.epilogue == Epilogue::gated ? 32 : 16;
  const std::vector<float> bias = Random(5).floats(s.n), residual = Random(6).floats(s.m * columns);
  const Rows out(Form::f32_rows, s.m, columns, s.epilogue == Epilogue::add ? &residual : nullptr);
  const int64_t rows = pieces ? 1 + s.m / 3 : s.m, step = pieces ? width : round_up(s.n, width);
  for (int64_t row = 0; row < s.m; row += rows) {
    for (int64_t n = 0; n < s.n; n += step) {
      tier.gemm({a.operand(), row, row + rows < s.m ? row + rows : s.m, w.weights, n, n + step < s.n ? n + step : s.n,
                 s.epilogue == Epilogue::store ? nullptr : bias.data(), s.epilogue, Activation::silu,
                 s.epilogue == Epilogue::store ? 1.0f : 0.75f, 2.5f, out.operand(), nullptr});
    }
  }
  return out.values();
}

// 8 roundings of a product at most, one of them the activation's, each of a sum no larger than the magnitudes (Higham,
// section 3.1); denormals: each product's, and an activation's, half a last place, relative to the largest of the row
// and of the column, which are at least kTop; float32: a rounding for each block. In place of the 8, BFMMLA has one of
// bf16 and 2 (k + 4) of float32 (kernel_check_gemm.cpp).
void against_float64(Report& report, const Shape& s, const std::vector<float>& a, const ScaledWeights& w,
                     const std::vector<float>& got) {
  std::vector<double> wanted, tolerance;
  double squares = 0, bf16_squares = 0;
  bool no_wider = true;
  for (int64_t i = 0; i < s.m * s.n; ++i) {
    const float *row = &a[i / s.n * s.k], *column = &w.back[i % s.n * s.k];
    double sum = 0, bf16 = 0, magnitude = 0, row_top = 0, column_top = 0, column_sum = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      sum += static_cast<double>(row[k]) * column[k];
      bf16 += static_cast<double>(rounded({row[k]}, DType::bf16)[0]) * column[k];
      magnitude += fabs(static_cast<double>(row[k]) * column[k]);
      row_top = fmax(row_top, fabs(row[k]));
      column_top = fmax(column_top, fabs(column[k]));
      column_sum += fabs(column[k]);
    }
    const double blocks = static_cast<double>(round_up(s.k, kScaledBlock) / kScaledBlock);
    const double relative = pow(1 + kHalf, 8) - 1 + (blocks + 2) * kUnit;
    const double denormal = kLastPlace / kTop * row_top * (column_sum + static_cast<double>(s.k) / kTop * column_top);
    wanted.push_back(sum);
    tolerance.push_back(relative * magnitude + denormal);
    no_wider =
        no_wider && relative * magnitude + denormal <= (kBfloat + 2 * static_cast<double>(s.k + 4) * kUnit) * magnitude;
    squares += (got[i] - sum) * (got[i] - sum);
    bf16_squares += (bf16 - sum) * (bf16 - sum);
  }
  report.within(got, wanted, tolerance, "out against float64");
  report.holds(s.k < 192 || no_wider, "the bound is no wider than BFMMLA's");
  // 0.18 to 0.32 of them by the root of the mean square; of few rows, whose few large activations may happen to be near
  // to a bf16, up to 0.80.
  report.holds(s.m < kManyRows || squares < 0.25 * bf16_squares,
               "errors of many rows are less than half of those of activations in bf16");
}

void check_shape(Report& report, const Kernels& tier, const Kernels& scalar, const Shape& s) {
  report.begin(sizes({{"m", s.m}, {"n", s.n}, {"k", s.k}, {"epilogue", static_cast<int>(s.epilogue)}}));
  const auto seed = static_cast<uint64_t>(s.m * 7919 + s.n * 31 + s.k);
  const std::vector<float> a = activations(s.m, s.k, seed);
  const ScaledWeights w(rounded(Random(seed + 1).floats(s.n * s.k, 0.05f), DType::bf16), s.n, s.k);
  ScaledRows rows(tier, s.m, s.k, a);
  const std::vector<float> out = multiply(tier, s, rows, w, false);
  report.same_bits(multiply(tier, s, rows, w, true), out, "out in slices");
  report.same_bits(out, multiply(scalar, s, rows, w, false), "out");
  if (s.epilogue == Epilogue::store) against_float64(report, s, a, w, out);
}

// What one rounding to nearest cannot hide: sums that come out exactly half-way, and denormals.
void check_ties(Report& report, const Kernels& tier, const Kernels& scalar) {
  report.begin("ties and denormals");
  constexpr int64_t kK = 96, kN = 32;
  std::vector<float> a = Random(3).floats(4 * kK), w = Random(4).floats(kN * kK);
  for (size_t i = 0; i < a.size(); ++i)
    a[i] = i % 5 == 0 ? 1.0f : ldexpf(rounded({a[i]}, DType::bf16)[0], -static_cast<int>(i % 23));
  for (size_t i = 0; i < w.size(); ++i)
    w[i] = i % 7 == 0 ? -1.0f : ldexpf(rounded({w[i]}, DType::bf16)[0], -static_cast<int>(i % 19));
  const Shape s = {4, kN, kK, Epilogue::store};
  const ScaledWeights packed(w, kN, kK);
  ScaledRows rows(tier, 4, kK, a);
  report.same_bits(multiply(tier, s, rows, packed, false), multiply(scalar, s, rows, packed, false), "out");
}

// The largest codes of one sign: no sum may overflow.
void check_largest(Report& report, const Kernels& tier) {
  for (const float of : {0x1.fffffep-90f, 1.9999f, 0x1.fffffep100f}) {
    report.begin("the largest codes");
    constexpr int64_t kK = 256;
    const Shape s = {5, 16, kK, Epilogue::store};
    const std::vector<float> a(5 * kK, of);
    const ScaledWeights w(std::vector<float>(16 * kK, 1.9999f), 16, kK);
    ScaledRows rows(tier, 5, kK, a);
    for (const float sum : multiply(tier, s, rows, w, false))
      report.holds(fabs(sum / (static_cast<double>(of) * 1.9999 * kK) - 1) < kBfloat, "a sum is right");
  }
}

void check_not_finite(Report& report, const Kernels& tier) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    report.begin("infinity and NaN");
    const Shape s = {3, 16, 40, Epilogue::store};
    std::vector<float> a = Random(1).floats(3 * 40), values = Random(2).floats(16 * 40);
    a[40 + 7] = bad;
    values[3 * 40 + 5] = bad;
    const ScaledWeights w(values, 16, 40);
    ScaledRows rows(tier, 3, 40, a);
    const std::vector<float> out = multiply(tier, s, rows, w, false);
    for (int64_t i = 0; i < 3 * 16; ++i)
      report.holds(isnan(out[i]) == (i / 16 == 1 || i % 16 == 3), "the row and the column are NaN, and no others");
  }
}

void check_rows(Report& report, const Kernels& tier, int64_t dim, bool ordered) {
  report.begin(sizes({{"dim", dim}, {"ordered", ordered}}));
  std::vector<float> x = activations(3, dim, static_cast<uint64_t>(dim));
  for (int64_t i = 0; i < dim; ++i) x[dim + i] = 0.0f;
  std::vector<int32_t> order;
  for (int64_t i = 0; i < dim; ++i) order.push_back(static_cast<int32_t>((i * 7 + 3) % dim));
  const ScaledRows rows(tier, 3, dim, x, ordered ? order.data() : nullptr);
  std::vector<float> got, wanted;
  bool power = true, in_range = true, padding = true;
  for (int64_t i = 0; i < 3 * rows.stride; ++i) {
    const int64_t row = i / rows.stride, k = i % rows.stride;
    const float scale = rows.scales[row];
    int exponent;
    power = power && frexpf(scale, &exponent) == 0.5f;
    padding = padding && (k < dim || rows.codes[i] == 0);
    in_range = in_range && fabsf(widen(rows.codes[i], DType::f16)) <= 2 * kTop;
    if (k >= dim) continue;
    got.push_back(rows.value(row, k));
    wanted.push_back(scale * widen(narrow(x[row * dim + (ordered ? order[k] : k)] / scale, DType::f16), DType::f16));
  }
  report.same_bits(got, wanted, "rows");
  report.holds(power, "scales are powers of two");
  report.holds(in_range, "codes have room for 32 products");
  report.holds(padding, "nothing is written beyond the columns");
}

}  // namespace

void check_scaled(Report& report, const Kernels& tier, const Kernels& scalar) {
  constexpr Epilogue kEpilogues[] = {Epilogue::store,    Epilogue::gated, Epilogue::add,
                                     Epilogue::activate, Epilogue::store, Epilogue::softcap};
  int turn = 0;
  check_shape(report, tier, scalar, {kManyRows, 16, 192, Epilogue::store});
  for (const int64_t m : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{8}, kManyRows}) {
    for (const int64_t n : {16, 34, 96}) {
      for (const int64_t k : {1, 31, 32, 100, 192, 640}) {
        const Epilogue epilogue = kEpilogues[turn % 6];
        if (!report.few() || turn % 4 == 0 || (turn % 6 == 1 && m < 9))
          check_shape(report, tier, scalar, {m, epilogue == Epilogue::gated ? round_up(n, 32) : n, k, epilogue});
        ++turn;
      }
      ++turn;
    }
  }
  check_ties(report, tier, scalar);
  check_largest(report, tier);
  check_not_finite(report, tier);
  for (const int64_t dim : {1, 16, 37, 130}) {
    check_rows(report, tier, dim, false);
    check_rows(report, tier, dim, true);
  }
}

// What packing keeps: every weight of bf16 from 2^-21 of the row's largest on, of f16 from 2^-18 on, exactly; what is
// smaller to half of 2^-28.
void check_pack_scaled(Report& report, const Kernels& tier, const Kernels&) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const int64_t n : {1, 16, 45}) {
      report.begin(sizes({{"n", n}, {"dtype", static_cast<int>(dtype)}}));
      constexpr int64_t kK = 75;
      std::vector<float> values = Random(static_cast<uint64_t>(n)).floats(n * kK);
      for (int64_t i = 0; i < n * kK; ++i)
        values[i] = rounded({ldexpf(values[i], static_cast<int>(i / kK % 5) - static_cast<int>(i % 29))}, dtype)[0];
      const ScaledWeights w(values, n, kK, dtype);
      const int exact = dtype == DType::bf16 ? -21 : dtype == DType::f16 ? -18 : 1;
      bool kept = true, near = true;
      for (int64_t row = 0; row < n; ++row) {
        const double top = w.scales[row / 16 * 16 + row % 16] * kTop;
        for (int64_t i = row * kK; i < (row + 1) * kK; ++i) {
          kept = kept && (fabs(values[i]) < ldexp(top, exact) || w.back[i] == values[i]);
          near = near && fabs(w.back[i] - values[i]) <= fmax(fabs(values[i]) * kHalf, top * 0x1p-29);
        }
      }
      report.holds(kept, "weights of 16 bits are kept");
      report.holds(near, "smaller ones are rounded");

      const std::vector<int32_t> tokens = {static_cast<int32_t>(n - 1), 0};
      const Rows out(Form::f32_rows, 2, kK);
      tier.embed({tokens.data(), 2, w.weights, 1.0f, static_cast<float*>(out.operand().data), out.operand().stride});
      std::vector<float> wanted;
      for (const int32_t token : tokens) wanted.insert(wanted.end(), &w.back[token * kK], &w.back[token * kK] + kK);
      report.same_bits(out.values(), wanted, "embed");
    }
  }
}

}  // namespace forearm::checks
