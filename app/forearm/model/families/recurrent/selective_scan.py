"""Families with layers of Mamba's selective scan (recurrences.py), alone or beside attention."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder
from forearm.model.families.experts import routed
from forearm.model.families.keys import Keys
from forearm.model.families.recurrences import SelectiveScan
from forearm.model.families.recurrent.mamba2 import bounded

_MOST = 1 << 20  # channels, or rank
_MAMBA_NAMES = {
    "embed": "embeddings", "final_norm": "norm_f", "input_norm": "norm", "mamba": "mixer", "scan_x": "mixer.in_proj",
    "scan_z": "mixer.in_proj", **{f"scan_{part}": "mixer.x_proj" for part in ("latent", "b", "c")},
    "scan_dt": "mixer.dt_proj", "scan_out": "mixer.out_proj",
}  # fmt: skip
_MAMBA_KEYS = {
    "mamba_d_state": "state_size", "mamba_d_conv": "conv_kernel", "mamba_dt_rank": "time_step_rank",
    "mamba_conv_bias": "use_conv_bias", "mamba_proj_bias": "use_bias",
}  # fmt: skip
_JAMBA_FEED_FORWARD = {part: f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}
_JAMBA_NAMES = _JAMBA_FEED_FORWARD | {
    "final_norm": "final_layernorm", "pre_mlp_norm": "pre_ff_layernorm", "router": "feed_forward.router",
    **{f"experts.{part}": f"feed_forward.experts.{{expert}}.{part}_proj" for part in _JAMBA_FEED_FORWARD},
}  # fmt: skip


def mamba(inputs: FamilyInputs, norm_eps: float = 0.0) -> ModelConfig:
    """Mamba 130M to 2.8B: a layer is a selective scan alone; the files bound no context, so it is 131072 here."""
    inputs = inputs.with_defaults(
        vocab_size=50280, hidden_size=768, num_hidden_layers=32, tie_word_embeddings=True, num_attention_heads=1,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=131072,
    )  # fmt: skip
    keys = inputs.keys
    for key in ("d_inner", "d_model", "n_layer"):  # marks them as read: first files have sizes by two names
        keys.get(key)
    inner = keys.integer("intermediate_size", bounded(keys, "expand", 1, 64, 2) * keys.integer("hidden_size"))
    if not 1 <= inner <= _MOST:
        raise keys.wrong("intermediate_size", f"1 to {_MOST}")
    return decoder(
        inputs.with_defaults(intermediate_size=inner),
        mixers=[_selective_scan(keys, inner, _MAMBA_KEYS, norm_eps=norm_eps)] * inputs.layers,
        feed_forwards=[None] * inputs.layers,
        ropes=(),
        norm_eps=keys.number("layer_norm_epsilon", 1e-5),
        names=_MAMBA_NAMES,
    )


def falcon_mamba(inputs: FamilyInputs) -> ModelConfig:
    """Falcon-Mamba 7B: Mamba whose b, c and latents of steps are normalized, without weights."""
    return mamba(inputs, inputs.keys.positive("mixer_rms_eps", 1e-6))


def jamba(inputs: FamilyInputs) -> ModelConfig:
    """Jamba 1.5 to 1.7, Jamba Reasoning 3B: Mamba, some layers of attention without positions; experts in some."""
    inputs = inputs.with_defaults(num_key_value_heads=8, num_experts=16, num_experts_per_tok=2, rms_norm_eps=1e-6)
    keys, layers = inputs.keys, range(inputs.layers)
    keys.only(mamba_inner_layernorms=True, sliding_window=None)
    inner = bounded(keys, "mamba_expand", 1, 64, 2) * keys.integer("hidden_size")
    scan = _selective_scan(keys, inner, norm_eps=keys.positive("rms_norm_eps"), norm_weights=True)
    marked = []
    for name, every, first in (("attn_layer", 8, 4), ("expert_layer", 2, 1)):
        period, offset = keys.integer(f"{name}_period", every), keys.integer(f"{name}_offset", first)
        if not 0 <= offset < period:
            raise keys.wrong(f"{name}_offset", f"0 to less than {name}_period ({period})")
        marked.append([i % period == offset for i in layers])
    attends, sparse = marked
    plain = FeedForward(keys.integer("intermediate_size"), activation(keys, "hidden_act", "silu"))
    count = keys.optional_integer("num_local_experts") or keys.integer("num_experts")
    keys.get("num_experts_per_tok")  # marks it as read: a single expert is a feed-forward
    experts = plain if count in (0, 1) else routed(inputs, "num_experts", "intermediate_size", renormalized=False)
    return decoder(
        inputs,
        mixers=[Attention(rope=None) if one else scan for one in attends],
        feed_forwards=[experts if one else plain for one in sparse],
        ropes=(),
        names=_JAMBA_NAMES,
    )


def _selective_scan(
    keys: Keys, inner: int, names: Mapping[str, str] = MappingProxyType({}), **differs: Any
) -> SelectiveScan:
    """Return the mixer of the keys mamba_*.

    inner: number of channels. names: a family's other names of the keys. differs: other fields of SelectiveScan.
    Raises: ConfigError if a size is out of range, or the convolution's activation is not silu.
    """

    def name(key: str) -> str:
        return names.get(key, key)

    if activation(keys, "hidden_act", "silu") != "silu":
        raise keys.wrong("hidden_act", "silu, the activation of Mamba's convolution")
    rank = name("mamba_dt_rank")
    automatic = keys.get(rank) in (None, "auto")
    return SelectiveScan(
        inner,
        bounded(keys, name("mamba_d_state"), 1, 4096, 16),
        -(-keys.integer("hidden_size") // 16) if automatic else bounded(keys, rank, 1, _MOST, 1),
        bounded(keys, name("mamba_d_conv"), 2, 64, 4),
        keys.flag(name("mamba_conv_bias"), True),
        keys.flag(name("mamba_proj_bias")),
        **differs,
    )
