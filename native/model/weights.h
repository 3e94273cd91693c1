// The model's matrices, packed for the tier in use, and its vectors. Filled tensor by tensor, by name.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/matrix.h"
#include "model/memory.h"
#include "model/partition.h"
#include "threads/pool.h"

namespace forearm {

// weight empty: there is no such norm (or bias) in this model.
struct Norm {
  std::vector<float> weight, bias;
  bool in_residual = false;  // what it gives replaces the residual
};

// A layer behind pooling.
struct DenseWeights {
  Matrix matrix;
  std::vector<float> bias;
  Norm norm;
};

struct LayerWeights {
  Matrix qkv;  // QkvColumns
  Matrix o;
  Matrix up;  // gated: panel 2p is gate, 2p + 1 up
  Matrix down;
  std::vector<float> qkv_bias, o_bias, up_bias, down_bias;  // packed order, padded to whole panels; empty: none
  Norm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm, q_norm, k_norm;
};

class Weights {
 public:
  // Throws OutOfMemory if the packed weights are larger than the machine's memory, std::invalid_argument if a matrix
  // has no format, or one that can't be.
  Weights(const Config& config, const Formats& formats, const Ranks& ranks);

  // Packs `tensor` as rows row .. of `name`, by all members. Pages are next to the core that will read them.
  // Pieces of a matrix come in ascending order.
  // Throws std::invalid_argument if there is no such matrix or the shape is not its.
  void load_matrix(const std::string& name, const Tensor& tensor, int64_t row, Pool& pool);
  // The same with rows that are already quantised; order: [k], or null.
  void load_codes(const std::string& name, const CodeRows& codes, const int32_t* order, int64_t row, Pool& pool);
  void load_vector(const std::string& name, const float* data, int64_t n);
  // The matrix that this part belongs to. Throws std::invalid_argument if there is none.
  const Matrix& matrix_of(const std::string& part) const;
  // Everything that was loaded, to a file and from it: packed_file.h. `key` says what checkpoint it is and how it was
  // read; tier layout, formats and shapes are added. A file that can't be used leaves everything as it was.
  // Pages of a file lie where it was read or written first: several ranks copy them, each to its own node.
  void save(const std::string& path, const std::string& key, Pool& pool);
  void map(const std::string& path, const std::string& key, Pool& pool);
  // Throws std::invalid_argument naming everything that has not been loaded, and the rows.
  void finish();

  int64_t bytes() const { return region_.bytes() + vector_bytes_; }
  const Matrix& head() const { return head_.empty() ? embed_ : head_; }
  const Matrix& embed() const { return embed_; }
  const Matrix& positions() const { return positions_; }
  const LayerWeights& layer(size_t i) const { return layers_[i]; }
  const Matrix& types() const { return types_; }
  const Norm& final_norm() const { return final_norm_; }
  const DenseWeights& dense(size_t i) const { return dense_[i]; }
  const std::vector<float>& head_bias() const { return head_bias_; }

 private:
  // Where rows of a checkpoint's matrix or bias stand in a packed one.
  struct Place {
    int64_t rows;
    PanelMap panels;
    int64_t column(int64_t row) const { return (panels.step * (row / kPanel) + panels.offset) * kPanel + row % kPanel; }
  };
  struct MatrixPart {
    Matrix* matrix;
    Place place;
    std::vector<bool> loaded;  // by row
  };
  struct VectorPart {
    std::vector<float>* values;
    Place place;
    float plus;  // added to each value: 1 where a family stores norms minus one
    bool loaded;
  };

  MatrixPart& part_for(const std::string& name, int64_t row, int64_t rows, int64_t k);
  template <class Pack>
  void pack_panels(MatrixPart& part, int64_t row, int64_t rows, Pool& pool, const Pack& pack);
  void declare_layer(const Config& config, size_t index, int threads);
  void declare_dense(const Config& config, int threads);
  void declare_norms(const Config& config, LayerWeights& layer, const std::string& prefix);
  void declare_norm(const Config& config, const std::string& name, Norm& norm, int64_t n, bool with_bias);
  void declare_part(const std::string& name, Matrix& matrix, Place place);
  void declare_bias(const std::string& name, std::vector<float>& values, int64_t padded, Place place);
  void shape(Matrix& matrix, const std::string& name, int64_t n, int64_t k, Partition partition);
  void place_matrices();
  void copy_to_ranks(const Region& file, Pool& pool);
  std::string identity(const std::string& key) const;
  template <class Visit>
  void each_small(const Visit& visit);

  const Ranks ranks_;
  Formats formats_;  // that no matrix has taken yet; empty after construction
  Matrix embed_, positions_, types_, head_;
  std::vector<LayerWeights> layers_;
  std::vector<DenseWeights> dense_;
  Norm final_norm_;
  std::vector<float> head_bias_;
  std::map<std::string, MatrixPart> matrices_;
  std::map<std::string, VectorPart> vectors_;
  std::vector<Matrix*> shaped_;  // in the order of the region
  Region region_;
  int64_t vector_bytes_ = 0;
  bool mapped_ = false;  // the region is a file's, or as one: nothing can be packed into it
};

}  // namespace forearm
