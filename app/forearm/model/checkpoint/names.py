"""What the executor's tensors are called in a checkpoint: one table of Llama's names, and what a family changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from forearm.errors import ConfigError
from forearm.model.families.config import ModelConfig

# Canonical name (as _native.pyi has them) -> Llama's. ModelConfig.names overrides entries, also of one layer alone
# ("layers.0.input_norm", without the layers' prefix).
_MODEL = {"embed": "embed_tokens", "positions": "embed_positions", "final_norm": "norm", "layers": "layers"}
_LAYER = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_mlp_norm": "post_attention_layernorm",  # Llama's second norm is named after what it follows
    "post_mlp_norm": "post_mlp_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
_NORMS = {
    "pre": ("input_norm", "pre_mlp_norm"),
    "post": ("post_attention_norm", "post_mlp_norm"),
    "sandwich": ("input_norm", "post_attention_norm", "pre_mlp_norm", "post_mlp_norm"),
}
# Where a model's tensors start: a causal model, multimodal ones (transformers 5, then 4), a bare model.
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "bert.", "roberta.", "")


@dataclass(frozen=True)
class Part:
    """One matrix or vector of the executor: rows row .. row + shape[0] - 1 of the checkpoint's tensor `stored`.

    Where several parts name one tensor (Phi-3's qkv_proj), their rows follow each other and must fill it; but where
    `of_rows` says how many it has, each takes what it wants. at: the executor's row that the first one becomes.
    """

    name: str
    stored: str
    shape: tuple[int, ...]
    row: int = 0
    at: int = 0
    of_rows: int | None = None


def parts(config: ModelConfig, stored: Collection[str]) -> list[Part]:
    """Everything the executor of `config` needs, and where in a checkpoint with tensors `stored` it is.

    Raises: ConfigError if the embedding is under none of the known names.
    """
    prefix = _prefix(config, stored)
    names = _MODEL | _LAYER | config.names
    width = config.hidden

    found = [Part("embed", f"{prefix}{names['embed']}.weight", (config.vocab_size, width))]
    if config.learned_positions:
        rows = config.max_positions + config.position_offset
        found.append(Part("positions", f"{prefix}{names['positions']}.weight", (rows, width)))
    if config.token_types:
        found.append(Part("types", f"{prefix}{names['types']}.weight", (config.token_types, width)))
    biases = config.layer_norm and config.norm_bias
    for i in range(len(config.layers)):
        own = {name: f"{prefix}{there}" for name, there in names.items() if name.startswith(f"layers.{i}.")}
        found.extend(_layer(config, f"layers.{i}", f"{prefix}{names['layers']}.{i}", names, own))
    if config.final_norm:
        found.extend(_norm("final_norm", f"{prefix}{names['final_norm']}", width, biases))
    if not config.tied_head:
        found.append(Part("head", _head(config, stored), (config.vocab_size, width)))
    return [*found, *_dense(config, stored, found[0].stored)]


def _dense(config: ModelConfig, stored: Collection[str], embed: str) -> Iterator[Part]:
    """Of the layers behind pooling. Rows of the output head are the embedding's where there is no other."""
    width = config.hidden
    for i, dense in enumerate(config.dense):
        name = f"dense.{i}"
        if dense.rows:
            head = _head(config, stored)
            at = head if head in stored else embed
            for place, row in enumerate(dense.rows):
                yield Part(name, at, (1, width), row, place, config.vocab_size)
        else:
            yield Part(name, f"{dense.stored}.weight", (dense.outputs, width))
        if dense.bias:
            yield Part(f"{name}.bias", f"{dense.stored}.bias", (dense.outputs,))
        if dense.norm:
            yield from _norm(f"{name}.norm", dense.norm, dense.outputs, config.norm_bias)
        width = dense.outputs


def layers_prefix(config: ModelConfig, stored: Collection[str]) -> str:
    """Return what the names of a layer's tensors begin with, before its number."""
    return f"{_prefix(config, stored)}{(_MODEL | config.names)['layers']}."


def _layer(config: ModelConfig, layer: str, at: str, names: dict[str, str], own: dict[str, str]) -> Iterator[Part]:
    """`own`: whole names of what this layer has elsewhere."""
    rows = 0
    last = ""
    for matrix, shape, bias in _matrices(config):
        rows = rows if names[matrix] == last else 0
        yield Part(f"{layer}.{matrix}", f"{at}.{names[matrix]}.weight", shape, rows)
        if bias:
            yield Part(f"{layer}.{matrix}.bias", f"{at}.{names[matrix]}.bias", shape[:1], rows)
        rows, last = rows + shape[0], names[matrix]
    for norm in _NORMS[config.norm_placement]:
        stored = own.get(f"{layer}.{norm}", f"{at}.{names[norm]}")
        yield from _norm(f"{layer}.{norm}", stored, config.hidden, config.layer_norm and config.norm_bias)
    for norm, heads in (("q_norm", config.heads), ("k_norm", config.kv_heads)):
        if config.qk_norm != "none":
            size = config.head_dim * (heads if config.qk_norm == "full" else 1)
            yield Part(f"{layer}.{norm}", f"{at}.{names[norm]}.weight", (size,))


def _matrices(config: ModelConfig) -> Iterator[tuple[str, tuple[int, int], bool]]:
    """Name, [rows, columns] and whether it has a bias, of each matrix of a layer."""
    query, key_value = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield "q", (query, config.hidden), config.qkv_bias
    yield "k", (key_value, config.hidden), config.qkv_bias
    yield "v", (key_value, config.hidden), config.qkv_bias
    yield "o", (config.hidden, query), config.o_bias
    if config.gated:
        yield "gate", (config.intermediate, config.hidden), config.mlp_bias
    yield "up", (config.intermediate, config.hidden), config.mlp_bias
    yield "down", (config.hidden, config.intermediate), config.mlp_bias


def _norm(name: str, at: str, width: int, bias: bool) -> Iterator[Part]:
    yield Part(name, f"{at}.weight", (width,))
    if bias:
        yield Part(f"{name}.bias", f"{at}.bias", (width,))


def _prefix(config: ModelConfig, stored: Collection[str]) -> str:
    embed = (_MODEL | config.names)["embed"]
    for prefix in _PREFIXES:
        if f"{prefix}{embed}.weight" in stored:
            return prefix
    tried = ", ".join(f"{prefix}{embed}.weight" for prefix in _PREFIXES)
    raise ConfigError(f"the checkpoint has no embedding: none of {tried}")


def _head(config: ModelConfig, stored: Collection[str]) -> str:
    if "head" in config.names:
        return f"{config.names['head']}.weight"
    nested = "language_model.lm_head.weight"
    return nested if nested in stored else "lm_head.weight"
