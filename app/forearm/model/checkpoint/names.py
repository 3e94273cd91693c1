"""Names of the executor's tensors in a checkpoint: Llama's names, and the ones that a family changes.

The list of matrices (matrices.py) holds Llama's names of matrices; this file holds those of vectors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from forearm.errors import ConfigError
from forearm.model.families.config import Attention, Experts, LatentAttention, ModelConfig, ShortConv
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
    "model.",
    "backbone.",
    "model.language_model.",
    "language_model.model.",
    "bert.",
    "roberta.",
    "distilbert.",
    "nomic_bert.",
    "gte.",
    "mpnet.",
    "new.",
    "",
)


@dataclass(frozen=True)
class TensorPart:
    """One matrix or vector of the executor: shape[0] rows of the tensor `stored`, every `step`-th from `row` on.

    Where several parts name one tensor (Phi-3's qkv_proj), their rows follow each other and must fill it, unless
    `of_rows` gives the tensor's number of rows: then each part may take any of them. at: the executor's row of the
    first row. matrix: the packed matrix that the rows go into; empty for a vector. transposed: floats are stored as
    [k, rows] for each expert. turned: the tensor's rows are columns of the executor's matrix, so there are shape[1] of
    them, from `row` on.
    """

    name: str
    stored: str
    shape: tuple[int, ...]
    row: int = 0
    at: int = 0
    of_rows: int | None = None
    matrix: str = ""
    step: int = 1
    transposed: bool = False
    turned: bool = False

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor's rows."""
        return self.shape[::-1] if self.turned else self.shape

    @property
    def layer(self) -> int | None:
        """Return the number of the layer that the part belongs to; None: it is of the whole model."""
        return int(self.name.split(".")[1]) if self.name.startswith("layers.") else None

    def rows(self, begin: int, end: int) -> range:
        """Return the tensor's rows that hold rows begin .. end - 1 of the part."""
        return range(self.row + begin * self.step, self.row + end * self.step, self.step)


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
            found += _latent(layer, f"{at}.self_attn", mixer)
        if config.layer_scalar:
            found.append(TensorPart(f"{layer}.scalar", f"{at}.{names['scalar']}", (1,)))
        if isinstance(mixer, ShortConv):
            taps = f"{at}.{names['conv']}"
            found.append(TensorPart(f"{layer}.conv", f"{taps}.weight", (config.hidden * mixer.taps,)))
            if mixer.bias:
                found.append(TensorPart(f"{layer}.conv.bias", f"{taps}.bias", (config.hidden,)))
        if mamba2 := config.layers[i].mamba2:
            found += _mamba2(layer, f"{at}.{names['mamba']}", mamba2)
        if isinstance(mixer, GatedDelta):
            found += _delta(layer, f"{at}.{names['delta']}", mixer)
        if config.sinks and isinstance(mixer, Attention):
            found.append(TensorPart(f"{layer}.sinks", f"{at}.{names['sinks']}", (config.heads,)))
        if isinstance(feed_forward, Experts) and feed_forward.correction:
            found.append(TensorPart(f"{layer}.correction", f"{at}.{names['correction']}", (feed_forward.count,)))
    if config.distance_buckets:
        table = (max(config.distance_buckets) + 1) * config.heads
        found.append(TensorPart("attention_bias", f"{prefix}{names['attention_bias']}.weight", (table,)))
    if config.final_norm and config.norm_weight:
        found += _norm("final_norm", f"{prefix}{names['final_norm']}", config.hidden, biases)
    return found


def _mamba2(layer: str, at: str, own: Mamba2) -> Iterator[TensorPart]:
    """Yield the vectors of a layer of Mamba2, whose module is `at`."""
    yield TensorPart(f"{layer}.conv", f"{at}.conv1d.weight", (own.channels * own.taps,))
    if own.conv_bias:
        yield TensorPart(f"{layer}.conv.bias", f"{at}.conv1d.bias", (own.channels,))
    for name, stored in (("dt_bias", "dt_bias"), ("a_log", "A_log"), ("d", "D")):
        yield TensorPart(f"{layer}.{name}", f"{at}.{stored}", (own.heads,))
    if own.norm:
        yield TensorPart(f"{layer}.gate_norm", f"{at}.norm.weight", (own.inner,))


def _latent(layer: str, at: str, own: LatentAttention) -> Iterator[TensorPart]:
    """Yield the norms of both latents."""
    if own.q_rank:
        yield from _norm(f"{layer}.q_norm", f"{at}.q_a_layernorm", own.q_rank, False)
    yield from _norm(f"{layer}.k_norm", f"{at}.kv_a_layernorm", own.rank, False)


def _delta(layer: str, at: str, own: GatedDelta) -> Iterator[TensorPart]:
    """Yield the vectors of a layer of the gated delta rule, whose module is `at`."""
    yield TensorPart(f"{layer}.conv", f"{at}.conv1d.weight", (own.channels * own.taps,))
    for name, stored in (("dt_bias", "dt_bias"), ("a_log", "A_log")):
        yield TensorPart(f"{layer}.{name}", f"{at}.{stored}", (own.value_heads,))
    yield TensorPart(f"{layer}.gate_norm", f"{at}.norm.weight", (own.value_dim,))


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
    """Yield each head's rows of kv_b_proj: those of its keys, transposed (they multiply queries), or of its values."""
    part, layer = spec.parts[0], int(spec.name.split(".")[1])
    own = config.layers[layer].mixer
    assert isinstance(own, LatentAttention)
    tensor = f"{prefix}{config.names.get('layers', 'layers')}.{layer}.{part.stored}.weight"
    keys, a_head, shape = part.key == "k_up", own.plain + own.value, (part.rows, spec.k)
    for head in range(config.heads):
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
