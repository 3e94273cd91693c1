// Tiles by VDPBF16PS, a pair of k an instruction: of bf16, and of 8-bit quantized values that are widened in registers.
#pragma once
#include "kernels/simd/unroll.h"
#include "kernels/simd/x86/mma_avx512_rows.h"

namespace forearm {
namespace {

// sums += the odd k's products, then += the even k's, each rounded to nearest even, denormals flushed: Intel's manual,
// volume 2C, VDPBF16PS. In assembly, because gcc 12 moves the sums of a tile to other registers and spills them.
inline void add_dot(F16& sums, __m512i a, __m512i w) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums.v) : "v"(w), "v"(a));
}

// The magnitude of an fp8 code as bf16, indexed by its seven lower bits.
struct Magnitudes {
  alignas(64) uint16_t of[128];
};
template <int kFraction, int kBias, int kFirstNan>
constexpr Magnitudes magnitudes_of() {
  Magnitudes m{};
  for (int code = 0; code < 128; ++code) {
    int exponent = code >> kFraction, fraction = code & ((1 << kFraction) - 1);
    if (exponent == 0 && fraction != 0) {  // bf16 holds what is subnormal in 8 bits as a normal number
      for (exponent = 1; fraction < 1 << kFraction; --exponent) fraction *= 2;
      fraction -= 1 << kFraction;
    } else if (exponent == 0) {
      exponent = kBias - 127;
    }
    const int bits = (exponent + 127 - kBias) << 7 | fraction << (7 - kFraction);
    m.of[code] = static_cast<uint16_t>(code >= kFirstNan ? 0x7fc0 : bits);
  }
  m.of[0x7c] = kFraction == 2 ? 0x7f80 : m.of[0x7c];  // E5M2's infinity
  return m;
}
alignas(64) constexpr Magnitudes kE4m3 = magnitudes_of<3, 7, 0x7f>(), kE5m2 = magnitudes_of<2, 15, 0x7d>();

inline __m512i look_up(__m512i codes, const Magnitudes& m) {
  const __m512i low = _mm512_permutex2var_epi16(_mm512_load_si512(m.of), codes, _mm512_load_si512(m.of + 32));
  const __m512i high = _mm512_permutex2var_epi16(_mm512_load_si512(m.of + 64), codes, _mm512_load_si512(m.of + 96));
  const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
  const __m512i magnitudes = _mm512_mask_blend_epi16(is_high, low, high);
  return _mm512_ternarylogic_epi32(magnitudes, _mm512_slli_epi16(codes, 8), _mm512_set1_epi16(-0x8000), 0xf8);
}

// Loads a register of bf16: 32 numbers, or 32 quantized values widened exactly.
template <DType W>
inline __m512i load_columns(const char* w) {
  if constexpr (W == DType::bf16) return _mm512_loadu_si512(w);
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
  if constexpr (W == DType::fp8_e4m3) return look_up(_mm512_cvtepu8_epi16(codes), kE4m3);
  if constexpr (W == DType::fp8_e5m2) return look_up(_mm512_cvtepu8_epi16(codes), kE5m2);
  const F16 low = load_i8(reinterpret_cast<const int8_t*>(w)), high = load_i8(reinterpret_cast<const int8_t*>(w) + 16);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v));
}

// A step of a panel is one register: column i's pair of k in its 32-bit lane i. A row's pair is in every lane. Columns
// may be quantized: the sums are the same as when they are dequantized beforehand.
template <DType W>
struct DotMma {
  static constexpr int kRows = 1;
  static constexpr int kQuantum = 2;
  static constexpr int kStepBytes = kPanel * kQuantum * dtype_bytes(W);
  static constexpr Form kForm = Form::bf16_rows;
  static constexpr int kUnits = kTileUnits;
  static constexpr int panels(int units) { return tile_panels(units); }
  // Memory-bound tiles read one panel after another faster than several at once: a row reached 97 to 100 % of the read
  // bandwidth instead of 82 to 87 % (bench/kernels/kernels.cpp, Zen 4), 4 to 12 rows 94 to 98 % in place of 87 to 100
  // (Zen 5; k 896 gained 3 to 6, k 8960 lost 2 to 6).
  static constexpr int kStreamedUnits = 12;
  using Sums = F16;

  static Sums none() { return zero(); }
  static void store(Sums sums, float* out, int64_t) { forearm::store(out, sums); }

  // Registers hold whichever takes fewer: the pairs of all rows, or the columns of all panels.
  template <int Units, int Panels>
  static void step(Sums (&sums)[Units][Panels], const char* a, int64_t unit_bytes, const char* w, int64_t panel_bytes) {
    if constexpr (Units < Panels) {
      __m512i pairs[Units];
      UNROLLED_FOR (u, Units) pairs[u] = pair_of(a + u * unit_bytes);
      UNROLLED_FOR (p, Panels) {
        const __m512i columns = load_columns<W>(w + p * panel_bytes);
        UNROLLED_FOR (u, Units) add_dot(sums[u][p], pairs[u], columns);
      }
    } else {
      __m512i columns[Panels];
      UNROLLED_FOR (p, Panels) columns[p] = load_columns<W>(w + p * panel_bytes);
      UNROLLED_FOR (u, Units) {
        const __m512i pair = pair_of(a + u * unit_bytes);
        UNROLLED_FOR (p, Panels) add_dot(sums[u][p], pair, columns[p]);
      }
    }
  }

  // Numbers narrowed to bf16 as VDPBF16PS reads them, denormals flushed.
  static constexpr bool kStoresPairs = true;
  static void store_both(F16 low, F16 high, char* to) {
    _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v)));
  }

  static void multiply_ones(Sums& sums) { add_dot(sums, _mm512_set1_epi32(0x3f803f80), _mm512_set1_epi32(0x3f803f80)); }

 private:
  static __m512i pair_of(const char* row) {
    int32_t pair;
    __builtin_memcpy(&pair, row, 4);
    return _mm512_set1_epi32(pair);
  }
};

// Of 8 bits each. Up to 8 rows, so that the tables of load_columns are held beside their sums.
template <DType W>
struct WeightOnlyMma : DotMma<W> {
  static constexpr int kUnits = 8;
  static void widen(const uint8_t* from, void* to) {  // 32 codes
    _mm512_storeu_si512(to, load_columns<W>(reinterpret_cast<const char*>(from)));
  }
};
constexpr DType kWide = DType::bf16;  // what codes are widened to

}  // namespace
}  // namespace forearm
