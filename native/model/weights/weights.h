// The model's matrices, packed for the tier in use, and its vectors; tensors are loaded one by one, by name.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/memory.h"
#include "model/partition.h"
#include "model/weights/matrix.h"
#include "threads/pool.h"

namespace forearm {

inline const float* or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

// A matrix and its bias, which is in packed order and padded to whole panels; an empty bias adds nothing.
struct Linear {
  Matrix matrix;
  std::vector<float> bias;

  // The bias of one expert; null: none.
  const float* bias_of(int64_t expert) const {
    return bias.empty() ? nullptr : bias.data() + matrix.first_panel(expert) * kPanel;
  }
};

// A norm. Empty weight: this model does not have the norm (or its bias).
struct Norm {
  std::vector<float> weight, bias;
  bool in_residual = false;  // its output replaces the residual
  bool gated = false;        // GatedNorms has written what stands behind it to Scratch::gated
  // [1]: after the norm's output was added to the residual, the residual is multiplied with it; empty: it is not.
  std::vector<float> stream_scale;
  // [4][hidden]: in place of a norm, scale and bias of a result, and of the residual that it is added to (ZAYA1).
  std::vector<float> merge;

  const Norm* if_there() const { return weight.empty() && merge.empty() ? nullptr : this; }
};

struct LayerNorms {
  Norm input, post_attention, pre_mlp, post_mlp, per_layer, q, k, rotated_key, index, index_q, entry;
  Norm attn_sub, ffn_sub;  // Config::sub_norm: before o, [heads * head_dim], and before down, [width]
  Norm router, pre_experts, post_experts, post_shared;  // of experts that are apart from their shared feed-forward
};

// The weights of a convolution over the rows of each channel.
struct Convolution {
  std::vector<float> taps;       // [width][channels]
  std::vector<float> bias;       // [channels]; empty: none
  std::vector<float> key_scale;  // [kv_heads], of ConvolvedHeads
  std::vector<float> scale;      // [1]: of the results of a layer's feed-forward (LayerConvolutions)
};

// The vectors of a recurrence and of the norm behind it (Mamba2Task, DeltaGatesTask, GatedNormTask).
struct Recurrence {
  std::vector<float> dt_bias, a_log, d;  // [heads]; d of Mamba2 and, zeros, lightning attention alone
  std::vector<float> norm;
  std::vector<float> norm_bias, removal, replaced, bonus;  // of RWKV-7: Rwkv7Task's norm_bias, k_k, k_a and r_k
  std::vector<float> mixes, mlp_mix;  // and TokenShiftTask's mix of r, w, k, v, a and g, and of the feed-forward
  // Of a selective scan a_log is SelectiveScanTask's a, d [channels], and norm the weights of dt's latent, b and c.
  // Of an RG-LRU a_log is RgLruTask's rate, [inner].
};

// The vectors of a layer's alternating updates; small matrices are [rows][streams], one row after the other.
struct AltUpVectors {
  std::vector<float> norm, router;      // [hidden], [streams][hidden]
  std::vector<float> predict, correct;  // [streams * streams][streams], [streams][streams]
  std::vector<float> scale;             // [hidden]; empty: none
  Norm laurel;                          // [hidden]
};

// The vectors that weigh residual streams before one half of a layer; of the head, pre's alone.
struct HyperVectors {
  std::vector<float> project;      // [weights][streams][hidden]
  std::vector<float> base, scale;  // [weights]; of pre, post and the matrix of the streams
  // Of HyperKind::rank: the norm of each stream, [streams][hidden]; then project is of post alone, and not the head's.
  Norm norm;
};

// The vectors of embeddings of several tokens: norms of streams' width, [streams][hidden], and a convolution.
struct NgramVectors {
  Norm key, query, convolved;
  std::vector<float> taps;  // [taps][streams][hidden]
};

class Weights {
 public:
  // Throws OutOfMemory if the packed weights are larger than the machine's memory, std::invalid_argument if a matrix
  // has no format, or an invalid one. lender: weights of a team that is divided alike, which have the matrices of
  // Config::shared; null: these have them.
  Weights(const Config& config, const Formats& formats, const Ranks& ranks,
          std::shared_ptr<const Weights> lender = nullptr);

  // Packs `tensor` as rows row .. of `name`, by all members. Pages lie on the node of the core that will read them.
  // Pieces of a matrix must come in ascending order.
  // Throws std::invalid_argument if there is no such matrix or the shape does not fit it.
  void load_matrix(const std::string& name, const Tensor& tensor, int64_t row, const Rounding& rounding, Pool& pool);
  // Packs rows that are already quantized; order: [k], or null.
  void load_codes(const std::string& name, const CodeRows& codes, const int32_t* order, int64_t row, Pool& pool);
  void load_vector(const std::string& name, const float* data, int64_t n, int64_t row = 0);
  // Returns the matrix that a part belongs to. Throws std::invalid_argument if there is none.
  const Matrix& matrix_of(const std::string& part) const;
  // Save everything that was loaded to a file, and map it from there (packed_file.h). `key` identifies the checkpoint
  // and the way it was read; tier layout, formats and shapes are added. A file that can't be used changes nothing.
  // Pages of a file lie on the node that first read or wrote them: several ranks copy them, each to its own node.
  void save(const std::string& path, const std::string& key);
  void map(const std::string& path, const std::string& key, Pool& pool);
  // Throws std::invalid_argument naming everything that has not been loaded, and the rows.
  void finish();

  int64_t bytes() const { return region_.bytes() + vector_bytes_; }
  bool mapped() const { return mapped_; }
  // Returns the packed matrix of this name. Throws std::invalid_argument if the list has none, or its shape is not
  // `columns`, `k` and `experts`, which follow from the rest of the config.
  const Linear& linear(const std::string& name, int64_t columns, int64_t k, int64_t experts = 1) const;
  const Linear& linear(const std::string& name) const;
  const LayerNorms& norms(size_t layer) const { return layers_[layer]; }
  // The norm before the head, which a head that is lent takes as its own model's: see set_final_norms.
  const Norm& final_norm() const { return lends_head_ ? lent_norm_ : final_norm_; }
  // The same norm as the checkpoint has it, for Config::keeps_hidden.
  const Norm& hidden_out_norm() const { return hidden_out_norm_; }
  const Norm& embed_norm() const { return embed_norm_; }
  // Of the rows that come with tokens, with Config::fuses.
  const Norm& hidden_norm() const { return hidden_norm_; }
  // Behind Config::head_dense.
  const Norm& head_norm() const { return head_norm_; }
  // The norm of each layer's part of the projected embedding, [PerLayerKind::width].
  const Norm& per_layer_norm() const { return per_layer_norm_; }
  // The constants of a layer's xIELU, which is stored as softplus's arguments (Apertus).
  Xielu xielu(size_t layer) const;
  // What is added to the scores of a layer's experts when they are chosen, [experts]; empty: nothing.
  const std::vector<float>& correction(size_t layer) const { return corrections_[layer]; }
  // Of a layer's RouterMlp: the norm, [router_rank], and what multiplies the state of the layer before.
  const Norm& router_norm(size_t layer) const { return layers_[layer].router; }
  const std::vector<float>& router_state(size_t layer) const { return router_states_[layer]; }
  // Scale and bias of the embedding's rows, [2][hidden], with Config::merges.
  const std::vector<float>& embed_merge() const { return embed_merge_; }
  // Factors of the weights of a layer's experts, [experts]; empty: none.
  const std::vector<float>& expert_scale(size_t layer) const { return expert_scales_[layer]; }
  // One more logit for each head in the denominator of a layer's softmax, [heads]; empty: none.
  const std::vector<float>& sinks(size_t layer) const { return sinks_[layer]; }
  // The biases of attention, each [bias_rows][heads]: none, the one of all layers, or one of each.
  const std::vector<std::vector<float>>& attention_biases() const { return attention_biases_; }
  // What a layer's bias by distance is made of, [bias_dim][bias_reach]; empty: it has none (RelativeBias).
  const std::vector<float>& relative_bias(size_t layer) const { return relative_biases_[layer]; }
  // The norm of the embeddings of distances, [hidden].
  const Norm& distance_norm() const { return distance_norm_; }
  const AltUpVectors& alt_up(size_t layer) const { return alt_ups_[layer]; }
  // Of attention (2 * layer), of the feed-forward behind it, and, at last, of the head.
  const HyperVectors& hyper(size_t half) const { return hypers_[half]; }
  const NgramVectors& ngrams(size_t layer) const { return ngrams_[layer]; }
  // What is added to the gates of each of an entry's tokens, [ratio][series][numbers of an entry].
  const std::vector<float>& entry_bias(size_t layer, bool index) const { return entry_biases_[2 * layer + index]; }
  // The experts of each token, [vocab_size][active]; empty: a layer's scores choose them.
  const std::vector<float>& experts_by_token(size_t layer) const { return by_token_[layer]; }
  const Convolution& convolution(size_t layer) const { return convolutions_[layer]; }
  const Recurrence& recurrence(size_t layer) const { return recurrences_[layer]; }
  const Norm& pooler_norm(size_t i) const { return pooler_norms_[i]; }

 private:
  // The place of a checkpoint's matrix or bias in a packed one. Experts follow each other: row e * rows + r is row r of
  // expert e.
  struct Place {
    int64_t rows;  // of one expert
    PanelMap panels;
    int64_t experts = 1, expert_panels = 0;
    int64_t width = 1;  // of a vector that is stored as [rows / width, width] and kept transposed
    int64_t lanes = 0;  // so many of its rows / width at a time; 0: all at once

    int64_t all_rows() const { return experts * rows; }
    PanelMap of(int64_t expert) const { return {panels.step, panels.offset + expert * expert_panels}; }
    int64_t column(int64_t row) const {
      if (width > 1 || lanes) {
        const int64_t at_once = lanes ? lanes : rows / width, block = row / width / at_once * at_once;
        return block * width + row % width * at_once + row / width - block;
      }
      const PanelMap map = of(row / rows);
      return (map.step * (row % rows / kPanel) + map.offset) * kPanel + row % rows % kPanel;
    }
  };
  struct MatrixRows {
    Matrix* matrix;
    Place place;
    std::vector<bool> loaded;  // by row
  };
  struct VectorValues {
    std::vector<float>* values;
    Place place;
    float plus;                        // added to each value: 1 if the family stores norms minus one
    std::vector<bool> loaded;          // by row
    int64_t below = 0;                 // values are whole numbers from 0 to below - 1; 0: any
    double (*kept)(double) = nullptr;  // what is kept of a value; null: itself, and plus
    bool plus_last = false;            // plus is added to the last of each Place::width values alone
  };

  MatrixRows& rows_for(const std::string& name, int64_t row, int64_t rows, int64_t k);
  template <class Pack>
  void pack_panels(MatrixRows& part, int64_t row, int64_t rows, Pool& pool, const Pack& pack);
  template <class Pack>
  void pack_expert(const MatrixRows& part, int64_t row, int64_t rows, Pool& pool, const Pack& pack);
  void declare(const MatrixSpec& spec, Formats& formats);
  void declare_norms(const Config& config, size_t layer);
  void declare_alt_up(const Config& config, size_t layer);
  void declare_hyper(const Config& config);
  void declare_ngrams(const Config& config, size_t layer);
  void declare_compressed(const Config& config, size_t layer, const CompressedKind& kind);
  void declare_convolution(size_t layer, int64_t width, int64_t channels, bool bias);
  void declare_layer_convolutions(const Config& config, size_t layer);
  void declare_mamba2(size_t layer, const Mamba2Kind& kind);
  void declare_delta(size_t layer, const GatedDeltaKind& kind);
  void declare_lightning(size_t layer, const LightningKind& kind);
  void declare_scan(size_t layer, const SelectiveScanKind& kind);
  void declare_rg_lru(size_t layer, const RgLruKind& kind);
  void declare_rwkv7(const Config& config, size_t layer, const Rwkv7Kind& kind);
  void declare_convolved(const Config& config, size_t layer, const ConvolvedKind& kind);
  void declare_router(const Config& config, size_t layer);
  void declare_norm(const Config& config, const std::string& name, Norm& norm, int64_t n, bool with_bias);
  void declare_vector(const std::string& name, std::vector<float>& values, int64_t padded, Place place);
  void place_matrices();
  void set_final_norms();
  void copy_to_ranks(const Region& file, Pool& pool);
  std::string identity(const std::string& key) const;
  template <class Visit>
  void each_small(const Visit& visit);

  const Ranks ranks_;
  const std::map<std::string, std::string> shared_;  // Config's
  const std::shared_ptr<const Weights> lender_;
  const bool lends_head_;  // the lender does
  std::map<std::string, Linear> linears_;
  std::vector<LayerNorms> layers_;
  std::vector<std::vector<float>> xielus_;  // alpha of positive x, of negative x, beta, limit
  std::vector<std::vector<float>> corrections_, expert_scales_, sinks_, router_states_;
  std::vector<float> embed_merge_;
  std::vector<AltUpVectors> alt_ups_;
  std::vector<HyperVectors> hypers_;
  std::vector<NgramVectors> ngrams_;
  std::vector<std::vector<float>> entry_biases_, by_token_;
  std::vector<Convolution> convolutions_;
  std::vector<Recurrence> recurrences_;
  std::vector<std::vector<float>> attention_biases_, relative_biases_;
  std::vector<Norm> pooler_norms_;
  Norm final_norm_, embed_norm_, hidden_norm_, head_norm_, per_layer_norm_, distance_norm_;
  Norm lent_norm_, hidden_out_norm_;
  std::vector<float> head_columns_;  // [hidden]: what columns of a centred head were divided by (centred.py)
  std::map<std::string, MatrixRows> matrices_;
  std::map<std::string, VectorValues> vectors_;
  std::vector<Matrix*> shaped_;  // in the order of the region
  Region region_;
  int64_t vector_bytes_ = 0;
  bool mapped_ = false;  // the region is mapped or copied from a file: nothing can be packed into it
};

}  // namespace forearm
