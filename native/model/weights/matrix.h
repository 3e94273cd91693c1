// One packed matrix of the model: its format, its place in memory, and the packing of a checkpoint's rows.
#pragma once
#include <string>
#include <vector>

#include "kernels/pack.h"
#include "model/memory.h"
#include "model/partition.h"

namespace forearm {

// Float rows of a checkpoint, C-contiguous.
struct Tensor {
  const void* data;
  DType dtype;  // a float type
  int64_t rows, k;
};

// Rows that are already quantized, C-contiguous: codes [rows, k], one byte each; the others are [rows, groups] or null.
struct CodeRows {
  const int8_t* codes;  // or the bytes of fp8
  int64_t rows, k;
  const float* scales;
  const int8_t* zeros;
  const float* offsets;
};

// What is known of the rows that a matrix is multiplied with, for rounding its floats (RoundTask).
struct Rounding {
  const float* importance = nullptr;
  const float* feedback = nullptr;
};

// Buffers in which a thread rounds a panel's rows.
struct PackRoom {
  std::vector<float> values, scales;
  std::vector<int8_t> codes;
};

// W [n, k] in the layout of the tier in use, in the weights' region. Calls come in the order shape, place, pack.
class Matrix {
 public:
  // Throws std::invalid_argument if the format is not valid.
  void shape(const std::string& name, int64_t n, int64_t k, const Format& format, Partition partition,
             int64_t experts = 1);
  // Reserves memory for codes, scales, zeros and offsets; `settle` sets the pointers once the region is allocated.
  void place(Pieces& pieces);
  void settle(char* region);
  // Writes to each page of the member's columns, so that the pages lie on the node of the core that will read them.
  void touch(int member) const;
  // The columns of these members, which follow each other.
  Range columns_of(Range members) const {
    return {partition[static_cast<size_t>(members.begin)].begin, partition[static_cast<size_t>(members.end - 1)].end};
  }
  // Calls visit(first byte, end) for the codes, scales, zeros and offsets of these columns, of every expert.
  template <class Visit>
  void each_piece(Range columns, const Visit& visit) const {
    const int64_t panel = packed_bytes(format.dtype, kPanel, k, layout().quantum);
    const auto piece = [&](void* data, int64_t column_bytes, int64_t first, int64_t end) {
      char* at = static_cast<char*>(data);
      if (data) visit(at + first * column_bytes, at + end * column_bytes);
    };
    for (int64_t expert = 0; expert < experts; ++expert) {
      const int64_t first = first_panel(expert) * kPanel + columns.begin;
      const int64_t end = first_panel(expert) * kPanel + round_up(columns.end, kPanel);
      piece(data_, panel / kPanel, first, end);
      piece(scales_, groups() * dtype_bytes(format.scale_dtype), first, end);
      piece(zeros_, groups(), first, end);
      piece(offsets_, groups() * 2, first, end);
    }
  }
  // The panel that an expert's columns begin with.
  int64_t first_panel(int64_t expert) const { return expert * ((n + kPanel - 1) / kPanel); }

  // Packs rows [row, row + rows) of one panel of `map`, converted or rounded to the format; the panel's further rows
  // become zero.
  void pack(const Tensor& rows, int64_t row, PanelMap map, const Rounding& how, PackRoom& room) const;
  void pack(const CodeRows& rows, int64_t row, PanelMap map) const;
  // Throws std::invalid_argument if floats can't be rounded to the format.
  void check_floats() const;
  // Throws std::invalid_argument if the format has no such codes, scales, zeros or offsets.
  void check_codes(const CodeRows& rows) const;
  // Sets the order of columns, which all rows of an expert share. Throws std::invalid_argument if it is invalid or
  // differs.
  void set_order(const int32_t* order, int64_t expert = 0);
  // The order of an expert's columns; null if they are as in the checkpoint.
  const int32_t* order_of(int64_t expert) const { return order.empty() ? nullptr : order.data() + expert * k; }

  bool empty() const { return n == 0; }
  bool is_codes() const { return !is_float(format.dtype); }
  int64_t group() const { return format.group == 0 ? k : std::min(format.group, k); }
  int64_t groups() const { return (k + group() - 1) / group(); }
  Layout layout() const { return kernels().layout[static_cast<int>(format.dtype)]; }
  // The form of the rows that it is multiplied with.
  Form form() const;
  PackedWeights weights(int64_t expert = 0) const;

  int64_t n = 0, k = 0;  // of one expert
  int64_t experts = 1;   // they follow each other, each beginning at a panel
  Format format;
  Partition partition;         // the members' columns
  std::vector<int32_t> order;  // [experts, k] if the format is ordered and rows were loaded
  std::string name;
  bool touched = false;  // its pages, by all members

 private:
  PackedMatrix packed() const { return {data_, format.dtype, layout().quantum, k, layout().bias}; }
  CodeRows rounded(const Tensor& rows, const Rounding& how, PackRoom& room) const;

  int64_t data_at_ = 0, scales_at_ = 0, zeros_at_ = 0, offsets_at_ = 0;  // offsets in the region
  char* data_ = nullptr;
  void* scales_ = nullptr;
  int8_t* zeros_ = nullptr;
  uint16_t* offsets_ = nullptr;
};

}  // namespace forearm
