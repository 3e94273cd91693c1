// The model's matrices, packed for the tier in use, and its vectors. Filled tensor by tensor, by name.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/memory.h"
#include "model/partition.h"
#include "model/weights/matrix.h"
#include "threads/pool.h"

namespace forearm {

inline const float* or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

// A matrix and what is added to its products, in packed order, padded to whole panels; empty: nothing.
struct Linear {
  Matrix matrix;
  std::vector<float> bias;
};

// weight empty: there is no such norm (or bias) in this model.
struct Norm {
  std::vector<float> weight, bias;
  bool in_residual = false;  // what it gives replaces the residual

  const Norm* if_there() const { return weight.empty() ? nullptr : this; }
};

struct LayerNorms {
  Norm input, post_attention, pre_mlp, post_mlp, q, k;
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
  // The packed matrix of this name. Throws std::invalid_argument if the list has none, or one of another shape than
  // `columns` and `k`, which are what the rest of the config makes it.
  const Linear& linear(const std::string& name, int64_t columns, int64_t k) const;
  const LayerNorms& norms(size_t layer) const { return layers_[layer]; }
  const Norm& final_norm() const { return final_norm_; }
  const Norm& pooler_norm(size_t i) const { return pooler_norms_[i]; }

 private:
  // Where rows of a checkpoint's matrix or bias stand in a packed one.
  struct Place {
    int64_t rows;
    PanelMap panels;
    int64_t column(int64_t row) const { return (panels.step * (row / kPanel) + panels.offset) * kPanel + row % kPanel; }
  };
  struct MatrixRows {
    Matrix* matrix;
    Place place;
    std::vector<bool> loaded;  // by row
  };
  struct VectorValues {
    std::vector<float>* values;
    Place place;
    float plus;  // added to each value: 1 where a family stores norms minus one
    bool loaded;
  };

  MatrixRows& rows_for(const std::string& name, int64_t row, int64_t rows, int64_t k);
  template <class Pack>
  void pack_panels(MatrixRows& part, int64_t row, int64_t rows, Pool& pool, const Pack& pack);
  void declare(const MatrixSpec& spec, Formats& formats);
  void declare_norms(const Config& config, size_t layer);
  void declare_norm(const Config& config, const std::string& name, Norm& norm, int64_t n, bool with_bias);
  void declare_vector(const std::string& name, std::vector<float>& values, int64_t padded, Place place);
  void place_matrices();
  void copy_to_ranks(const Region& file, Pool& pool);
  std::string identity(const std::string& key) const;
  template <class Visit>
  void each_small(const Visit& visit);

  const Ranks ranks_;
  std::map<std::string, Linear> linears_;
  std::vector<LayerNorms> layers_;
  std::vector<Norm> pooler_norms_;
  Norm final_norm_;
  std::map<std::string, MatrixRows> matrices_;
  std::map<std::string, VectorValues> vectors_;
  std::vector<Matrix*> shaped_;  // in the order of the region
  Region region_;
  int64_t vector_bytes_ = 0;
  bool mapped_ = false;  // the region is a file's, or as one: nothing can be packed into it
};

}  // namespace forearm
