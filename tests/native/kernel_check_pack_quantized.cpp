// Packing codes, scales and zeros, and the 8-bit floats.
#include <math.h>

#include "kernel_check_quantized.h"

namespace forearm::checks {
namespace {

void check_fp8(Report& report, DType dtype) {
  report.begin(sizes({{"dtype", static_cast<int>(dtype)}}));
  const int finite = dtype == DType::fp8_e4m3 ? 0x7f : 0x7c;
  for (int sign : {0, 0x80}) {
    for (int bits = 0; bits < finite; ++bits) {
      const auto value = static_cast<uint8_t>(sign | bits);
      const float here = widen_fp8(value, dtype);
      if (narrow_fp8(here, dtype) != value) return report.holds(false, "a value comes back");
      if (bits + 1 == finite) continue;
      const float next = widen_fp8(static_cast<uint8_t>(value + 1), dtype), middle = (here + next) / 2;
      const bool nearest = narrow_fp8(middle, dtype) == value + (value & 1) &&
                           narrow_fp8(nextafterf(middle, here), dtype) == value &&
                           narrow_fp8(nextafterf(middle, next), dtype) == value + 1;
      if (!nearest) return report.holds(false, "the nearest value is taken, of two the even one");
    }
    const auto largest = static_cast<uint8_t>(sign | (finite - 1));
    report.holds(narrow_fp8(sign ? -1e9f : 1e9f, dtype) == largest, "what is too large becomes the largest");
    report.holds(narrow_fp8(sign ? -INFINITY : INFINITY, dtype) == largest, "so does infinity");
  }
  report.holds(widen_fp8(0x38, DType::fp8_e4m3) == 1.0f && widen_fp8(0x3c, DType::fp8_e5m2) == 1.0f, "one is one");
  report.holds(widen_fp8(0x7e, DType::fp8_e4m3) == 448.0f && widen_fp8(0x01, DType::fp8_e4m3) == 0x1p-9f,
               "the ends of E4M3's range");
  report.holds(isnan(widen_fp8(narrow_fp8(NAN, dtype), dtype)), "NaN stays NaN");
}

// Every power of two comes back, from a tier's loops too (load_e8m0): check_codes has them as scales.
void check_e8m0(Report& report) {
  report.begin(sizes({{"dtype", static_cast<int>(DType::e8m0)}}));
  for (int byte = 0; byte < 256; ++byte) {
    const float power = widen_e8m0(static_cast<uint8_t>(byte));
    report.holds(power == ldexpf(1.0f, byte - 128), "it is the power of two");
    report.holds(narrow_e8m0(power) == byte, "a power comes back");
  }
}

// Two matrices in one, side by side or with panels alternating, as gate and up have them.
void check_matrix(Report& report, DType dtype, Layout layout, int64_t n, int64_t k, bool interleaved) {
  report.begin(sizes({{"dtype", static_cast<int>(dtype)}, {"n", n}, {"k", k}, {"interleaved", interleaved}}));
  const CodeShape shape = {n, k, 32, dtype, DType::f16, Zero::zeros};
  const CodeMatrix parts[] = {{shape, 1}, {shape, 2}};
  const int64_t rows = interleaved ? round_up(n, 16) * 2 : n * 2, groups = shape.groups();
  std::vector<char> codes(packed_bytes(dtype, rows, k, layout.quantum), 0x55);
  std::vector<uint16_t> scales(scales_count(rows, groups), 0x5555);
  std::vector<int8_t> zeros(scales_count(rows, groups), 0x55);
  const PackedMatrix matrix = {codes.data(), dtype, layout.quantum, k, layout.bias};
  const PanelMap maps[] = {interleaved ? PanelMap{2, 0} : PanelMap{}, interleaved ? PanelMap{2, 1} : PanelMap{}};
  for (int i = 0; i < 2; ++i) {
    const int64_t row = interleaved ? 0 : i * n;
    pack_codes(parts[i].codes.data(), n, matrix, row, maps[i]);
    pack_scales(parts[i].scales.data(), n, groups, DType::f16, scales.data(), row, maps[i]);
    pack_zeros(parts[i].zeros.data(), n, groups, zeros.data(), row, maps[i]);
  }
  int64_t sum = 0, stored = 0;
  for (int i = 0; i < 2; ++i) {
    const int64_t row = interleaved ? 0 : i * n;
    std::vector<int8_t> got(n * k), got_zeros(n * groups);
    std::vector<float> got_scales(n * groups);
    unpack_codes(matrix, row, n, got.data(), maps[i]);
    unpack_scales(scales.data(), DType::f16, groups, row, n, got_scales.data(), maps[i]);
    unpack_zeros(zeros.data(), groups, row, n, got_zeros.data(), maps[i]);
    report.holds(got == parts[i].codes, "codes come back");
    report.same_bits(got_scales, parts[i].scales, "scales");
    report.holds(got_zeros == parts[i].zeros, "zeros come back");
    for (int8_t code : got) sum += abs(code);
  }
  const int64_t padded = round_up(k, has_six_bits(dtype) ? kSixBitK : layout.quantum * (has_nibbles(dtype) ? 2 : 1));
  std::vector<int8_t> all(round_up(rows, 16) * padded);
  unpack_codes({codes.data(), dtype, layout.quantum, padded, layout.bias}, 0, round_up(rows, 16), all.data());
  for (int8_t code : all) stored += abs(code);
  report.holds(stored == sum, "padding is code 0");
}

}  // namespace

void check_pack_codes(Report& report, const Kernels& tier, const Kernels&) {
  if (is_scalar(tier)) {
    check_fp8(report, DType::fp8_e4m3);
    check_fp8(report, DType::fp8_e5m2);
    check_e8m0(report);
  }
  for (const DType dtype : {DType::int8, DType::int6, DType::int4, DType::fp4_e2m1, DType::fp8_e4m3}) {
    for (int64_t n : {1, 15, 16, 35}) {
      for (int64_t k : {1, 2, 63, 130}) {
        check_matrix(report, dtype, tier.layout[static_cast<int>(dtype)], n, k, false);
        check_matrix(report, dtype, tier.layout[static_cast<int>(dtype)], n, k, true);
      }
    }
  }
}

}  // namespace forearm::checks
