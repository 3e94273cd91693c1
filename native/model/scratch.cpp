#include "model/scratch.h"

#include <algorithm>
#include <stdexcept>

#include "model/feed_forward/hyper_connections.h"
#include "model/mixers/biases/distance_embeddings.h"
#include "model/mixers/biases/relative_bias.h"
#include "model/mixers/block_indexer.h"
#include "model/mixers/compressed_attention.h"
#include "model/mixers/indexer.h"
#include "model/mixers/recurrent/convolved_heads.h"
#include "model/mixers/recurrent/gated_delta.h"
#include "model/mixers/recurrent/rwkv/rwkv7.h"
#include "model/partition.h"
#include "sampling/sampler.h"

namespace forearm {

// Counts pieces in a first pass, and turns them into pointers in a second one, after the region is allocated.
class Carver {
 public:
  explicit Carver(char* base) : base_(reinterpret_cast<uintptr_t>(base)) {}
  template <class T>
  T* take(int64_t bytes) {
    return reinterpret_cast<T*>(base_ + static_cast<uintptr_t>(pieces_.take(bytes)));
  }
  char* take_each(int threads, int64_t bytes) { return take<char>(threads * bytes); }
  Operand floats(int64_t rows, int64_t columns) {
    return {take<void>(rows * odd_lines(columns) * 4), odd_lines(columns), Form::f32_rows};
  }
  // Takes every form that is needed, each [rows, columns].
  void take(Inputs& inputs, int64_t rows) {
    for (size_t form = 0; form < kForms; ++form)
      if (inputs.groups_[form]) inputs.forms_[form] = operand(static_cast<Form>(form), round_up(rows, 2), inputs);
  }
  int64_t bytes() const { return pieces_.bytes(); }

 private:
  Operand operand(Form form, int64_t rows, const Inputs& inputs) {
    if (form == Form::f32_rows) return floats(rows, inputs.columns_);
    const int64_t digits = digits_of(form), width = form_bytes(form) / digits;
    const int64_t stride = odd_lines((inputs.columns_ * width + 3) / 4) * 4 / width;
    Operand operand{take<void>(rows * stride * digits * width), stride, form};
    if (!is_quantized(form)) return operand;
    const int64_t groups = digits * inputs.groups_[static_cast<size_t>(form)];
    operand.scales = take<float>(rows * groups * 4);
    operand.sums = take<int32_t>(rows * groups * 4);
    return operand;
  }

  uintptr_t base_;
  Pieces pieces_;
};

namespace {

// Upper bound of the partial results of attention: enough for Llama-8B's heads, a million tokens of context and 8
// threads.
constexpr int64_t kMostPartialFloats = int64_t{16} << 20;
// Upper bound of the scores of an indexer's rows that are computed at once, if one row's are not more.
constexpr int64_t kMostScores = int64_t{16} << 20;
// Upper bounds, over all tiers, of a thread's scratch for attend, and for gemm by k (tests/unit/engine/test_fit.py).
constexpr int64_t kMostAttendBytes = 512 << 10;
constexpr int64_t most_gemm_bytes(int64_t k) { return 2 * kPanel * round_up(k, 64); }

// Room that lets one long sequence keep all threads busy: two items a thread, each split into chunks of the context.
int64_t partials_wanted(const Config& c, const Limits& limits, int threads) {
  const int64_t chunks = (limits.max_model_len + kChunkTokens - 1) / kChunkTokens;
  int64_t most = 0;
  for (const HeadShape& s : c.head_shapes())
    if (!c.compressed())
      most = std::max(most, (2 * threads + s.kv_heads) * chunks * s.group() * (2 + round_up(s.value_dim(), kPanel)));
  return std::min(most, kMostPartialFloats);
}

int64_t beside_columns(const Config& c) {
  int64_t most = 0;
  for (const LayerKind& layer : c.layers)
    if (layer.beside) most = std::max(most, Mamba2Columns(*layer.beside).end);
  return most;
}

int64_t recurrence_channels(const Config& c) {
  int64_t most = 0;
  for (size_t i = 0; i < c.layers.size() && c.conv_taps; ++i)
    most = std::max({most, c.hidden, LayerConvChannels(c, i).mixer});
  for (const LayerKind& layer : c.layers) {
    if (const auto* mamba = layer.mamba2()) most = std::max(most, mamba->channels());
    if (const auto* own = layer.mixer_as<SelectiveScanKind>()) most = std::max(most, own->inner);
    if (const auto* own = layer.mixer_as<RgLruKind>()) most = std::max(most, own->inner);
    if (layer.mixer_as<Rwkv7Kind>()) most = std::max(most, c.hidden);
    if (const auto* own = layer.mixer_as<AttentionKind>(); own && own->convolved)
      most = std::max(most, ConvolvedHeads::columns(c.head_shape(&layer - c.layers.data()), *own->convolved));
  }
  return most;
}

// Columns of gate and up where gates are cut.
int64_t cut_columns(const Config& c) {
  int64_t most = 0;
  for (const LayerKind& layer : c.layers)
    if (layer.feed_forward && layer.feed_forward->gate_cut)
      most = std::max(most, 2 * round_up(layer.feed_forward->width, kPanel));
  return most;
}

// Columns of the widest row that is normalized within a half of a layer.
int64_t sub_norm_columns(const Config& c) {
  int64_t most = 0;
  for (const MatrixSpec& spec : c.matrices)
    if (c.sub_norm && (spec.role == Role::mixer_out || spec.role == Role::feed_forward_out))
      most = std::max(most, spec.k);
  return most;
}

int64_t mixer_scratch_floats(const Config& c, const Limits& limits) {
  int64_t most = std::max(DistanceEmbeddings::scratch_floats(c, limits), RelativeBias::scratch_floats(c));
  for (const LayerKind& layer : c.layers) {
    if (const auto* delta = layer.mixer_as<GatedDeltaKind>()) most = std::max(most, GatedDelta::scratch_floats(*delta));
    if (const auto* own = layer.mixer_as<Rwkv7Kind>()) most = std::max(most, Rwkv7::scratch_floats(*own));
  }
  return std::max({most, Indexer::scratch_floats(c, limits), BlockIndexer::scratch_floats(c, limits),
                   CompressedAttention::scratch_floats(c, limits)});
}

}  // namespace

std::vector<MatrixInput> matrix_inputs(const Config& c, const Formats& formats, bool any_tier) {
  std::vector<MatrixInput> inputs;
  for (const MatrixSpec& spec : c.matrices) {
    const bool tied_head = spec.role == Role::embedding && c.tied_head && !c.pooled;
    if (spec.role == Role::table || spec.role == Role::pooler || (spec.role == Role::embedding && !tied_head)) continue;
    const auto format = formats.find(spec.name);
    if (format == formats.end()) throw std::invalid_argument("there is no format for the matrix '" + spec.name + "'");
    Matrix matrix;
    matrix.shape(spec.name, spec.columns(), spec.k, format->second, {});
    const bool normed = (c.sub_norm && (spec.role == Role::mixer_out || spec.role == Role::feed_forward_out)) ||
                        (c.gates_latents() && spec.role == Role::mixer_out) ||
                        (c.joint_gates() && spec.role == Role::mixer_inner);
    MatrixInput input{tied_head ? Role::head : spec.role,
                      spec.k,
                      matrix.form(),
                      matrix.groups(),
                      Site::is_direct(matrix) && !normed,
                      matrix.is_codes(),
                      spec.experts > 1,
                      matrix.format.turned};
    if (any_tier) {
      const bool integer = is_integer(format->second.dtype);
      input.form = !integer ? Form::f32_rows : matrix.format.wide ? Form::i16_rows : Form::i8_rows;
      // A tier may multiply float16 by scales of its own: prepared rows of 2 bytes beside the floats.
      input.direct = !normed && !integer && !matrix.format.ordered && format->second.dtype != DType::f16;
      // Tiers widen fp8 to float32 or bfloat16, which other matrices' rows in float32 stand beside.
      if (is_fp8(format->second.dtype)) {
        inputs.push_back(input);
        input.form = Form::bf16_rows;
      }
    }
    inputs.push_back(input);
  }
  return inputs;
}

void Inputs::need(const MatrixInput& input) {
  columns_ = std::max(columns_, input.k);
  int64_t& groups = groups_[static_cast<size_t>(input.form)];
  groups = std::max(groups, is_quantized(input.form) ? input.groups : 1);
}

Operand Inputs::operand(const Matrix& matrix) const {
  Operand operand = forms_[static_cast<size_t>(matrix.form())];
  operand.group = is_quantized(operand.form) ? matrix.group() : 0;
  return operand;
}

Scratch::Scratch(const Config& c, const Limits& limits, const std::vector<MatrixInput>& inputs, int64_t padded_head_dim,
                 int threads) {
  need(c, limits, inputs, padded_head_dim, threads);
  region_ = Region("the scratch of a step of " + std::to_string(limits.step_tokens) + " tokens and " +
                       std::to_string(limits.step_logit_rows) + " logit rows",
                   carve(nullptr, c, limits, threads));
  carve(region_.data(), c, limits, threads);
}

int64_t Scratch::bytes_for(const Config& c, const Limits& limits, const Formats& formats, int threads, bool any_tier) {
  Scratch scratch;
  const std::vector<MatrixInput> inputs = matrix_inputs(c, formats, any_tier);
  scratch.need(c, limits, inputs, round_up(c.widest_head(), kPanel), threads);
  if (any_tier) {
    scratch.own_attend_bytes_ = std::max(scratch.own_attend_bytes_, kMostAttendBytes);
    for (const MatrixInput& input : inputs)
      scratch.own_gemm_bytes_ = std::max(scratch.own_gemm_bytes_, most_gemm_bytes(input.k));
  }
  return scratch.carve(nullptr, c, limits, threads);
}

// Determines the forms that matrices take and the size of a member's own scratch.
void Scratch::need(const Config& c, const Limits& limits, const std::vector<MatrixInput>& inputs,
                   int64_t padded_head_dim, int threads) {
  partial_floats = partials_wanted(c, limits, threads);
  cosines.resize(c.ropes.size());
  sines.resize(c.ropes.size());
  own_row_bytes_ =
      round_up(std::max({c.asides() ? 2 * c.hidden : c.hidden, c.per_layer_columns(), sub_norm_columns(c)}) * 4, 128);
  own_attend_bytes_ = round_up(kernels().attend_scratch_bytes(padded_head_dim), 128);
  own_sampler_bytes_ = c.pooled ? 0 : round_up(sampler_scratch_bytes(c.vocab_size), 128);
  own_mixer_bytes_ = round_up(mixer_scratch_floats(c, limits) * 4, 128);
  step_tokens = limits.step_tokens;
  experts = expert_sizes(c, limits.step_tokens);
  own_route_bytes_ = round_up((4 * experts.count + experts.groups) * 4, 128);
  for (const MatrixInput& input : inputs) {
    if (input.turned) own_row_bytes_ = std::max(own_row_bytes_, round_up(input.k * 4, 128));
    Site& site = input.role == Role::mixer_out          ? mixed
                 : input.role == Role::mixer_inner      ? inner
                 : input.role == Role::mixer_heads      ? by_head
                 : input.role == Role::mixer_groups     ? by_head
                 : input.role == Role::feed_forward_out ? (input.experts ? expert_activated : activated)
                 : input.experts                        ? by_expert
                                                        : stream;
    const auto add = [&](Site& to) {
      to.own.resize(static_cast<size_t>(threads));
      to.shared.need(input);
      to.prepares = to.prepares || !input.direct;
      for (Inputs& own : to.own) own.need(input);
    };
    if (input.role == Role::mixer_low_rank)
      for (Site& each : latents) add(each);
    else if (input.role == Role::mixer_shifted || (input.role == Role::feed_forward_in && c.shifts()))
      for (Site& each : shifted) add(each);
    else
      add(site);
    if (c.modules) add(activated);  // halves of layers (Modules) write one matrix's rows while they read another's
    if (input.codes) own_gemm_bytes_ = std::max(own_gemm_bytes_, round_up(kernels().gemm_scratch_bytes(input.k), 128));
  }
}

int64_t Scratch::carve(char* base, const Config& c, const Limits& limits, int threads) {
  Carver carver(base);
  const int64_t tokens = round_up(limits.step_tokens, 2);
  const int64_t widest = std::max(c.hidden, c.embed_width);
  residual = carver.floats(tokens, widest);
  mixer_in = carver.floats(tokens, mixer_columns(c));
  const int64_t beside = beside_columns(c), channels = recurrence_channels(c);
  beside_in = carver.floats(beside ? tokens : 0, beside);
  side = carver.floats(c.asides() || c.fuses ? tokens : 0, 2 * c.hidden);
  hidden = carver.floats(c.keeps_hidden ? tokens : 0, c.hidden);
  convolved = carver.floats(channels ? tokens : 0, channels);
  const auto* first = c.layers[0].mixer_as<Rwkv7Kind>();
  first_values = carver.floats(first ? tokens : 0, first ? first->inner() : 0);
  const bool projects = c.some_norm_after() || c.joins_behind() || c.adds_later() || c.asides() || c.merges ||
                        c.learned_positions || c.token_types > 0 || c.head_dense || c.embed_width;
  projected = carver.floats(projects ? tokens : 0, widest);
  logits = carver.floats(limits.step_logit_rows, c.out_columns());
  maxima = carver.floats(c.pooled ? 0 : limits.step_logit_rows, maxima_of(c.vocab_size));
  per_layer = carver.floats(c.per_layer ? tokens : 0, c.per_layer_columns());
  per_layer_gate = carver.floats(c.per_layer ? tokens : 0, c.per_layer ? c.per_layer->width : 0);
  carve_streams(carver, c, tokens);
  norm_gate_in = carver.floats(c.norm_gates ? tokens : 0, c.norm_gates);
  gated = carver.floats(c.norm_gates ? tokens : 0, c.hidden);
  const int64_t cut = cut_columns(c);
  cut_gates = carver.floats(cut ? std::min(tokens, kCutRows) : 0, cut);
  carve_sites(carver, limits);
  carve_latent(carver, c, limits);
  carve_index(carver, c, limits, threads);
  if (c.compressed()) carve_compressed(carver, c, limits, threads);
  if (c.block_indexer()) carve_block_index(carver, c, limits, threads);
  carve_experts(carver, limits, threads);
  beside_experts = carver.floats(experts.apart ? tokens : 0, c.hidden);
  distances = carver.take<float>(std::max(DistanceEmbeddings::kept_floats(c), RelativeBias::kept_floats(c)) * 4);
  alibi_reach = limits.max_model_len;
  alibi = carver.take<float>(static_cast<int64_t>(c.slopes.size()) * DistanceBias{nullptr, alibi_reach}.stride() * 4);
  for (size_t i = 0; i < c.ropes.size(); ++i) {
    const auto pairs = static_cast<int64_t>(c.ropes[i].inv_freq.size());
    cosines[i] = carver.take<float>(tokens * pairs * 4);
    sines[i] = carver.take<float>(tokens * pairs * 4);
  }
  const bool grouped = kv_groups(c, limits.kv_dtype).reach.size() > 1;
  slots = carver.take<int32_t>((grouped ? kMostKvGroups : 1) * tokens * 4);
  partials = carver.take<float>(partial_floats * 4);
  own_row_ = carver.take_each(threads, own_row_bytes_);
  own_attend_ = carver.take_each(threads, own_attend_bytes_);
  own_gemm_ = carver.take_each(threads, own_gemm_bytes_);
  own_sampler_ = carver.take_each(threads, own_sampler_bytes_);
  own_mixer_ = carver.take_each(threads, own_mixer_bytes_);
  return carver.bytes();
}

void Scratch::carve_experts(Carver& carver, const Limits& limits, int threads) {
  router = carver.floats(experts.count ? round_up(limits.step_tokens, 2) : 0, experts.router_columns);
  for (Operand* rows : {&router_state, &router_in, &router_middle})
    *rows = carver.floats(experts.router_rank ? round_up(limits.step_tokens, 2) : 0, experts.router_rank);
  carver.take(by_expert.shared, experts.positions);
  carver.take(expert_activated.shared, experts.positions);
  for (Inputs& own : by_expert.own) carver.take(own, kOwnRows);
  for (Inputs& own : expert_activated.own) carver.take(own, 2 * experts.slots);
  by_expert.raw = residual;
  expert_activated.raw = carver.floats(expert_activated.prepares ? experts.positions : 0, experts.width);
  const int64_t routed = experts.rows * experts.slots;
  routes = {carver.take<int32_t>(routed * 4), carver.take<float>(routed * 4), carver.take<int32_t>(routed * 4)};
  own_routes_ = carver.take_each(threads, 3 * own_routes_bytes());
  own_route_ = carver.take_each(threads, own_route_bytes_);
  // A row of their input has room, too: with few tokens a step it is the larger (Experts::copy_row).
  own_results = std::max((experts.positions + experts.rows) * kResultColumns, by_expert.shared.columns());
  own_results_ = carver.take<float>(threads * own_results * 4);
}

Scratch::Routes Scratch::own_routes(int member) const {
  char* own = own_routes_ + member * 3 * own_routes_bytes();
  return {reinterpret_cast<int32_t*>(own), reinterpret_cast<float*>(own + own_routes_bytes()),
          reinterpret_cast<int32_t*>(own + 2 * own_routes_bytes())};
}

void Scratch::carve_latent(Carver& carver, const Config& c, const Limits& limits) {
  int64_t query = 0, key = 0, value = 0;  // numbers of a row
  for (const LayerKind& layer : c.layers) {
    const auto* latent = layer.mixer_as<LatentKind>();
    if (!latent) continue;
    const int64_t heads = c.heads_of(*latent), gate = c.attention_gate != Gate::none && c.head_gates ? 1 : 0;
    if (latent->q_rank) query = std::max(query, QueryColumns(*latent, c).end);
    key = std::max(key, heads * (latent->key_dim() + gate));
    value = std::max(value, heads * latent->rank);
  }
  const int64_t tokens = key ? round_up(limits.step_tokens, 2) : 0;
  queries = carver.floats(query ? tokens : 0, query);
  absorbed = carver.floats(tokens, key);
  attended = carver.floats(tokens, value);
  const int64_t rows = round_up(limits.step_tokens, 2);
  carver.take(inner.shared, rows);
  inner.raw = carver.floats(inner.prepares ? rows : 0, inner.shared.columns());
  for (Inputs& own : inner.own) carver.take(own, kOwnRows);
  for (Inputs& own : by_head.own) carver.take(own, kHeadRows);
}

void Scratch::carve_index(Carver& carver, const Config& c, const Limits& limits, int threads) {
  const LatentKind* latent = c.indexed();
  const IndexerKind* indexer = latent ? &*latent->indexer : nullptr;
  const int64_t tokens = indexer ? round_up(limits.step_tokens, 2) : 0;
  const int64_t scores = Indexer::scratch_floats(c, limits);
  index_in = carver.floats(tokens, indexer ? IndexColumns(*indexer).end : 0);
  index_queries = carver.floats(tokens, indexer ? indexer->heads * indexer->head_dim : 0);
  index_rows = scores ? std::clamp<int64_t>(kMostScores / scores, 1, tokens) : 0;
  index_scores = carver.floats(index_rows, scores);
  gathered_keys = indexer ? round_up(std::min(indexer->chosen, limits.max_model_len), kBlockTokens) : 0;
  chosen_ = carver.take<int32_t>(scores ? tokens * gathered_keys * 4 : 0);
  own_gathered_bytes_ =
      gathered_keys / kBlockTokens * kv_head_bytes(limits.kv_dtype, latent ? round_up(latent->key_dim(), kPanel) : 0);
  own_gathered_ = carver.take_each(threads, own_gathered_bytes_);
  gathered_blocks = carver.take<int32_t>(gathered_keys / kBlockTokens * 4);
}

void Scratch::carve_block_index(Carver& carver, const Config& c, const Limits& limits, int threads) {
  const BlockIndexerKind& own = *c.block_indexer();
  const int64_t tokens = round_up(limits.step_tokens, 2);
  chosen_heads_ = BlockIndexer::choices(c);
  index_keys = BlockIndexer::score_floats(c, limits);
  index_in = carver.floats(tokens, BlockIndexColumns(own, c.kv_heads).end);
  index_rows = index_keys ? std::clamp<int64_t>(kMostScores / (chosen_heads_ * index_keys), 1, tokens) : 0;
  index_scores = carver.floats(index_rows, chosen_heads_ * index_keys);
  for (const HeadShape& shape : c.head_shapes()) mask_slots = std::max(mask_slots, shape.slots);
  chosen_blocks_ = own.heads ? 2 * mask_slots : own.chosen * own.block / kBlockTokens;  // with the bits of keys
  chosen_ = carver.take<int32_t>(index_keys ? tokens * chosen_heads_ * chosen_blocks_ * 4 : 0);
  if (!own.heads) return;
  own_gathered_bytes_ = index_keys ? kChunkTokens / kBlockTokens * kv_head_bytes(limits.kv_dtype, own.head_dim) : 0;
  own_gathered_ = carver.take_each(threads, own_gathered_bytes_);
  gathered_blocks = carver.take<int32_t>(kChunkTokens / kBlockTokens * 4);
}

void Scratch::carve_streams(Carver& carver, const Config& c, int64_t tokens) {
  const int64_t several = c.alt_up ? tokens : 0, hyper = c.hyper ? tokens : 0;
  const int64_t count = c.alt_up ? c.alt_up->streams : c.hyper ? c.hyper->streams : 0;
  streams = carver.floats(several + hyper, count * round_up(c.hidden, kPanel));
  const int64_t summed = c.hyper && !c.hyper->rank ? tokens : 0, gated = hyper - summed, numbers = count * c.hidden;
  hyper_sums = carver.floats(summed, summed ? HyperConnections::sums(c) : 0);
  hyper_weights = carver.floats(hyper, c.hyper ? c.hyper->weights() : 0);
  hyper_normed = carver.floats(gated, numbers);
  hyper_gates = carver.floats(gated, numbers);
  hyper_few = carver.floats(gated, c.hyper ? c.hyper->rank : 0);
  const NgramKind* own = c.ngrams();
  ngrams = carver.floats(own ? tokens : 0, own ? own->width : 0);
  ngrams_in = carver.floats(own ? tokens : 0, own ? NgramColumns(c).end : 0);
  ngrams_gated = carver.floats(own ? tokens : 0, numbers);
  laurel_in = carver.floats(several, c.alt_up ? c.alt_up->laurel : 0);
  laurel = carver.floats(several, c.hidden);
}

void Scratch::carve_compressed(Carver& carver, const Config& c, const Limits& limits, int threads) {
  const CompressedAttention::Sizes most = CompressedAttention::sizes(c, limits);
  const int64_t tokens = round_up(limits.step_tokens, 2);
  queries = carver.floats(tokens, c.heads * c.head_dim);
  attended = carver.floats(tokens, c.heads * c.head_dim);
  index_in = carver.floats(most.columns ? tokens : 0, most.columns);
  index_queries = carver.floats(most.queries ? tokens : 0, most.queries);
  index_rows = most.scores ? std::clamp<int64_t>(kMostScores / most.scores, 1, tokens) : 0;
  index_scores = carver.floats(index_rows, most.scores);
  gathered_keys = std::max(kChunkTokens, round_up(most.chosen, kBlockTokens));
  chosen_ = carver.take<int32_t>(most.scores ? tokens * gathered_keys * 4 : 0);
  own_gathered_bytes_ = kChunkTokens / kBlockTokens * kv_head_bytes(limits.kv_dtype, std::max(c.head_dim, most.index));
  own_gathered_ = carver.take_each(threads, own_gathered_bytes_);
  gathered_blocks = carver.take<int32_t>(gathered_keys / kBlockTokens * 4);
  own_partials_bytes_ = most.partials * 4;
  own_partials_ = carver.take_each(threads, own_partials_bytes_);
}

void Scratch::carve_sites(Carver& carver, const Limits& limits) {
  const int64_t tokens = round_up(limits.step_tokens, 2);
  carver.take(stream.shared, std::max(tokens, limits.step_logit_rows));
  for (Inputs& own : stream.own) carver.take(own, kOwnRows);
  stream.raw = residual;
  const auto carve_rows = [&](Site& site) {
    carver.take(site.shared, tokens);
    for (Inputs& own : site.own) carver.take(own, kOwnRows);
    site.raw = carver.floats(site.prepares ? tokens : 0, site.shared.columns());
  };
  for (Site* site : {&mixed, &activated}) carve_rows(*site);
  for (Site& site : shifted) carve_rows(site);
  for (Site& site : latents) carve_rows(site);
}

}  // namespace forearm
