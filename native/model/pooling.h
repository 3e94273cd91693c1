// Pools the rows of each text to one vector: their mean, and the layers after it (classifiers, projections).
#pragma once
#include <vector>

#include "model/weights/weights.h"

namespace forearm {

class Pooling {
 public:
  // The config and weights must outlive this.
  Pooling(const Config& config, const Weights& weights, int threads);

  // Writes the mean of rows [part.begin, part.end), passed through the layers of `head`, to `out`,
  // Config::pooled_columns(head) long.
  // Sums run over the rows in order, in double: a text's vector depends only on its own rows.
  void pool(int member, const Operand& rows, Range part, int64_t head, float* out);

 private:
  void apply(size_t layer, float* from, float* to) const;

  const Config& c_;
  const Weights& weights_;
  std::vector<const Linear*> layers_;
  int64_t width_ = 0;                      // of the widest vector, padded to whole cache lines
  std::vector<std::vector<float>> rooms_;  // by member: two vectors, with zeros after the written values
};

}  // namespace forearm
