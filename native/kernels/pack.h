// Packing matrices into the layout that tiers multiply (Layout in kernels.h), and back. Free of any ISA.
#pragma once
#include "kernels/kernels.h"

namespace forearm {

// Where panels go: panel p of what is packed becomes panel step * p + offset of the whole.
// Gate and up projections alternate: gate has {2, 0}, up {2, 1}.
struct PanelMap {
  int64_t step = 1;
  int64_t offset = 0;
};

// A packed matrix: B[panels][ceil(k / quantum)][16][quantum] of dtype.
struct PackedMatrix {
  void* data;
  DType dtype;
  int64_t quantum;
  int64_t k;
};
inline int64_t panel_bytes(const PackedMatrix& m) {
  return packed_elements(kPanel, m.k, m.quantum) * dtype_bytes(m.dtype);
}

// Packs `rows` rows of src [rows, k] as rows [row0, row0 + rows) of `to`; values are rounded to nearest even, ties and
// NaN as IEEE 754 has them. What is beyond the last row of its panel and beyond k becomes zero, so matrices that share
// a panel are packed in ascending order; different panels may be packed by different threads at once.
void pack_rows(const void* src, DType src_dtype, int64_t rows, const PackedMatrix& to, int64_t row0, PanelMap map = {});

// Rows [row0, row0 + rows) of a packed matrix as float out [rows, k].
void unpack_rows(const PackedMatrix& from, int64_t row0, int64_t rows, float* out, PanelMap map = {});

// One value of a 16-bit type as a float (exact), and back (to nearest even; NaN stays NaN).
float widen(uint16_t value, DType dtype);
uint16_t narrow(float value, DType dtype);

}  // namespace forearm
