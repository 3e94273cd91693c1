// Packing and unpacking, and the 16-bit conversions against their definition in float64.
#include <math.h>

#include "kernel_check.h"
#include "kernels/pack.h"

namespace forearm::checks {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

// Every 16-bit value comes back, and of two neighbours the nearer one is taken, of two equally near the even one.
void check_conversion(Report& report, DType dtype) {
  report.begin(sizes({{"dtype", static_cast<int>(dtype)}}));
  const int infinity = dtype == DType::f16 ? 0x7c00 : 0x7f80;
  for (int sign : {0, 0x8000}) {
    for (int bits = 0; bits <= infinity; ++bits) {
      const auto value = static_cast<uint16_t>(sign | bits);
      if (narrow(widen(value, dtype), dtype) != value) return report.holds(false, "a value comes back");
      if (bits >= infinity - 1) continue;
      const double here = widen(value, dtype), next = widen(static_cast<uint16_t>(value + 1), dtype);
      const auto middle = static_cast<float>((here + next) / 2);
      const auto even = static_cast<uint16_t>(value + (value & 1));
      const bool nearest = narrow(middle, dtype) == even &&
                           narrow(nextafterf(middle, static_cast<float>(here)), dtype) == value &&
                           narrow(nextafterf(middle, static_cast<float>(next)), dtype) == value + 1;
      if (!nearest) return report.holds(false, "the nearest value is taken, of two the even one");
    }
  }
  report.holds(isnan(widen(narrow(NAN, dtype), dtype)), "NaN stays NaN");
  const float smallest_nan = -__builtin_bit_cast(float, 0x7f800001u);
  report.holds(isnan(widen(narrow(smallest_nan, dtype), dtype)), "a NaN of low bits alone stays NaN");
  report.holds(isinf(widen(narrow(3.4e38f, dtype), dtype)), "what is too large becomes infinity");
}

// Two matrices side by side in one: panels alternate when interleaved, and follow row on row otherwise.
void check_matrix(Report& report, DType from, DType to, int64_t quantum, int64_t n, int64_t k, bool interleaved) {
  report.begin(sizes({{"from", static_cast<int>(from)},
                      {"to", static_cast<int>(to)},
                      {"quantum", quantum},
                      {"n", n},
                      {"k", k},
                      {"interleaved", interleaved}}));
  const std::vector<float> first = rounded(Random(1).floats(n * k), from),
                           second = rounded(Random(2).floats(n * k), from);
  auto source = [&](const std::vector<float>& values) {
    std::vector<char> bytes(values.size() * dtype_bytes(from));
    for (size_t i = 0; i < values.size(); ++i) {
      if (from == DType::f32) {
        reinterpret_cast<float*>(bytes.data())[i] = values[i];
      } else {
        reinterpret_cast<uint16_t*>(bytes.data())[i] = narrow(values[i], from);
      }
    }
    return bytes;
  };
  const int64_t rows = interleaved ? round_up(n, 16) * 2 : n * 2;
  std::vector<char> packed(packed_elements(rows, k, quantum) * dtype_bytes(to), 0x55);
  const PackedMatrix matrix = {packed.data(), to, quantum, k};
  const PanelMap even = interleaved ? PanelMap{2, 0} : PanelMap{}, odd = interleaved ? PanelMap{2, 1} : PanelMap{};
  const int64_t second_row = interleaved ? 0 : n;
  pack_rows(source(first).data(), from, n, matrix, 0, even);
  pack_rows(source(second).data(), from, n, matrix, second_row, odd);

  std::vector<float> got(n * k);
  unpack_rows(matrix, 0, n, got.data(), even);
  report.same_bits(got, rounded(first, to), "first matrix");
  unpack_rows(matrix, second_row, n, got.data(), odd);
  report.same_bits(got, rounded(second, to), "second matrix");

  double total = 0;  // what is not padding; padding adds nothing to it
  for (const auto* part : {&first, &second}) {
    for (float value : rounded(*part, to)) total += fabs(value);
  }
  double stored = 0;
  for (size_t i = 0; i < packed.size() / dtype_bytes(to); ++i) {
    stored += fabs(to == DType::f32 ? reinterpret_cast<float*>(packed.data())[i]
                                    : widen(reinterpret_cast<uint16_t*>(packed.data())[i], to));
  }
  report.holds(fabs(stored - total) < 1e-9 * (1 + total), "padding is zero");
}

}  // namespace

// Packing is one for all tiers: it is checked with the scalar tier's turn, and each tier's layout is one that it packs.
void check_pack(Report& report, const Kernels& tier, const Kernels&) {
  for (const Layout& layout : tier.layout) {
    report.begin(sizes({{"quantum", layout.quantum}}));
    report.holds(layout.quantum == 1 || layout.quantum == 2 || layout.quantum == 4 || layout.quantum == 8,
                 "the quantum is one that is packed");
  }
  if (!is_scalar(tier)) return;
  check_conversion(report, DType::f16);
  check_conversion(report, DType::bf16);
  for (DType from : kTypes) {
    for (DType to : kTypes) {
      for (int64_t quantum : {1, 2, 4}) {
        for (int64_t n : {1, 15, 16, 35}) {
          for (int64_t k : {1, 2, 63, 130}) {
            check_matrix(report, from, to, quantum, n, k, false);
            check_matrix(report, from, to, quantum, n, k, true);
          }
        }
      }
    }
  }
}

}  // namespace forearm::checks
