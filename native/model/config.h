// The sizes and switches of one model: app/forearm/model/families/config.py's ModelConfig in C++.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/kernels.h"
#include "model/feed_forward/stream_kinds.h"
#include "model/mixers/latent_kind.h"
#include "model/mixers/recurrent/convolved_kind.h"
#include "model/mixers/recurrent/rwkv/rwkv7_kind.h"

namespace forearm {

// around_mlp: before both halves of a layer, and after the feed-forward.
enum class NormPlacement { pre, post, sandwich, around_mlp, none };
// each_head: every head has weights of its own.
enum class QkNorm { none, head, each_head, full };
// The norms whose output replaces the residual: none, the first one (the norm of the embeddings), or all of them (BERT:
// a norm after each half of a layer is computed as the norm before the next half).
enum class NormResidual { none, first, all };

constexpr int64_t kMostPairs = 2048;  // of a head of 4096 numbers that are all rotated

struct Rope {
  std::vector<float> inv_freq;  // [rotary_dim / 2]
  float scale = 1.0f;
  bool interleaved = false;
};

struct AttentionKind {
  std::optional<int> rope;  // index into Config::ropes
  int64_t window = 0;       // 0: all keys
  float out_scale = 1.0f;   // multiplies its result
  // Sizes of the layer's own; 0: Config's.
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool keys_as_values = false;  // values are the projected keys, before their norm and rotation
  // The layer whose keys and values are read; none: the layer's own.
  std::optional<size_t> shared_from = std::nullopt;
  int64_t segment = 0;   // keys of the query's own segment of so many positions are visible; 0: all
  bool unit_qk = false;  // q and k are normalized per head, without weights, after their rotation
  // Queries at position p are multiplied by 1 + query_growth * log(1 + floor((p + query_first) / query_positions)), or,
  // if they grow smoothly, by 1 + query_growth * log(max(1, (p + query_first) / query_positions)).
  float query_growth = 0.0f;
  int64_t query_positions = 0, query_first = 0;
  bool query_smooth = false;
  int64_t value_dim = 0;  // numbers of a head's values; 0: head_dim
  bool sinks = false;     // each head has one more logit in the denominator of its softmax
  std::optional<BlockIndexerKind> blocks = std::nullopt;  // chosen for each token and kv head; none: all are seen
  std::optional<ConvolvedKind> convolved = std::nullopt;  // none: queries and keys are projected alone
  float scale = 0.0f;                                     // of scores; 0: Config's
  int64_t bias_dim = 0, bias_reach = 0;                   // RelativeBias; 0: none
};

// The heads of an attention layer. Layers of equal shapes share the plan of their attention.
struct HeadShape {
  int64_t heads, kv_heads, head_dim;
  bool keys, values;   // the layer projects keys, and values of their own
  int64_t gates;       // and so many gates of a head's results: none, 1, or one for each number
  int64_t latent = 0;  // the first numbers of a key that are its value; 0: values have a cache of their own
  int64_t chosen = 0;  // the most keys that a query sees, chosen for it; 0: all
  int64_t value = 0;   // numbers of a value, if these are not as wide as keys; 0: they are
  int64_t block = 0;   // neighbouring keys that are chosen together, for each kv head; 0: keys are chosen one by one
  int64_t slots = 0;   // KV blocks that hold what is chosen for all kv heads, some of it masked; 0: no key is masked
  int64_t bias = 0;    // numbers of each head that a bias by distance is made of

  int64_t group() const { return heads / kv_heads; }
  int64_t value_dim() const { return latent ? latent : value ? value : head_dim; }
  bool operator==(const HeadShape&) const = default;
};

// A gated short convolution (LFM2).
struct ShortConvKind {
  int64_t width;      // taps of each channel: of a row and the width - 1 rows before it
  bool bias = false;  // of the taps
};

// Mamba2: Mamba2 of app/forearm/model/families/config.py.
struct Mamba2Kind {
  int64_t heads, groups, head_dim, state_dim;
  int64_t taps;
  bool conv_bias = true;
  float dt_least = 0.0f, dt_most = 0.0f;  // bounds of a step
  bool norm = true, gate_first = true;    // GatedNormTask's; no norm: the gate alone
  float z_scale = 1.0f, x_scale = 1.0f, b_scale = 1.0f, c_scale = 1.0f, dt_scale = 1.0f, out_scale = 1.0f;

  int64_t inner() const { return heads * head_dim; }
  int64_t channels() const { return inner() + 2 * groups * state_dim; }  // of the convolution: x, b and c
};

// Lightning attention: Lightning of app/forearm/model/families/recurrences.py.
struct LightningKind {
  int64_t heads, head_dim;
  std::vector<float> slopes;  // of each head; its state is multiplied with exp(-slope) by each token
  float norm_eps, out_scale = 1.0f;

  int64_t inner() const { return heads * head_dim; }
};

// Mamba: SelectiveScan of app/forearm/model/families/recurrences.py.
struct SelectiveScanKind {
  int64_t inner;  // channels, of which each has a state of state_dim numbers
  int64_t state_dim, dt_rank;
  int64_t taps;
  bool conv_bias;
  float norm_eps;     // of the norms of dt's latent, b and c; 0: there are none
  bool norm_weights;  // they have weights
};

// The real-gated linear recurrent unit: RgLru of app/forearm/model/families/recurrences.py.
struct RgLruKind {
  int64_t inner, heads, taps;  // channels, and groups of neighbours among them that gates are made of

  int64_t head_dim() const { return inner / heads; }
};

// Attention to a window, and to entries that stand for the tokens before: CompressedAttention of
// app/forearm/model/families/recurrences.py. Config::kv_heads is 1.
struct CompressedKind {
  int rope, back;  // indices into Config::ropes: of queries and keys, and of results, by the same angles back
  int64_t q_rank;
  int64_t window;
  int64_t groups, group_rank;  // of the matrices that heads' results go through
  int64_t ratio;               // tokens that an entry stands for; 0: there are none
  bool overlapping;            // it is made of as many tokens before these, too
  int64_t index_heads, index_dim;
  int64_t chosen;  // entries that a query attends to, chosen for it; 0: all

  int64_t series() const { return overlapping ? 2 : 1; }  // that a token adds to
  int64_t entries(int64_t tokens) const { return ratio ? tokens / ratio : 0; }
};

// What a mixer keeps of a sequence, however long it is: the last rows that its convolution read, and a matrix of each
// head; float32.
struct StateShape {
  int64_t tail_rows = 0, channels = 0;  // [tail_rows][channels]
  int64_t heads = 0, head_floats = 0;   // [heads][head_floats], behind the tail
  int64_t more = 0;                     // floats behind these: of a layer's NgramKind

  int64_t tail_floats() const { return (tail_rows * channels + 15) / 16 * 16; }  // the heads begin at a cache line
  int64_t floats() const { return tail_floats() + heads * head_floats + more; }
};

// The gated delta rule (Qwen3-Next, Qwen3.5, Kimi Linear).
struct GatedDeltaKind {
  int64_t key_heads, value_heads;  // each key head has group() value heads
  int64_t key_dim, value_dim;      // of a head
  int64_t width;                   // of the convolution over queries, keys and values
  bool tiled;                      // value head h belongs to key head h % key_heads, not to h / group()
  // Of two latents, which decays of each channel and the results' gates are made of; 0: they are projected at once.
  int64_t gate_rank = 0;
  float beta_scale = 1.0f;     // of the part that a token replaces
  float gate_norm_eps = 0.0f;  // of the norm of results; 0: Config's
  // Each channel of the keys has a decay of its own, and the results' gates are a sigmoid.
  bool by_channel = false;
  float least_decay = 0.0f;   // DeltaGatesTask::least
  bool sigmoid_gate = false;  // the results' gates are a sigmoid in any case

  int64_t group() const { return value_heads / key_heads; }
  // A key head's value heads lie in runs of neighbours.
  int64_t runs() const { return tiled ? group() : 1; }
  int64_t run_heads() const { return group() / runs(); }
  int64_t run_begin(int64_t key_head, int64_t run) const { return key_head * run_heads() + run * key_heads; }
  int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  int64_t decays() const { return by_channel ? key_dim : 1; }  // of a value head
};

struct FeedForwardKind {
  int64_t width;
  Activation activation = Activation::silu;
  bool gated = true;
  float gate_scale = 1.0f, out_scale = 1.0f;  // multiply the gate before its activation, and the result
  float gate_limit = __builtin_inff(), limit = __builtin_inff();  // of gates, of the size of what they multiply
  // Gates become max(0, gate - (mean + gate_cut * deviation)) of their row before their activation; none: they do not.
  std::optional<float> gate_cut = std::nullopt;
  bool shifted = false;  // it reads rows that are mixed with those of the token before (TokenShift)
};

// Experts::shared .. shared_gate and the routing of app/forearm/model/families/config.py's Experts (RouteTask).
struct ExpertsKind {
  int64_t count, active;
  Score score = Score::softmax;
  bool correction = false;
  int64_t groups = 1, groups_kept = 1, group_best = 1;
  bool renormalized = false;
  float sum_epsilon = 0.0f, scale = 1.0f, jitter = 0.0f;
  bool scales_input = false;  // weights multiply the input of an expert instead of its result
  std::optional<FeedForwardKind> shared = std::nullopt;  // a feed-forward beside the experts
  bool shared_gate = false;                              // its result is multiplied with a sigmoid of the row
  bool apart = false;                                    // norms of their own around experts and shared feed-forward
  bool by_token = false;                                 // a table chooses a token's experts, scores weigh them
  int64_t zeros = 0;                                     // further experts, whose result is their input
  int64_t behind = 0;           // the result is added to the residual behind so many further layers
  bool ahead = false;           // the router reads the residual before the layer's mixer, not normalized
  bool skips = false;           // results of `zeros` are 0 instead
  int64_t router_rank = 0;      // columns of a router that is an MLP (RouterMlp); 0: it is a matrix
  bool router_follows = false;  // it reads what the router of the layer before has handed on
  int64_t always = 0;           // of the experts, the last ones, which every token chooses

  int64_t choices() const { return count + zeros; }                      // that the router has
  int64_t slots() const { return active + (shared && !apart ? 1 : 0); }  // results that a row sums up
  // Columns of the router's logits, of which the one of the shared expert's gate is the last.
  int64_t gate_column() const { return (choices() + kPanel - 1) / kPanel * kPanel; }
};

struct LayerKind {
  std::variant<AttentionKind, ShortConvKind, Mamba2Kind, GatedDeltaKind, LatentKind, LightningKind, SelectiveScanKind,
               RgLruKind, Rwkv7Kind, CompressedKind, std::monostate>
      mixer;                                    // the last: none
  std::optional<FeedForwardKind> feed_forward;  // of each expert, if there are experts; none: the mixer alone
  std::optional<ExpertsKind> experts = std::nullopt;
  std::optional<Mamba2Kind> beside = std::nullopt;  // reads the same rows as the mixer, attention; both are added
  std::optional<NormPlacement> norm_placement = std::nullopt;  // of the layer's own; none: Config's
  bool aside = false;                                          // both halves are a SideBlock
  std::optional<NgramKind> ngrams = std::nullopt;              // added to the streams before the layer

  // The mixer, if it is of this kind; null: another one.
  template <class Kind>
  const Kind* mixer_as() const {
    return std::get_if<Kind>(&mixer);
  }
  bool mixes() const { return !mixer_as<std::monostate>(); }
  // Mamba2, alone or beside attention; null: none.
  const Mamba2Kind* mamba2() const { return beside ? &*beside : mixer_as<Mamba2Kind>(); }
};

// The role of a packed matrix: app/forearm/model/families/matrix_spec.py's Role.
enum class Role {
  embedding,
  table,
  head,
  mixer_in,
  mixer_inner,
  mixer_heads,
  mixer_groups,
  mixer_shifted,
  mixer_low_rank,
  mixer_out,
  feed_forward_in,
  feed_forward_out,
  router,
  pooler
};

// Rows of a packed matrix that are loaded by a name of their own.
struct MatrixPart {
  std::string name;
  int64_t rows;
  bool bias = true;  // if its matrix has one
};

// One packed matrix: MatrixSpec in C++. Its parts follow each other, each padded to whole panels, or their panels
// alternate.
struct MatrixSpec {
  std::string name;
  std::vector<MatrixPart> parts;
  int64_t k;
  Role role;
  bool bias = false;
  bool interleaved = false;
  int64_t experts = 1;  // matrices of this shape, one after the other

  int64_t columns() const;  // of one expert; a single part is not padded
};

// A layer after pooling: activation(W x + bias), followed by a LayerNorm if it has one.
struct DenseKind {
  int64_t outputs;
  bool bias, norm;
  Activation activation;
  bool tanh;         // tanh takes the place of `activation`
  int64_t head = 0;  // layers of one head follow each other; the first of each reads the pooled row
};

enum class DistanceBiasKind { shared, each_layer, embedded, embedded_apart };

struct Config {
  int64_t vocab_size, hidden, heads, kv_heads, head_dim, max_positions;
  std::vector<LayerKind> layers;
  std::vector<MatrixSpec> matrices;           // in the order in which they lie in memory
  std::map<std::string, std::string> shared;  // matrices that are another's, or a lender's (Weights)
  std::vector<Rope> ropes;
  bool learned_positions = false;
  int64_t position_offset = 0;
  int64_t token_types = 0;     // rows of the token type embedding
  bool bidirectional = false;  // every token attends to the whole prompt
  // The bucket, a row of the bias of attention, of each distance key - query from -reach to reach; empty: no bias.
  std::vector<int64_t> distance_buckets;
  DistanceBiasKind distance_bias = DistanceBiasKind::shared;
  // Of each head: times the distance between key and query, and subtracted from its scores; empty: none.
  std::vector<float> slopes;
  bool embed_norm = false;    // a norm behind the embedding, whose output is the residual
  bool fuses = false;         // the residual begins with the embedding and a row that comes with each token, joined
  bool keeps_hidden = false;  // a step keeps all rows behind the final norm; the last of `layers` is then empty
  int64_t embed_width = 0;    // numbers of an embedding, projected to `hidden` behind its norm; 0: it has as many
  // Embeddings of this token are 0, and those of a text that has it grow as if they had been dropped; none: they don't.
  std::optional<int32_t> dropped_token = std::nullopt;
  bool modules = false;  // torch computes the modules, and the executor what they call (modules.h)
  bool pooled = false;   // no head: a step returns the final norm's outputs; prompts are computed whole
  std::vector<DenseKind> dense;
  // Between the final norm and the head; none: the head multiplies the normalized rows.
  std::optional<DenseKind> head_dense = std::nullopt;

  float norm_eps = 1e-6f;
  bool layer_norm = false;
  bool norm_bias = true;  // of LayerNorm
  bool centred = false;   // norms before matrices have biases, which take the means of their output away
  NormResidual norm_residual = NormResidual::none;
  NormPlacement norm_placement = NormPlacement::pre;
  bool norm_plus_one = false;
  bool norm_weight = true;
  bool final_norm = true;
  bool parallel_residual = false;  // both halves of a layer read the same residual
  QkNorm qk_norm = QkNorm::none;
  bool qk_norm_after_rope = false;
  bool qk_norm_bias = false;         // of each head's norms
  int64_t norm_gates = 0;            // rank of the gates of norms before mixers and experts (GatedNorms); 0: none
  Gate attention_gate = Gate::none;  // results of attention are multiplied with gates beside the queries
  bool head_gates = false;           // a head has one gate instead of one for each number
  float qkv_clip = 0.0f;             // q, k and v are clamped to this size; 0: not
  bool v_norm = false;               // values are normalized per head, without weights
  bool layer_scalar = false;         // the residual is multiplied with a number at the end of each layer
  bool merges = false;               // vectors scale and move both the residual and what is added to it (Norm::merge)
  bool sub_norm = false;             // what the last matrix of each half of a layer reads is normalized
  int64_t conv_taps = 0;             // of four convolutions in each layer (LayerConvolutions); 0: none

  bool tied_head = false;
  std::optional<PerLayerKind> per_layer = std::nullopt;
  std::optional<AltUpKind> alt_up = std::nullopt;  // none: one residual stream
  std::optional<HyperKind> hyper = std::nullopt;   // none: one residual stream

  float attention_scale = 1.0f, attention_softcap = 0.0f;
  float logits_softcap = 0.0f, logits_scale = 1.0f, embedding_scale = 1.0f, residual_scale = 1.0f;

  // The layer's mixer is attention, of heads or to a latent.
  bool attends(size_t layer) const;
  // The heads of a layer that attends; those of a latent are computed from what it projects.
  HeadShape head_shape(size_t layer) const;
  // The shapes of all layers that attend, without repetition.
  std::vector<HeadShape> head_shapes() const;
  int64_t widest_head() const;  // numbers of a key of these layers, or of the model if none attends
  // What the mixer of a layer keeps of a sequence; of no floats: it keeps keys and values.
  StateShape state(size_t layer) const;
  bool has_states() const;
  // Floats of a layer's NgramKind in its state: the tokens before, and rows before the convolution.
  int64_t ngram_floats(size_t layer) const;
  const NgramKind* ngrams() const;  // of a layer, whose sizes all have; null: none has
  // Rows of the bias of attention, each with a value for every head, or of the embeddings of distances.
  int64_t bias_rows() const;
  bool distance_embeddings() const { return distance_bias == DistanceBiasKind::embedded || distances_apart(); }
  // Embeddings of distances have no norm, and matrices of their own.
  bool distances_apart() const { return distance_bias == DistanceBiasKind::embedded_apart; }
  int64_t embedding_columns() const { return embed_width ? embed_width : hidden; }
  // The first layer reads what is projected of the embedding, whose norm stands before the projection.
  bool projects_embedding(size_t layer) const {
    return layer == 0 && embed_width && norm_residual == NormResidual::all;
  }
  bool shifts() const;       // the layers' feed-forwards are shifted
  bool has_latents() const;  // some layers have latent attention
  bool joint_gates() const;  // some of them LatentKind's
  // A latent attention of the model whose indexer has the sizes of all; null: it has none.
  const LatentKind* indexed() const;
  int64_t heads_of(const LatentKind& kind) const { return kind.heads ? kind.heads : heads; }
  // Latent attention has gates of every number of its values, which are floats until then.
  bool gates_latents() const { return has_latents() && attention_gate != Gate::none && !head_gates; }
  const BlockIndexerKind* block_indexer() const;  // of all layers that have one; null: none has
  // A half's result is not added to the residual: it is projected, and joined there behind it.
  bool joins_behind() const { return parallel_residual || joins_both(); }
  // Of both halves, one after the other.
  bool joins_both() const { return hyper || conv_taps; }
  // The layers have compressed attention.
  bool compressed() const { return layers[0].mixer_as<CompressedKind>(); }
  // Columns of the embedding of all layers; 0: none.
  int64_t per_layer_columns() const { return per_layer ? static_cast<int64_t>(layers.size()) * per_layer->width : 0; }
  // Columns of a row that a step returns.
  int64_t out_columns() const { return pooled ? hidden : vocab_size; }
  // Values of a vector of a head of the pooling; of a head without layers: of a row.
  int64_t pooled_columns(int64_t head) const;
  NormPlacement placement(size_t layer) const { return layers[layer].norm_placement.value_or(norm_placement); }
  bool norms_before() const;     // every layer has a norm before each half
  bool norms_after() const;      // every layer has one after each half
  bool some_norm_after() const;  // at least one layer has
  bool asides() const;           // at least one layer is a SideBlock
  // Numbers of a row that the first matrix of a layer's mixer reads.
  int64_t mixer_width(size_t layer) const { return layers[layer].aside ? 2 * hidden : hidden; }
  bool adds_later() const;  // some experts' result is added behind a later layer
};

// The number format of one packed matrix: WeightFormat in C++.
struct Format {
  enum class Zero { none, int8, float16 };
  DType dtype = DType::f32;
  int64_t group = 0;  // values of a row that share a scale; 0: the whole row
  DType scale_dtype = DType::f32;
  Zero zero = Zero::none;
  bool wide = false;     // activations are not rounded to int8
  bool ordered = false;  // columns of activations are permuted: Weights::load_codes' order
  bool turned = false;   // activations are turned before they are rounded (QuantizeTask)
};
// The formats by the names of the packed matrices.
using Formats = std::map<std::string, Format>;

// The limits that one executor is made for.
struct Limits {
  DType kv_dtype;
  int64_t step_tokens, step_sequences, step_logit_rows, max_model_len;
  bool kv_groups = false;  // layers with a window have blocks of their own (kv_groups.h)
};

// Throws std::invalid_argument naming the field and its value, such as a size that is not possible or does not divide.
void check(const Config& config, const Limits& limits);
// Throws std::invalid_argument for a format that is not valid; `name` is the matrix's name, `k` its width.
void check(const std::string& name, const Format& format, int64_t k);

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace forearm
