// Stores activations in the form that the next matrix product reads (Operand in kernels.h).
#pragma once
#include "kernels/kernels.h"

namespace forearm {
namespace {

// First element of `row` in bf16_pairs; four k on, the next four of the same row stand 8 elements further.
inline uint16_t* pairs_row(const Operand& o, int64_t row) {
  return static_cast<uint16_t*>(o.data) + row / 2 * o.stride * 2 + row % 2 * 4;
}

inline float* float_row(const Operand& o, int64_t row) { return static_cast<float*>(o.data) + row * o.stride; }

inline uint16_t* half_row(const Operand& o, int64_t row) { return static_cast<uint16_t*>(o.data) + row * o.stride; }

// The address that store_operand writes.
inline const char* place_of(const Operand& o, int64_t row, int64_t column) {
  if (o.form == Form::bf16_pairs) return reinterpret_cast<const char*>(pairs_row(o, row) + column * 2);
  if (o.form == Form::f32_rows) return reinterpret_cast<const char*>(float_row(o, row) + column);
  return reinterpret_cast<const char*>(half_row(o, row) + column);
}

[[gnu::always_inline]] inline void store_pairs(const Operand& o, int64_t row, int64_t column, F16 value, int64_t n) {
  uint16_t narrow[16];
  store_bf16(narrow, value);
  uint16_t* to = pairs_row(o, row);
  if (n == 16 && column % 4 == 0) {
    for (int64_t k = 0; k < 16; k += 4) __builtin_memcpy(to + (column + k) * 2, narrow + k, 8);
    return;
  }
  for (int64_t k = column; k < column + n; ++k) to[k / 4 * 8 + k % 4] = narrow[k - column];
}

[[gnu::always_inline]] inline void narrow_to(Form form, uint16_t* to, F16 value) {
  form == Form::f16_rows ? store_f16(to, value) : store_bf16(to, value);
}

// Stores the first n lanes at columns [column, column + n) of a row of a float form.
[[gnu::always_inline]] inline void store_operand(const Operand& o, int64_t row, int64_t column, F16 value, int64_t n) {
  if (o.form == Form::bf16_pairs) return store_pairs(o, row, column, value, n);
  if (o.form == Form::f32_rows) {
    float* to = float_row(o, row) + column;
    if (n == 16) {
      store(to, value);
    } else {
      store_first(to, value, n);
    }
    return;
  }
  uint16_t* to = half_row(o, row) + column;
  if (n == 16) return narrow_to(o.form, to, value);
  uint16_t narrow[16];
  narrow_to(o.form, narrow, value);
  __builtin_memcpy(to, narrow, static_cast<uint64_t>(n) * 2);
}

}  // namespace
}  // namespace forearm
