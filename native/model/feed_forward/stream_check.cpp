#include <algorithm>
#include <string>

#include "model/config.h"
#include "model/config_check.h"

namespace forearm {
namespace {

void check_ngrams(const Config& c) {
  const NgramKind* first = c.ngrams();
  for (const LayerKind& layer : c.layers) {
    if (!layer.ngrams) continue;
    const NgramKind& own = *layer.ngrams;
    if (!c.hyper || !layer.mixer_as<GatedDeltaKind>())
      refuse("embeddings of several tokens stand before layers of a gated delta rule, on several residual streams");
    in_range("tokens of an embedding", own.tokens(), 2, 64);
    in_range("heads of embeddings of several tokens", own.heads, 1, 4096);
    in_range("taps behind embeddings of several tokens", own.taps, 1, 64);
    in_range("token that ends a text", own.end, 0, c.vocab_size - 1);
    in_range("rows of embeddings of several tokens", own.rows, 1, INT32_MAX);
    if (own.width % own.all_heads() != 0 || own.width < 1 || static_cast<int64_t>(own.sizes.size()) != own.all_heads())
      refuse("embeddings of several tokens are those of heads of the same width, each with a number of rows");
    int64_t rows = 0;
    for (const int64_t size : own.sizes) {
      in_range("rows of a head", size, 1, own.rows);
      rows += size;
    }
    in_range("rows of all heads", rows, 1, own.rows);
    if (own.width != first->width || own.tokens() != first->tokens() || own.taps != first->taps)
      refuse("all layers must have embeddings of several tokens of the same sizes");
  }
}

}  // namespace

void check_streams(const Config& c) {
  if (c.layer_scalar && !c.norms_after()) refuse("a layer's scalar needs a norm after each half of the layer");
  if (c.per_layer) {
    in_range("width of an embedding of each layer", c.per_layer->width, 1, kLargest);
    in_range("rows of an embedding of each layer", c.per_layer->vocab, 1, c.vocab_size);
    in_range("columns of the embedding of all layers", c.per_layer_columns(), 1, kLargest);
    const auto whole = [](const LayerKind& layer) { return layer.feed_forward.has_value(); };
    if (!c.norms_after() || !std::all_of(c.layers.begin(), c.layers.end(), whole))
      refuse("an embedding of each layer needs feed-forwards with a norm after them");
  }
  if (c.alt_up) {
    in_range("residual streams", c.alt_up->streams, 2, AltUpKind::kMost);
    in_range("rank of a path beside attention", c.alt_up->laurel, 1, kLargest);
    const auto plain = [](const LayerKind& layer) { return layer.mixer_as<AttentionKind>() && !layer.experts; };
    if (!c.per_layer || c.layer_scalar || c.residual_scale != 1.0f || !c.norms_before() ||
        !std::all_of(c.layers.begin(), c.layers.end(), plain))
      refuse("several residual streams need an embedding of each layer, norms around attention and feed-forward");
  }
  const auto merged = [](const LayerKind& layer) { return layer.mixes() && layer.feed_forward; };
  if (c.merges && (!c.norms_before() || c.some_norm_after() || c.norm_residual != NormResidual::none || c.hyper ||
                   c.parallel_residual || c.asides() || c.modules || c.adds_later() || c.alt_up || c.layer_scalar ||
                   c.residual_scale != 1.0f || !std::all_of(c.layers.begin(), c.layers.end(), merged)))
    refuse("residuals that are scaled need layers of two halves, with norms before each half alone");
  in_range("rank of the gates of norms", c.norm_gates, 0, c.hidden);
  if (c.norm_gates && (!c.norms_before() || c.some_norm_after() || c.norm_residual != NormResidual::none || c.hyper ||
                       c.parallel_residual || c.asides() || c.modules || c.adds_later() || !c.norm_weight))
    refuse("norms with gates stand before each half of a layer alone, on one residual stream");
  if (c.hyper) {
    in_range("residual streams", c.hyper->streams, 1, HyperKind::kMost);
    in_range("rounds that make a matrix doubly stochastic", c.hyper->rounds, 0, c.hyper->rank ? 0 : 1000);
    in_range("rank of the gates of streams", c.hyper->rank, 0, kLargest);
    in_range("numbers of all streams", c.hyper->streams * c.hidden, 1, kLargest);
    const bool gated = c.hyper->rank > 0;
    const auto whole = [gated](const LayerKind& layer) {
      const auto& own = layer.feed_forward;
      const bool mixes = gated ? layer.mixer_as<AttentionKind>() || layer.mixer_as<GatedDeltaKind>()
                               : layer.mixer_as<CompressedKind>() || layer.mixer_as<LatentKind>();
      return mixes && own && !own->gate_cut;
    };
    if (c.alt_up || c.some_norm_after() || c.norm_residual != NormResidual::none || c.residual_scale != 1.0f ||
        c.pooled || c.layer_scalar || !std::all_of(c.layers.begin(), c.layers.end(), whole))
      refuse("hyper-connections need layers of compressed or latent attention, with norms before each half alone");
    if (c.final_norm == gated || c.norms_before() == gated)
      refuse("streams with gates are normalized by themselves: their layers and their head have no other norms");
  }
  check_ngrams(c);
}

}  // namespace forearm
