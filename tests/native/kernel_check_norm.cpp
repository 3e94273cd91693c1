// norm, add_norm, head_norm and rope: the same bits as scalar.
#include "kernel_check.h"

namespace forearm::checks {
namespace {

constexpr int64_t kDims[] = {1, 7, 16, 20, 63, 64, 100, 257, 1536};

void check_rows(Report& report, const Kernels& tier, const Kernels& scalar, int64_t dim, bool layer_norm, Form form) {
  constexpr int64_t kRows = 5;
  report.begin(sizes({{"norm dim", dim}, {"layer_norm", layer_norm}, {"form", static_cast<int>(form)}}));
  Random random(dim);
  const auto values = random.floats(kRows * dim, 3.0f), weight = random.floats(dim), bias = random.floats(dim);
  const Rows x(Form::f32_rows, kRows, dim, &values);
  const auto run = [&](const Kernels& k, int64_t begin, int64_t end, const Rows& out) {
    const Operand from = x.operand();
    k.norm({static_cast<const float*>(from.data), from.stride, begin, end, dim, weight.data(),
            layer_norm ? bias.data() : nullptr, 1e-5f, layer_norm, out.operand()});
  };
  const Rows wanted(form, kRows, dim), whole(form, kRows, dim), pieces(form, kRows, dim);
  run(scalar, 0, kRows, wanted);
  run(tier, 0, kRows, whole);
  for (int64_t row = kRows - 1; row >= 0; --row) run(tier, row, row + 1, pieces);
  report.same_bits(whole.values(), wanted.values(), "norm");
  report.same_bits(pieces.values(), wanted.values(), "norm row by row");
  report.holds(whole.padding_is_zero(), "norm leaves the padding zero");
}

void check_residual(Report& report, const Kernels& tier, const Kernels& scalar, int64_t dim) {
  constexpr int64_t kRows = 3;
  report.begin(sizes({{"add_norm dim", dim}}));
  Random random(dim + 1);
  const auto x = random.floats(kRows * dim), weight = random.floats(dim), residual = random.floats(kRows * dim);
  const auto run = [&](const Kernels& k) {
    const Rows out(Form::f32_rows, kRows, dim, &residual);
    k.add_norm({{x.data(), dim, 0, kRows, dim, weight.data(), nullptr, 1e-6f, false, out.operand()}, 0.7f});
    return out.values();
  };
  report.same_bits(run(tier), run(scalar), "add_norm");
}

struct Heads {
  int64_t rows, heads, dim, stride;
};
constexpr Heads kHeads[] = {{1, 1, 8, 8},     {3, 2, 20, 45},  {2, 3, 64, 200}, {2, 2, 80, 160},
                            {1, 4, 128, 512}, {2, 1, 96, 100}, {1, 2, 256, 512}};

void check_heads(Report& report, const Kernels& tier, const Kernels& scalar, const Heads& h, bool weighted) {
  report.begin(sizes({{"head_norm head_dim", h.dim}, {"heads", h.heads}, {"weighted", weighted}}));
  Random random(h.dim + 2);
  const auto x = random.floats(h.rows * h.stride), weight = random.floats(h.dim);
  const auto run = [&](const Kernels& k) {
    auto y = x;
    k.head_norm({y.data(), h.stride, h.rows, h.heads, h.dim, weighted ? weight.data() : nullptr, 1e-6f});
    return y;
  };
  report.same_bits(run(tier), run(scalar), "head_norm, and what stands between the heads");
}

void check_rotation(Report& report, const Kernels& tier, const Kernels& scalar, const Heads& h, int64_t rotary_dim,
                    bool interleaved) {
  report.begin(sizes({{"rope head_dim", h.dim}, {"rotary_dim", rotary_dim}, {"interleaved", interleaved}}));
  Random random(h.dim + 3);
  const auto x = random.floats(h.rows * h.stride);
  const auto cos = random.floats(h.rows * rotary_dim / 2), sin = random.floats(h.rows * rotary_dim / 2);
  const auto run = [&](const Kernels& k) {
    auto y = x;
    k.rope({y.data(), h.stride, h.rows, h.heads, h.dim, rotary_dim, cos.data(), sin.data(), interleaved});
    return y;
  };
  report.same_bits(run(tier), run(scalar), "rope, and what stands between the heads");
}

}  // namespace

void check_norm(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t dim : kDims) {
    for (const bool layer_norm : {false, true}) {
      for (const Form form : {Form::f32_rows, Form::bf16_rows, Form::bf16_pairs, Form::f16_rows}) {
        check_rows(report, tier, scalar, dim, layer_norm, form);
      }
    }
    check_residual(report, tier, scalar, dim);
  }
  for (const Heads& heads : kHeads) {
    for (const bool weighted : {false, true}) check_heads(report, tier, scalar, heads, weighted);
  }
}

void check_rope(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const Heads& heads : kHeads) {
    for (const bool interleaved : {false, true}) {
      check_rotation(report, tier, scalar, heads, heads.dim, interleaved);
      check_rotation(report, tier, scalar, heads, heads.dim / 4 * 2, interleaved);
    }
  }
}

}  // namespace forearm::checks
