#include "model/config_check.h"

#include <algorithm>
#include <string>

#include "model/config.h"
#include "model/mixers/biases/relative_bias.h"
#include "model/mixers/recurrent/check_recurrent.h"
#include "model/mixers/recurrent/layer_convolutions.h"

namespace forearm {
namespace {

void check_experts(const Config& c, size_t layer) {
  const ExpertsKind& experts = *c.layers[layer].experts;
  in_range("number of experts", experts.count, 2, 4096);
  in_range("experts whose result is their input", experts.zeros, 0, experts.behind || c.merges ? 4096 : 0);
  in_range("experts of a token", experts.active, 1, experts.choices());
  in_range("experts that every token chooses", experts.always, 0, experts.correction ? experts.active - 1 : 0);
  if (experts.always && experts.groups > 1) refuse("experts in groups are all chosen by their scores");
  in_range("groups of experts", experts.groups, 1, experts.count);
  if (experts.count % experts.groups != 0)
    refuse("the number of experts (" + std::to_string(experts.count) + ") is not a multiple of groups (" +
           std::to_string(experts.groups) + ")");
  const int64_t size = experts.count / experts.groups;
  in_range("group_best", experts.group_best, 1, experts.groups > 1 ? size : experts.count);
  in_range("groups_kept", experts.groups_kept, experts.groups > 1 ? (experts.active + size - 1) / size : 1,
           experts.groups);
  if (experts.shared) in_range("width of a shared expert", experts.shared->width, 1, kLargest);
  if (experts.shared_gate && !experts.shared) refuse("shared_gate needs a shared expert: shared");
  if (experts.apart && (!experts.shared || experts.shared_gate || experts.scales_input))
    refuse("experts apart from a shared feed-forward need one without a gate, and weights of their results");
  if (experts.ahead && (c.some_norm_after() || c.joins_behind() || c.alt_up || c.norm_residual != NormResidual::none ||
                        experts.shared || experts.by_token || experts.behind))
    refuse("experts that are chosen ahead of the mixer stand alone, and norms before each half of a layer");
  in_range("columns of a router that is an MLP", experts.router_rank, 0, kLargest);
  const auto* before = layer > 0 && c.layers[layer - 1].experts ? &*c.layers[layer - 1].experts : nullptr;
  if (experts.router_follows && (!before || before->router_rank != experts.router_rank))
    refuse("a router that follows needs one of the same columns in the layer before");
  if (experts.router_rank && (experts.ahead || experts.apart || experts.shared || experts.by_token || experts.behind))
    refuse("a router that is an MLP chooses experts that stand alone");
  if (!experts.behind) return;
  const int64_t left = static_cast<int64_t>(c.layers.size() - layer) - 1;
  in_range("layers behind which experts are added", experts.behind, 1, left);
  for (int64_t i = 0; i <= experts.behind; ++i)
    if (const LayerKind& own = c.layers[layer + static_cast<size_t>(i)];
        !own.feed_forward || (i > 0 && own.experts && own.experts->behind))
      refuse("layers up to the one that experts are added behind need a feed-forward, and one of them such experts");
  if (c.some_norm_after() || c.joins_behind() || c.alt_up || c.per_layer || c.layer_scalar || experts.shared ||
      experts.scales_input || experts.by_token || experts.groups > 1)
    refuse("experts that are added behind a later layer stand alone, and norms before each half of a layer");
}

void check_indexer(const Config& c, const LatentKind& latent, size_t layer) {
  const IndexerKind& own = *latent.indexer;
  in_range("heads of an indexer", own.heads, 1, 4096);
  in_range("numbers of an indexer's head", own.head_dim, kPanel, 4096);
  if (own.head_dim % kPanel != 0)
    refuse("numbers of an indexer's head are " + std::to_string(own.head_dim) + "; not a multiple of 16");
  in_range("keys that an indexer chooses", own.chosen, 1, INT32_MAX / 2);
  if (!latent.q_rank || !latent.rope || own.head_dim < latent.rotary)
    refuse("an indexer needs a latent of queries, and rotated numbers that fit its heads");
  if (own.shared && layer == 0) refuse("the first layer has no keys to share that an earlier one has chosen");
  for (const LayerKind& one : c.layers) {
    const auto* other = one.mixer_as<LatentKind>();
    if (!other || !other->indexer) continue;
    if (other->indexer->chosen != own.chosen || other->indexer->heads != own.heads ||
        other->indexer->head_dim != own.head_dim)
      refuse("all layers must have indexers of the same sizes");
  }
}

void check_latent(const Config& c, const LatentKind& latent) {
  in_range("rank of a latent", latent.rank, kPanel, kLargest);
  if (latent.rank % kPanel != 0)
    refuse("rank of a latent is " + std::to_string(latent.rank) + "; not a multiple of 16");
  in_range("numbers of a head that are not rotated", latent.plain, 1, 4096);
  in_range("numbers of a head's value", latent.value, 4, 4096);
  if (latent.value % 4 != 0)
    refuse("numbers of a head's value are " + std::to_string(latent.value) + "; not a multiple of 4");
  in_range("rank of the latent of queries", latent.q_rank, 0, kLargest);
  if (latent.query_growth != 0.0f) in_range("query_positions", latent.query_positions, 1, INT32_MAX / 2);
  in_range("numbers of a head's key that all heads share", latent.rotary, 1, 4096);
  if (latent.rope) {
    in_range("rope of a layer", *latent.rope, 0, static_cast<int64_t>(c.ropes.size()) - 1);
    const auto rotated = 2 * static_cast<int64_t>(c.ropes[static_cast<size_t>(*latent.rope)].inv_freq.size());
    if (latent.rotary != rotated)
      refuse("latent attention has " + std::to_string(latent.rotary) + " rotated numbers, its rope " +
             std::to_string(rotated));
  }
  if (c.attention_gate == Gate::softplus && !c.head_gates) refuse("gates of latent attention's values are sigmoids");
  in_range("heads of a layer", c.heads_of(latent), 1, 4096);
  in_range("window of a layer", latent.window, 0, INT32_MAX / 2);
  if (latent.window && latent.indexer) refuse("a layer with an indexer has no window");
  if (c.kv_heads != 1) refuse("latent attention has one key head; this one has " + std::to_string(c.kv_heads));
  if (latent.joint_gates && (!latent.q_rank || c.attention_gate != Gate::sigmoid || c.head_gates))
    refuse("gates beside queries are sigmoids, of each number of values, made of a latent of queries");
  for (const LayerKind& layer : c.layers)
    if (layer.mixer_as<AttentionKind>()) refuse("latent attention beside plain attention is not supported");
}

void check_compressed(const Config& c, const CompressedKind& own) {
  if (c.kv_heads != 1) refuse("compressed attention has one key head; this one has " + std::to_string(c.kv_heads));
  if (c.head_dim % kPanel != 0)
    refuse("head_dim of compressed attention is " + std::to_string(c.head_dim) + "; not a multiple of 16");
  for (const int rope : {own.rope, own.back}) {
    in_range("rope of a layer", rope, 0, static_cast<int64_t>(c.ropes.size()) - 1);
    in_range("rotary dimension", 2 * static_cast<int64_t>(c.ropes[static_cast<size_t>(rope)].inv_freq.size()), 2,
             own.chosen ? std::min(c.head_dim, own.index_dim) : c.head_dim);
  }
  in_range("rank of the latent of queries", own.q_rank, 1, kLargest);
  in_range("window", own.window, 1, INT32_MAX);
  in_range("groups of heads", own.groups, 1, c.heads);
  if (c.heads % own.groups != 0)
    refuse("heads (" + std::to_string(c.heads) + ") is not a multiple of their groups (" + std::to_string(own.groups) +
           ")");
  in_range("rank of a group", own.group_rank, 4, kLargest);
  if (own.group_rank % 4 != 0) refuse("rank of a group is " + std::to_string(own.group_rank) + "; not a multiple of 4");
  in_range("tokens of an entry", own.ratio, 0, INT32_MAX / 2);
  in_range("entries that are chosen", own.chosen, 0, own.ratio ? INT32_MAX / 2 : 0);
  in_range("heads that choose entries", own.index_heads, own.chosen ? 1 : 0, own.chosen ? 4096 : 0);
  in_range("numbers of a head that chooses", own.index_dim, own.chosen ? kPanel : 0, own.chosen ? 4096 : 0);
  if (own.index_dim % kPanel != 0)
    refuse("numbers of a head that chooses are " + std::to_string(own.index_dim) + "; not a multiple of 16");
  for (const LayerKind& layer : c.layers) {
    const auto* other = layer.mixer_as<CompressedKind>();
    if (!other || other->q_rank != own.q_rank || other->groups != own.groups || other->group_rank != own.group_rank)
      refuse("all layers must have compressed attention of the same sizes");
  }
}

void check_heads(const Config& c, size_t layer) {
  const HeadShape own = c.head_shape(layer);
  const auto& kind = *c.layers[layer].mixer_as<AttentionKind>();
  in_range("heads of a layer", own.heads, 1, 4096);
  in_range("kv_heads of a layer", own.kv_heads, 1, own.heads);
  in_range("head_dim of a layer", own.head_dim, 1, 4096);
  if (own.heads % own.kv_heads != 0)
    refuse("heads (" + std::to_string(own.heads) + ") is not a multiple of kv_heads (" + std::to_string(own.kv_heads) +
           ")");
  if (kind.rope)
    in_range("rotary dimension", 2 * static_cast<int64_t>(c.ropes[static_cast<size_t>(*kind.rope)].inv_freq.size()), 2,
             own.head_dim);
  in_range("value_dim of a layer", own.value_dim(), 1, own.head_dim);
  if (own.value && kind.keys_as_values) refuse("values that are keys are as wide as these");
  const bool as_model = own.kv_heads == c.kv_heads && own.head_dim == c.head_dim && own.values && !own.value;
  if (c.qk_norm_bias && (c.qk_norm != QkNorm::each_head || !c.layer_norm))
    refuse("norms of queries and keys have biases if they are LayerNorms of each head");
  const bool share_cache = c.pooled && c.layers.size() > 1;
  if (!as_model && (c.qk_norm == QkNorm::full || c.qkv_clip != 0.0f || c.sub_norm || share_cache || c.modules))
    refuse("layers with heads of their own need norms of each head alone, no clipping, and a model that generates");
  if (own.heads != c.heads && c.modules) refuse("layers that torch computes all have the same number of heads");
  if (own.gates && !own.values) refuse("a layer with gates needs keys and values of its own");
  if (kind.convolved) check_convolved(c, layer);
  if (!kind.shared_from) return;
  in_range("the layer that keys and values are shared from", static_cast<int64_t>(*kind.shared_from), 0,
           static_cast<int64_t>(layer) - 1);
  const auto* source = c.layers[*kind.shared_from].mixer_as<AttentionKind>();
  if (!source || source->shared_from) refuse("keys and values are shared from a layer that has none of its own");
  const HeadShape from = c.head_shape(*kind.shared_from);
  if (from.kv_heads != own.kv_heads || from.head_dim != own.head_dim || from.value != own.value)
    refuse("keys and values are shared from a layer with other heads");
}

void check_blocks(const Config& c, const AttentionKind& kind) {
  const BlockIndexerKind &own = *kind.blocks, &first = *c.block_indexer();
  in_range("numbers of an indexer's head", own.head_dim, kPanel, 4096);
  in_range("keys of a block that is chosen", own.block, own.heads ? 1 : kBlockTokens, kLargest);
  in_range("heads that choose blocks", own.heads, 0, 4096);
  in_range("blocks that are chosen", own.chosen, 1, INT32_MAX / 2 / own.block);
  in_range("blocks that are always chosen", own.local, 1, own.chosen);
  if (own.head_dim % kPanel != 0 || (!own.heads && own.block % kBlockTokens != 0))
    refuse("an indexer's heads have a multiple of 16 numbers, and its blocks a multiple of 32 keys");
  if (!kind.rope || 2 * static_cast<int64_t>(c.ropes[static_cast<size_t>(*kind.rope)].inv_freq.size()) > own.head_dim)
    refuse("an indexer needs rotated numbers that fit its heads");
  if (kind.window || kind.segment || kind.shared_from || kind.kv_heads || c.bidirectional || c.modules ||
      c.slopes.size() + c.distance_buckets.size() > 0)
    refuse("blocks are chosen from all keys before a token, of layers with the model's kv heads and no other biases");
  if (own.head_dim != first.head_dim || own.block != first.block || own.chosen != first.chosen ||
      own.heads != first.heads)
    refuse("all layers must have indexers of the same sizes");
}

void check_layers(const Config& c) {
  in_range("number of layers", static_cast<int64_t>(c.layers.size()), 1, 4096);
  for (size_t i = 0; i + c.keeps_hidden < c.layers.size(); ++i) {  // not the empty one
    const LayerKind& layer = c.layers[i];
    if (const auto* attention = layer.mixer_as<AttentionKind>()) {
      in_range("window", attention->window, 0, INT32_MAX);
      in_range("segment", attention->segment, 0, attention->window > 0 || c.bidirectional ? 0 : INT32_MAX);
      if (attention->query_growth != 0.0f) in_range("query_positions", attention->query_positions, 1, INT32_MAX / 2);
      in_range("query_first", attention->query_first, 0, 1);
      if (attention->rope) in_range("rope of a layer", *attention->rope, 0, static_cast<int64_t>(c.ropes.size()) - 1);
      check_heads(c, i);
      if (attention->blocks) check_blocks(c, *attention);
    }
    if (const auto* conv = layer.mixer_as<ShortConvKind>())
      in_range("width of a short convolution", conv->width, 2, 64);
    if (const auto* mamba = layer.mamba2()) check_mamba2(*mamba);
    if (const auto* delta = layer.mixer_as<GatedDeltaKind>()) check_delta(*delta);
    if (const auto* own = layer.mixer_as<RgLruKind>()) check_rg_lru(*own);
    check_rwkv7(c, i);
    if (const auto* own = layer.mixer_as<LightningKind>()) check_lightning(*own);
    if (const auto* own = layer.mixer_as<SelectiveScanKind>()) {
      in_range("channels of a selective scan", own->inner, 1, kLargest);
      in_range("state_dim of a selective scan", own->state_dim, 1, 4096);
      in_range("dt_rank of a selective scan", own->dt_rank, 1, kLargest);
      in_range("taps of a selective scan", own->taps, 2, 64);
    }
    if (const auto* latent = layer.mixer_as<LatentKind>()) {
      check_latent(c, *latent);
      if (latent->indexer) check_indexer(c, *latent, &layer - c.layers.data());
    }
    if (const auto* compressed = layer.mixer_as<CompressedKind>()) check_compressed(c, *compressed);
    const bool before = c.placement(i) == NormPlacement::pre && c.norm_residual == NormResidual::none;
    if ((layer.beside || !layer.mixes() || !layer.feed_forward) && (!before || c.parallel_residual))
      refuse("layers of one half, or of two mixers, need norms that stand before each half alone");
    if (layer.aside) {
      const LayerKind* next = i + 1 < c.layers.size() ? &c.layers[i + 1] : nullptr;
      if (!next || !next->mixer_as<Mamba2Kind>() || c.some_norm_after() || c.norm_residual != NormResidual::none ||
          c.layer_scalar || c.adds_later() || !layer.mixer_as<AttentionKind>() || !layer.feed_forward ||
          layer.experts || layer.feed_forward->gate_cut)
        refuse("a block of attention and a feed-forward beside the residual stands before a layer of Mamba2");
    }
    if (layer.beside && !layer.mixer_as<AttentionKind>()) refuse("Mamba2 stands beside attention alone");
    if (!layer.mixes() && !layer.feed_forward) refuse("layer " + std::to_string(i) + " has neither half");
    if (layer.experts && !layer.feed_forward) refuse("experts need a feed-forward: their width");
    if (layer.experts && layer.feed_forward->activation == Activation::xielu) refuse("experts can't have xielu");
    if (layer.feed_forward) in_range("width of a feed-forward", layer.feed_forward->width, 1, kLargest);
    if (const auto& own = layer.feed_forward; own && own->gate_cut)
      if (layer.experts || !own->gated || own->activation != Activation::gelu_tanh || own->gate_scale != 1.0f)
        refuse("gates are cut in a dense feed-forward with gelu_tanh alone");
    if (layer.experts) check_experts(c, i);
    const bool plain = layer.mixer_as<AttentionKind>() && !layer.beside && layer.feed_forward && !layer.experts;
    if (c.sub_norm && (!plain || layer.feed_forward->gate_cut || c.modules))
      refuse("norms before the last matrix of each half need layers of attention and one plain feed-forward");
    if (layer.experts && layer.experts->apart && c.placement(i) != NormPlacement::sandwich)
      refuse("experts apart from their shared feed-forward need norms around each half of a layer");
  }
}

void check_matrices(const Config& c) {
  for (const MatrixSpec& matrix : c.matrices) {
    in_range("columns of a matrix", matrix.k, 1, kLargest);
    in_range("experts of a matrix", matrix.experts, 1, 4096);
    if (matrix.parts.empty()) refuse("the matrix '" + matrix.name + "' has no parts");
    for (const MatrixPart& part : matrix.parts) {
      in_range("rows of a matrix", part.rows, 1, int64_t{1} << 31);
      if (matrix.interleaved && part.rows != matrix.parts[0].rows)
        refuse("the parts of '" + matrix.name + "' alternate, so they must have the same rows");
    }
  }
}

void check_embedded(const Config& c) {
  const std::vector<int64_t>& buckets = c.distance_buckets;
  if (buckets.empty() || !std::is_sorted(buckets.rbegin(), buckets.rend()))
    refuse("embeddings of distances stand in the order of query - key: distance_buckets descend");
  if (c.heads != c.kv_heads || c.head_dim % 4 != 0 || !c.bidirectional)
    refuse("embeddings of distances need keys of each head, of a multiple of 4 numbers, and whole prompts");
  for (size_t i = 0; i < c.layers.size(); ++i)
    if (!c.layers[i].mixer_as<AttentionKind>()) refuse("embeddings of distances need attention in every layer");
}

void check_pooling(const Config& c) {
  in_range("token_types", c.token_types, 0, 1024);
  in_range("embed_width", c.embed_width, 0, kLargest);
  if (c.embed_width && (!c.pooled || !c.embed_norm || c.norm_residual != NormResidual::all))
    refuse("an embedding that is projected has a norm, in a pooled model whose norms follow each half of a layer");
  if (c.dropped_token && (*c.dropped_token < 0 || *c.dropped_token >= c.vocab_size || !c.pooled))
    refuse("a token that is dropped is one of the vocabulary, in whole prompts: pooled");
  for (const DenseKind& dense : c.dense) {
    in_range("outputs of a dense layer", dense.outputs, 1, kLargest);
    in_range("head of a dense layer", dense.head, 0, 63);
  }
  if (c.bidirectional && !c.pooled) refuse("bidirectional attention needs whole prompts: pooled");
  if (c.pooled && !c.tied_head) refuse("a pooled model has no head: tied_head");
  if (!c.dense.empty() && !c.pooled) refuse("dense layers stand behind pooling: pooled");
  if (!c.head_dense) return;
  if (c.pooled || !c.final_norm) refuse("a layer before the head needs a head, and a norm before itself");
  if (c.head_dense->outputs != c.hidden || c.head_dense->tanh || !c.head_dense->norm)
    refuse("a layer before the head has as many outputs as columns, an activation that is no tanh, and a norm");
}

void check_slopes(const Config& c) {
  const auto as_model = [](const LayerKind& layer) {
    const auto* own = layer.mixer_as<AttentionKind>();
    return !own || own->heads == 0;
  };
  if (c.slopes.size() != static_cast<size_t>(c.heads) || !c.distance_buckets.empty() || c.has_latents() ||
      !std::all_of(c.layers.begin(), c.layers.end(), as_model))
    refuse("slopes are those of " + std::to_string(c.heads) + " heads of every layer, without other biases");
}

}  // namespace

void check(const Config& c, const Limits& limits) {
  in_range("vocab_size", c.vocab_size, 1, int64_t{1} << 26);
  in_range("hidden", c.hidden, 1, kLargest);
  in_range("heads", c.heads, 1, 4096);
  in_range("kv_heads", c.kv_heads, 1, c.heads);
  in_range("head_dim", c.head_dim, 1, 4096);
  in_range("max_positions", c.max_positions, 1, INT32_MAX / 2);
  in_range("position_offset", c.position_offset, 0, 1024);
  if (c.parallel_residual && (c.some_norm_after() || c.norm_residual != NormResidual::none))
    refuse("a parallel residual needs norms that stand before each half of a layer alone");
  for (const LayerKind& layer : c.layers)
    if (c.parallel_residual && !layer.mixer_as<AttentionKind>()) refuse("a parallel residual needs attention layers");
  if (c.heads % c.kv_heads != 0)
    refuse("heads (" + std::to_string(c.heads) + ") is not a multiple of kv_heads (" + std::to_string(c.kv_heads) +
           ")");
  if (!c.distance_buckets.empty() && c.distance_buckets.size() % 2 == 0)
    refuse("distance_buckets go from -reach to reach, so their number is odd");
  for (const int64_t bucket : c.distance_buckets) in_range("distance_buckets", bucket, 0, kLargest);
  if (c.distance_embeddings()) check_embedded(c);
  if (!c.slopes.empty()) check_slopes(c);
  check_streams(c);
  check_layers(c);
  LayerConvolutions::check(c);
  RelativeBias::check(c);
  const bool plain = !c.hyper && !c.alt_up && !c.per_layer && !c.conv_taps && !c.norm_gates && !c.adds_later() &&
                     !c.asides() && !c.modules && !c.pooled && c.norm_residual == NormResidual::none;
  if ((c.fuses || c.keeps_hidden) && !(plain && c.final_norm && !c.layer_norm))
    refuse("rows before and behind all layers are those of one residual stream, before an RMSNorm");
  check_matrices(c);
  check_pooling(c);
  in_range("step_tokens", limits.step_tokens, 1, kLargest);
  in_range("step_sequences", limits.step_sequences, 1, kLargest);
  in_range("step_logit_rows", limits.step_logit_rows, 1, kLargest);
  in_range("max_model_len", limits.max_model_len, 1, INT32_MAX / 2);
  if (c.learned_positions && limits.max_model_len > c.max_positions)
    refuse("max_model_len is " + std::to_string(limits.max_model_len) + "; the model has " +
           std::to_string(c.max_positions) + " learned positions");
}

void check(const std::string& name, const Format& f, int64_t k) {
  const bool codes = !is_float(f.dtype);
  const auto must = [&name](bool holds, const std::string& what) {
    if (!holds) refuse("the format of '" + name + "': " + what);
  };
  must(number_format(f.dtype).kind != NumberKind::scale, "e8m0 is of scales only");
  must(holds_scales(f.scale_dtype), "scales are float32, float16, bfloat16 or e8m0");
  must(codes || (f.group == 0 && f.zero == Format::Zero::none && !f.ordered),
       "groups, zeros and an order belong to codes; this matrix holds floats");
  must(is_integer(f.dtype) || f.zero == Format::Zero::none, "only codes that are integers have zeros");
  must(f.group >= 0 && (f.group % kPanel == 0 || f.group >= k),
       "group is " + std::to_string(f.group) + "; it must be a multiple of 16, or 0 for a whole row");
  must(!f.ordered || (name != "embed" && name != "positions" && name != "types" && name != "embed_per_layer"),
       "its rows are read as they are: no order");
  must(!f.turned || (is_integer(f.dtype) && is_turnable(k, f.group) && !f.ordered),
       "activations are turned in groups of a multiple of 64 columns, by primes up to 61");
  must(!name.starts_with("dense.") || f.dtype == DType::f32, "layers behind pooling are float32");
  must(!name.ends_with(".router") || is_float(f.dtype), "a router is never quantized");
}

}  // namespace forearm
