// One packed matrix of the model: its format, where it lies, and how rows of a checkpoint come into it.
#pragma once
#include <string>
#include <vector>

#include "kernels/pack.h"
#include "model/memory.h"
#include "model/partition.h"

namespace forearm {

// Rows as a checkpoint has them, C-contiguous.
struct Tensor {
  const void* data;
  DType dtype;  // a float
  int64_t rows, k;
};

// Rows that are already quantised, C-contiguous: codes [rows, k], a byte each; the others [rows, groups], or null.
struct CodeRows {
  const void* codes;
  int64_t rows, k;
  const float* scales;
  const int8_t* zeros;
  const float* offsets;
};

// W [n, k] in the layout of the tier in use. Its memory is the weights' region: shape, then place, then pack.
class Matrix {
 public:
  // Throws std::invalid_argument if the format can't be.
  void shape(const std::string& name, int64_t n, int64_t k, const Format& format, Partition partition);
  // Takes room for codes, scales, zeros and offsets; `settle` turns it into pointers once the region is there.
  void place(Pieces& pieces);
  void settle(char* region);

  // Packs rows [row, row + rows) of one panel of `map`; the rest of the panel that follows becomes zero.
  void pack(const Tensor& rows, int64_t row, PanelMap map) const;
  void pack(const CodeRows& rows, int64_t row, PanelMap map) const;

  bool empty() const { return n == 0; }
  bool is_codes() const { return !is_float(format.dtype); }
  int64_t group() const { return format.group == 0 ? k : std::min(format.group, k); }
  int64_t groups() const { return (k + group() - 1) / group(); }
  Layout layout() const { return kernels().layout[static_cast<int>(format.dtype)]; }
  // What it is multiplied with.
  Form form() const;
  PackedWeights weights() const;

  int64_t n = 0, k = 0;
  Format format;
  Partition partition;         // the members' columns
  std::vector<int32_t> order;  // [k] where the format is ordered and rows have come
  std::string name;

 private:
  PackedMatrix packed() const;
  void round(const Tensor& rows, int64_t row, PanelMap map) const;
  void store_scales(const CodeRows& rows, int64_t row, PanelMap map) const;
  int64_t scale_bytes() const { return is_codes() ? round_up(n, kPanel) * groups() * dtype_bytes(format.scale_dtype) : 0; }

  int64_t data_at_ = 0, scales_at_ = 0, zeros_at_ = 0, offsets_at_ = 0;  // in the region
  char* data_ = nullptr;
  void* scales_ = nullptr;
  int8_t* zeros_ = nullptr;
  float* offsets_ = nullptr;
};

}  // namespace forearm
