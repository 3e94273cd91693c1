"""DeepSeek V4: attention to a window and to compressed entries, some of which an indexer chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from forearm.model.families.config import FeedForward, ModelConfig, Rope
from forearm.model.families.decoder import FamilyInputs, activation, decoder, lengths_of
from forearm.model.families.experts import SHARED_EXPERTS, routed
from forearm.model.families.keys import Keys
from forearm.model.families.recurrences import CompressedAttention, HyperConnections
from forearm.model.families.rope import rope
from forearm.model.families.switches import SLIDING


def deepseek_v4(inputs: FamilyInputs) -> ModelConfig:
    """DeepSeek V4 Flash and Pro: compressed attention, several residual streams, experts that first layers look up."""
    inputs = inputs.with_defaults(
        num_key_value_heads=1, head_dim=512, q_lora_rank=1024, num_experts_per_tok=6, n_routed_experts=256,
        moe_intermediate_size=2048, n_shared_experts=1, routed_scaling_factor=1.5, swiglu_limit=10.0,
        sliding_window=128, o_groups=8, o_lora_rank=1024, index_n_heads=64, index_head_dim=128, index_topk=512,
        hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, max_position_embeddings=1 << 20,
    )  # fmt: skip
    keys = inputs.keys
    for key, only in _ONLY.items():
        if keys.get(key) not in (None, only):
            raise keys.wrong(key, f"{only}: no other is computed")
    keys.get("expert_dtype")  # as the tensors' own is
    streams, rounds, eps = keys.integer("hc_mult"), keys.integer("hc_sinkhorn_iters"), keys.number("hc_eps")
    for key, value, least, most in (
        ("hc_mult", streams, 1, 8), ("hc_sinkhorn_iters", rounds, 1, 1000), ("hc_eps", eps, 0, 1)
    ):  # fmt: skip
        if not least <= value <= most:
            raise keys.wrong(key, f"{least} to {most}")
    width, limit = keys.integer("moe_intermediate_size"), keys.positive("swiglu_limit")
    experts = routed(
        inputs, "n_routed_experts", "moe_intermediate_size", True, score="sqrt_softplus", correction=True,
        sum_epsilon=1e-20, scale=keys.positive("routed_scaling_factor"), limit=limit,
        shared=FeedForward(width, activation(keys, "hidden_act", "silu"), limit=limit),
    )  # fmt: skip
    first, kinds = keys.integer("num_hash_layers", 3), keys.get("mlp_layer_types")
    kinds = ["hash_moe" if i < first else "moe" for i in range(inputs.layers)] if kinds is None else kinds
    by_kind = {"hash_moe": replace(experts, by_token=True, correction=False), "moe": experts}
    return decoder(
        inputs.with_defaults(intermediate_size=width),
        mixers=_mixers(inputs),
        ropes=_ropes(inputs),
        feed_forwards=_of_kinds(inputs, "mlp_layer_types", kinds, by_kind),
        hyper_connections=HyperConnections(streams, rounds, eps),
        names=SHARED_EXPERTS | {"q_norm": "self_attn.q_a_norm", "k_norm": "self_attn.kv_norm"},
    )


_ONLY = {
    "num_key_value_heads": 1, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "norm_topk_prob": True,
    "topk_method": "noaux_tc",
}  # fmt: skip
_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_RATIOS = {0: SLIDING, 4: _SPARSE, 128: _HEAVY}  # by which first files name the kinds of layers
_Half = TypeVar("_Half")


def _of_kinds(inputs: FamilyInputs, key: str, kinds: object, by_kind: Mapping[Any, _Half]) -> list[_Half]:
    """Return the half of each layer that `kinds`, the value of `key` or its default, names; more are left out."""
    layers = inputs.layers
    if not isinstance(kinds, list) or len(kinds) < layers or not all(kind in by_kind for kind in kinds):
        raise inputs.keys.wrong(key, f"a list of {layers} times {', '.join(map(str, by_kind))}")
    return [by_kind[kind] for kind in kinds[:layers]]


def _mixers(inputs: FamilyInputs) -> list[CompressedAttention]:
    keys = inputs.keys
    heads, dim, rotary = keys.integer("num_attention_heads"), keys.integer("head_dim"), _rotary(keys)
    groups, rank, q_rank = keys.integer("o_groups"), keys.integer("o_lora_rank"), keys.integer("q_lora_rank")
    if not 16 <= dim <= 4096 or dim % 16:
        raise keys.wrong("head_dim", "16 to 4096, a multiple of 16")
    if not 1 <= groups <= heads or heads % groups:
        raise keys.wrong("o_groups", f"a divisor of num_attention_heads ({heads})")
    if not 4 <= rank <= 1 << 20 or rank % 4:
        raise keys.wrong("o_lora_rank", f"4 to {1 << 20}, a multiple of 4")
    sizes = {key: keys.integer(key) for key in ("index_n_heads", "index_head_dim", "index_topk", "sliding_window")}
    for key, size, most in (("q_lora_rank", q_rank, 1 << 20), *((key, one, 1 << 30) for key, one in sizes.items())):
        if not 1 <= size <= most:
            raise keys.wrong(key, f"1 to {most}")
    index_heads, index_dim, chosen, window = sizes.values()
    if index_dim > 4096 or index_dim % 16 or index_dim < rotary:
        raise keys.wrong("index_head_dim", f"a multiple of 16 from {rotary}, the rotated numbers, to 4096")
    if index_heads > 4096:
        raise keys.wrong("index_n_heads", "1 to 4096")
    given = keys.object("compress_rates") or Keys({}, keys.source)
    sparse = keys.integer("compress_rate_csa", given.integer(_SPARSE, 4))
    heavy = keys.integer("compress_rate_hca", given.integer(_HEAVY, 128))
    for kind, ratio in ((_SPARSE, sparse), (_HEAVY, heavy)):
        if not 1 <= ratio <= 1 << 20:
            raise given.wrong(kind, f"1 to {1 << 20}")
    plain = CompressedAttention(0, 1, q_rank, window, groups, rank)
    entries = replace(plain, rope=2, back=3, ratio=heavy)
    scored = replace(entries, ratio=sparse, overlapping=True, index_heads=index_heads, index_dim=index_dim)
    by_kind = {SLIDING: plain, _SPARSE: replace(scored, chosen=chosen), _HEAVY: entries}
    kinds, ratios = keys.get("layer_types"), keys.get("compress_ratios")
    if kinds is None and ratios is not None:
        return _of_kinds(inputs, "compress_ratios", ratios, {ratio: by_kind[kind] for ratio, kind in _RATIOS.items()})
    kinds = [_SPARSE if i > 1 and i % 2 else _HEAVY for i in range(inputs.layers)] if kinds is None else kinds
    return _of_kinds(inputs, "layer_types", kinds, by_kind)


def _rotary(keys: Keys, settings: Keys | None = None) -> int:
    """Return how many of a head's numbers are rotated."""
    dim, own = keys.integer("head_dim"), keys.integer("qk_rope_head_dim", keys.integer("head_dim") // 8)
    fraction = keys.number("partial_rotary_factor", own / dim)
    where = settings if settings and "partial_rotary_factor" in settings else keys
    rotary = int(dim * where.number("partial_rotary_factor", fraction))
    if not 2 <= rotary <= dim or rotary % 2:
        raise where.wrong("partial_rotary_factor", f"a share of head_dim ({dim}) that is even, and at most the whole")
    return rotary


def _ropes(inputs: FamilyInputs) -> tuple[Rope, ...]:
    """Return the angles of layers with a window alone, and of those with entries, each with those that turn back."""
    keys = inputs.keys
    flat = keys.object("rope_parameters") or keys.object("rope_scaling") or Keys({}, keys.source)
    main, entries = flat.object("main"), flat.object("compress")
    base, own = keys.number("rope_theta", 1e4), keys.number("compress_rope_theta", 160_000.0)
    if main is None or entries is None:  # yarn is of layers with entries alone, and leaves the size of angles' cosines
        flat = Keys({k: v for k, v in flat.values.items() if k not in ("main", "compress")}, flat.source)
        main, entries = Keys({"rope_theta": base}, keys.source), flat.with_values(rope_theta=own)
        if entries.text("rope_type", entries.text("type", "default")) == "yarn":
            entries = entries.with_defaults(attention_factor=1.0)
    ropes: list[Rope] = []
    for settings in (main, entries):
        theta, rotary = settings.number("rope_theta", 1e4), _rotary(keys, settings)
        turned = rope(settings, theta, rotary, lengths_of(inputs, settings), interleaved=True)
        ropes += [turned, replace(turned, inv_freq=-turned.inv_freq)]
    return tuple(ropes)


_ENTRY = {"": "wkv", "_gate": "wgate", "_bias": "ape"}
_W = {"gate": "w1", "up": "w3", "down": "w2"}
# Names in published files; names.py's other names are those that transformers computes with.
PUBLISHED = {
    "embed": "embed", "head": "head", "input_norm": "attn_norm", "pre_mlp_norm": "ffn_norm",
    "hyper_attention": "hc_attn_{part}", "hyper_mlp": "hc_ffn_{part}", "hyper_head": "hc_head_{part}",
    "q_down": "attn.wq_a", "q_norm": "attn.q_norm", "q_up": "attn.wq_b", "kv": "attn.wkv", "k_norm": "attn.kv_norm",
    "groups": "attn.wo_a", "o": "attn.wo_b", "sinks": "attn.attn_sink", "index_q": "attn.indexer.wq_b",
    "index_weights": "attn.indexer.weights_proj", "compressed_index_norm": "attn.indexer.compressor.norm",
    "entry_norm": "attn.compressor.norm", "router": "ffn.gate", "correction": "ffn.gate.bias",
    "experts_by_token": "ffn.gate.tid2eid",
    **{f"entry{part}": f"attn.compressor.{name}" for part, name in _ENTRY.items()},
    **{f"index{part}": f"attn.indexer.compressor.{name}" for part, name in _ENTRY.items()},
    **{f"experts.{part}": f"ffn.experts.{{expert}}.{name}" for part, name in _W.items()},
    **{f"shared.{part}": f"ffn.shared_experts.{name}" for part, name in _W.items()},
}  # fmt: skip
