"""Keys of .gguf files of Gemmas, of ModelConfig."""

from __future__ import annotations

from math import inf

from forearm.model.families.config import Attention, Experts, FeedForward, ModelConfig
from forearm.model.families.keys import Keys
from forearm.model.gguf.conversion.written_dense import GgufKeys, sliding, theta_of, window, windows


def gemma2(config: ModelConfig, keys: Keys) -> GgufKeys:
    caps = {"attn_logit_softcapping": config.attention_softcap, "final_logit_softcapping": config.logits_softcap}
    return caps | window(config, keys)


def gemma3(config: ModelConfig, keys: Keys) -> GgufKeys:
    return {"final_logit_softcapping": config.logits_softcap or None} | window(config, keys) | _sliding_theta(config)


def _sliding_theta(config: ModelConfig) -> GgufKeys:
    """Return the base of the angles of layers with a window."""
    ropes = [one.rope for one in sliding(config) if one.rope is not None]
    return {"rope.freq_base_swa": theta_of(config.ropes[ropes[0]])} if ropes else {}


def _shared(config: ModelConfig) -> list[int]:
    """Return the numbers of layers that read keys and values of others."""
    mixers = [one.mixer for one in config.layers]
    return [i for i, one in enumerate(mixers) if isinstance(one, Attention) and one.shared_from is not None]


def gemma3n(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return Gemma 3n's streams, and how many deviations above the mean gates are cut: minus infinity for none."""
    cuts = [one.feed_forward.gate_cut for one in config.layers if isinstance(one.feed_forward, FeedForward)]
    return windows(config, keys) | _sliding_theta(config) | {
        "final_logit_softcapping": config.logits_softcap, "altup.active_idx": 0,
        "altup.num_inputs": config.alt_up.streams if config.alt_up else 1,
        "embedding_length_per_layer_input": config.per_layer, "attention.shared_kv_layers": len(_shared(config)),
        "activation_sparsity_scale": [-inf if cut is None else cut for cut in cuts],
    }  # fmt: skip


def unused_by_gemma3n(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of keys' and values' tensors of layers that read those of others.

    They are in Gemma 3n's published checkpoints, and llama.cpp opens no file without them, but neither uses them.
    """
    rows = config.kv_heads * config.head_dim
    shapes = {"attn_k": (rows, config.hidden), "attn_v": (rows, config.hidden), "attn_k_norm": (config.head_dim,)}
    return {f"blk.{i}.{name}.weight": shape for i in _shared(config) for name, shape in shapes.items()}


def gemma4(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the sizes of heads of both kinds of layers, and experts beside which there is a dense feed-forward."""
    mixers = [one.mixer for one in config.layers if isinstance(one.mixer, Attention)]
    full = next((one for one in mixers if not one.window), mixers[-1])
    experts = [one.feed_forward for one in config.layers if isinstance(one.feed_forward, Experts)]
    sizes = dict.fromkeys(("attention.key_length", "attention.value_length"), full.head_dim or config.head_dim)
    sizes |= {f"{key}_swa": config.head_dim for key in (*sizes, "rope.dimension_count")}
    kv_heads = [config.heads_of(one)[1] for one in mixers]
    return sizes | windows(config, keys) | _sliding_theta(config) | {
        "final_logit_softcapping": config.logits_softcap, "attention.shared_kv_layers": len(_shared(config)),
        "embedding_length_per_layer_input": config.per_layer, "attention.head_count_kv": kv_heads,
        "expert_shared_feed_forward_length": None, **({"expert_count": None} if not experts else {}),
    }  # fmt: skip
