// Loops over rows whose length need not be a multiple of 16.
#pragma once

namespace forearm {
namespace {

// Calls body(column, lanes) for columns 0, 16, ...; lanes is 16 except in the last call.
template <typename Body>
inline void for_columns(int64_t dim, Body body) {
  int64_t column = 0;
  for (; column + 16 <= dim; column += 16) body(column, 16);
  if (column < dim) body(column, dim - column);
}

inline F16 load_lanes(const float* p, int64_t lanes) { return lanes == 16 ? load(p) : load_first(p, lanes); }
inline void store_lanes(float* p, F16 x, int64_t lanes) {
  if (lanes == 16) {
    store(p, x);
  } else {
    store_first(p, x, lanes);
  }
}

// Returns x with `other` in all but the first `lanes` lanes.
inline F16 only_lanes(F16 x, int64_t lanes, float other) {
  if (lanes == 16) return x;
  return select(less(iota(), broadcast(static_cast<float>(lanes))), x, broadcast(other));
}

}  // namespace
}  // namespace forearm
