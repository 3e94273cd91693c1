// Packing of matrices into the layout that tiers multiply (Layout in kernels.h), and back. Plain C++ for every CPU.
#pragma once
#include "kernels/kernels.h"

namespace forearm {

// Places of panels: panel p of the rows that are packed becomes panel step * p + offset of the whole. Gate and up
// projections alternate: gate has {2, 0}, up {2, 1}.
struct PanelMap {
  int64_t step = 1;
  int64_t offset = 0;
};

// A packed matrix in a layout (Layout): B[panels][ceil(k / quantum)][16][quantum] of dtype, int4 and fp4 two chunks to
// a byte, int6 in steps of its own.
struct PackedMatrix {
  void* data;
  DType dtype;
  int64_t quantum;
  int64_t k;
  int32_t bias = 0;  // of codes
};
inline int64_t panel_bytes(const PackedMatrix& m) { return packed_bytes(m.dtype, kPanel, m.k, m.quantum); }

// Packs `rows` rows of src [rows, k] as rows [row0, row0 + rows) of `to`; values are rounded to nearest even, ties and
// NaN as IEEE 754 has them. What is beyond the last row of its panel and beyond k becomes zero, so matrices that share
// a panel are packed in ascending order; different panels may be packed by different threads at once.
void pack_rows(const void* src, DType src_dtype, int64_t rows, const PackedMatrix& to, int64_t row0, PanelMap map = {});

// Rows [row0, row0 + rows) of a packed matrix as float out [rows, k].
void unpack_rows(const PackedMatrix& from, int64_t row0, int64_t rows, float* out, PanelMap map = {});

// The same for codes, bit for bit: [rows, k] signed (int4: -8 .. 7; int6: -32 .. 31; fp4: those of kE2m1Codes, of which
// -0 becomes 0), or the bytes of fp8. Padding is code 0.
void pack_codes(const int8_t* codes, int64_t rows, const PackedMatrix& to, int64_t row0, PanelMap map = {});
void unpack_codes(const PackedMatrix& from, int64_t row0, int64_t rows, int8_t* out, PanelMap map = {});

// Rows of floats as f16_scaled: codes in `to`, and each row's scale, a power of two, in scales [panels][16]. Exact for
// every weight of 8 bits (bf16) from 2^-21 of the row's largest on, of 11 bits (f16) from 2^-18 on; what is smaller is
// rounded to multiples of 2^-28 of the power of two below the largest. A row whose largest is not finite becomes NaN.
void pack_scaled(const void* src, DType src_dtype, int64_t rows, const PackedMatrix& to, float* scales, int64_t row0,
                 PanelMap map = {});
void unpack_scaled(const PackedMatrix& from, const float* scales, int64_t row0, int64_t rows, float* out,
                   PanelMap map = {});

// Packs values of each row and group, [rows, groups], by panel: [panels][groups][16]. Scales and offsets as `dtype`
// (f32, f16, bf16), rounded to nearest even, or (e8m0) to a power of two; zeros as they are. Rows beyond the last of
// its panel become zero.
void pack_scales(const float* scales, int64_t rows, int64_t groups, DType dtype, void* to, int64_t row0,
                 PanelMap map = {});
void unpack_scales(const void* from, DType dtype, int64_t groups, int64_t row0, int64_t rows, float* out,
                   PanelMap map = {});
void pack_zeros(const int8_t* zeros, int64_t rows, int64_t groups, int8_t* to, int64_t row0, PanelMap map = {});
void unpack_zeros(const int8_t* from, int64_t groups, int64_t row0, int64_t rows, int8_t* out, PanelMap map = {});
inline int64_t scales_count(int64_t n, int64_t groups) { return packed_elements(n, groups, 1); }

// An 8-bit float (fp8_e4m3, fp8_e5m2) as a float, exact; and back, to nearest even, where what is too large becomes the
// largest number and NaN stays NaN.
float widen_fp8(uint8_t value, DType dtype);
uint8_t narrow_fp8(float value, DType dtype);

// A power of two from 2^-128 to 2^127 as a byte of e8m0, and back; what is none becomes one near it.
float widen_e8m0(uint8_t value);
uint8_t narrow_e8m0(float value);

// One value of a 16-bit type as a float (exact), and back (to nearest even; NaN stays NaN).
float widen(uint16_t value, DType dtype);
uint16_t narrow(float value, DType dtype);

}  // namespace forearm
