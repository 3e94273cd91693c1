"""The parts that decoder families share: sizes, layers, rotary angles. A family passes what differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forearm.config.number_formats import DTypeName
from forearm.errors import ConfigError
from forearm.model.families import switches
from forearm.model.families.config import Activation, Attention, Experts, FeedForward, Layer, Mixer, ModelConfig, Rope
from forearm.model.families.keys import Keys

if TYPE_CHECKING:
    from forearm.model.families.rope import Lengths

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
}


_MOST_LAYERS = 1024  # the largest models of 2026 have about 130


@dataclass(frozen=True)
class FamilyInputs:
    """The inputs of a family function: config.json, and the settings that change the model.

    checkpoint_dtype: the dtype of the files. weight_dtype: the dtype of weights in memory; None: the same.
    max_model_len: the longest sequence to serve, in tokens; None: the model's own. allow_longer: permit a length beyond
    the model's own. pooled: the model computes vectors instead of text.
    """

    keys: Keys
    checkpoint_dtype: DTypeName
    weight_dtype: DTypeName | None = None
    max_model_len: int | None = None
    allow_longer: bool = False
    pooled: bool = False

    @property
    def layers(self) -> int:
        """Number of layers. Raises: ConfigError if it is out of range, before a list of that length is made."""
        layers = self.keys.integer("num_hidden_layers")
        if not 0 < layers <= _MOST_LAYERS:
            raise self.keys.wrong("num_hidden_layers", f"1 to {_MOST_LAYERS}")
        return layers

    def with_defaults(self, **defaults: Any) -> FamilyInputs:
        """Return the same inputs with these values for keys that config.json leaves out."""
        return replace(self, keys=self.keys.with_defaults(**defaults))


def sizes(inputs: FamilyInputs, head_dim: int, kv_heads: int) -> dict[str, Any]:
    """Return the sizes that every family has, as arguments of ModelConfig."""
    keys = inputs.keys
    return {
        "model_type": "",
        "dtype": inputs.checkpoint_dtype,
        "vocab_size": keys.integer("vocab_size"),
        "hidden": keys.integer("hidden_size"),
        "heads": keys.integer("num_attention_heads"),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "attention_scale": head_dim**-0.5,
    }


def decoder(
    inputs: FamilyInputs,
    *,
    windows: Sequence[int] | None = None,
    mixers: Sequence[Mixer | None] | None = None,
    ropes: tuple[Rope, ...] | None = None,
    feed_forwards: Sequence[FeedForward | Experts | None] | None = None,
    act: Activation | None = None,
    gated: bool = True,
    mlp_bias: bool = False,
    partial: bool = False,
    interleaved: bool = False,
    **differs: Any,
) -> ModelConfig:
    """Return a Llama: RMSNorm before each half of a layer, rotated q and k, a gated MLP.

    windows: the window of each layer, 0 for none. mixers, ropes: given if the layers do not all have the same angles.
    feed_forwards: those of each layer, if they are not one gated MLP. act: the feed-forward's activation; None: the one
    that hidden_act names. partial: only partial_rotary_factor of a head is rotated. differs: other fields of
    ModelConfig.
    """
    keys = inputs.keys
    heads = keys.integer("num_attention_heads")
    head_dim = keys.integer("head_dim", keys.integer("hidden_size") // heads)
    act = act or activation(keys, "hidden_act", "silu")
    listed = feed_forwards and isinstance(keys.get("intermediate_size"), list)  # a width for each layer
    feed_forward = None if listed else FeedForward(keys.integer("intermediate_size"), act, gated, mlp_bias)
    mixers = mixers or [Attention(rope=0, window=window) for window in windows or [0] * inputs.layers]
    common = sizes(inputs, head_dim, keys.integer("num_key_value_heads", heads))
    common |= {
        "norm_eps": keys.number("rms_norm_eps", 1e-6),
        "tied_head": keys.flag("tie_word_embeddings"),
        "layers": tuple(map(Layer, mixers, feed_forwards or [feed_forward] * len(mixers))),
    }
    if ropes is None:
        angles, max_positions = flat_rope(inputs, head_dim, partial=partial, interleaved=interleaved)
        ropes = (angles,)
    else:
        max_positions = positions(inputs)
    return ModelConfig(**common | {"ropes": ropes, "max_positions": max_positions} | differs)


def activation(keys: Keys, key: str, default: str) -> Activation:
    """Return the activation that config.json names.

    Raises: ConfigError if the executor does not compute it.
    """
    name = keys.text(key, default)
    if name not in ACTIVATIONS:
        raise keys.wrong(key, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def listed_layers(inputs: FamilyInputs, experts: Experts, dense: int) -> list[FeedForward | Experts]:
    """Return experts behind `dense` dense layers, or where mlp_layer_types says sparse."""
    keys = inputs.keys
    plain = FeedForward(keys.integer("intermediate_size"), activation(keys, "hidden_act", "silu"))
    kinds = keys.get("mlp_layer_types") or ["dense" if i < dense else "sparse" for i in range(inputs.layers)]
    if not isinstance(kinds, list) or len(kinds) != inputs.layers or not all(k in ("dense", "sparse") for k in kinds):
        raise keys.wrong("mlp_layer_types", f"a list of {inputs.layers} times dense or sparse")
    return [experts if kind == "sparse" else plain for kind in kinds]


def windows_of(inputs: FamilyInputs, slides: Sequence[bool]) -> list[int]:
    """Return each layer's window: sliding_window, or 0 for full attention. `slides` stands for missing layer_types."""
    keys = inputs.keys
    window = keys.optional_integer("sliding_window") or 0
    kinds = switches.layer_types(keys, [switches.SLIDING if s else switches.FULL for s in slides])
    return [window if kind == switches.SLIDING else 0 for kind in kinds]


def with_slopes(inputs: FamilyInputs, heads: int, most: float = 8.0, scale: float = 1.0) -> dict[str, Any]:
    """Return attention without angles whose scores fall with the distance, as arguments of `decoder`.

    The slopes of 2^n heads are powers of 2^(-most / 2^n). Other numbers of heads have those of the next larger 2^n,
    every second one first. scale: multiplies slopes, which are rounded to bfloat16 before.
    Source: Press et al. 2021, arXiv:2108.12409 (ALiBi), whose code says what other numbers of heads have.
    """
    if heads < 1:
        raise inputs.keys.wrong("num_attention_heads", "at least 1")
    full = 1 << (heads - 1).bit_length()
    powers = [2.0 ** (-most * i / full) for i in range(1, full + 1)]
    slopes = powers if full == heads else (powers[1::2] + powers[::2])[:heads]
    if scale != 1.0:
        parts = map(math.frexp, slopes)
        slopes = [scale * math.ldexp(round(256 * mantissa), exponent - 8) for mantissa, exponent in parts]
    return {"mixers": [Attention(rope=None)] * inputs.layers, "ropes": (), "slopes": tuple(slopes)}


def positions(inputs: FamilyInputs, own: int | None = None, longest: int | None = None) -> int:
    """Return the model's own context length in tokens: `own`, or max_position_embeddings if that is None.

    longest: the length that --max-model-len may ask for; None: the model's own.
    Raises: ConfigError if max_model_len is longer.
    """
    own = own or inputs.keys.integer("max_position_embeddings")
    if own > switches.MOST_POSITIONS:
        raise ConfigError(f"{inputs.keys.source}: its rope settings stretch the context to {own} tokens; see factor")
    longest = longest or own
    asked = inputs.max_model_len
    if asked is not None and asked > longest and not inputs.allow_longer:
        raise ConfigError(
            f"max_model_len = {asked} is more than the {longest} positions that {inputs.keys.source} gives the model; "
            f"lower --max-model-len to at most {longest} (or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1; outputs may be wrong)"
        )
    return own


def flat_rope(inputs: FamilyInputs, head_dim: int, *, partial: bool, interleaved: bool) -> tuple[Rope, int]:
    """Return the rotary angles that all layers share, and the model's own context length in tokens."""
    from forearm.model.families.rope import position_limit, rope

    keys = inputs.keys
    settings = keys.object("rope_scaling") or keys.object("rope_parameters") or Keys({}, keys.source)
    switches.check_flat(settings)
    theta = settings.number("rope_theta", keys.number("rope_theta", 10_000.0))
    fraction = settings.number("partial_rotary_factor", keys.number("partial_rotary_factor", 1.0))
    if not 0 < fraction <= 1:
        where = settings if "partial_rotary_factor" in settings else keys
        raise where.wrong("partial_rotary_factor", "more than 0 and at most 1")
    if fraction != 1.0 and not partial:
        where = settings if "partial_rotary_factor" in settings else keys
        raise where.wrong("partial_rotary_factor", "1.0 in this family")
    lengths = lengths_of(inputs, settings)
    own, longest = position_limit(settings, lengths)
    angles = rope(settings, theta, int(head_dim * fraction), lengths, interleaved=interleaved)
    return angles, positions(inputs, own, longest)


def lengths_of(inputs: FamilyInputs, settings: Keys) -> Lengths:
    """Return the lengths that rope scaling depends on; a top-level original_max_position_embeddings has precedence."""
    from forearm.model.families.rope import Lengths

    keys = inputs.keys
    most = keys.integer("max_position_embeddings")
    name = "original_max_position_embeddings"
    for given in (keys, settings):
        if not 1 <= given.integer(name, most) <= switches.MOST_POSITIONS:
            raise given.wrong(name, f"1 to {switches.MOST_POSITIONS}")
    original = keys.integer(name, settings.integer(name, most))
    return Lengths(max_positions=most, original=original, max_model_len=inputs.max_model_len or most)


def ropes_by_layer_type(
    inputs: FamilyInputs,
    *,
    full: tuple[str, float],
    sliding: tuple[str, float],
    full_head_dim: int | None = None,
    partial: bool = False,
) -> tuple[Rope, Rope]:
    """Return the rotary angles of layers with full attention, and of layers with a window.

    Older files have rope_scaling for the first alone, and top-level keys for the bases; newer files have
    rope_parameters by layer type. full, sliding: the top-level key of the base and its default. full_head_dim: the size
    of heads of layers with full attention; None: head_dim. partial: as of decoder, for each of both.
    """
    from forearm.model.families.rope import rope

    keys = inputs.keys
    empty = Keys({}, keys.source)
    nested = keys.object("rope_parameters") or empty
    head_dim = keys.integer("head_dim", keys.integer("hidden_size") // keys.integer("num_attention_heads"))

    def angles(settings: Keys, size: int, key: str, theta: float) -> Rope:
        switches.check_flat(settings)
        theta = settings.number("rope_theta", keys.number(key, theta))
        fraction = settings.number("partial_rotary_factor", 1.0) if partial else 1.0
        if not 0 < fraction <= 1:
            raise settings.wrong("partial_rotary_factor", "more than 0 and at most 1")
        return rope(settings, theta, int(size * fraction), lengths_of(inputs, settings))

    stretched = keys.object("rope_scaling") or nested.object(switches.FULL) or empty
    return (
        angles(stretched, full_head_dim or head_dim, *full),
        angles(nested.object(switches.SLIDING) or empty, head_dim, *sliding),
    )
