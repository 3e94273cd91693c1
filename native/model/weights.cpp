#include "model/weights.h"

#include <stdexcept>

namespace forearm {
namespace {

std::string layer_name(size_t index) { return "layers." + std::to_string(index) + "."; }

// "layers.3.q (rows 64 to 127)": what is missing from row `first` on.
std::string missing_rows(const std::string& name, const std::vector<bool>& loaded) {
  size_t first = 0;
  while (loaded[first]) ++first;
  size_t last = loaded.size() - 1;
  while (loaded[last]) --last;
  if (first == 0 && last + 1 == loaded.size()) return name;
  return name + " (rows " + std::to_string(first) + " to " + std::to_string(last) + ")";
}

}  // namespace

Weights::Weights(const Config& c, const Formats& formats, const Ranks& ranks)
    : ranks_(ranks), formats_(formats), layers_(c.layers.size()), dense_(c.dense.size()) {
  const int threads = ranks.threads();
  // The head's, which may be the embedding, are cut where its maxima are.
  const auto columns = [threads](int64_t n) { return split_columns(n, kMaximumLogits, threads); };
  shape(embed_, "embed", c.vocab_size, c.hidden, columns(c.vocab_size));
  declare_part("embed", embed_, {c.vocab_size, {}});
  if (c.learned_positions) {
    const int64_t rows = c.max_positions + c.position_offset;
    shape(positions_, "positions", rows, c.hidden, columns(rows));
    declare_part("positions", positions_, {rows, {}});
  }
  if (c.token_types > 0) {
    shape(types_, "types", c.token_types, c.hidden, columns(c.token_types));
    declare_part("types", types_, {c.token_types, {}});
  }
  if (!c.tied_head) {
    shape(head_, "head", c.vocab_size, c.hidden, columns(c.vocab_size));
    declare_part("head", head_, {c.vocab_size, {}});
  }
  for (size_t i = 0; i < layers_.size(); ++i) declare_layer(c, i, threads);
  if (c.final_norm) declare_norm(c, "final_norm", final_norm_, c.hidden, c.layer_norm && c.norm_bias);
  declare_dense(c, threads);
  if (c.head_bias) declare_bias("head.bias", head_bias_, round_up(c.vocab_size, kPanel), {c.vocab_size, {}});
  place_matrices();
}

void Weights::declare_layer(const Config& c, size_t index, int threads) {
  const std::string prefix = layer_name(index);
  LayerWeights& layer = layers_[index];
  const QkvColumns at(c);
  const Place q{c.heads * c.head_dim, {}}, k{c.kv_heads * c.head_dim, {1, at.key / kPanel}},
      v{c.kv_heads * c.head_dim, {1, at.value / kPanel}}, hidden{c.hidden, {}}, gate{c.intermediate, {2, 0}},
      up{c.intermediate, c.gated ? PanelMap{2, 1} : PanelMap{}};
  const int64_t up_columns = c.gated ? 2 * round_up(c.intermediate, kPanel) : c.intermediate;

  shape(layer.qkv, prefix + "qkv", at.end, c.hidden, split_columns(at.end, kPanel, threads));
  shape(layer.o, prefix + "o", c.hidden, c.heads * c.head_dim, split_columns(c.hidden, kPanel, threads));
  shape(layer.up, prefix + "up", up_columns, c.hidden,
        split_columns(up_columns, c.gated ? 2 * kPanel : kPanel, threads));
  shape(layer.down, prefix + "down", c.hidden, c.intermediate, split_columns(c.hidden, kPanel, threads));
  declare_part(prefix + "q", layer.qkv, q);
  declare_part(prefix + "k", layer.qkv, k);
  declare_part(prefix + "v", layer.qkv, v);
  declare_part(prefix + "o", layer.o, hidden);
  if (c.gated) declare_part(prefix + "gate", layer.up, gate);
  declare_part(prefix + "up", layer.up, up);
  declare_part(prefix + "down", layer.down, hidden);

  if (c.qkv_bias) {
    declare_bias(prefix + "q.bias", layer.qkv_bias, at.end, q);
    declare_bias(prefix + "k.bias", layer.qkv_bias, at.end, k);
    declare_bias(prefix + "v.bias", layer.qkv_bias, at.end, v);
  }
  if (c.o_bias) declare_bias(prefix + "o.bias", layer.o_bias, round_up(c.hidden, kPanel), hidden);
  if (c.mlp_bias) {
    const int64_t padded = round_up(up_columns, kPanel);
    if (c.gated) declare_bias(prefix + "gate.bias", layer.up_bias, padded, gate);
    declare_bias(prefix + "up.bias", layer.up_bias, padded, up);
    declare_bias(prefix + "down.bias", layer.down_bias, round_up(c.hidden, kPanel), hidden);
  }
  declare_norms(c, layer, prefix);
}

void Weights::declare_dense(const Config& c, int threads) {
  int64_t width = c.hidden;
  for (size_t i = 0; i < dense_.size(); ++i) {
    const DenseKind& kind = c.dense[i];
    DenseWeights& dense = dense_[i];
    const std::string name = "dense." + std::to_string(i);
    shape(dense.matrix, name, kind.outputs, width, split_columns(kind.outputs, kPanel, threads));
    declare_part(name, dense.matrix, {kind.outputs, {}});
    if (kind.bias) declare_bias(name + ".bias", dense.bias, round_up(kind.outputs, kPanel), {kind.outputs, {}});
    if (kind.norm) declare_norm(c, name + ".norm", dense.norm, kind.outputs, c.norm_bias);
    width = kind.outputs;
  }
}

void Weights::declare_norms(const Config& c, LayerWeights& layer, const std::string& prefix) {
  const bool biases = c.layer_norm && c.norm_bias;
  if (c.norm_before()) {
    declare_norm(c, prefix + "input_norm", layer.input_norm, c.hidden, biases);
    declare_norm(c, prefix + "pre_mlp_norm", layer.pre_mlp_norm, c.hidden, biases);
    layer.pre_mlp_norm.in_residual = c.norm_residual == NormResidual::all;
    layer.input_norm.in_residual =
        layer.pre_mlp_norm.in_residual || (c.norm_residual == NormResidual::first && &layer == layers_.data());
  }
  if (c.norm_after()) {
    declare_norm(c, prefix + "post_attention_norm", layer.post_attention_norm, c.hidden, biases);
    declare_norm(c, prefix + "post_mlp_norm", layer.post_mlp_norm, c.hidden, biases);
  }
  if (c.qk_norm == QkNorm::none) return;
  const bool full = c.qk_norm == QkNorm::full;
  declare_norm(c, prefix + "q_norm", layer.q_norm, full ? c.heads * c.head_dim : c.head_dim, false);
  declare_norm(c, prefix + "k_norm", layer.k_norm, full ? c.kv_heads * c.head_dim : c.head_dim, false);
}

void Weights::declare_norm(const Config& c, const std::string& name, Norm& norm, int64_t n, bool with_bias) {
  declare_bias(name, norm.weight, n, {n, {}});
  vectors_.at(name).plus = c.norm_plus_one ? 1.0f : 0.0f;
  if (with_bias) declare_bias(name + ".bias", norm.bias, n, {n, {}});
}

void Weights::declare_part(const std::string& name, Matrix& matrix, Place place) {
  matrices_.emplace(name, MatrixPart{&matrix, place, std::vector<bool>(static_cast<size_t>(place.rows))});
}

void Weights::declare_bias(const std::string& name, std::vector<float>& values, int64_t padded, Place place) {
  if (values.empty()) vector_bytes_ += padded * 4;
  values.resize(static_cast<size_t>(padded));
  vectors_.emplace(name, VectorPart{&values, place, 0.0f, false});
}

void Weights::shape(Matrix& matrix, const std::string& name, int64_t n, int64_t k, Partition partition) {
  const auto format = formats_.extract(name);
  if (format.empty()) throw std::invalid_argument("there is no format for the matrix '" + name + "'");
  matrix.shape(name, n, k, format.mapped(), std::move(partition));
  shaped_.push_back(&matrix);
}

void Weights::place_matrices() {
  if (!formats_.empty())
    throw std::invalid_argument("there is a format for '" + formats_.begin()->first +
                                "'; this model has no such matrix");
  Pieces pieces;
  for (Matrix* matrix : shaped_) matrix->place(pieces);
  region_ = Region("the model's packed weights", pieces.bytes());
  for (Matrix* matrix : shaped_) matrix->settle(region_.data());
  for (int rank = 0; rank < ranks_.count() && ranks_.count() > 1; ++rank)
    for (const Matrix* matrix : shaped_)
      matrix->each_piece(matrix->columns_of(ranks_.members(rank)), [&](char* at, char*) { region_.split_page(at); });
}

// Throws if rows row .. row + rows - 1 of width k are not rows of that matrix.
Weights::MatrixPart& Weights::part_for(const std::string& name, int64_t row, int64_t rows, int64_t k) {
  const auto found = matrices_.find(name);
  if (found == matrices_.end()) throw std::invalid_argument("this model has no matrix '" + name + "'");
  if (mapped_) throw std::invalid_argument("'" + name + "' can't be loaded: the weights are mapped from a file");
  MatrixPart& part = found->second;
  if (k != part.matrix->k || row < 0 || rows < 1 || row + rows > part.place.rows)
    throw std::invalid_argument("'" + name + "' is [" + std::to_string(part.place.rows) + ", " +
                                std::to_string(part.matrix->k) + "]; rows " + std::to_string(row) + " to " +
                                std::to_string(row + rows - 1) + " of width " + std::to_string(k) + " do not fit");
  return part;
}

// pack(first row of the panel, how many, room) for each panel that the rows touch. Each member has a share of them, so
// that a piece of a large matrix, which lies in the columns of few, keeps all busy; pages are where their readers are,
// since these have touched them before.
template <class Pack>
void Weights::pack_panels(MatrixPart& part, int64_t row, int64_t rows, Pool& pool, const Pack& pack) {
  if (!part.matrix->touched) pool.run([&](int member) { part.matrix->touch(member); });
  part.matrix->touched = true;
  const int64_t end = row + rows, panel = row / kPanel, panels = (end - 1) / kPanel + 1 - panel;
  pool.run([&](int member) {
    PackRoom room;
    const Range own = share(panels, 1, member, pool.threads());
    for (int64_t p = panel + own.begin; p < panel + own.end; ++p) {
      const int64_t first = std::max(p * kPanel, row);
      pack(first, std::min((p + 1) * kPanel, end) - first, room);
    }
  });
  std::fill_n(part.loaded.begin() + row, rows, true);
}

void Weights::load_matrix(const std::string& name, const Tensor& tensor, int64_t row, Pool& pool) {
  MatrixPart& part = part_for(name, row, tensor.rows, tensor.k);
  part.matrix->check_floats();
  const int64_t row_bytes = tensor.k * dtype_bytes(tensor.dtype);
  pack_panels(part, row, tensor.rows, pool, [&](int64_t first, int64_t count, PackRoom& room) {
    const char* rows = static_cast<const char*>(tensor.data) + (first - row) * row_bytes;
    part.matrix->pack(Tensor{rows, tensor.dtype, count, tensor.k}, first, part.place.panels, room);
  });
}

void Weights::load_codes(const std::string& name, const CodeRows& codes, const int32_t* order, int64_t row,
                         Pool& pool) {
  MatrixPart& part = part_for(name, row, codes.rows, codes.k);
  Matrix& matrix = *part.matrix;
  matrix.check_codes(codes);
  matrix.set_order(order);
  const int64_t groups = matrix.groups();
  const auto from = [](auto* values, int64_t at) { return values ? values + at : nullptr; };
  pack_panels(part, row, codes.rows, pool, [&](int64_t first, int64_t count, PackRoom&) {
    const int64_t at = first - row, scales = at * groups;
    matrix.pack(CodeRows{codes.codes + at * codes.k, count, codes.k, codes.scales + scales, from(codes.zeros, scales),
                         from(codes.offsets, scales)},
                first, part.place.panels);
  });
}

const Matrix& Weights::matrix_of(const std::string& part) const {
  const auto found = matrices_.find(part);
  if (found == matrices_.end()) throw std::invalid_argument("this model has no matrix '" + part + "'");
  return *found->second.matrix;
}

void Weights::load_vector(const std::string& name, const float* data, int64_t n) {
  const auto found = vectors_.find(name);
  if (found == vectors_.end()) throw std::invalid_argument("this model has no vector '" + name + "'");
  VectorPart& part = found->second;
  if (n != part.place.rows)
    throw std::invalid_argument("'" + name + "' has " + std::to_string(part.place.rows) + " values; " +
                                std::to_string(n) + " were given");
  for (int64_t i = 0; i < n; ++i) (*part.values)[static_cast<size_t>(part.place.column(i))] = data[i] + part.plus;
  part.loaded = true;
}

void Weights::finish() {
  std::string missing;
  const auto add = [&missing](const std::string& name) { missing += (missing.empty() ? "" : ", ") + name; };
  for (const auto& [name, part] : matrices_)
    if (std::find(part.loaded.begin(), part.loaded.end(), false) != part.loaded.end())
      add(missing_rows(name, part.loaded));
  for (const auto& [name, part] : vectors_)
    if (!part.loaded) add(name);
  if (!missing.empty()) throw std::invalid_argument("these tensors are missing: " + missing);
}

}  // namespace forearm
