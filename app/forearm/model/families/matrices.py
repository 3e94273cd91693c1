"""The list of a model's matrices, which names, formats, memory plan, `forearm plan` and the native executor read.

The executor keeps some matrices of a checkpoint as one, because they are multiplied with the same rows: q, k and v, and
gate and up. Only this file knows which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from forearm.config.number_formats import WeightFormat
from forearm.model.families.config import Attention, Experts, FeedForward, LatentAttention, Mixer, ModelConfig
from forearm.model.families.matrix_spec import MatrixPart, MatrixSpec, Role, single
from forearm.model.families.recurrences import CompressedAttention, HashedNgrams, Mamba2, ShortConv
from forearm.model.families.recurrent import matrices as recurrent


def matrices(config: ModelConfig) -> list[MatrixSpec]:
    """Return every packed matrix of a model, in the order in which they lie in memory."""
    if config.modules:
        together = [list(group) for _, group in groupby(config.linears, key=lambda one: one.matrix)]
        parts = [tuple(MatrixPart(one.name, one.name, one.rows) for one in group) for group in together]
        return [
            MatrixSpec(first.matrix, part, first.k, "mixer_in", first.bias, first.gate is not None)
            for part, (first, *_) in zip(parts, together, strict=True)
        ]
    width = config.hidden
    found = [*_outside_layers(config), *_of_streams(config)]
    for i, layer in enumerate(config.layers):
        at, own = f"layers.{i}.", layer.feed_forward
        found += _through_few(config, at, (1 + isinstance(own, Experts)) * (config.norm_gates > 0))
        found += _gated_streams(config, at, layer.ngrams)
        if layer.mixer:
            found += _of_mixer(config, layer.mixer, at, layer.aside)
        if isinstance(layer.mixer, Attention) and (blocks := layer.mixer.blocks):
            queries = (blocks.heads or config.heads_of(layer.mixer)[1]) * blocks.head_dim
            sizes = (("q", queries), ("k", blocks.head_dim))
            few = tuple(MatrixPart(f"{at}index_{n}", f"self_attn.index_{n}_proj", rows) for n, rows in sizes)
            found.append(MatrixSpec(f"{at}index_in", few, width, "router", config.centred))
        if layer.aside:
            found.append(single(f"{at}side", "linear", width, width, "feed_forward_in"))
        if layer.beside:
            found += _of_mixer(config, layer.beside, at)
        if isinstance(own, FeedForward):
            found += _up_and_down(config, own, at, "mlp.")
        if not isinstance(own, Experts):
            continue
        if own.router:
            found += recurrent.router_mlp(config, own, at)
        else:
            gate = (MatrixPart(f"{at}shared_gate", "mlp.shared_expert_gate", 1),) * own.shared_gate
            router = (MatrixPart(f"{at}router", "mlp.gate", own.count + own.zeros), *gate)
            found.append(MatrixSpec(f"{at}router", router, width, "router", own.router_bias or config.centred))
        found += _up_and_down(config, own, f"{at}experts.", "mlp.experts.{expert}.")
        if own.shared:
            found += _up_and_down(config, own.shared, f"{at}shared.", "mlp.shared_expert.")
    found += _gated_streams(config, "")
    widths: dict[int, int] = {}  # of the vectors behind the layers so far, by head
    for i, dense in enumerate(config.dense):
        k = widths.get(dense.head, width)
        found.append(single(f"dense.{i}", dense.stored, dense.outputs, k, "pooler", dense.bias))
        widths[dense.head] = dense.outputs
    return [spec for spec in found if spec.name not in config.shared]


def uniform_formats(config: ModelConfig, weights: WeightFormat) -> dict[str, WeightFormat]:
    """Return one format for every packed matrix of the executor; what is never quantized is float32."""
    exact = WeightFormat("float32")
    kept = ("pooler", "router", "mixer_heads", "mixer_low_rank")
    return {m.name: exact if m.role in kept else weights for m in matrices(config)}


def _outside_layers(config: ModelConfig) -> Iterator[MatrixSpec]:
    """Yield the matrices of embeddings and of the head."""
    width, tied_bias = config.embed_width or config.hidden, config.tied_head and config.head_bias
    yield single("embed", "embed_tokens", config.vocab_size, width, "embedding", tied_bias)
    tables = (
        ("positions", "embed_positions", config.learned_positions * (config.max_positions + config.position_offset)),
        ("types", "token_type_embeddings", config.token_types),
    )
    yield from (single(name, stored, rows, width, "table") for name, stored, rows in tables if rows)
    if config.fuses:
        yield single("fuse", "fc", width, 2 * width, "feed_forward_in")
    if config.distance_bias.startswith("embedded"):
        yield single("distances", "rel_embeddings", max(config.distance_buckets) + 1, config.hidden, "table")
    if config.embed_width:
        stored = "embedding_hidden_mapping_in"
        yield single("embed_in", stored, config.hidden, config.embed_width, "feed_forward_in", bias=True)
    if not config.tied_head:
        yield single("head", "lm_head", config.vocab_size, width, "head", config.head_bias or config.centred)
    if own := config.head_dense:
        yield single("head_dense", own.stored, width, width, "feed_forward_in", own.bias)


def _of_streams(config: ModelConfig) -> Iterator[MatrixSpec]:
    """Yield the model's matrices of an embedding of each layer, and those that make and join residual streams."""
    width, columns = config.hidden, len(config.layers) * config.per_layer
    if config.per_layer:
        rows = config.per_layer_vocab or config.vocab_size
        yield single("embed_per_layer", "embed_tokens_per_layer", rows, columns, "table")
        yield single("project_per_layer", "per_layer_model_projection", columns, width, "feed_forward_in")
    if config.alt_up:
        streams = range(1, config.alt_up.streams)
        parts = (MatrixPart(f"stream_in_{i}", f"altup_projections.{i - 1}", width) for i in streams)
        yield MatrixSpec("stream_in", tuple(parts), width, "feed_forward_in")
        for i in streams:
            unembed = f"altup_unembed_projections.{i - 1}"
            yield single(f"stream_out_{i}", unembed, width, width, "feed_forward_in")


def _gated_streams(config: ModelConfig, at: str, ngrams: HashedNgrams | None = None) -> Iterator[MatrixSpec]:
    """Yield the matrices that make gates of the streams before both halves of a layer, or before the head (at "").

    ngrams: those that are added to the streams before the layer, whose matrices come first.
    """
    own = config.hyper_connections
    if own is None or not own.rank:
        return
    if ngrams:
        yield single(f"{at}ngrams", "ple.ple_embedding.ngram_embedding", ngrams.rows, ngrams.head_width, "table")
        sizes = (("key", own.streams * config.hidden), ("value", config.hidden))
        joint = tuple(MatrixPart(f"{at}ngrams_{name}", f"ple.{name}_proj", rows) for name, rows in sizes)
        yield MatrixSpec(f"{at}ngrams_in", joint, ngrams.width, "feed_forward_in")
    for half in ("hyper_attention", "hyper_mlp") if at else ("hyper_head",):
        stored, numbers = f"{config.names[half]}.input_mix_weight_", own.streams * config.hidden
        yield single(f"{at}{half}_down", f"{stored}down", own.rank, numbers, "feed_forward_in")
        yield single(f"{at}{half}_up", f"{stored}up", numbers, own.rank, "feed_forward_out")


def _through_few(config: ModelConfig, at: str, gated_norms: int) -> Iterator[MatrixSpec]:
    """Yield the pairs of low-rank matrices of a layer: of gated norms, Laurel's, those of the layer's own embedding."""
    pairs = []
    for norm, stored in (("input", "input_layernorm"), ("pre_mlp", "post_attention_layernorm"))[:gated_norms]:
        yield single(f"{at}{norm}_gate_down", f"{stored}.W_down", config.norm_gates, config.hidden, "router")
        yield single(f"{at}{norm}_gate_up", f"{stored}.W_up", config.hidden, config.norm_gates, "router")
    if config.alt_up:
        names = ("laurel_left", "laurel.linear_left", "laurel_right", "laurel.linear_right")
        pairs.append((*names, config.alt_up.laurel))
    if config.per_layer:
        names = ("per_layer_gate", "per_layer_input_gate", "per_layer_out", "per_layer_projection")
        pairs.append((*names, config.per_layer))
    for first, first_stored, second, second_stored, few in pairs:
        yield single(f"{at}{first}", first_stored, few, config.hidden, "feed_forward_in")
        yield single(f"{at}{second}", second_stored, config.hidden, few, "feed_forward_out")


def _of_mixer(config: ModelConfig, own: Mixer, at: str, aside: bool = False) -> Iterator[MatrixSpec]:
    width = config.hidden

    def joint(name: str, rows: Iterable[tuple[str, str, int]], role: Role, bias: bool = False) -> MatrixSpec:
        parts = (
            MatrixPart(f"{at}{part}", stored, count, part != "k" or config.key_bias) for part, stored, count in rows
        )
        return MatrixSpec(f"{at}{name}", tuple(parts), 2 * width if aside else width, role, bias or config.centred)

    if isinstance(own, Attention):
        heads, kv_heads, head_dim = config.heads_of(own)
        value, few = own.value_dim or head_dim, own.bias.dim if own.bias else 0
        rows_of = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * value, "r": heads * few}
        names = ("q" if own.shared_from is not None else "qk" if own.keys_as_values else "qkv") + "r" * bool(few)
        rows = [(n, f"self_attn.{n}_proj", rows_of[n]) for n in names]
        gate = heads if config.head_gates else heads * value
        rows += [("q_gate", "self_attn.q_proj", gate)] if config.attention_gate != "none" else []
        yield joint("qkv", rows, "mixer_in", config.qkv_bias)
        if config.distance_bias == "embedded_apart":
            for name, bias in (("distance_q", True), ("distance_k", False)):
                yield single(f"{at}{name}", name, heads * head_dim, width, "mixer_in", bias)
        if own.convolved:
            part = MatrixPart(f"{at}conv_heads", "self_attn.qkv_proj.conv_qk_grouped", head_dim)
            k, count = head_dim * own.convolved.head_taps, heads + kv_heads
            yield MatrixSpec(part.name, (part,), k, "mixer_heads", bias=True, experts=count, active=count)
        yield single(f"{at}o", "self_attn.o_proj", width, heads * value, "mixer_out", config.o_bias or own.o_bias)
    elif isinstance(own, ShortConv):
        yield joint("conv_in", [(f"conv_{n}", "conv.in_proj", width) for n in "bcx"], "mixer_in", own.bias)
        yield single(f"{at}conv_out", "conv.out_proj", width, width, "mixer_out", own.bias)
    elif isinstance(own, LatentAttention):
        yield from _latent(config, own, at)
    elif isinstance(own, CompressedAttention):
        yield from _compressed(config, own, at)
    elif isinstance(own, Mamba2):
        sizes = (("z", own.inner), ("xbc", own.channels), ("dt", own.heads))
        yield joint("mamba_in", [(f"mamba_{n}", "mamba.in_proj", r) for n, r in sizes], "mixer_in", own.bias)
        yield single(f"{at}mamba_out", "mamba.out_proj", width, own.inner, "mixer_out", own.bias)
    else:
        yield from recurrent.OF_MIXER[type(own)](config, own, at)


def _latent(config: ModelConfig, own: LatentAttention, at: str) -> Iterator[MatrixSpec]:
    """Yield the matrices of latent attention; kv_b_proj has, head by head, the rows of keys and those of values."""
    heads, query = config.heads_of(own)[0], config.heads_of(own)[0] * (own.plain + own.rotary)
    few, whole = (f"{at}q_down", "self_attn.q_a_proj", own.q_rank), (f"{at}q", "self_attn.q_proj", query)
    joint = [MatrixPart(*(few if own.q_rank else whole))]
    joint.append(MatrixPart(f"{at}kv_down", "self_attn.kv_a_proj_with_mqa", own.rank + own.rotary))
    queries = [MatrixPart(f"{at}q_up", "self_attn.q_b_proj", query)]
    if config.attention_gate != "none":
        gates = heads * (1 if config.head_gates else own.value)
        (queries if own.joint_gates else joint).append(MatrixPart(f"{at}q_gate", "self_attn.g_proj", gates))
    yield MatrixSpec(f"{at}latent_in", tuple(joint), config.hidden, "mixer_in", config.qkv_bias or config.centred)
    if own.q_rank:
        yield MatrixSpec(f"{at}q_up", tuple(queries), own.q_rank * (1 + own.joint_gates), "mixer_inner")
    if own.indexer and not own.indexer.shared:
        indexer, module = own.indexer, "self_attn.indexer"
        sizes = (("k", "wk", indexer.head_dim), ("weights", "weights_proj", indexer.heads))
        chosen_by = tuple(MatrixPart(f"{at}index_{n}", f"{module}.{stored}", rows) for n, stored, rows in sizes)
        yield MatrixSpec(f"{at}index_in", chosen_by, config.hidden, "router", config.centred)
        rows = indexer.heads * indexer.head_dim
        yield single(f"{at}index_q", f"{module}.wq_b", rows, own.q_rank, "mixer_inner")
    for name, rows, k in (("k_up", own.rank, own.plain), ("v_up", own.value, own.rank)):
        part = MatrixPart(f"{at}{name}", "self_attn.kv_b_proj", rows)
        yield MatrixSpec(part.name, (part,), k, "mixer_heads", experts=heads, active=heads)
    yield single(f"{at}o", "self_attn.o_proj", config.hidden, heads * own.value, "mixer_out", config.o_bias)


def _compressed(config: ModelConfig, own: CompressedAttention, at: str) -> Iterator[MatrixSpec]:
    """Yield the matrices of compressed attention; those that entries are made by have gates, so they stay floats."""
    width, heads, dim = config.hidden, config.heads, config.head_dim
    joint = (
        MatrixPart(f"{at}q_down", "self_attn.q_a_proj", own.q_rank),
        MatrixPart(f"{at}kv", "self_attn.kv_proj", dim),
    )
    yield MatrixSpec(f"{at}latent_in", joint, width, "mixer_in")
    yield single(f"{at}q_up", "self_attn.q_b_proj", heads * dim, own.q_rank, "mixer_inner")
    entries = [("entry", "self_attn.compressor", dim)] if own.ratio else []
    entries += [("index", "self_attn.compressor.indexer", own.index_dim)] if own.chosen else []
    parts = [
        MatrixPart(f"{at}{name}{part}", f"{module}.{stored}_proj", own.series * size)
        for name, module, size in entries
        for part, stored in (("", "kv"), ("_gate", "gate"))
    ]
    if own.chosen:
        module = "self_attn.compressor.indexer"
        parts.append(MatrixPart(f"{at}index_weights", f"{module}.scorer.weights_proj", own.index_heads))
        queries = own.index_heads * own.index_dim
        yield single(f"{at}index_q", f"{module}.q_b_proj", queries, own.q_rank, "mixer_inner")
    if parts:
        yield MatrixSpec(f"{at}entry_in", tuple(parts), width, "router")
    group = MatrixPart(f"{at}groups", "self_attn.o_a_proj", own.group_rank)
    k, count = heads // own.groups * dim, own.groups
    yield MatrixSpec(group.name, (group,), k, "mixer_groups", experts=count, active=count)
    yield single(f"{at}o", "self_attn.o_b_proj", width, own.groups * own.group_rank, "mixer_out")


def _up_and_down(config: ModelConfig, own: FeedForward | Experts, prefix: str, stored: str) -> Iterator[MatrixSpec]:
    experts, active = 1, 1
    if isinstance(own, Experts):  # on average, if others than `zeros` are chosen as often as these
        experts, active = own.count, max(1, round(own.active * own.count / (own.count + own.zeros)))
    names = ("gate", "up") if own.gated else ("up",)
    up = tuple(MatrixPart(prefix + name, f"{stored}{name}_proj", own.width) for name in names)
    down = (MatrixPart(f"{prefix}down", f"{stored}down_proj", config.hidden),)
    down_bias = own.bias or (isinstance(own, FeedForward) and own.down_bias)
    up_bias = own.bias or config.centred
    yield MatrixSpec(f"{prefix}up", up, config.hidden, "feed_forward_in", up_bias, own.gated, experts, active)
    yield MatrixSpec(f"{prefix}down", down, own.width, "feed_forward_out", down_bias, False, experts, active)
