#include "model/matrix.h"

#include <stdexcept>

namespace forearm {
void Matrix::shape(const std::string& called, int64_t rows, int64_t columns, const Format& kept, Partition divided) {
  check(called, kept, columns);
  name = called;
  n = rows;
  k = columns;
  format = kept;
  partition = std::move(divided);
}

void Matrix::place(Pieces& pieces) {
  data_at_ = pieces.take(packed_bytes(format.dtype, n, k, layout().quantum));
  const int64_t scales = is_codes() ? round_up(n, kPanel) * groups() : 0;
  scales_at_ = pieces.take(scales * dtype_bytes(format.scale_dtype));
  zeros_at_ = pieces.take(format.zero == Format::Zero::int8 ? scales : 0);
  offsets_at_ = pieces.take(format.zero == Format::Zero::float32 ? scales * 4 : 0);
}

void Matrix::settle(char* region) {
  data_ = region + data_at_;
  scales_ = is_codes() ? region + scales_at_ : nullptr;
  zeros_ = format.zero == Format::Zero::int8 ? reinterpret_cast<int8_t*>(region + zeros_at_) : nullptr;
  offsets_ = format.zero == Format::Zero::float32 ? reinterpret_cast<float*>(region + offsets_at_) : nullptr;
}

Form Matrix::form() const {
  const Kernels& table = kernels();
  const bool widened = is_codes() && (format.wide || format.dtype >= DType::fp8_e4m3);
  return table.layout[static_cast<int>(widened ? table.wide : format.dtype)].form;
}

PackedWeights Matrix::weights() const {
  PackedWeights w{data_, format.dtype, n, k};
  if (!is_codes()) return w;
  w.group = group();
  w.scales = scales_;
  w.scale_dtype = format.scale_dtype;
  w.zeros = zeros_;
  w.offsets = offsets_;
  return w;
}

void Matrix::pack(const Tensor& rows, int64_t row, PanelMap map) const {
  pack_rows(rows.data, rows.dtype, rows.rows, {data_, format.dtype, layout().quantum, k}, row, map);
}

}  // namespace forearm
