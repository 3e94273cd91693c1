"""The list of a model's matrices, which names, formats, memory plan, `forearm plan` and the native executor read.

The executor keeps some matrices of a checkpoint as one, because they are multiplied with the same rows: q, k and v, and
gate and up. Only this file knows which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from forearm.model.families.config import Attention, Experts, FeedForward, Mamba2, ModelConfig, ShortConv, WeightFormat

# embedding, table: rows are looked up; a tied head multiplies with the embedding. head: gives the logits.
# *_in: multiplied with the normed residual. *_out: multiplied with the result of the mixer or feed-forward and added to
# the residual. router: gives the scores of experts; never quantized. pooler: a layer after pooling.
Role = Literal[
    "embedding", "table", "head", "mixer_in", "mixer_out", "feed_forward_in", "feed_forward_out", "router", "pooler"
]  # fmt: skip


@dataclass(frozen=True)
class MatrixPart:
    """Rows of a packed matrix that a checkpoint stores as a matrix of its own.

    name: the executor's name, for loading the rows (_native.pyi). stored: Llama's name of the module in its layer; a
    family may have another one (ModelConfig.names, names.py). {expert} in it stands for the number of an expert.
    """

    name: str
    stored: str
    rows: int

    @property
    def key(self) -> str:
        """Return the name without its layer."""
        return self.name.split(".", 2)[2] if self.name.startswith("layers.") else self.name.rpartition(".")[2]


@dataclass(frozen=True)
class MatrixSpec:
    """One packed matrix of the executor, made of one or several matrices of a checkpoint.

    Parts follow each other, each beginning at a panel; the panels of `interleaved` parts alternate. bias: each part has
    a bias. experts: number of matrices of this shape, whose rows follow each other when they are loaded (row
    e * rows + r of a part is row r of expert e); active: number of them that a token is multiplied with.
    """

    name: str
    parts: tuple[MatrixPart, ...]
    k: int
    role: Role
    bias: bool = False
    interleaved: bool = False
    experts: int = 1
    active: int = 1

    @property
    def rows(self) -> int:
        """Return the rows of all parts together."""
        return sum(part.rows for part in self.parts)


def matrices(config: ModelConfig) -> list[MatrixSpec]:
    """Return every packed matrix of a model, in the order in which they lie in memory."""
    if config.modules:
        return [_single(one.name, one.name, one.rows, one.k, "mixer_in", one.bias) for one in config.linears]
    width = config.hidden
    found = [_single("embed", "embed_tokens", config.vocab_size, width, "embedding")]
    if config.learned_positions:
        rows = config.max_positions + config.position_offset
        found.append(_single("positions", "embed_positions", rows, width, "table"))
    if config.token_types:
        found.append(_single("types", "token_type_embeddings", config.token_types, width, "table"))
    if not config.tied_head:
        found.append(_single("head", "lm_head", config.vocab_size, width, "head", config.head_bias))
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for i, layer in enumerate(config.layers):
        at, own = f"layers.{i}.", layer.feed_forward
        if isinstance(layer.mixer, Attention):
            joint = [
                MatrixPart(f"{at}{n}", f"self_attn.{n}_proj", r) for n, r in (("q", query), ("k", key), ("v", key))
            ]
            found.append(MatrixSpec(f"{at}qkv", tuple(joint), width, "mixer_in", config.qkv_bias))
            found.append(_single(f"{at}o", "self_attn.o_proj", width, query, "mixer_out", config.o_bias))
        elif isinstance(layer.mixer, ShortConv):
            joint = [MatrixPart(f"{at}conv_{name}", "conv.in_proj", width) for name in ("b", "c", "x")]
            found.append(MatrixSpec(f"{at}conv_in", tuple(joint), width, "mixer_in", layer.mixer.bias))
            found.append(_single(f"{at}conv_out", "conv.out_proj", width, width, "mixer_out", layer.mixer.bias))
        if layer.mamba2:
            found += _mamba2(layer.mamba2, at, width)
        if own is None:
            continue
        if isinstance(own, FeedForward):
            found += _up_and_down(config, own, at, "mlp.")
            continue
        router = [MatrixPart(f"{at}router", "mlp.gate", own.count)]
        if own.shared_gate:
            router.append(MatrixPart(f"{at}shared_gate", "mlp.shared_expert_gate", 1))
        found.append(MatrixSpec(f"{at}router", tuple(router), width, "router", own.router_bias))
        found += _up_and_down(config, own, f"{at}experts.", "mlp.experts.{expert}.")
        if own.shared:
            found += _up_and_down(config, own.shared, f"{at}shared.", "mlp.shared_expert.")
    for i, dense in enumerate(config.dense):
        found.append(_single(f"dense.{i}", dense.stored, dense.outputs, width, "pooler", dense.bias))
        width = dense.outputs
    return found


def uniform_formats(config: ModelConfig, weights: WeightFormat) -> dict[str, WeightFormat]:
    """Return one format for every packed matrix of the executor; routers and layers after pooling are float32."""
    exact = WeightFormat("float32")
    return {m.name: exact if m.role in ("pooler", "router") else weights for m in matrices(config)}


def _single(name: str, stored: str, rows: int, k: int, role: Role, bias: bool = False) -> MatrixSpec:
    return MatrixSpec(name, (MatrixPart(name, stored, rows),), k, role, bias)


def _mamba2(own: Mamba2, prefix: str, width: int) -> Iterator[MatrixSpec]:
    rows = {"z": own.inner, "xbc": own.channels, "dt": own.heads}
    joint = tuple(MatrixPart(f"{prefix}mamba_{name}", "mamba.in_proj", count) for name, count in rows.items())
    yield MatrixSpec(f"{prefix}mamba_in", joint, width, "mixer_in", own.bias)
    yield _single(f"{prefix}mamba_out", "mamba.out_proj", width, own.inner, "mixer_out", own.bias)


def _up_and_down(config: ModelConfig, own: FeedForward | Experts, prefix: str, stored: str) -> Iterator[MatrixSpec]:
    experts, active = (own.count, own.active) if isinstance(own, Experts) else (1, 1)
    names = ("gate", "up") if own.gated else ("up",)
    up = tuple(MatrixPart(prefix + name, f"{stored}{name}_proj", own.width) for name in names)
    down = (MatrixPart(f"{prefix}down", f"{stored}down_proj", config.hidden),)
    down_bias = own.bias or (isinstance(own, FeedForward) and own.down_bias)
    yield MatrixSpec(f"{prefix}up", up, config.hidden, "feed_forward_in", own.bias, own.gated, experts, active)
    yield MatrixSpec(f"{prefix}down", down, own.width, "feed_forward_out", down_bias, False, experts, active)
