"""Names of the executor's vectors in a checkpoint: norms, biases of attention, what recurrences and experts have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from forearm.model.checkpoint.mixer_names import states
from forearm.model.checkpoint.tensor_part import TensorPart, norm_vectors
from forearm.model.families.config import Attention, Experts, FeedForward, LatentAttention, ModelConfig
from forearm.model.families.recurrences import CompressedAttention

# Executor's name (_native.pyi) -> Llama's name. ModelConfig.names overrides entries, for all layers or for a single one
# ("layers.0.input_norm", whose value is the name without the model's prefix: stored_at). "layers.3" is the name of
# layer 3 as a whole, where the checkpoint has further layers that are not computed, or layers that are several of ours.
VECTORS = {
    "embed": "embed_tokens", "final_norm": "norm", "embed_norm": "embed_norm", "layers": "layers",
    "input_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
    "pre_mlp_norm": "post_attention_layernorm",  # Llama's second norm is named after what it follows
    "post_mlp_norm": "post_mlp_layernorm", "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm", "conv": "conv.conv", "mamba": "mamba",
    "delta": "linear_attn", "scalar": "layer_scalar",
    "correction": "mlp.gate.e_score_correction_bias",
    "per_layer_norm": "per_layer_projection_norm",
    "post_per_layer_norm": "post_per_layer_input_norm",
    "laurel_norm": "laurel.post_laurel_norm",
    "alt_up_norm": "altup.router_norm.weight", "alt_up_router": "altup.modality_router.weight",
    "alt_up_predict": "altup.prediction_coefs.weight", "alt_up_correct": "altup.correction_coefs.weight",
    "alt_up_scale": "altup.correct_output_scale", "router_norm": "router.scale",
    "expert_scale": "router.per_expert_scale",
    "pre_experts_norm": "pre_feedforward_layernorm_2", "post_experts_norm": "post_feedforward_layernorm_2",
    "post_shared_norm": "post_feedforward_layernorm_1",
    "attention_bias": "relative_attention_bias", "sinks": "self_attn.sinks", "experts_by_token": "mlp.gate.tid2eid",
    "entry_bias": "self_attn.compressor.position_bias", "entry_norm": "self_attn.compressor.kv_norm",
    "index_bias": "self_attn.compressor.indexer.position_bias",
    "compressed_index_norm": "self_attn.compressor.indexer.kv_norm",
    "index_q_norm": "self_attn.index_q_norm", "index_norm": "self_attn.index_k_norm",  # of chosen blocks
    "hyper_attention": "attn_hc.{part}", "hyper_mlp": "ffn_hc.{part}", "hyper_head": "hc_head.hc_{part}",
    "router_mlp": "mlp.gate",
}  # fmt: skip
_MERGE = ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias")
_NORMS: dict[str, tuple[str, ...]] = {
    "none": (),
    "pre": ("input_norm", "pre_mlp_norm"),
    "post": ("post_attention_norm", "post_mlp_norm"),
    "around_mlp": ("input_norm", "pre_mlp_norm", "post_mlp_norm"),
    "sandwich": ("input_norm", "post_attention_norm", "pre_mlp_norm", "post_mlp_norm"),
}


def vectors(config: ModelConfig, prefix: str) -> Iterator[TensorPart]:
    """Yield every vector but those of matrices' biases. prefix: of the model's tensors."""
    biases = config.layer_norm and config.norm_bias
    names = VECTORS | config.names
    for i, own_layer in enumerate(config.layers):
        mixer, feed_forward = own_layer.mixer, own_layer.feed_forward
        layer, at = f"layers.{i}", f"{prefix}{layer_name(names, i)}"
        projected = i == 0 and config.embed_width > 0 and config.norm_residual == "all"
        absent = {"input_norm": mixer is None or projected, "pre_mlp_norm": feed_forward is None}
        for norm in (
            one
            for one in _NORMS[own_layer.norm_placement or config.norm_placement]
            if config.norm_weight and not absent.get(one)
        ):
            there = f"{prefix}{stored_at(names, f'{layer}.{norm}', names[norm])}"
            width = config.hidden * (2 if own_layer.aside and norm == "input_norm" else 1)
            yield from norm_vectors(f"{layer}.{norm}", there, width, biases)
        if isinstance(mixer, Attention):
            yield from _head_norms(config, mixer, layer, at)
            yield from _convolved(config, mixer, layer, at, isinstance(feed_forward, Experts))
        if isinstance(mixer, LatentAttention | CompressedAttention):
            yield from _latent(config, layer, prefix, names, mixer)
        yield from _feed_forward(config, layer, at, names, feed_forward)
        yield from _streams(config, layer, f"{at}.", names)
        yield from states(config, own_layer, layer, at, names)
        if isinstance(mixer, CompressedAttention) or (isinstance(mixer, Attention | LatentAttention) and mixer.sinks):
            yield TensorPart(f"{layer}.sinks", f"{at}.{names['sinks']}", (config.heads_of(mixer)[0],))
    yield from _distances(config, prefix, names)
    yield from _streams(config, "", prefix, names)
    if config.per_layer:
        yield from norm_vectors("per_layer_norm", f"{prefix}{names['per_layer_norm']}", config.per_layer, False)
    if config.embed_norm and config.norm_weight:
        width = config.embed_width or config.hidden
        yield from norm_vectors("embed_norm", f"{prefix}{names['embed_norm']}", width, biases)
    if config.fuses:
        yield from norm_vectors("hidden_norm", f"{prefix}{names['hidden_norm']}", config.hidden, biases)
    if config.final_norm and config.norm_weight:
        yield from norm_vectors("final_norm", f"{prefix}{names['final_norm']}", config.hidden, biases)


def _convolved(config: ModelConfig, mixer: Attention, layer: str, at: str, sparse: bool) -> Iterator[TensorPart]:
    """Yield the taps of a layer's four convolutions, which the executor has as one, what follows them, and a bias."""
    taps, row, kv = config.conv_taps, 0, config.heads_of(mixer)[1] * config.heads_of(mixer)[2]
    sizes = {"k": kv, "v": kv, "mixer": config.hidden, "feed_forward": config.hidden} if taps else {}
    for name, channels in sizes.items():
        yield TensorPart(f"{layer}.conv", f"{at}.{config.names[f'conv_{name}']}.weight", (channels * taps,), at=row)
        row += channels * taps
    if taps:
        factor = config.names["experts_factor" if sparse else "dense_factor"]
        yield TensorPart(f"{layer}.feed_forward_scale", f"{at}.{factor}", (1,))
    if bias := mixer.bias:
        yield TensorPart(f"{layer}.relative_bias", f"{at}.{config.names['relative_bias']}", (bias.dim * bias.reach,))


def layer_name(names: Mapping[str, str], layer: int) -> str:
    """Return the name of a layer in the checkpoint, without the model's prefix. names: ModelConfig.names or more."""
    return names.get(f"layers.{layer}", f"{names.get('layers', VECTORS['layers'])}.{layer}")


def stored_at(names: Mapping[str, str], name: str, default: str) -> str:
    """Return the checkpoint's name of a tensor of a layer, without the model's prefix.

    name: the executor's, with its layer. default: the name in its layer if `names` has none of this layer's own.
    """
    return names.get(name) or f"{layer_name(names, int(name.split('.')[1]))}.{default}"


def _distances(config: ModelConfig, prefix: str, names: Mapping[str, str]) -> Iterator[TensorPart]:
    """Yield the tables of the bias of attention by distance, or the norm of embeddings of distances."""
    if config.distance_bias == "embedded_apart":
        return
    if config.distance_bias == "embedded":
        yield from norm_vectors("distance_norm", f"{prefix}{names['distance_norm']}", config.hidden, bias=True)
        return
    each = [(f"layers.{i}.", f"{prefix}{layer_name(names, i)}.") for i in range(len(config.layers))]
    for own, at in each if config.distance_bias == "each_layer" else [("", prefix)]:
        if config.distance_buckets:
            table = (max(config.distance_buckets) + 1) * config.heads
            yield TensorPart(f"{own}attention_bias", f"{at}{names['attention_bias']}.weight", (table,))


def _feed_forward(
    config: ModelConfig, layer: str, at: str, names: Mapping[str, str], own: FeedForward | Experts | None
) -> Iterator[TensorPart]:
    """Yield the vectors of experts and activations, and those that end a layer: its scalar, a norm of embeddings."""
    if isinstance(own, Experts) and own.correction:
        count = own.count + own.zeros - own.always
        yield TensorPart(f"{layer}.correction", f"{at}.{names['correction']}", (count,))
    if isinstance(own, Experts) and own.router:
        module = names["router_mlp"]
        yield from norm_vectors(f"{layer}.router_norm", f"{at}.{module}.router_mlp.norm", own.router.rank, False)
        if own.router.follows:
            yield TensorPart(f"{layer}.router_state", f"{at}.{module}.router_states_scale", (own.router.rank,))
    if isinstance(own, Experts) and own.by_token:
        table = f"{at}.{names['experts_by_token']}"
        yield TensorPart(f"{layer}.experts_by_token", table, (config.vocab_size * own.active,), whole=True)
    if isinstance(own, FeedForward) and own.activation == "xielu":
        for i, name in enumerate(("alpha_p", "alpha_n", "beta", "eps")):
            joint, row = names.get(f"xielu.{name}"), int(layer.partition(".")[2])  # a value for each layer
            place = (joint, (1,), row, i, len(config.layers)) if joint else (f"{at}.mlp.act_fn.{name}", (1,), 0, i)
            yield TensorPart(f"{layer}.xielu", *place)
    if config.sub_norm and isinstance(own, FeedForward):
        yield from norm_vectors(f"{layer}.ffn_sub_norm", f"{at}.{names['ffn_sub_norm']}", own.width, False)
    if config.layer_scalar:
        yield TensorPart(f"{layer}.scalar", f"{at}.{names['scalar']}", (1,))
    if config.per_layer:
        yield from norm_vectors(f"{layer}.per_layer_norm", f"{at}.{names['post_per_layer_norm']}", config.hidden, False)
    if isinstance(own, Experts) and own.apart:
        yield TensorPart(f"{layer}.expert_scale", f"{at}.{names['expert_scale']}", (own.count,))
        yield TensorPart(f"{layer}.router_norm", f"{at}.{names['router_norm']}", (config.hidden,))
        for norm in ("pre_experts_norm", "post_shared_norm", "post_experts_norm"):
            yield from norm_vectors(f"{layer}.{norm}", f"{at}.{names[norm]}", config.hidden, False)


def _streams(config: ModelConfig, layer: str, at: str, names: Mapping[str, str]) -> Iterator[TensorPart]:
    """Yield what several residual streams have in a layer, or behind the last one (layer ""); at: with its dot.

    Alternating updates have vectors, small matrices among them, and Laurel's norm; hyper-connections have weights.
    """
    if config.merges:
        for half in ("attention", "mlp") if layer else ("embed",):
            module = f"post_{half}_residual_scale." if layer else "input_"
            for i, end in enumerate(_MERGE if layer else _MERGE[:2]):
                name = f"{layer}.{half}_merge".lstrip(".")
                yield TensorPart(name, f"{at}{module}{end}", (config.hidden,), at=i * config.hidden)
    if config.alt_up and layer:
        count, hidden = config.alt_up.streams, config.hidden
        sizes = {"norm": hidden, "router": count * hidden, "predict": count**3, "correct": count**2}
        for name, size in (sizes | ({"scale": hidden} if config.alt_up.scaled else {})).items():
            yield TensorPart(f"{layer}.alt_up_{name}", f"{at}{names[f'alt_up_{name}']}", (size,))
        yield from norm_vectors(f"{layer}.laurel_norm", f"{at}{names['laurel_norm']}", hidden, False)
    if (own := config.hyper_connections) is None:
        return
    if layer and (ngrams := config.layers[int(layer.split(".")[1])].ngrams):
        numbers = own.streams * config.hidden
        for part in ("key", "query", "conv"):
            yield from norm_vectors(f"{layer}.ngrams_{part}_norm", f"{at}ple.norm_{part}", numbers, False)
        yield TensorPart(f"{layer}.ngrams_conv", f"{at}ple.conv1d.weight", (numbers * ngrams.taps,))
    for half in ("hyper_attention", "hyper_mlp") if layer else ("hyper_head",):
        if own.rank:
            numbers, name, there = own.streams * config.hidden, f"{layer}.{half}".lstrip("."), f"{at}{names[half]}"
            yield from norm_vectors(f"{name}_norm", f"{there}.hc_norm", numbers, False)
            if layer:
                yield TensorPart(f"{name}_project", f"{there}.block_inject_weight.weight", (own.streams * numbers,))
            continue
        count = own.weights if layer else own.streams
        sizes = {"fn": count * own.streams * config.hidden, "base": count, "scale": own.scales if layer else 1}
        for part, name in (("fn", "project"), ("base", "base"), ("scale", "scale")):
            stored = names[half].replace("{part}", part)
            yield TensorPart(f"{layer}.{half}_{name}".lstrip("."), f"{at}{stored}", (sizes[part],))


def _latent(
    config: ModelConfig, layer: str, prefix: str, names: Mapping[str, str], own: LatentAttention | CompressedAttention
) -> Iterator[TensorPart]:
    """Yield the norms of both latents, or of that of queries and of keys, and what an indexer or entries have."""
    at = f"{prefix}{layer_name(names, int(layer.split('.')[1]))}"
    rank = own.rank if isinstance(own, LatentAttention) else config.head_dim
    for name, size, stored in (("q_norm", own.q_rank, "q_a_layernorm"), ("k_norm", rank, "kv_a_layernorm")):
        if size:
            there = stored_at(names, f"{layer}.{name}", config.names.get(name, f"self_attn.{stored}"))
            factor = own.scales[name == "k_norm"] if isinstance(own, LatentAttention) else 1.0
            found = norm_vectors(f"{layer}.{name}", f"{prefix}{there}", size, False)
            yield from (replace(one, factor=factor) for one in found)
    if isinstance(own, CompressedAttention):
        yield from _compressed(layer, at, names, own, rank)
        return
    if own.key_norm:
        stored = config.names.get("rotated_key_norm", "self_attn.k_rope_only_layernorm")
        yield from norm_vectors(f"{layer}.rotated_key_norm", f"{at}.{stored}", own.rotary, False)
    if own.indexer and not own.indexer.shared:
        there = f"{at}.{config.names.get('index_norm', 'self_attn.indexer.k_norm')}"
        yield from norm_vectors(f"{layer}.index_norm", there, own.indexer.head_dim, True)


def _compressed(
    layer: str, at: str, names: Mapping[str, str], own: CompressedAttention, dim: int
) -> Iterator[TensorPart]:
    """Yield the norms of entries and of the keys that they are chosen by, and what is added to their gates."""
    for name, norm, size in (("entry", "entry_norm", dim), ("index", "compressed_index_norm", own.index_dim)):
        if size and own.ratio:
            yield from norm_vectors(f"{layer}.{name}_norm", f"{at}.{names[norm]}", size, False)
            bias = own.ratio * own.series * size
            yield TensorPart(f"{layer}.{name}_bias", f"{at}.{names[f'{name}_bias']}", (bias,))


def _head_norms(config: ModelConfig, mixer: Attention, layer: str, at: str) -> Iterator[TensorPart]:
    """Yield the norms of a layer's queries, of its keys if it has its own, and of what o reads."""
    heads, kv_heads, head_dim = config.heads_of(mixer)
    if config.sub_norm:
        there = f"{at}.{(VECTORS | config.names)['attn_sub_norm']}"
        yield from norm_vectors(f"{layer}.attn_sub_norm", there, heads * head_dim, False)
    if blocks := mixer.blocks:
        for norm in ("index_q_norm", "index_norm"):
            stored = f"{at}.{(VECTORS | config.names)[norm]}"
            yield from norm_vectors(f"{layer}.{norm}", stored, blocks.head_dim, False)
    if config.qk_norm == "none":
        return
    for norm, count in (("q_norm", heads), ("k_norm", kv_heads))[: 2 if mixer.shared_from is None else 1]:
        size = head_dim * (1 if config.qk_norm == "head" else count)
        stored, bias = f"{at}.{(VECTORS | config.names)[norm]}", config.qk_norm_bias
        yield from norm_vectors(f"{layer}.{norm}", stored, size, bias, count)
