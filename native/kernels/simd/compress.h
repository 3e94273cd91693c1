// store_hits for vectors without a compress instruction. Meaning: vec_scalar.h.
#pragma once
#include <stdint.h>

namespace forearm {
namespace {

inline int store_hits(const float* x, int64_t at, uint32_t bits, int32_t* index, float* value) {
  int count = 0;
  for (; bits; bits &= bits - 1, ++count) {
    const int64_t i = at + __builtin_ctz(bits);
    index[count] = static_cast<int32_t>(i);
    value[count] = x[i];
  }
  return count;
}

}  // namespace
}  // namespace forearm
