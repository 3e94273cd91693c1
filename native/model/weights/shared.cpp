// Finds matrices, also those that another executor's weights lend, and fits the norm before the head to them.
#include <stdexcept>

#include "model/weights/weights.h"

namespace forearm {

const Linear& Weights::linear(const std::string& name) const {
  const auto other = shared_.find(name);
  const auto found = linears_.find(other == shared_.end() ? name : other->second);
  if (found == linears_.end() && lender_ && other != shared_.end()) return lender_->linear(other->second);
  if (found == linears_.end()) throw std::invalid_argument("this model has no matrix '" + name + "'");
  return found->second;
}

const Linear& Weights::linear(const std::string& name, int64_t columns, int64_t k, int64_t experts) const {
  const Linear& found = linear(name);
  const Matrix& matrix = found.matrix;
  const auto shape = [](int64_t number, int64_t rows, int64_t width) {
    return "[" + (number > 1 ? std::to_string(number) + ", " : "") + std::to_string(rows) + ", " +
           std::to_string(width) + "]";
  };
  if (matrix.n != columns || matrix.k != k || matrix.experts != experts)
    throw std::invalid_argument("the matrix '" + name + "' is " + shape(matrix.experts, matrix.n, matrix.k) +
                                "; the model makes it " + shape(experts, columns, k));
  return found;
}

// A head that reads x - m for each row x, its columns divided by d, has the norm before it multiplied with d, and a
// bias (centred.py). Another model's norm before the same head takes d and the bias, too: the products are those of x
// with the head as the checkpoint has it. What a step keeps is x.
void Weights::set_final_norms() {
  hidden_out_norm_ = final_norm_;
  if (!head_columns_.empty()) hidden_out_norm_.bias.clear();
  for (size_t i = 0; i < head_columns_.size(); ++i) hidden_out_norm_.weight[i] /= head_columns_[i];
  if (!lends_head_) return;
  lent_norm_ = final_norm_;
  if (lender_->head_columns_.empty()) return;
  lent_norm_.bias = lender_->final_norm_.bias;
  for (size_t i = 0; i < lent_norm_.weight.size(); ++i) lent_norm_.weight[i] *= lender_->head_columns_[i];
}

}  // namespace forearm
