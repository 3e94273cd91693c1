// Arrays that come from Python, checked before C++ reads them.
#pragma once
#include <pybind11/numpy.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace forearm {

template <class T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

template <class T>
int64_t length(const char* name, const Array<T>& array) {
  if (array.ndim() != 1)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(array.ndim()) + " dimensions; it has 1");
  return array.shape(0);
}

template <class T>
void expect_length(const char* name, const Array<T>& array, int64_t expected) {
  if (length(name, array) != expected)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(array.size()) + " entries; it must have " +
                                std::to_string(expected));
}

template <class T>
void expect_shape(const char* name, const Array<T>& array, int64_t rows, int64_t columns) {
  if (array.ndim() != 2 || array.shape(0) != rows || array.shape(1) != columns)
    throw std::invalid_argument(std::string(name) + " must be [" + std::to_string(rows) + ", " +
                                std::to_string(columns) + "]");
}

// `starts` cuts `total` entries of another array into `count` pieces.
inline void expect_starts(const char* name, const Array<int32_t>& starts, int64_t count, int64_t total) {
  expect_length(name, starts, count + 1);
  const int32_t* at = starts.data();
  bool ascending = at[0] == 0 && at[count] == total;
  for (int64_t i = 0; i < count; ++i) ascending = ascending && at[i] <= at[i + 1];
  if (!ascending) throw std::invalid_argument(std::string(name) + " must ascend from 0 to " + std::to_string(total));
}

}  // namespace forearm
