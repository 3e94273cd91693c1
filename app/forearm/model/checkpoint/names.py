"""Names of the executor's tensors in a checkpoint: Llama's names, and the ones that a family changes.

The list of matrices (matrices.py) holds Llama's names of matrices; this file holds those of vectors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from forearm.errors import ConfigError
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.families.config import Attention, Experts, FeedForward, LatentAttention, ModelConfig, ShortConv
from forearm.model.families.matrices import MatrixPart, MatrixSpec, matrices
from forearm.model.families.recurrences import GatedDelta, Mamba2

# Executor's name (_native.pyi) -> Llama's name. ModelConfig.names overrides entries, for all layers or for a single one
# ("layers.0.input_norm", whose value is the name without the layers' prefix).
_VECTORS = {
    "embed": "embed_tokens",
    "final_norm": "norm",
    "layers": "layers",
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_mlp_norm": "post_attention_layernorm",  # Llama's second norm is named after what it follows
    "post_mlp_norm": "post_mlp_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "conv": "conv.conv",
    "mamba": "mamba",
    "delta": "linear_attn",
    "scalar": "layer_scalar",
    "correction": "mlp.gate.e_score_correction_bias",
    "per_layer_norm": "per_layer_projection_norm",
    "post_per_layer_norm": "post_per_layer_input_norm",
    "router_norm": "router.scale",
    "expert_scale": "router.per_expert_scale",
    "pre_experts_norm": "pre_feedforward_layernorm_2",
    "post_shared_norm": "post_feedforward_layernorm_1",
    "post_experts_norm": "post_feedforward_layernorm_2",
    "sinks": "self_attn.sinks",
    "attention_bias": "relative_attention_bias",
}
_NORMS = {
    "pre": ("input_norm", "pre_mlp_norm"),
    "post": ("post_attention_norm", "post_mlp_norm"),
    "sandwich": ("input_norm", "post_attention_norm", "pre_mlp_norm", "post_mlp_norm"),
}
# Prefixes of a model's tensors: a causal model, multimodal ones (transformers 5, then 4), encoders, a bare model.
_PREFIXES = (
    "model.", "backbone.", "model.language_model.", "language_model.model.", "bert.", "roberta.", "distilbert.",
    "nomic_bert.", "gte.", "mpnet.", "new.", "",
)  # fmt: skip


def parts(config: ModelConfig, stored: Collection[str]) -> list[TensorPart]:
    """Return every matrix and vector that the executor of `config` needs, with its place in the tensors `stored`.

    Raises: ConfigError if the embedding has none of the known names.
    """
    prefix = _prefix(config, stored)
    config = replace(config, names=config.names | _fused_experts(config, prefix, stored))
    found: list[TensorPart] = []
    for spec in matrices(config):
        if spec.role == "pooler":
            found += _pooler(config, spec, stored, found[0].stored)
        elif spec.role == "mixer_heads":
            found += _heads(config, spec, prefix)
        else:
            found += _matrix(config, spec, prefix, stored)
    biases = config.layer_norm and config.norm_bias
    names = _VECTORS | config.names
    for i, (mixer, feed_forward) in enumerate((layer.mixer, layer.feed_forward) for layer in config.layers):
        layer, at = f"layers.{i}", f"{prefix}{names['layers']}.{i}"
        absent = {"input_norm": mixer is None, "pre_mlp_norm": feed_forward is None}
        for norm in (one for one in _NORMS[config.norm_placement] if config.norm_weight and not absent.get(one)):
            own = config.names.get(f"{layer}.{norm}")
            there = f"{at}.{names[norm]}" if own is None else f"{prefix}{own}"
            found += _norm(f"{layer}.{norm}", there, config.hidden, biases)
        if config.qk_norm != "none" and isinstance(mixer, Attention):
            found += _head_norms(config, mixer, layer, at)
        if isinstance(mixer, LatentAttention):
            found += _latent(layer, at, config.names, mixer)
        found += _feed_forward(config, layer, at, names, feed_forward)
        if isinstance(mixer, ShortConv):
            taps = f"{at}.{names['conv']}"
            found.append(TensorPart(f"{layer}.conv", f"{taps}.weight", (config.hidden * mixer.taps,)))
            if mixer.bias:
                found.append(TensorPart(f"{layer}.conv.bias", f"{taps}.bias", (config.hidden,)))
        if mamba2 := config.layers[i].mamba2:
            found += _recurrence(layer, at, names, names["mamba"], _mamba2(mamba2))
        if isinstance(mixer, GatedDelta):
            found += _recurrence(layer, at, names, names["delta"], _delta(mixer))
        if config.sinks and isinstance(mixer, Attention):
            found.append(TensorPart(f"{layer}.sinks", f"{at}.{names['sinks']}", (config.heads,)))
    found += _distances(config, prefix, names)
    if config.per_layer:
        found += _norm("per_layer_norm", f"{prefix}{names['per_layer_norm']}", config.per_layer, False)
    if config.final_norm and config.norm_weight:
        found += _norm("final_norm", f"{prefix}{names['final_norm']}", config.hidden, biases)
    return found


def _distances(config: ModelConfig, prefix: str, names: Mapping[str, str]) -> Iterator[TensorPart]:
    """Yield the tables of the bias of attention by distance: one of all layers, or each layer's own."""
    each = [(f"layers.{i}.", f"{prefix}{names['layers']}.{i}.") for i in range(len(config.layers))]
    for own, at in each if config.distance_bias == "each_layer" else [("", prefix)]:
        if config.distance_buckets:
            table = (max(config.distance_buckets) + 1) * config.heads
            yield TensorPart(f"{own}attention_bias", f"{at}{names['attention_bias']}.weight", (table,))


def _feed_forward(
    config: ModelConfig, layer: str, at: str, names: Mapping[str, str], own: FeedForward | Experts | None
) -> Iterator[TensorPart]:
    """Yield the vectors of experts, and those that end a layer: its scalar, the norm of an embedding of each layer."""
    if isinstance(own, Experts) and own.correction:
        yield TensorPart(f"{layer}.correction", f"{at}.{names['correction']}", (own.count,))
    if config.layer_scalar:
        yield TensorPart(f"{layer}.scalar", f"{at}.{names['scalar']}", (1,))
    if config.per_layer:
        yield from _norm(f"{layer}.per_layer_norm", f"{at}.{names['post_per_layer_norm']}", config.hidden, False)
    if isinstance(own, Experts) and own.apart:
        yield TensorPart(f"{layer}.expert_scale", f"{at}.{names['expert_scale']}", (own.count,))
        yield TensorPart(f"{layer}.router_norm", f"{at}.{names['router_norm']}", (config.hidden,))
        for norm in ("pre_experts_norm", "post_shared_norm", "post_experts_norm"):
            yield from _norm(f"{layer}.{norm}", f"{at}.{names[norm]}", config.hidden, False)


def _mamba2(own: Mamba2) -> dict[str, int]:
    """Return the vectors of a layer of Mamba2, with their sizes."""
    sizes = {"conv": own.channels * own.taps, "dt_bias": own.heads, "a_log": own.heads, "d": own.heads}
    norm = {"gate_norm": own.inner} if own.norm else {}
    return sizes | norm | ({"conv.bias": own.channels} if own.conv_bias else {})


def _delta(own: GatedDelta) -> dict[str, int]:
    """Return the vectors of a layer of the gated delta rule, with their sizes."""
    heads = own.value_heads
    return {"conv": own.channels * own.taps, "dt_bias": heads, "a_log": heads, "gate_norm": own.value_dim}


def _recurrence(
    layer: str, at: str, names: Mapping[str, str], module: str, vectors: Mapping[str, int]
) -> Iterator[TensorPart]:
    """Yield the vectors of a recurrence, which belong to `module` unless `names` has a name of their own."""
    for name, size in vectors.items():
        there = names.get(f"recurrence.{name}", f"{module}.{_RECURRENCE[name]}")
        stored = there.removeprefix("-exp(").removesuffix(")")
        yield TensorPart(f"{layer}.{name}", f"{at}.{stored}", (size,), negative_exp=stored != there)


_RECURRENCE = {
    "conv": "conv1d.weight", "conv.bias": "conv1d.bias", "dt_bias": "dt_bias", "a_log": "A_log", "d": "D",
    "gate_norm": "norm.weight",
}  # fmt: skip


def _latent(layer: str, at: str, names: Mapping[str, str], own: LatentAttention) -> Iterator[TensorPart]:
    """Yield the norms of both latents."""
    for name, rank, stored in (("q_norm", own.q_rank, "q_a_layernorm"), ("k_norm", own.rank, "kv_a_layernorm")):
        if rank:
            yield from _norm(f"{layer}.{name}", f"{at}.{names.get(name, f'self_attn.{stored}')}", rank, False)


def _head_norms(config: ModelConfig, mixer: Attention, layer: str, at: str) -> Iterator[TensorPart]:
    """Yield the norms of a layer's queries, and of its keys if it has its own."""
    kv_heads, head_dim = config.heads_of(mixer)
    for norm, heads in (("q_norm", config.heads), ("k_norm", kv_heads))[: 2 if mixer.shared_from is None else 1]:
        size = head_dim * (1 if config.qk_norm == "head" else heads)
        yield from _norm(f"{layer}.{norm}", f"{at}.{(_VECTORS | config.names)[norm]}", size, False, heads)


def _matrix(config: ModelConfig, spec: MatrixSpec, prefix: str, stored: Collection[str]) -> Iterator[TensorPart]:
    """Yield the parts of one packed matrix with their biases; parts that share a tensor take its rows in order."""
    row, last = 0, ""
    if spec.name.startswith("layers."):
        prefix += f"{config.names.get('layers', 'layers')}.{spec.name.split('.')[1]}."
    for part in spec.parts if spec.experts > 1 else ():
        yield from _experts(spec, part, f"{prefix}{config.names.get(part.key, part.stored)}", stored)
    for part in spec.parts if spec.experts == 1 else ():
        module, _, place = f"{prefix}{config.names.get(part.key, part.stored)}".rstrip("]").partition("[")
        if spec.role == "head":
            module = _head(config, stored)
        row = int(place) * part.rows if place.isdigit() else row if module == last else 0
        whole = part.rows if spec.role == "head" else None  # a rotated model reads a tied head from the embedding
        if ":" in place:
            yield from _pieces(part, f"{module}.weight", place, spec)
            continue
        yield TensorPart(part.name, f"{module}.weight", (part.rows, spec.k), row, of_rows=whole, matrix=spec.name)
        if spec.bias:
            yield TensorPart(f"{part.name}.bias", f"{module}.bias", (part.rows,), row)
        row, last = row + part.rows, module


def _experts(spec: MatrixSpec, part: MatrixPart, name: str, stored: Collection[str]) -> Iterator[TensorPart]:
    """Yield a part's rows of all experts, with their biases. name: as in ModelConfig.names, with the layer's prefix."""
    found = _PLACE.fullmatch(name)
    assert found is not None
    module, transposed, place, every = found[1], bool(found[2]), found[3], bool(found[4])
    of_one = "{expert}" in module  # a tensor for each expert
    at_once = 1 if of_one or transposed or place else spec.experts
    rows, step = at_once * part.rows, len(spec.parts) if every else 1
    for expert in range(0, spec.experts, at_once):
        own = module.replace("{expert}", str(expert))
        first = 0 if of_one else expert * part.rows
        if place:
            first = first * len(spec.parts) + int(place) * (1 if every else part.rows)
        shape, at = (rows, spec.k), expert * part.rows
        tensor = own if own in stored else f"{own}.weight"
        yield TensorPart(part.name, tensor, shape, first, at, matrix=spec.name, step=step, transposed=transposed)
        if spec.bias:
            bias = f"{own}_bias" if f"{own}_bias" in stored else f"{own}.bias"
            yield TensorPart(f"{part.name}.bias", bias, (rows,), first, at, step=step)


# A name in ModelConfig.names of experts' matrices. "[1]": of the equal parts of an expert, which follow each other, the
# second; "[1::2]": every second row from 1. ".T": floats are stored as [k, rows].
_PLACE = re.compile(r"(.+?)(\.T)?(?:\[(\d)(::2)?\])?")


def _pieces(part: MatrixPart, tensor: str, place: str, spec: MatrixSpec) -> Iterator[TensorPart]:
    """Yield a part whose rows lie in pieces: `place` is "first:rows:step" (ModelConfig.names)."""
    first, rows, step = map(int, place.split(":"))
    of_rows = part.rows // rows * step
    for at in range(0, part.rows, rows):
        yield TensorPart(part.name, tensor, (rows, spec.k), first + at // rows * step, at, of_rows, spec.name)


def _heads(config: ModelConfig, spec: MatrixSpec, prefix: str) -> Iterator[TensorPart]:
    """Yield each head's rows of kv_b_proj: those of its keys, transposed (they multiply queries), or of its values.

    A name of its own, "[all]" behind it, stands for a tensor with the rows of all heads as the executor has them.
    """
    part, layer = spec.parts[0], int(spec.name.split(".")[1])
    own = config.layers[layer].mixer
    assert isinstance(own, LatentAttention)
    module, _, place = config.names.get(part.key, part.stored).partition("[")
    tensor = f"{prefix}{config.names.get('layers', 'layers')}.{layer}.{module}.weight"
    keys, a_head, shape = part.key == "k_up", own.plain + own.value, (part.rows, spec.k)
    if place:
        yield TensorPart(part.name, tensor, (config.heads * part.rows, spec.k), matrix=spec.name)
    for head in range(0 if place else config.heads):
        first, at, of_rows = head * a_head + (0 if keys else own.plain), head * part.rows, config.heads * a_head
        yield TensorPart(part.name, tensor, shape, first, at, of_rows, spec.name, turned=keys)


def _fused_experts(config: ModelConfig, prefix: str, stored: Collection[str]) -> dict[str, str]:
    """Return the names in a checkpoint that has all experts of a layer in two tensors; empty for other checkpoints.

    gate_up_proj is [experts, 2 * width, hidden], gate before up, and down_proj [experts, hidden, width]. transformers 5
    computes with these and writes them if save_original_format is False; Mixtral's block is then called mlp.
    """
    layers = [f"{prefix}{config.names.get('layers', 'layers')}.{i}." for i in range(len(config.layers))]
    own = config.names.get("experts.gate", "")
    blocks = (own.partition("experts.")[0], "mlp.", "block_sparse_moe.")
    for block in blocks if "gate_up_proj" not in own else ():  # gpt-oss names its fused tensors
        if any(f"{at}{block}experts.gate_up_proj" in stored for at in layers):
            joint = f"{block}experts.gate_up_proj"
            router = "router" if any(f"{at}{block}router.weight" in stored for at in layers) else "gate"
            names = {
                "experts.gate": f"{joint}[0]", "experts.up": f"{joint}[1]", "experts.down": f"{block}experts.down_proj",
            }  # fmt: skip
            correction = config.names.get("correction", _VECTORS["correction"])
            beside = correction.replace("mlp.moe_statics.", "mlp.gate.moe_statics.")  # ERNIE's
            return names | {"router": f"{block}{router}", "correction": beside}
    return {}


def _pooler(config: ModelConfig, spec: MatrixSpec, stored: Collection[str], embed: str) -> Iterator[TensorPart]:
    """Yield the parts of a layer after pooling. Rows of a tied output head are taken from the embedding."""
    dense = config.dense[int(spec.name.rpartition(".")[2])]
    if dense.rows:
        head = f"{_head(config, stored)}.weight"
        at = head if head in stored else embed
        for place, row in enumerate(dense.rows):
            yield TensorPart(spec.name, at, (1, spec.k), row, place, config.vocab_size, matrix=spec.name)
    else:
        yield TensorPart(spec.name, f"{dense.stored}.weight", (dense.outputs, spec.k), matrix=spec.name)
    if dense.bias:
        yield TensorPart(f"{spec.name}.bias", f"{dense.stored}.bias", (dense.outputs,))
    if dense.norm:
        yield from _norm(f"{spec.name}.norm", dense.norm, dense.outputs, config.norm_bias)


def stored_module(config: ModelConfig, stored: Collection[str], key: str) -> str:
    """Return the name in the checkpoint of the model's "embed" or "layers"."""
    return f"{_prefix(config, stored)}{(_VECTORS | config.names)[key]}"


def _norm(name: str, at: str, width: int, bias: bool, heads: int = 1) -> Iterator[TensorPart]:
    """Yield a norm's vectors, which two norms may share. {head} in `at` stands for the number of one of `heads`."""
    own = heads if "{head}" in at else 1
    for head in range(own):
        stored = f"{at.replace('{head}', str(head))}.weight"
        yield TensorPart(name, stored, (width // own,), at=head * width // own, of_rows=width // own)
    if bias:
        yield TensorPart(f"{name}.bias", f"{at}.bias", (width,), of_rows=width)


def _prefix(config: ModelConfig, stored: Collection[str]) -> str:
    embed = (_VECTORS | config.names)["embed"]
    for prefix in _PREFIXES:
        if f"{prefix}{embed}.weight" in stored:
            return prefix
    tried = ", ".join(f"{prefix}{embed}.weight" for prefix in _PREFIXES)
    raise ConfigError(f"the checkpoint has no embedding: none of {tried}")


def _head(config: ModelConfig, stored: Collection[str]) -> str:
    """Return the module of the output head."""
    if "head" in config.names:
        return config.names["head"]
    nested = "language_model.lm_head"
    return nested if f"{nested}.weight" in stored else "lm_head"
