"""Rotary angles: inverse frequencies and the factor on cos and sin, computed from config.json's rope settings.

Every step is rounded to float32 where transformers rounds it: at position 100 000 one unit in the last place of a
frequency is already an angle of 0.006.

`dynamic` and `longrope` depend on the length of the sequence. Here they are computed once, for the `max_model_len`
that the engine serves, and not for each request: keys already in the cache stay valid, and the same request gives the
same tokens whatever its length so far. An engine that serves at most the trained length uses the trained frequencies.

Sources: Su et al. 2021, arXiv:2104.09864 (rope); Peng et al. 2023, arXiv:2309.00071 (yarn); Ding et al. 2024,
arXiv:2402.13753 (longrope); the definitions are those of transformers' modeling_rope_utils.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from forearm.array_types import Float32Array
from forearm.errors import ConfigError
from forearm.model.families.config import Rope
from forearm.model.families.keys import ROPE, Keys

_MOST_DIM = 4096  # the executor's largest head
_MOST_THETA = 1e15  # the largest of models of 2026 is 1e9


@dataclass(frozen=True)
class Lengths:
    """The lengths that rope scaling depends on, in tokens."""

    max_positions: int  # max_position_embeddings
    original: int  # original_max_position_embeddings: the length of the first training
    max_model_len: int  # the longest sequence this engine serves


def rope(settings: Keys, theta: float, rotary_dim: int, lengths: Lengths, *, interleaved: bool = False) -> Rope:
    """Return the angles of one set of rope settings (`rope_parameters`, or `rope_scaling` of older files).

    Raises: ConfigError if `rope_type` is unknown or one of its keys is missing or wrong.
    """
    if not 1 < theta <= _MOST_THETA:
        raise ConfigError(f"{settings.source}: the base of its angles (rope_theta) is {theta:g}; it should be above 1")
    # transformers rotates one value more where an odd number of them is to be rotated (a quarter of 20).
    odd = rotary_dim % 2 and _kind(settings) in ("yarn", "longrope")
    if odd or not 1 <= rotary_dim <= _MOST_DIM:
        raise ConfigError(
            f"{settings.source}: head_dim = {rotary_dim}, as far as it is rotated; it should be 1 to {_MOST_DIM}, and "
            "even with factors for each pair (see partial_rotary_factor)"
        )
    with np.errstate(all="ignore"):  # results that are not angles are refused below
        inv_freq, scale = _KINDS[_kind(settings)](settings, theta, rotary_dim, lengths)
    turned = inv_freq if _kind(settings) != "proportional" else inv_freq[inv_freq != 0]
    if not (np.isfinite(inv_freq).all() and (turned > 0).all() and 0 < scale < math.inf):
        raise ConfigError(
            f"{settings.source}: rope settings {json.dumps(settings.values)[:300]} give angles that are not finite and "
            "above 0; see its factors"
        )
    return Rope(inv_freq=inv_freq, scale=scale, interleaved=interleaved)


def position_limit(settings: Keys, lengths: Lengths) -> tuple[int, int]:
    """Return the default context length and the longest one that a user may ask for, in tokens.

    As in vLLM, linear and dynamic reach factor times the trained length, yarn factor times the original one, and
    max_position_embeddings of longrope and llama3 includes the scaling already. Only yarn's length is also the default;
    the others must be asked for with --max-model-len.
    """
    kind = _kind(settings)
    if kind in ("linear", "dynamic"):
        return lengths.max_positions, int(lengths.max_positions * max(settings.positive("factor"), 1.0))
    if kind == "yarn":
        stretched = int(lengths.original * _yarn_factor(settings, lengths))
        return max(lengths.max_positions, stretched), max(lengths.max_positions, stretched)
    return lengths.max_positions, lengths.max_positions


def _kind(settings: Keys) -> str:
    kind = settings.text("rope_type", settings.text("type", "default"))
    if kind == "su" or (kind == "yarn" and "short_factor" in settings):
        return "longrope"  # the name in early Phi-3 files
    if kind not in _KINDS:
        raise settings.wrong("rope_type" if "rope_type" in settings else "type", f"one of {', '.join(_KINDS)}")
    return kind


def _powers(theta: float, dim: int) -> Float32Array:
    """Return theta^(2i / dim), float32 [dim / 2], from exponents rounded to float32."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)


def _inverse(powers: Float32Array) -> Float32Array:
    return np.float32(1.0) / powers


def _default(settings: Keys, theta: float, dim: int, lengths: Lengths) -> tuple[Float32Array, float]:
    return _inverse(_powers(theta, dim)), 1.0


def _linear(settings: Keys, theta: float, dim: int, lengths: Lengths) -> tuple[Float32Array, float]:
    return _inverse(_powers(theta, dim)) / np.float32(settings.positive("factor")), 1.0


def _ntk(settings: Keys, theta: float, dim: int, lengths: Lengths) -> tuple[Float32Array, float]:
    """Fixed NTK scaling of GTE's files: theta times the factor, and all angles slower by factor^(2 / dim).

    Source: Su 2023, kexue.fm/archives/9706, equation 6; vLLM's NTKScalingRotaryEmbedding.
    """
    factor = settings.positive("factor")
    if settings.get("mixed_b") is not None:
        raise settings.wrong("mixed_b", "absent: mixed scaling is not supported")
    return _inverse(_powers(theta * factor, dim)) / np.float32(factor ** (2 / dim)), 1.0


def _dynamic(settings: Keys, theta: float, dim: int, lengths: Lengths) -> tuple[Float32Array, float]:
    """NTK-aware scaling: theta grows with the length beyond max_position_embeddings and is unchanged up to it.

    HunYuan's `alpha` is a growth that does not depend on the length.
    """
    factor = settings.positive("factor")
    length = max(lengths.max_model_len, lengths.max_positions)
    growth = settings.positive("alpha", factor * length / lengths.max_positions - (factor - 1))
    if dim < 4:
        raise settings.wrong("rope_type", "another for heads of which fewer than 4 values are rotated")
    return _inverse(_powers(theta * growth ** (dim / (dim - 2)), dim)), 1.0


def _proportional(settings: Keys, theta: float, dim: int, lengths: Lengths) -> tuple[Float32Array, float]:
    """Gemma 4's angles: the fastest partial_rotary_factor of a head's pairs are rotated, and the others stay."""
    fraction = settings.positive("partial_rotary_factor", 1.0)
    if fraction > 1:
        raise settings.wrong("partial_rotary_factor", "more than 0 and at most 1")
    inv_freq = _inverse(_powers(theta, dim)) / np.float32(settings.positive("factor", 1.0))
    inv_freq[int(fraction * dim // 2) :] = 0
    return inv_freq, 1.0


def _llama3(settings: Keys, theta: float, dim: int, lengths: Lengths) -> tuple[Float32Array, float]:
    """Llama 3's scaling: stretches only wavelengths longer than the trained context; near tokens keep their angles."""
    factor = np.float32(settings.positive("factor"))
    low, high = settings.positive("low_freq_factor"), settings.positive("high_freq_factor")
    if high <= low:
        raise settings.wrong("high_freq_factor", f"more than low_freq_factor ({low:g})")

    inv_freq = _inverse(_powers(theta, dim))
    wavelength = np.float32(2 * math.pi) / inv_freq
    smooth = (np.float32(lengths.original) / wavelength - np.float32(low)) / np.float32(high - low)
    between = (np.float32(1) - smooth) * inv_freq / factor + smooth * inv_freq
    stretched = np.where(wavelength > lengths.original / low, inv_freq / factor, between)
    return np.where(wavelength < lengths.original / high, inv_freq, stretched).astype(np.float32), 1.0


def _yarn(settings: Keys, theta: float, dim: int, lengths: Lengths) -> tuple[Float32Array, float]:
    """YaRN: interpolates slow pairs, keeps fast ones, with a ramp between, by rotations over the original context."""
    factor = _yarn_factor(settings, lengths)

    def pair(turns: float) -> float:
        return dim * math.log(lengths.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(settings.positive("beta_fast", 32)), pair(settings.positive("beta_slow", 1))
    if settings.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 if low == high else 0.0

    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1) - np.clip(ramp, np.float32(0), np.float32(1))
    powers = _powers(theta, dim)
    inv_freq = _inverse(np.float32(factor) * powers) * (np.float32(1) - keep) + _inverse(powers) * keep

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, all_dim = settings.optional_number("mscale"), settings.optional_number("mscale_all_dim")
    default = grown(mscale) / grown(all_dim) if mscale and all_dim else grown(1.0)
    return inv_freq.astype(np.float32), settings.number("attention_factor", default)


def _yarn_factor(settings: Keys, lengths: Lengths) -> float:
    return settings.positive("factor", lengths.max_positions / lengths.original)


def _longrope(settings: Keys, theta: float, dim: int, lengths: Lengths) -> tuple[Float32Array, float]:
    """LongRoPE: a factor for each pair; lengths within the original one and longer lengths have a list each."""
    factor = settings.positive("factor", lengths.max_positions / lengths.original)
    default = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(lengths.original))
    short = settings.numbers("short_factor", dim // 2)
    long = settings.numbers("long_factor", dim // 2)
    which, factors = ("long", long) if lengths.max_model_len > lengths.original else ("short", short)
    scale = settings.number(f"{which}_mscale", settings.number("attention_factor", default))  # Phi-3.5-MoE's
    return _inverse(np.array(factors, dtype=np.float32) * _powers(theta, dim)), scale


_Kind = Callable[[Keys, float, int, Lengths], tuple[Float32Array, float]]
_KINDS: dict[str, _Kind] = {
    "default": _default,
    "mrope": _default,  # of text, whose positions in time, height and width are equal
    "linear": _linear,
    "ntk": _ntk,
    "proportional": _proportional,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def with_rope(keys: Keys, changes: dict[str, Any] | None) -> Keys:
    """Return config.json's keys with these changes to the rotary angles; other settings stay as they are in the file.

    changes: values by config.json's names.

    Raises: ConfigError if the layers of the model have different angles, or the settings are not an object.
    """
    if not changes:
        return keys
    scaling = changes.get("rope_scaling", changes.get("rope_parameters"))
    if not isinstance(scaling, dict | None):
        raise ConfigError(f"--hf-overrides: rope_scaling is {scaling!r}; write a JSON object")
    old = keys.values.get("rope_parameters") or keys.values.get("rope_scaling") or {}
    listed = isinstance(keys.values.get("rope_theta"), list)  # Step 3.5's, of each layer
    if listed or any(isinstance(value, dict) for value in old.values()) or "rope_local_base_freq" in keys.values:
        raise ConfigError(f"{keys.source}: its layers have different angles, which --rope-scaling can't change")
    kept = {name: old[name] for name in ("rope_theta", "partial_rotary_factor") if name in old}
    settings = {**(old if scaling is None else kept), **(scaling or {})}
    if "rope_theta" in changes:
        settings["rope_theta"] = changes["rope_theta"]
    values = {name: value for name, value in keys.values.items() if name not in ROPE}
    if "rope_theta" in keys.values:
        settings.setdefault("rope_theta", keys.values["rope_theta"])
    changed = Keys({**values, "rope_scaling": settings}, f"{keys.source} with its angles changed")
    changed.read = keys.read
    changed.read.update(("rope_parameters", "rope_theta"))
    changed.read.discard("rope_scaling")  # check_rope sees whether the family reads it
    return changed


def check_rope(keys: Keys, changes: dict[str, Any] | None) -> None:
    """Refuse changes to the rotary angles that the model's family does not read. Raises: ConfigError."""
    if changes and "rope_scaling" not in keys.read:
        raise ConfigError(f"{keys.source}: this model has no rotary angles that {', '.join(changes)} could change")
