#include "bindings/config.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <initializer_list>
#include <stdexcept>
#include <utility>

namespace py = pybind11;

namespace forearm {
namespace {

template <class Kind>
Kind one_of(const char* what, const std::string& name, std::initializer_list<std::pair<const char*, Kind>> known) {
  std::string names;
  for (const auto& [known_name, kind] : known) {
    if (name == known_name) return kind;
    names += std::string(names.empty() ? "" : ", ") + known_name;
  }
  throw std::invalid_argument(std::string(what) + " is '" + name + "'; known: " + names);
}

// Reads fields of a Python object, each a name and the place of its value.
template <class Value, class... Others>
void read(const py::handle& from, const char* field, Value& value, Others&&... others) {
  value = from.attr(field).cast<Value>();
  if constexpr (sizeof...(others) > 0) read(from, std::forward<Others>(others)...);
}

Rope rope_of(const py::handle& rope) {
  const auto inv_freq = rope.attr("inv_freq").cast<py::array_t<float, py::array::c_style | py::array::forcecast>>();
  return {{inv_freq.data(), inv_freq.data() + inv_freq.size()},
          rope.attr("scale").cast<float>(),
          rope.attr("interleaved").cast<bool>()};
}

FeedForwardKind feed_forward_of(const py::handle& from) {
  FeedForwardKind kind{from.attr("width").cast<int64_t>(), activation_of(from.attr("activation").cast<std::string>()),
                       from.attr("gated").cast<bool>(),
                       py::hasattr(from, "gate_scale") ? from.attr("gate_scale").cast<float>() : 1.0f,
                       py::hasattr(from, "out_scale") ? from.attr("out_scale").cast<float>() : 1.0f};
  kind.limit = from.attr("limit").cast<float>();
  kind.gate_limit = from.attr("gate_limit").cast<std::optional<float>>().value_or(kind.limit);
  if (py::hasattr(from, "gate_cut")) kind.gate_cut = from.attr("gate_cut").cast<std::optional<float>>();
  if (py::hasattr(from, "shifted")) kind.shifted = from.attr("shifted").cast<bool>();
  if (kind.activation == Activation::swiglu_oai && !kind.gated)
    throw std::invalid_argument("activation is 'swiglu_oai', which a feed-forward has that is gated");
  if (kind.activation == Activation::xielu && kind.gated)
    throw std::invalid_argument("activation is 'xielu', which a feed-forward has that is not gated");
  return kind;
}

// The routing of an Experts, and its shared expert.
ExpertsKind experts_of(const py::handle& from) {
  ExpertsKind e{};
  read(from, "count", e.count, "active", e.active, "correction", e.correction, "groups", e.groups, "groups_kept",
       e.groups_kept, "group_best", e.group_best, "renormalized", e.renormalized, "sum_epsilon", e.sum_epsilon, "scale",
       e.scale, "jitter", e.jitter, "scales_input", e.scales_input, "shared_gate", e.shared_gate, "apart", e.apart,
       "by_token", e.by_token, "zeros", e.zeros, "behind", e.behind, "ahead", e.ahead, "skips", e.skips, "always",
       e.always);
  e.score = score_of(from.attr("score").cast<std::string>());
  if (const py::object router = from.attr("router"); !router.is_none()) {
    e.router_rank = router.attr("rank").cast<int64_t>();
    e.router_follows = router.attr("follows").cast<bool>();
  }
  const py::object shared = from.attr("shared");
  if (!shared.is_none()) e.shared = feed_forward_of(shared);
  return e;
}

Mamba2Kind mamba2_of(const py::handle& from) {
  Mamba2Kind kind{};
  read(from, "heads", kind.heads, "groups", kind.groups, "head_dim", kind.head_dim, "state_dim", kind.state_dim, "taps",
       kind.taps, "conv_bias", kind.conv_bias, "dt_least", kind.dt_least, "dt_most", kind.dt_most, "norm", kind.norm,
       "gate_first", kind.gate_first, "z_scale", kind.z_scale, "x_scale", kind.x_scale, "b_scale", kind.b_scale,
       "c_scale", kind.c_scale, "dt_scale", kind.dt_scale, "out_scale", kind.out_scale);
  return kind;
}

SelectiveScanKind scan_of(const py::handle& from) {
  const auto size = [&from](const char* field) { return from.attr(field).cast<int64_t>(); };
  return {size("inner"),
          size("state_dim"),
          size("dt_rank"),
          size("taps"),
          from.attr("conv_bias").cast<bool>(),
          from.attr("norm_eps").cast<float>(),
          from.attr("norm_weights").cast<bool>()};
}

std::optional<BlockIndexerKind> block_indexer_of(const py::handle& from) {
  if (from.is_none()) return std::nullopt;
  const auto size = [&from](const char* field) { return from.attr(field).cast<int64_t>(); };
  return BlockIndexerKind{size("head_dim"), size("block"), size("chosen"), size("local"), size("heads")};
}

std::optional<ConvolvedKind> convolved_of(const py::handle& from) {
  if (from.is_none()) return std::nullopt;
  return ConvolvedKind{from.attr("taps").cast<int64_t>(), from.attr("head_taps").cast<int64_t>()};
}

AttentionKind attention_of(const py::handle& from) {
  const py::object bias = from.attr("bias");
  return {.rope = from.attr("rope").cast<std::optional<int>>(),
          .window = from.attr("window").cast<int64_t>(),
          .out_scale = from.attr("out_scale").cast<float>(),
          .heads = from.attr("heads").cast<int64_t>(),
          .kv_heads = from.attr("kv_heads").cast<int64_t>(),
          .head_dim = from.attr("head_dim").cast<int64_t>(),
          .keys_as_values = from.attr("keys_as_values").cast<bool>(),
          .shared_from = from.attr("shared_from").cast<std::optional<size_t>>(),
          .segment = from.attr("segment").cast<int64_t>(),
          .unit_qk = from.attr("unit_qk").cast<bool>(),
          .query_growth = from.attr("query_growth").cast<float>(),
          .query_positions = from.attr("query_positions").cast<int64_t>(),
          .query_first = from.attr("query_first").cast<int64_t>(),
          .query_smooth = from.attr("query_smooth").cast<bool>(),
          .value_dim = from.attr("value_dim").cast<int64_t>(),
          .sinks = from.attr("sinks").cast<bool>(),
          .blocks = block_indexer_of(from.attr("blocks")),
          .convolved = convolved_of(from.attr("convolved")),
          .scale = from.attr("scale").cast<float>(),
          .bias_dim = bias.is_none() ? 0 : bias.attr("dim").cast<int64_t>(),
          .bias_reach = bias.is_none() ? 0 : bias.attr("reach").cast<int64_t>()};
}

NormPlacement placement_of(const std::string& name) {
  return one_of<NormPlacement>("norm_placement", name,
                               {{"pre", NormPlacement::pre},
                                {"post", NormPlacement::post},
                                {"sandwich", NormPlacement::sandwich},
                                {"around_mlp", NormPlacement::around_mlp},
                                {"none", NormPlacement::none}});
}

std::optional<IndexerKind> indexer_of(const py::handle& indexer) {
  if (indexer.is_none()) return std::nullopt;
  const auto size = [&indexer](const char* field) { return indexer.attr(field).cast<int64_t>(); };
  return IndexerKind{size("heads"),
                     size("head_dim"),
                     size("chosen"),
                     indexer.attr("interleaved").cast<bool>(),
                     indexer.attr("shared").cast<bool>(),
                     indexer.attr("last").cast<bool>(),
                     indexer.attr("key_eps").cast<float>()};
}

LatentKind latent_of(const py::handle& from) {
  const auto size = [&from](const char* field) { return from.attr(field).cast<int64_t>(); };
  return {from.attr("rope").cast<std::optional<int>>(),
          size("rank"),
          size("plain"),
          size("rotary"),
          size("value"),
          size("q_rank"),
          from.attr("query_growth").cast<float>(),
          size("query_positions"),
          indexer_of(from.attr("indexer")),
          from.attr("sinks").cast<bool>(),
          size("heads"),
          size("window"),
          from.attr("norm_eps").cast<float>(),
          from.attr("key_norm").cast<bool>(),
          from.attr("joint_gates").cast<bool>()};
}

std::optional<NgramKind> ngrams_of(const py::handle& from) {
  if (from.is_none()) return std::nullopt;
  const auto size = [&from](const char* field) { return from.attr(field).cast<int64_t>(); };
  const auto list = [&from](const char* field) { return from.attr(field).cast<std::vector<int64_t>>(); };
  return NgramKind{size("heads"),       size("width"), size("taps"), size("end"),
                   list("multipliers"), list("sizes"), size("rows")};
}

Rwkv7Kind rwkv7_of(const py::handle& from) {
  Rwkv7Kind kind{};
  read(from, "heads", kind.heads, "head_dim", kind.head_dim, "decay_rank", kind.decay_rank, "rate_rank", kind.rate_rank,
       "value_rank", kind.value_rank, "gate_rank", kind.gate_rank, "norm_eps", kind.norm_eps);
  return kind;
}

LayerKind layer_of(const py::handle& layer) {
  const py::object mixer = layer.attr("mixer"), feed_forward = layer.attr("feed_forward"),
                   beside = layer.attr("beside");
  LayerKind kind{AttentionKind{}, std::nullopt};
  if (!feed_forward.is_none()) kind.feed_forward = feed_forward_of(feed_forward);
  const auto size = [&mixer](const char* field) { return mixer.attr(field).cast<int64_t>(); };
  if (mixer.is_none())
    kind.mixer = std::monostate{};
  else if (py::hasattr(mixer, "slopes"))
    kind.mixer = LightningKind{size("heads"), size("head_dim"), mixer.attr("slopes").cast<std::vector<float>>(),
                               mixer.attr("norm_eps").cast<float>(), mixer.attr("out_scale").cast<float>()};
  else if (py::hasattr(mixer, "dt_rank"))
    kind.mixer = scan_of(mixer);
  else if (py::hasattr(mixer, "gate_heads"))
    kind.mixer = RgLruKind{size("inner"), size("gate_heads"), size("taps")};
  else if (py::hasattr(mixer, "decay_rank"))
    kind.mixer = rwkv7_of(mixer);
  else if (py::hasattr(mixer, "state_dim"))
    kind.mixer = mamba2_of(mixer);
  else if (py::hasattr(mixer, "key_heads"))
    kind.mixer = GatedDeltaKind{size("key_heads"),
                                size("value_heads"),
                                size("key_dim"),
                                size("value_dim"),
                                size("taps"),
                                mixer.attr("tiled").cast<bool>(),
                                size("gate_rank"),
                                mixer.attr("beta_scale").cast<float>(),
                                mixer.attr("gate_norm_eps").cast<float>(),
                                mixer.attr("by_channel").cast<bool>(),
                                mixer.attr("least_decay").cast<float>(),
                                mixer.attr("sigmoid_gate").cast<bool>()};
  else if (py::hasattr(mixer, "taps"))
    kind.mixer = ShortConvKind{mixer.attr("taps").cast<int64_t>(), mixer.attr("bias").cast<bool>()};
  else if (py::hasattr(mixer, "ratio"))
    kind.mixer = CompressedKind{mixer.attr("rope").cast<int>(),
                                mixer.attr("back").cast<int>(),
                                size("q_rank"),
                                size("window"),
                                size("groups"),
                                size("group_rank"),
                                size("ratio"),
                                mixer.attr("overlapping").cast<bool>(),
                                size("index_heads"),
                                size("index_dim"),
                                size("chosen")};
  else if (py::hasattr(mixer, "rank"))
    kind.mixer = latent_of(mixer);
  else
    kind.mixer = attention_of(mixer);
  if (!beside.is_none()) kind.beside = mamba2_of(beside);
  if (const auto own = layer.attr("norm_placement").cast<std::optional<std::string>>())
    kind.norm_placement = placement_of(*own);
  kind.aside = layer.attr("aside").cast<bool>();
  kind.ngrams = ngrams_of(layer.attr("ngrams"));
  if (py::hasattr(feed_forward, "count")) kind.experts = experts_of(feed_forward);
  return kind;
}

MatrixSpec matrix_of(const py::handle& matrix) {
  std::vector<MatrixPart> parts;
  for (const py::handle& part : matrix.attr("parts"))
    parts.push_back(
        {part.attr("name").cast<std::string>(), part.attr("rows").cast<int64_t>(), part.attr("bias").cast<bool>()});
  const Role role = one_of<Role>("role", matrix.attr("role").cast<std::string>(),
                                 {{"embedding", Role::embedding},
                                  {"table", Role::table},
                                  {"head", Role::head},
                                  {"mixer_in", Role::mixer_in},
                                  {"mixer_inner", Role::mixer_inner},
                                  {"mixer_heads", Role::mixer_heads},
                                  {"mixer_groups", Role::mixer_groups},
                                  {"mixer_shifted", Role::mixer_shifted},
                                  {"mixer_low_rank", Role::mixer_low_rank},
                                  {"mixer_out", Role::mixer_out},
                                  {"feed_forward_in", Role::feed_forward_in},
                                  {"feed_forward_out", Role::feed_forward_out},
                                  {"router", Role::router},
                                  {"pooler", Role::pooler}});
  return {matrix.attr("name").cast<std::string>(), std::move(parts),
          matrix.attr("k").cast<int64_t>(),        role,
          matrix.attr("bias").cast<bool>(),        matrix.attr("interleaved").cast<bool>(),
          matrix.attr("experts").cast<int64_t>()};
}

DenseKind dense_of(const py::handle& dense) {
  const auto activation = dense.attr("activation").cast<std::string>();
  return {dense.attr("outputs").cast<int64_t>(),
          dense.attr("bias").cast<bool>(),
          !dense.attr("norm").cast<std::string>().empty(),
          activation_of(activation),
          activation == "tanh",
          dense.attr("head").cast<int64_t>()};
}

void read_kinds(const py::object& from, Config& c) {
  for (const py::handle& pair : from.attr("shared").attr("items")())
    c.shared.insert(pair.cast<std::pair<std::string, std::string>>());
  const auto name = [&from](const char* field) { return from.attr(field).cast<std::string>(); };
  c.norm_placement = placement_of(name("norm_placement"));
  c.norm_gates = from.attr("norm_gates").cast<int64_t>();
  c.merges = from.attr("merges").cast<bool>();
  c.conv_taps = from.attr("conv_taps").cast<int64_t>();
  c.distance_bias = one_of<DistanceBiasKind>("distance_bias", name("distance_bias"),
                                             {{"shared", DistanceBiasKind::shared},
                                              {"each_layer", DistanceBiasKind::each_layer},
                                              {"embedded", DistanceBiasKind::embedded},
                                              {"embedded_apart", DistanceBiasKind::embedded_apart}});
  c.qk_norm = one_of<QkNorm>(
      "qk_norm", name("qk_norm"),
      {{"none", QkNorm::none}, {"head", QkNorm::head}, {"each_head", QkNorm::each_head}, {"full", QkNorm::full}});
  c.attention_gate = one_of<Gate>("attention_gate", name("attention_gate"),
                                  {{"none", Gate::none}, {"sigmoid", Gate::sigmoid}, {"softplus", Gate::softplus}});
  c.norm_residual =
      one_of<NormResidual>("norm_residual", name("norm_residual"),
                           {{"none", NormResidual::none}, {"first", NormResidual::first}, {"all", NormResidual::all}});
}

void read_streams(const py::object& from, Config& c) {
  if (const auto width = from.attr("per_layer").cast<int64_t>(); width != 0)
    c.per_layer =
        PerLayerKind{width, from.attr("per_layer_scale").cast<float>(), from.attr("per_layer_vocab").cast<int64_t>()};
  if (c.per_layer && c.per_layer->vocab == 0) c.per_layer->vocab = c.vocab_size;
  if (const py::object own = from.attr("alt_up"); !own.is_none())
    c.alt_up = AltUpKind{own.attr("streams").cast<int64_t>(), own.attr("laurel").cast<int64_t>(),
                         own.attr("scaled").cast<bool>()};
  if (const py::object own = from.attr("hyper_connections"); !own.is_none())
    c.hyper =
        HyperKind{own.attr("streams").cast<int64_t>(), own.attr("rounds").cast<int64_t>(),
                  own.attr("eps").cast<float>(), own.attr("most").cast<float>(), own.attr("rank").cast<int64_t>()};
}

}  // namespace

Activation activation_of(const std::string& name) {
  return one_of<Activation>("activation", name,
                            {{"none", Activation::none},
                             {"tanh", Activation::none},
                             {"silu", Activation::silu},
                             {"gelu_tanh", Activation::gelu_tanh},
                             {"gelu_erf", Activation::gelu_erf},
                             {"relu", Activation::relu},
                             {"relu_squared", Activation::relu_squared},
                             {"swiglu_oai", Activation::swiglu_oai},
                             {"xielu", Activation::xielu}});
}

Score score_of(const std::string& name) {
  return one_of<Score>("score", name,
                       {{"softmax", Score::softmax},
                        {"sigmoid", Score::sigmoid},
                        {"softmax_chosen", Score::softmax_chosen},
                        {"sparse_mixer", Score::sparse_mixer},
                        {"sqrt_softplus", Score::sqrt_softplus},
                        {"sigmoid_chosen", Score::sigmoid_chosen}});
}

DType dtype_of(const std::string& name) {
  std::string names;
  for (const NumberFormat& format : kNumberFormats) {
    if (!format.name) continue;
    if (name == format.name) return format.dtype;
    names += std::string(names.empty() ? "" : ", ") + format.name;
  }
  throw std::invalid_argument("dtype is '" + name + "'; known: " + names);
}

Formats formats_of(const py::object& from) {
  Formats formats;
  for (const py::handle& item : from.attr("items")()) {
    const auto [name, format] = item.cast<std::pair<std::string, py::object>>();
    Format& f = formats[name];
    f.dtype = dtype_of(format.attr("dtype").cast<std::string>());
    f.group = format.attr("group").cast<int64_t>();
    f.scale_dtype = dtype_of(format.attr("scale_dtype").cast<std::string>());
    f.zero = one_of<Format::Zero>(
        "zero", format.attr("zero").cast<std::string>(),
        {{"none", Format::Zero::none}, {"int8", Format::Zero::int8}, {"float16", Format::Zero::float16}});
    f.wide = format.attr("wide").cast<bool>();
    f.ordered = format.attr("ordered").cast<bool>();
    f.turned = format.attr("turned").cast<bool>();
  }
  return formats;
}

Config config_of(const py::object& from, const py::object& matrices) {
  Config c{};
  read(from, "vocab_size", c.vocab_size);
  read(from, "hidden", c.hidden);
  read(from, "heads", c.heads);
  read(from, "kv_heads", c.kv_heads);
  read(from, "head_dim", c.head_dim);
  read(from, "max_positions", c.max_positions);
  for (const py::handle& layer : from.attr("layers")) c.layers.push_back(layer_of(layer));
  for (const py::handle& matrix : matrices) c.matrices.push_back(matrix_of(matrix));
  for (const py::handle& rope : from.attr("ropes")) c.ropes.push_back(rope_of(rope));
  read(from, "learned_positions", c.learned_positions);
  read(from, "position_offset", c.position_offset);
  read(from, "token_types", c.token_types);
  read(from, "bidirectional", c.bidirectional);
  read(from, "distance_buckets", c.distance_buckets);
  read(from, "slopes", c.slopes);
  read(from, "embed_norm", c.embed_norm, "fuses", c.fuses, "keeps_hidden", c.keeps_hidden);
  if (c.keeps_hidden) c.layers.push_back({std::monostate{}, std::nullopt});
  read(from, "embed_width", c.embed_width);
  c.dropped_token = from.attr("dropped_token").cast<std::optional<int32_t>>();
  read(from, "modules", c.modules);
  read(from, "pooled", c.pooled);
  for (const py::handle& dense : from.attr("dense")) c.dense.push_back(dense_of(dense));
  if (const py::object own = from.attr("head_dense"); !own.is_none()) c.head_dense = dense_of(own);
  read(from, "norm_eps", c.norm_eps);
  read(from, "layer_norm", c.layer_norm);
  read(from, "norm_bias", c.norm_bias);
  read(from, "centred", c.centred);
  read(from, "norm_plus_one", c.norm_plus_one);
  read(from, "norm_weight", c.norm_weight);
  read(from, "final_norm", c.final_norm);
  read(from, "parallel_residual", c.parallel_residual);
  read(from, "qk_norm_after_rope", c.qk_norm_after_rope, "qk_norm_bias", c.qk_norm_bias);
  read(from, "head_gates", c.head_gates);
  read(from, "v_norm", c.v_norm);
  read(from, "layer_scalar", c.layer_scalar);
  read(from, "sub_norm", c.sub_norm);
  read(from, "qkv_clip", c.qkv_clip);
  read_kinds(from, c);
  read(from, "tied_head", c.tied_head);
  read_streams(from, c);
  read(from, "attention_scale", c.attention_scale);
  read(from, "attention_softcap", c.attention_softcap);
  read(from, "logits_softcap", c.logits_softcap);
  read(from, "logits_scale", c.logits_scale);
  read(from, "embedding_scale", c.embedding_scale);
  read(from, "residual_scale", c.residual_scale);
  return c;
}

}  // namespace forearm
