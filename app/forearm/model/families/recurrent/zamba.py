"""Zamba2: layers of Mamba2, before some of which stands a call of a shared block of attention and a feed-forward."""

from __future__ import annotations

from dataclasses import replace

from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder
from forearm.model.families.keys import Keys
from forearm.model.families.recurrent.mamba2 import mamba2_mixer

_HYBRID = "hybrid"
_KINDS = ("linear_attention", "mamba", _HYBRID)  # the names of transformers 5, and 4
_KEYS = {
    "mamba_n_heads": "n_mamba_heads", "mamba_d_head": "mamba_headdim", "mamba_n_groups": "mamba_ngroups",
    "mamba_conv_bias": "use_conv_bias", "mamba_proj_bias": "add_bias_linear", "hidden_act": "mamba_hidden_act",
}  # fmt: skip
# What transformers writes of other keys, of training and of its own kernels.
_WRITTEN = (
    "adapter_rank", "attention_head_dim", "attention_hidden_size", "hybrid_layer_ids", "kv_channels", "mamba_headdim",
    "num_query_groups", "use_mem_eff_path",
)  # fmt: skip
_NAMES = {
    "final_norm": "final_layernorm", "pre_mlp_norm": "pre_ff_layernorm", "gate": "feed_forward.gate_up_proj",
    "up": "feed_forward.gate_up_proj", "down": "feed_forward.down_proj",
}  # fmt: skip


def zamba2(inputs: FamilyInputs) -> ModelConfig:
    """Zamba2 1.2B to 7B: Mamba2; before some layers one of two shared blocks of attention, with an adapter a call.

    Adapters are added to the block's matrices when these are read, so that a call has matrices of its own where it has
    an adapter. transformers bounds the steps of a prompt by time_step_min; here none are, as in Mamba2's own code.
    Source: Glorioso et al. 2024, arXiv:2411.15242.
    """
    hidden = inputs.keys.integer("hidden_size")
    inputs = inputs.with_defaults(
        n_mamba_heads=8, mamba_d_state=64, num_mem_blocks=1, intermediate_size=4 * hidden, rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )  # fmt: skip
    keys = inputs.keys
    for key in _WRITTEN:
        keys.get(key)  # marks it as read
    keys.only(add_bias_linear=False, use_conv_bias=True, use_long_context=False, rms_norm_eps=1e-5)
    heads = keys.integer("num_attention_heads")
    if not 0 < heads <= 2 * hidden or 2 * hidden % heads:
        raise keys.wrong("num_attention_heads", f"a divisor of twice hidden_size ({2 * hidden})")
    inputs = replace(inputs, keys=keys.with_values(head_dim=2 * hidden // heads))
    kinds, rotated = _kinds(keys, inputs.layers), keys.flag("use_mem_rope")
    mamba = Layer(mamba2_mixer(keys, keys.integer("mamba_expand", 2) * hidden, _KEYS), None)
    feed_forward = FeedForward(keys.integer("intermediate_size"), activation(keys, "hidden_act", "gelu"))
    block = Layer(Attention(0 if rotated else None), feed_forward, aside=True)
    config = decoder(
        inputs, ropes=None if rotated else (), attention_scale=(hidden / heads) ** -0.5, act=feed_forward.activation
    )
    layers = tuple(one for kind in kinds for one in ((block, mamba) if kind == _HYBRID else (mamba,)))
    names, shared = _calls(keys, kinds, config.kv_heads == heads)
    return replace(config, layers=layers, names=_NAMES | names, shared=shared)


def _kinds(keys: Keys, layers: int) -> list[str]:
    """Return the kind of each layer of the checkpoint."""
    kinds = keys.get("layers_block_type") or keys.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in _KINDS for kind in kinds):
        raise keys.wrong("layers_block_type", f"a list of {layers} times mamba or hybrid")
    return kinds


def _calls(keys: Keys, kinds: list[str], all_heads: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return names of our layers, and the matrices that calls share. all_heads: each head has keys of its own."""
    blocks, adapted = keys.integer("num_mem_blocks"), keys.flag("use_shared_attention_adapter")
    hybrid = [i for i, kind in enumerate(kinds) if kind == _HYBRID]
    if not 1 <= blocks <= max(1, len(hybrid)):
        raise keys.wrong("num_mem_blocks", f"1 to the number of hybrid layers ({len(hybrid)})")
    if adapted and not all_heads:
        raise keys.wrong("use_shared_attention_adapter", "false where num_key_value_heads is not num_attention_heads")
    names: dict[str, str] = {}
    shared: dict[str, str] = {}
    firsts: list[int] = []  # of our layers, the first call of each block
    layer = 0
    for i in range(len(kinds)):
        if i in hybrid:
            call = hybrid.index(i)
            block = f"layers.{hybrid[call % blocks]}.shared_transformer"
            own = {"gate": "feed_forward.gate_up_proj", "up": "feed_forward.gate_up_proj"}
            own |= {part: f"self_attn.{part}_proj" for part in "qkv" if adapted}
            names |= {f"layers.{layer}": block, f"layers.{layer}.side": f"layers.{i}.linear"}
            names |= {f"layers.{layer}.{part}": f"{block}.{stored}.call.{call}" for part, stored in own.items()}
            firsts += [layer] if call < blocks else []
            same = ("o", "down") if adapted else ("qkv", "o", "down")
            first = firsts[call % blocks]
            shared |= {f"layers.{layer}.{one}": f"layers.{first}.{one}" for one in same if layer != first}
            layer += 1
        names[f"layers.{layer}"] = f"layers.{i}.mamba_decoder" if i in hybrid else f"layers.{i}"
        layer += 1
    return names, shared
