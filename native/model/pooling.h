// Rows of a step become one vector a text: their mean, and the layers behind it (classifiers, projections).
#pragma once
#include <vector>

#include "model/weights/weights.h"

namespace forearm {

class Pooling {
 public:
  // Both must outlive this.
  Pooling(const Config& config, const Weights& weights, int threads);

  // The mean of rows [part.begin, part.end) of `rows` through all layers to `out`, Config::pooled_columns() long.
  // Sums run over the rows in order, in double: a text's vector depends on its own rows alone.
  void pool(int member, const Operand& rows, Range part, float* out);

 private:
  void apply(size_t layer, float* from, float* to) const;

  const Config& c_;
  const Weights& weights_;
  std::vector<const Linear*> layers_;
  int64_t width_ = 0;                      // of the widest vector, in whole lines
  std::vector<std::vector<float>> rooms_;  // by member: two vectors, zeros behind what is written
};

}  // namespace forearm
