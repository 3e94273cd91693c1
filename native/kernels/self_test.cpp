#include "kernels/self_test.h"

#include <math.h>
#include <string.h>

#include "kernels/pack.h"
#include "kernels/self_test_cases.h"

namespace forearm {
namespace self_test {

Floats numbers(int64_t count, uint32_t seed) {
  Floats values(static_cast<size_t>(count));
  for (float& value : values) {  // Knuth, TAOCP 2, 3.3.4: a linear congruential generator
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(seed) >> 25) / 64;
  }
  return values;
}

namespace {

constexpr int at(DType dtype) { return static_cast<int>(dtype); }

// Each of the following functions runs one operation with the variant-th of its settings and returns all that it wrote.

Floats quantized(const Kernels& k, int variant) {
  constexpr int64_t kRows = 3, kDim = 77;
  const auto form = static_cast<Form>(variant);
  const Floats x = numbers(kRows * kDim, 1);
  TestRows out(form, kRows, kDim, is_quantized(form) ? 32 : 0);
  k.quantize({x.data(), kDim, 0, kRows, kDim, nullptr, out.operand});
  return out.all();
}

constexpr ChosenFormats kRounded{[](DType d) { return is_integer(d) && number_format(d).largest > 0; }};
Floats rounded(const Kernels& k, int variant) {
  constexpr int64_t kRows = 3, kDim = 77, kGroup = 32, kGroups = 3;
  const Floats w = numbers(kRows * kDim, 2);
  std::vector<int8_t> codes(kRows * kDim);
  Floats out(kRows * kGroups);
  k.round({w.data(), kRows, kDim, kGroup, kRounded.dtypes[variant], DType::bf16, codes.data(), out.data()});
  out.insert(out.end(), codes.begin(), codes.end());
  return out;
}

constexpr int64_t kNormRows = 3, kNormDim = 83;
Floats normed(const Kernels& k, int variant) {
  const Floats x = numbers(kNormRows * kNormDim, 3), weight = numbers(kNormDim, 4), bias = numbers(kNormDim, 5);
  TestRows out(static_cast<Form>(variant / 2), kNormRows, kNormDim);
  const bool layer = variant % 2;
  k.norm({x.data(), kNormDim, 0, kNormRows, kNormDim, weight.data(), layer ? bias.data() : nullptr, 1e-5f, layer,
          out.operand});
  return out.all();
}

Floats add_normed(const Kernels& k, int) {
  const Floats x = numbers(kNormRows * kNormDim, 6), weight = numbers(kNormDim, 7);
  TestRows out(Form::f32_rows, kNormRows, kNormDim);
  k.add_norm({{x.data(), kNormDim, 0, kNormRows, kNormDim, weight.data(), nullptr, 1e-5f, false, out.operand}, 0.75f});
  return out.floats();
}

constexpr int64_t kHeads = 3, kHeadDim = 40;
Floats head_normed(const Kernels& k, int) {
  Floats x = numbers(kNormRows * kHeads * kHeadDim, 8);
  const Floats weight = numbers(kHeadDim, 9);
  k.head_norm({x.data(), kHeads * kHeadDim, kNormRows, kHeads, kHeadDim, weight.data(), 1e-6f});
  return x;
}

Floats rotated(const Kernels& k, int variant) {
  Floats x = numbers(kNormRows * kHeads * kHeadDim, 10);
  const int64_t rotary = variant / 2 ? kHeadDim / 2 : kHeadDim;
  const Floats cos = numbers(kNormRows * rotary / 2, 11), sin = numbers(kNormRows * rotary / 2, 12);
  k.rope({x.data(), kHeads * kHeadDim, kNormRows, kHeads, kHeadDim, rotary, cos.data(), sin.data(), variant % 2 == 1});
  return x;
}

// What leaves the rows, and the state after them.
Floats convolved(const Kernels& k, int variant) {
  constexpr int64_t kTaps = 3;
  Floats b = numbers(kNormRows * kNormDim, 41), state = numbers((kTaps - 1) * kNormDim, 42);
  const Floats c = numbers(kNormRows * kNormDim, 43), x = numbers(kNormRows * kNormDim, 44);
  const Floats taps = numbers(kTaps * kNormDim, 45), bias = numbers(kNormDim, 46);
  TestRows out(static_cast<Form>(variant), kNormRows, kNormDim);
  k.short_conv({b.data(), c.data(), x.data(), kNormDim, kNormRows, 0, kTaps, taps.data(), bias.data(), state.data(),
                kNormDim, 0, kNormDim, out.operand, 0});
  Floats all = out.all();
  all.insert(all.end(), state.begin(), state.end());
  return all;
}

// What Mamba2 makes of x, and the state after it.
Floats moved(const Kernels& k, int) {
  constexpr int64_t kRows = 6, kHeads = 2, kHeadDim = 40, kStateDim = 5, kStride = kHeads * kHeadDim;
  Floats x = numbers(kRows * kStride, 47), state(kHeads * state_floats(kStateDim, kHeadDim));
  const Floats b = numbers(kRows * kStride, 49), c = numbers(kRows * kStride, 50), dt = numbers(kRows * kHeads, 51);
  const Floats dt_bias = numbers(kHeads, 52), a_log = numbers(kHeads, 53), d = numbers(kHeads, 54);
  const int64_t panels = kHeads * state_panels(kHeadDim);
  k.mamba2({x.data(),  b.data(), c.data(), kStride,        dt.data(),    kHeads,   kRows, kHeads, 1,    kHeadDim,
            kStateDim, 0,        panels,   dt_bias.data(), a_log.data(), d.data(), 1.0f,  0.0f,   8.0f, state.data()});
  x.insert(x.end(), state.begin(), state.end());
  return x;
}

// What the selective scan makes of rows, and the state after them; a is negative.
Floats scanned(const Kernels& k, int variant) {
  constexpr int64_t kRows = 6, kChannels = 40, kStateDim = 5;
  const Floats x = numbers(kRows * kChannels, 47), dt = numbers(kRows * kChannels, 48), d = numbers(kChannels, 54);
  const Floats b = numbers(kRows * kChannels, 49), c = numbers(kRows * kChannels, 50),
               z = numbers(kRows * kChannels, 51);
  Floats a = numbers(state_panels(kChannels) * kPanel * kStateDim, 52), state(a.size());
  for (float& one : a) one = -fabsf(one);
  TestRows out(static_cast<Form>(variant), kRows, kChannels);
  k.selective_scan({x.data(), kChannels, dt.data(), z.data(), b.data(), c.data(), kChannels, kRows, 0, kStateDim, 0,
                    kChannels, a.data(), d.data(), state.data(), out.operand, 0});
  Floats all = out.all();
  all.insert(all.end(), state.begin(), state.end());
  return all;
}

// What the real-gated linear recurrent unit makes of rows, and the state after them; rates are negative.
Floats gated_recurrence(const Kernels& k, int variant) {
  constexpr int64_t kRows = 6, kChannels = 40;
  const Floats x = numbers(kRows * kChannels, 47), r = numbers(kRows * kChannels, 48);
  const Floats i = numbers(kRows * kChannels, 49), y = numbers(kRows * kChannels, 50);
  Floats rate = numbers(kChannels, 51), state = numbers(state_panels(kChannels) * kPanel, 52);
  for (float& one : rate) one = -fabsf(one);
  TestRows out(static_cast<Form>(variant), kRows, kChannels);
  k.rg_lru({x.data(), kChannels, r.data(), i.data(), y.data(), kChannels, kRows, 0, variant % 2 == 1, 0, kChannels,
            rate.data(), state.data(), out.operand, 0});
  Floats all = out.all();
  all.insert(all.end(), state.begin(), state.end());
  return all;
}

Floats gated(const Kernels& k, int variant) {
  Floats y = numbers(kNormRows * kNormDim, 55);
  const Floats z = numbers(kNormRows * kNormDim, 56), weight = numbers(kNormDim, 57);
  TestRows out(static_cast<Form>(variant / 2), kNormRows, kNormDim);
  k.gated_norm({y.data(), kNormDim, z.data(), kNormDim, 0, kNormRows, kNormDim, 1, weight.data(), 1e-6f,
                variant % 2 == 0, 0.5f, out.operand, 0, 0, variant % 4 == 3});
  return out.all();
}

// A value head's state after some rows, the rows' gates and results. variant 1: with a decay for each channel.
Floats delta_ruled(const Kernels& k, int variant) {
  constexpr int64_t kKeyDim = 40, kValueDim = 100, kHead = 1, kState = state_floats(kKeyDim, kValueDim);
  const int64_t channels = variant ? kKeyDim : 1;
  const Floats q = numbers(kNormRows * kKeyDim, 51), key = numbers(kNormRows * kKeyDim, 52);
  const Floats v = numbers(kNormRows * kValueDim, 53), a = numbers(kNormRows * channels, 54);
  const Floats b = numbers(kNormRows * channels, 55), a_log = numbers(kHead, 56), dt_bias = numbers(channels, 57);
  Floats all(static_cast<size_t>(kState + kNormRows * (channels + 1 + kValueDim)));
  float *decay = all.data() + kState, *beta = decay + kNormRows * channels, *out = beta + kNormRows;
  k.delta_gates({a.data(), b.data(), channels, kNormRows, kHead, channels, a_log.data(), dt_bias.data(), decay, beta});
  k.delta_rule({q.data(), key.data(), kKeyDim, v.data(), kValueDim, decay, channels, variant == 1, beta, kHead,
                kNormRows, kKeyDim, kValueDim, all.data(), out, kValueDim});
  return all;
}

// A matrix [n, k] of any dtype, packed for a tier; codes with a scale and, of integers, an offset for every group.
struct TestMatrix {
  TestMatrix(const Kernels& tier, DType dtype, int64_t n, int64_t k, int64_t group = kGroup)
      : bytes(packed_bytes(dtype, n, k, tier.layout[at(dtype)].quantum)),
        scales(static_cast<size_t>(scales_count(n, (k + group - 1) / group))),
        offsets(scales.size()) {
    const int64_t groups = (k + group - 1) / group;
    const Layout layout = tier.layout[at(dtype)];
    const PackedMatrix to = {bytes.data(), dtype, layout.quantum, k, layout.bias};
    weights = {bytes.data(), dtype, n, k};
    const Floats values = numbers(n * k, 13);
    if (is_float(dtype)) {
      pack_rows(values.data(), DType::f32, n, to, 0);
      return;
    }
    if (dtype == DType::f16_scaled) {
      pack_scaled(values.data(), DType::f32, n, to, scales.data(), 0);
      weights.group = k;
      weights.scales = scales.data();
      return;
    }
    std::vector<int8_t> codes;
    const bool fp8 = is_fp8(dtype);
    const float top = has_nibbles(dtype) ? 8.0f : has_six_bits(dtype) ? 32.0f : 128.0f;  // weights in (-1, 1)
    for (const float value : values) {
      const int code = fp8 ? narrow_fp8(value, dtype) : static_cast<int>(floorf(value * top));
      codes.push_back(static_cast<int8_t>(has_nibbles(dtype) ? nibble_code(dtype, code & 15) : code));
    }
    pack_codes(codes.data(), n, to, 0);
    Floats steps = numbers(n * groups, 14);
    for (float& step : steps) step /= fp8 ? 1.0f : top;
    pack_scales(steps.data(), n, groups, DType::f32, scales.data(), 0);
    pack_scales(numbers(n * groups, 15).data(), n, groups, DType::f16, offsets.data(), 0);
    weights.group = group;
    weights.scales = scales.data();
    weights.offsets = fp8 ? nullptr : offsets.data();
  }
  TestMatrix(const TestMatrix&) = delete;

  static constexpr int64_t kGroup = 32;

  Bytes bytes;
  Floats scales;
  std::vector<uint16_t> offsets;
  PackedWeights weights;
};

Floats embedded(const Kernels& k, int variant) {
  constexpr int64_t kVocabulary = 37, kDim = 83;
  const TestMatrix table(k, static_cast<DType>(variant), kVocabulary, kDim);
  const int32_t tokens[] = {36, 0, 17};
  TestRows out(Form::f32_rows, 3, kDim);
  k.embed({tokens, 3, table.weights, 1.5f, static_cast<float*>(out.operand.data), out.operand.stride});
  return out.floats();
}

// Every tile width with a remainder, and all epilogues.
constexpr int kProducts = 10;
struct Product {
  Epilogue epilogue;
  int64_t rows, depth = 77, group = TestMatrix::kGroup;
};
Floats multiplied(const Kernels& k, DType dtype, Form form, const Product& p) {
  const int64_t rows = p.rows, n = 96;
  const Floats x = numbers(rows * p.depth, 16), bias = numbers(n, 17);
  TestRows a(form, rows, p.depth, is_quantized(form) ? p.group : 0), out(Form::f32_rows, rows, n);
  k.quantize({x.data(), p.depth, 0, rows, p.depth, nullptr, a.operand});
  const TestMatrix w(k, dtype, n, p.depth, p.group);
  Bytes scratch(k.gemm_scratch_bytes(p.depth));
  k.gemm({a.operand, 0, rows, w.weights, 0, n, bias.data(), p.epilogue, Activation::silu, 0.75f, 2.5f, out.operand,
          scratch.data()});
  return out.floats();
}
Product product(int variant) { return {static_cast<Epilogue>(variant % 5), variant < 5 ? 1 : 13}; }

// Products in each dtype's own form, of codes by 16 bits, and of dequantized fp8.
constexpr ChosenFormats kOwn{[](DType d) { return is_float(d) || is_integer(d); }}, kCodes{is_integer}, kWide{is_fp8};
Floats own_product(const Kernels& k, int variant) {
  const DType dtype = kOwn.dtypes[variant / kProducts];
  return multiplied(k, dtype, k.layout[at(dtype)].form, product(variant % kProducts));
}
Floats product_of_16_bits(const Kernels& k, int variant) {
  const DType dtype = kCodes.dtypes[variant / kProducts];
  return multiplied(k, dtype, in_16_bits(k.layout[at(dtype)].form), product(variant % kProducts));
}
Floats wide_product(const Kernels& k, int variant) {
  return multiplied(k, kWide.dtypes[variant / kProducts], k.layout[at(k.wide)].form, product(variant % kProducts));
}

// Whole steps of AMX tiles, and more rows than two tiles have.
constexpr ChosenFormats kStepped{[](DType d) { return d == DType::bf16 || is_integer(d); }};
Floats long_product(const Kernels& k, int variant) {
  const DType dtype = kStepped.dtypes[variant];
  return multiplied(k, dtype, k.layout[at(dtype)].form, {Epilogue::store, 37, 128, 64});
}

// Stored, of one row and of many: in plain C++, which scalar takes, 130,000 products take milliseconds.
Floats scaled_product(const Kernels& k, int variant) {
  return multiplied(k, DType::f16_scaled, Form::f16_scaled, product(variant * 5));
}

Floats of_a_row(const Kernels& k, int variant) {
  constexpr int64_t kLengths[] = {1, 16, 333};
  const int64_t n = kLengths[variant];
  const Floats x = numbers(n, 21);
  Floats out(static_cast<size_t>(2 * n));
  std::vector<int32_t> index(static_cast<size_t>(n));
  const std::vector<uint32_t> mask(static_cast<size_t>(n / 32 + 1), 0xfffffff9u);
  Floats maxima(static_cast<size_t>(2 * maxima_of(n)));
  const RowMax max = k.row_max(x.data(), n);
  k.row_maxima({x.data(), n}, maxima.data());
  k.row_maxima({x.data(), n, mask.data()}, maxima.data() + maxima_of(n));
  const float masked = k.row_exp_sum({x.data(), n, mask.data()}, max.value, 0.8f, nullptr);
  const float sum = k.row_exp_sum({x.data(), n}, max.value, 0.8f, out.data());
  const auto count =
      static_cast<float>(k.row_collect({x.data(), n}, maxima.data(), 0.25f, index.data(), out.data() + n, n));
  out.insert(out.end(), maxima.begin(), maxima.end());
  out.insert(out.end(), index.begin(), index.end());
  out.insert(out.end(), {max.value, static_cast<float>(max.index), static_cast<float>(max.nan), masked, sum, count});
  return out;
}

// The difference from scalar's result that is allowed; 0 means the same bits. Where a tier multiplies bf16: with exact
// products, 2 (k + 4) roundings of a sum of at most k (kernel_check_gemm.cpp); weights of codes rounded to 2^-9 of
// themselves, which is less than 2^-6 of the largest of 96 such sums; scores and their weights to 2^-9
// (kernel_check_attention.cpp).
float exactly(const Kernels&, int) { return 0; }
float of_own(const Kernels& k, int variant) {
  const Form form = k.layout[at(kOwn.dtypes[variant / kProducts])].form;
  return form == Form::f32_rows || is_quantized(form) ? 0 : 0x1p-11f;
}
float of_long(const Kernels& k, int variant) {
  return is_quantized(k.layout[at(kStepped.dtypes[variant])].form) ? 0 : 0x1p-9f;
}
float of_wide(const Kernels& k, int) { return k.wide == DType::f32 ? 0 : 0x1p-6f; }
float of_attention(const Kernels& k, int variant) {
  const DType dtype = kCaches.dtypes[variant / kAttentions];
  return k.layout[at(is_float(dtype) ? dtype : k.wide)].form == Form::f32_rows ? 0 : 0x1p-6f;
}

// `relative`: the allowance is of the largest number of the result, not of 1.
struct Case {
  const char* operation;
  Floats (*run)(const Kernels&, int variant);
  int variants;
  float (*allowance)(const Kernels&, int variant);
  bool relative;
};
constexpr Case kCases[] = {
    {"quantize", quantized, kForms, exactly, false},
    {"round", rounded, kRounded.count, exactly, false},
    {"norm", normed, 8, exactly, false},
    {"add_norm", add_normed, 1, exactly, false},
    {"head_norm", head_normed, 1, exactly, false},
    {"rope", rotated, 4, exactly, false},
    {"short_conv", convolved, 4, exactly, false},
    {"mamba2", moved, 1, exactly, false},
    {"selective_scan", scanned, 4, exactly, false},
    {"rg_lru", gated_recurrence, 4, exactly, false},
    {"token_shift", shifted, 8, exactly, false},
    {"squash", squashed, 12, exactly, false},
    {"rwkv7", time_mixed, 8, exactly, false},
    {"gated_norm", gated, 8, exactly, false},
    {"delta_rule", delta_ruled, 2, exactly, false},
    {"embed", embedded, static_cast<int>(DType::e8m0), exactly, false},  // every dtype before it
    {"gemm", own_product, kProducts* kOwn.count, of_own, false},
    {"long gemm", long_product, kStepped.count, of_long, false},
    {"scaled gemm", scaled_product, 2, exactly, false},
    {"16-bit gemm", product_of_16_bits, kProducts* kCodes.count, exactly, false},
    {"fp8 gemm", wide_product, kProducts* kWide.count, of_wide, true},
    {"attention", attended, kAttentions* kCaches.count, of_attention, false},
    {"gather_keys", gathered, kCaches.count, exactly, false},
    {"index_scores", index_scored, kCaches.count, exactly, false},
    {"row", of_a_row, 3, exactly, false},
};

bool agree(const Floats& got, const Floats& wanted, float allowance, bool relative) {
  if (got.size() != wanted.size()) return false;
  if (allowance == 0) return memcmp(got.data(), wanted.data(), got.size() * sizeof(float)) == 0;
  float largest = relative ? 0 : 1;
  for (const float value : wanted) largest = fmaxf(largest, relative ? fabsf(value) : 1);
  for (size_t i = 0; i < got.size(); ++i) {
    if (!(fabsf(got[i] - wanted[i]) <= allowance * largest)) return false;  // NaN too
  }
  return true;
}

}  // namespace
}  // namespace self_test

const char* wrong_operation(const Kernels& tier, const Kernels& scalar) {
  for (const self_test::Case& one : self_test::kCases) {
    if (one.run == self_test::scaled_product && !tier.scales_halves) continue;  // it never multiplies so
    for (int variant = 0; variant < one.variants; ++variant) {
      if (!self_test::agree(one.run(tier, variant), one.run(scalar, variant), one.allowance(tier, variant),
                            one.relative))
        return one.operation;
    }
  }
  return nullptr;
}

const Kernels& first_sound(const std::vector<const Kernels*>& candidates, const Kernels& scalar,
                           std::vector<Quarantined>* wrong) {
  for (const Kernels* tier : candidates) {
    const char* operation = tier == &scalar ? nullptr : wrong_operation(*tier, scalar);
    if (!operation) return *tier;
    wrong->push_back({tier->tier, operation});
  }
  return scalar;
}

}  // namespace forearm
