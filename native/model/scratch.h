// Everything a step writes besides the KV cache, allocated once for the largest step.
//
// The stride of rows is an odd number of 64-byte lines: with a power of two, rows would share a few sets of the caches.
#pragma once
#include <array>
#include <vector>

#include "model/config.h"
#include "model/memory.h"
#include "model/step/expert_sizes.h"
#include "model/weights/weights.h"

namespace forearm {

// With at most this many rows and values every member prepares all of them for itself: cheaper than waiting for others.
constexpr int64_t kOwnRows = 4, kOwnValues = 16384;

// Rows that are multiplied with a matrix of one head at once; a multiple of every tile's height.
constexpr int64_t kHeadRows = 48;

// Rows of a feed-forward whose gates are cut that are computed at once: all gates of a row are kept as floats until the
// last is known. A multiple of 2.
constexpr int64_t kCutRows = 256;

constexpr int64_t odd_lines(int64_t columns) { return ((columns + 15) / 16 | 1) * 16; }

// The form in which a matrix takes the rows that it is multiplied with.
struct MatrixInput {
  Role role;
  int64_t k;
  Form form;
  int64_t groups;  // groups of a row, if the form is quantized
  bool direct;     // the operation before writes this form itself; otherwise it writes floats, and rows are prepared
  bool codes;      // weights are codes, which need scratch of the member for widening or multiplying
  bool experts = false;
  bool turned = false;  // in a row of the member's scratch
};
// Returns the inputs of all matrices that a step multiplies with. Throws std::invalid_argument if one has no format.
// any_tier: assume the largest form that any tier takes, instead of the form of the tier in use.
std::vector<MatrixInput> matrix_inputs(const Config& config, const Formats& formats, bool any_tier = false);

class Carver;

// Rows that matrices are multiplied with, in every form that one of the matrices takes.
class Inputs {
 public:
  void need(const MatrixInput& input);
  // The rows in the form that `matrix` takes.
  Operand operand(const Matrix& matrix) const;
  int64_t columns() const { return columns_; }

 private:
  friend class Carver;
  int64_t columns_ = 0;
  std::array<int64_t, kForms> groups_{};  // largest number of groups of a row; 0: the form is not needed
  std::array<Operand, kForms> forms_{};
};

// One place of the model where rows are multiplied: the rows that the operation before writes, and their forms for
// matrices.
struct Site {
  Operand raw;              // [rows, columns], f32_rows
  Inputs shared;            // all rows
  std::vector<Inputs> own;  // by member: a copy of up to kOwnRows rows
  bool prepares = false;    // some matrix takes a form that the operation before can't write

  // True if the operation before writes the form of `matrix` itself; otherwise it writes `raw`, and rows are prepared.
  static bool is_direct(const Matrix& matrix) { return !is_quantized(matrix.form()) && !matrix.format.ordered; }
  // Where the operation before writes. norm: it is computed between the two; null: none.
  Operand target(const Matrix& matrix, const Norm* norm = nullptr) const {
    return !norm && is_direct(matrix) ? shared.operand(matrix) : raw;
  }
};

class Scratch {
 public:
  Scratch(const Config& config, const Limits& limits, const std::vector<MatrixInput>& inputs, int64_t padded_head_dim,
          int threads);

  int64_t bytes() const { return region_.bytes(); }
  // The bytes that a Scratch would take, without allocating it. any_tier: see matrix_inputs.
  static int64_t bytes_for(const Config& config, const Limits& limits, const Formats& formats, int threads,
                           bool any_tier);

  Operand residual;   // [step_tokens, hidden], f32_rows: the residual stream
  Operand mixer_in;   // [step_tokens, columns of the widest mixer's joint matrix], f32_rows
  Operand beside_in;  // [step_tokens, columns of the widest Mamba2 beside attention], f32_rows
  // [step_tokens, channels of the widest recurrence or convolution of heads or layers], f32_rows; of token shifts the
  // normalized residual
  Operand convolved;
  // [step_tokens, 2 * hidden], f32_rows: of a SideBlock the residual and the embedding, or of Config::fuses the
  // embedding and the rows that come with tokens; else no rows
  Operand side;
  Operand hidden;     // [step_tokens, hidden], f32_rows: of Config::keeps_hidden; else no rows
  Operand projected;  // [step_tokens, hidden], f32_rows: rows before a post-norm; learned positions, token types
  Operand logits;     // [step_logit_rows, Config::out_columns()], f32_rows
  Operand maxima;     // [step_logit_rows, maxima_of(vocab_size)]: row_maxima of the logits
  Site stream;        // [step_tokens or step_logit_rows, hidden]: raw is the residual
  Site mixed;         // [step_tokens, columns of the widest mixer's result]
  Site activated;     // [step_tokens, width of the widest feed-forward]
  // Of RWKV: rows that are mixed with those of the token before, the first also before feed-forwards, and those before
  // low-rank matrices; the first layer's values, [step_tokens, columns of a mixer's values], f32_rows.
  std::array<Site, 3> shifted;
  std::array<Site, 4> latents;
  Operand first_values;

  // Of an embedding of each layer, no rows without it.
  Operand per_layer;       // [step_tokens, Config::per_layer_columns()], f32_rows
  Operand per_layer_gate;  // [step_tokens, PerLayerKind::width], f32_rows

  // Of several residual streams, no rows without them.
  Operand streams;  // [step_tokens, streams * hidden rounded up to whole panels], f32_rows
  // Of hyper-connections: floats of each row of all streams' parts, and what weighs streams (HyperConnections).
  Operand hyper_sums, hyper_weights;  // [step_tokens, ..], f32_rows
  // Of HyperKind::rank: streams, normalized, and their gates, [step_tokens, streams * hidden], f32_rows, and the few
  // numbers that gates are made of.
  Operand hyper_normed, hyper_gates, hyper_few;
  // Of NgramKind: embeddings [step_tokens, width], keys and value (NgramColumns), and what the convolution reads.
  Operand ngrams, ngrams_in, ngrams_gated;
  Operand laurel_in;     // [step_tokens, AltUpKind::laurel], f32_rows
  Operand laurel;        // [step_tokens, hidden], f32_rows
  Operand norm_gate_in;  // [step_tokens, Config::norm_gates], f32_rows; no rows without gates of norms
  Operand gated;         // [step_tokens, hidden], f32_rows: rows behind a gated norm
  Operand cut_gates;  // [kCutRows, columns of the widest gate and up], f32_rows: of feed-forwards whose gates are cut

  // Of latent attention, no rows without it.
  Operand queries;   // [step_tokens, heads * query_dim], f32_rows: of a latent of queries
  Operand absorbed;  // [step_tokens, heads * head_dim], f32_rows: queries as the cache's keys have them, then gates
  Operand attended;  // [step_tokens, heads * rank], f32_rows: weighted latents
  Site inner;  // [step_tokens, columns]: the latent of queries, or of a delta rule's gates; a scan's x, its dt's latent
  Site by_head;  // each member's own kHeadRows rows of one head

  // Of an indexer, or of what compressed attention makes entries of, no rows without it.
  Operand index_in;          // [step_tokens, IndexColumns or CompressedColumns], f32_rows
  Operand index_queries;     // [step_tokens, heads * head_dim], f32_rows
  Operand index_scores;      // [rows that are scored at once, max_model_len], f32_rows
  int64_t index_rows;        // of it
  int64_t index_keys = 0;    // of a row's scores, those of one kv head (BlockIndexer)
  int64_t mask_slots = 0;    // HeadShape::slots
  int64_t gathered_keys;     // the most of a member
  int32_t* gathered_blocks;  // the blocks of gathered keys: 0, 1, .. (Indexer)
  // The keys that were chosen for a row of the step, ascending.
  int32_t* chosen_keys(int64_t row) const { return chosen_ + row * gathered_keys; }
  // The KV blocks that were chosen for a row of the step and a kv head, in the order of the sequence.
  int32_t* chosen_blocks(int64_t row, int64_t kv_head) const {
    return chosen_ + (row * chosen_heads_ + kv_head) * chosen_blocks_;
  }
  // A member's own packed keys.
  char* gathered(int member) const { return own_gathered_ + member * own_gathered_bytes_; }
  // A member's own partial results of an item of compressed attention.
  float* own_partials(int member) const {
    return reinterpret_cast<float*>(own_partials_ + member * own_partials_bytes_);
  }

  // Of experts (ExpertSizes). Each member has its own copies of the routes of up to kOwnRows rows.
  struct Routes {
    int32_t* chosen;  // [rows, slots]: the experts of a row
    float* weights;   // [rows, slots]: of their results, and of the shared expert's
    int32_t* place;   // [rows, slots]: position of each result
  };
  Operand router;                                  // [step_tokens, router_columns], f32_rows: logits
  Operand router_state, router_in, router_middle;  // [step_tokens, router_rank], f32_rows: of RouterMlp
  Site by_expert;                                  // [positions, hidden]: raw is the residual
  Site expert_activated;                           // [positions, width of the widest expert]
  Operand beside_experts;  // [step_tokens, hidden], f32_rows: results of a shared feed-forward that is apart
  Routes routes;
  ExpertSizes experts;
  int64_t step_tokens;

  float* mixer_at(int64_t row, int64_t column) const {
    return static_cast<float*>(mixer_in.data) + row * mixer_in.stride + column;
  }

  float* distances;                    // [DistanceEmbeddings::kept_floats] or RelativeBias's: kept for all steps
  float* alibi;                        // DistanceBias::values of Config::slopes: kept for all steps
  int64_t alibi_reach;                 // and its reach
  std::vector<float*> cosines, sines;  // by rope: [step_tokens, rotary_dim / 2]
  int32_t* slots;                      // [group of KvGroups][token of the step]
  float* partials;                     // [partial_floats]: attention of one chunk of keys each
  int64_t partial_floats;

  // Buffers of one member: a row [hidden or per_layer_columns], and the scratch of attend, gemm, sample and a mixer.
  float* row(int member) const { return reinterpret_cast<float*>(own_row_ + member * own_row_bytes_); }
  void* attend(int member) const { return own_attend_ + member * own_attend_bytes_; }
  void* gemm(int member) const { return own_gemm_ + member * own_gemm_bytes_; }
  void* sampler(int member) const { return own_sampler_ + member * own_sampler_bytes_; }
  float* mixer(int member) const { return reinterpret_cast<float*>(own_mixer_ + member * own_mixer_bytes_); }
  // Of experts: routes of kOwnRows rows, scratch of route, and results of a piece of columns, own_results floats.
  Routes own_routes(int member) const;
  float* route(int member) const { return reinterpret_cast<float*>(own_route_ + member * own_route_bytes_); }
  float* results(int member) const { return own_results_ + member * own_results; }
  int64_t own_results = 0;

 private:
  Scratch() = default;
  // Returns the bytes of all pieces; with `base` null it only counts them.
  int64_t carve(char* base, const Config& config, const Limits& limits, int threads);
  void carve_sites(Carver& carver, const Limits& limits);
  void carve_latent(Carver& carver, const Config& config, const Limits& limits);
  void carve_index(Carver& carver, const Config& config, const Limits& limits, int threads);
  void carve_block_index(Carver& carver, const Config& config, const Limits& limits, int threads);
  void carve_compressed(Carver& carver, const Config& config, const Limits& limits, int threads);
  void carve_streams(Carver& carver, const Config& config, int64_t tokens);
  int64_t own_routes_bytes() const { return round_up(kOwnRows * experts.slots * 4, 128); }
  void carve_experts(Carver& carver, const Limits& limits, int threads);
  void need(const Config& config, const Limits& limits, const std::vector<MatrixInput>& inputs, int64_t padded_head_dim,
            int threads);

  int32_t* chosen_;
  int64_t chosen_heads_ = 0, chosen_blocks_ = 0;
  int64_t own_gathered_bytes_, own_partials_bytes_ = 0;
  char *own_gathered_, *own_partials_ = nullptr;
  char *own_row_, *own_attend_, *own_gemm_, *own_sampler_, *own_mixer_, *own_route_, *own_routes_;
  float* own_results_;
  int64_t own_row_bytes_, own_attend_bytes_, own_gemm_bytes_ = 0, own_sampler_bytes_, own_mixer_bytes_,
                                             own_route_bytes_;
  Region region_;
};

}  // namespace forearm
