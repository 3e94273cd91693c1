// The short convolution, of each column alone over the last tokens of a sequence: gated (LFM2), or before a recurrence
// (gated delta rule, RG-LRU).
#pragma once
#include "kernels/kernels.h"
#include "kernels/ops/gemm/operand.h"
#include "kernels/ops/rows/activation.h"
#include "kernels/ops/rows/lanes.h"

namespace forearm {
namespace {

// Row `row` of u; those before the first one are the state.
inline const float* short_conv_row(const ShortConvTask& t, int64_t row) {
  return row < 0 ? t.state + (row + t.width - 1) * t.channels : t.b + row * t.stride;
}

// What becomes of a sum: nothing, the product with c, or SiLU.
enum class ConvEnd { plain, gated, silu };

template <ConvEnd kEnd>
inline void short_conv_output(const ShortConvTask& t, int64_t row, int64_t column, int64_t lanes) {
  F16 sum = t.bias ? load_lanes(t.bias + column, lanes) : zero();
  for (int64_t j = 0; j < t.width; ++j)
    sum = fma(load_lanes(t.taps + j * t.channels + column, lanes),
              load_lanes(short_conv_row(t, row - t.width + 1 + j) + column, lanes), sum);
  if constexpr (kEnd == ConvEnd::gated) sum = mul(load_lanes(t.c + row * t.stride + column, lanes), sum);
  if constexpr (kEnd == ConvEnd::silu) sum = activate<Activation::silu>(sum);
  store_operand(t.out, t.out_row + row - t.first_output, column, sum, lanes);
}

template <ConvEnd kEnd>
inline void short_conv_as(const ShortConvTask& t) {
  const auto each_column = [&t](const auto& body) {
    for_columns(t.column_end - t.column_begin, [&](int64_t i, int64_t lanes) { body(t.column_begin + i, lanes); });
  };
  for (int64_t row = 0; row < t.rows; ++row) {
    float* u = t.b + row * t.stride;
    each_column([&](int64_t column, int64_t lanes) {
      if (t.x)
        store_lanes(u + column, mul(load_lanes(u + column, lanes), load_lanes(t.x + row * t.stride + column, lanes)),
                    lanes);
      if (row >= t.first_output) short_conv_output<kEnd>(t, row, column, lanes);
    });
  }
  // Ascending, so that a row of the state is read before it is overwritten.
  for (int64_t i = 0; i < t.width - 1; ++i) {
    const float* from = short_conv_row(t, t.rows - t.width + 1 + i);
    float* to = t.state + i * t.channels;
    each_column(
        [&](int64_t column, int64_t lanes) { store_lanes(to + column, load_lanes(from + column, lanes), lanes); });
  }
}

inline void short_conv(const ShortConvTask& t) {
  if (t.plain) return short_conv_as<ConvEnd::plain>(t);
  t.c ? short_conv_as<ConvEnd::gated>(t) : short_conv_as<ConvEnd::silu>(t);
}

}  // namespace
}  // namespace forearm
