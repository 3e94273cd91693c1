"""RWKV-7 "Goose": time mixing (recurrences.py), and a feed-forward that reads the token before, too.

Source of names and keys: the modeling and configuration files of flash-linear-attention (fla-hub's models).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, decoder
from forearm.model.families.recurrent.mamba2 import bounded
from forearm.model.families.recurrent.time_mixing import Rwkv7

_POSITIONS = 1 << 20  # a state has no longest text; llama.cpp's converter writes this length
_MOST = 1 << 20
_OF_TRAINING = (
    "max_position_embeddings", "attn_mode", "fuse_norm", "fuse_cross_entropy", "fuse_linear_cross_entropy",
    "use_l2warp",
)  # fmt: skip
_NAMES = {
    "embed": "embeddings", "embed_norm": "layers.0.pre_norm", "input_norm": "attn_norm", "pre_mlp_norm": "ffn_norm",
    "up": "ffn.key", "down": "ffn.value", "rwkv_norm": "attn.g_norm", "mlp_mix": "ffn.x_k", "rwkv_mixes": "attn.x_x",
    **{f"rwkv_{name}": f"attn.{name}" for name in ("k_k", "k_a", "r_k")},
    **{f"rwkv_mix_{name}": f"attn.x_{name}" for name in "rwkvag"},
}  # fmt: skip


def rwkv7(inputs: FamilyInputs) -> ModelConfig:
    """RWKV-7 0.1B to 13.3B: time mixing alone; a state bounds no context, so it is 1048576 here, as in GGUF files."""
    inputs = inputs.with_defaults(vocab_size=32_000, hidden_size=2048, num_hidden_layers=24)
    keys = inputs.keys
    for key in _OF_TRAINING:  # marks them as read
        keys.get(key)
    if keys.get("attn") is not None:
        raise keys.wrong("attn", "null: layers of attention beside those of time mixing are not computed")
    if keys.text("hidden_act", "sqrelu") != "sqrelu":
        raise keys.wrong("hidden_act", "sqrelu, the activation of RWKV's feed-forward")
    sizes, eps = _sizes(inputs), keys.positive("norm_eps", 1e-5)
    heads, dim = sizes["num_attention_heads"], sizes["head_dim"]
    decay, rate, few, gate = (
        bounded(keys, f"{name}_low_rank_dim", 1, _MOST, usual)
        for name, usual in (("decay", 64), ("a", 64), ("v", 16), ("gate", 128))
    )
    first = Rwkv7(heads, dim, decay, rate, 0, gate, keys.positive("head_norm_eps", dim * eps))  # a key of GGUF files
    feed_forward = FeedForward(sizes["intermediate_size"], "relu_squared", gated=False, shifted=True)
    return decoder(
        replace(inputs, keys=keys.with_values(**sizes)),
        mixers=[first, *[replace(first, value_rank=few)] * (inputs.layers - 1)],
        feed_forwards=[feed_forward] * inputs.layers,
        act="relu_squared",
        ropes=(),
        norm_eps=eps,
        layer_norm=True,
        norm_bias=keys.flag("norm_bias", True),
        embed_norm=keys.flag("norm_first", True),
        names=_NAMES,
    )


def _sizes(inputs: FamilyInputs) -> dict[str, Any]:
    """Return the sizes under usual keys.

    A head has head_dim numbers whatever num_heads is, or as num_heads says if head_dim is null. A feed-forward without
    a width has hidden_ratio times hidden_size, to a multiple of 32.
    """
    keys, hidden = inputs.keys, bounded(inputs.keys, "hidden_size", 1, _MOST, 2048)
    heads, dim = keys.optional_integer("num_heads"), keys.optional_integer("head_dim", 64)
    if dim is None and heads is not None and 1 <= heads <= hidden:
        dim = hidden // heads
    if dim is None or not 1 <= dim <= 4096 or hidden % dim:
        raise keys.wrong("head_dim", f"1 to 4096, and a divisor of hidden_size ({hidden})")
    values = keys.get("value_dim")
    if values not in (None, hidden) and values != [hidden] * inputs.layers:
        raise keys.wrong("value_dim", f"{hidden}, as hidden_size, in all {inputs.layers} layers")
    ratio, width = keys.optional_number("hidden_ratio", 4.0) or 4.0, keys.optional_integer("intermediate_size")
    said_by = "hidden_ratio" if width is None else "intermediate_size"
    if width is None and 0 < ratio <= _MOST / hidden:
        width = -(-int(hidden * ratio) // 32) * 32
    if width is None or not 1 <= width <= _MOST:
        raise keys.wrong(said_by, f"so that a feed-forward has a width of 1 to {_MOST}")
    return {
        "num_attention_heads": hidden // dim, "num_key_value_heads": hidden // dim, "head_dim": dim,
        "max_position_embeddings": _POSITIONS, "intermediate_size": width,
    }  # fmt: skip
