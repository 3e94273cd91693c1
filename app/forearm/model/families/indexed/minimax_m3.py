"""MiniMax M3: experts, and attention to the blocks of keys that an indexer chooses for each kv head."""

from __future__ import annotations

from dataclasses import replace

from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, decoder
from forearm.model.families.experts import MIXTRAL_NAMES, routed
from forearm.model.families.indexed.indexers import BlockIndexer
from forearm.model.families.keys import Keys
from forearm.model.families.mixtures import CORRECTED


def minimax_m3(inputs: FamilyInputs) -> ModelConfig:
    """MiniMax M3 for text alone: each kv head sees the blocks of keys that an indexer chooses; a clamped SwiGLU."""
    inputs = inputs.with_defaults(
        head_dim=128, num_key_value_heads=4, intermediate_size=3072, dense_intermediate_size=12288, swiglu_alpha=1.702,
        shared_intermediate_size=3072, swiglu_limit=7.0, num_local_experts=128, num_experts_per_tok=4, rope_theta=5e6,
    )  # fmt: skip
    keys = inputs.keys
    keys.only(swiglu_alpha=1.702, swiglu_limit=7.0)
    for key in ("hidden_act", "rotary_dim"):
        keys.get(key)  # marks it as read: the activation's other name, and what partial_rotary_factor says
    shared, dense = (FeedForward(keys.integer(f"{of}_intermediate_size"), "swiglu_oai") for of in ("shared", "dense"))
    inputs = replace(inputs, keys=keys.with_values(hidden_act="silu"))
    experts = routed(
        inputs, "num_local_experts", "intermediate_size", renormalized=True, shared=shared,
        scale=keys.positive("routed_scaling_factor", 2.0), **CORRECTED,
    )  # fmt: skip
    experts = replace(experts, activation="swiglu_oai")
    sparse = _second_kind(keys, "mlp_layer_types", ("dense", "sparse"), keys, "moe_layer_freq", inputs.layers)
    return decoder(
        inputs,
        mixers=_mixers(inputs),
        feed_forwards=[experts if one else dense for one in sparse],
        partial=True,
        qk_norm="head",
        norm_plus_one=True,
        names=_NAMES,
    )


def _mixers(inputs: FamilyInputs) -> list[Attention]:
    """Return attention to all keys, or to the blocks that are chosen; sizes have two sets of names."""
    keys = inputs.keys
    own = keys.object("sparse_attention_config") or Keys({}, keys.source)
    values = {name: own.integer(old, keys.integer(f"index_{name}", default)) for name, old, default in _SIZES}
    kinds = "full_attention", "minimax_m3_sparse"
    chooses = _second_kind(keys, "layer_types", kinds, own, "sparse_attention_freq", inputs.layers)
    if values["n_heads"] != keys.integer("num_key_value_heads") and any(chooses):
        raise keys.wrong("index_n_heads", f"num_key_value_heads ({keys.integer('num_key_value_heads')})")
    for name, least, most, unit in (
        ("head_dim", 16, 4096, 16), ("block_size", 32, 1 << 20, 32), ("topk_blocks", 1, 4096, 1),
        ("local_blocks", 1, values["topk_blocks"], 1),
    ):  # fmt: skip
        if not least <= values[name] <= most or values[name] % unit:
            raise keys.wrong(f"index_{name}", f"{least} to {most}" + f", a multiple of {unit}" * (unit > 1))
    blocks = BlockIndexer(*(values[name] for name in ("head_dim", "block_size", "topk_blocks", "local_blocks")))
    return [Attention(0, blocks=blocks if one else None) for one in chooses]


def _second_kind(keys: Keys, key: str, kinds: tuple[str, str], older: Keys, flags: str, layers: int) -> list[bool]:
    """Return for each layer whether it is of the second kind: as `key` lists them, or 0 and 1 for each in `flags`."""
    found, old = keys.get(key), older.get(flags)
    if found is None and old is None:
        return [key == "mlp_layer_types"] * layers  # transformers' defaults
    if found is None and isinstance(old, list) and len(old) == layers and all(one in (0, 1) for one in old):
        return [one == 1 for one in old]
    if found is None:
        raise older.wrong(flags, f"a list of {layers} times 0 or 1")
    if not isinstance(found, list) or len(found) != layers or not all(kind in kinds for kind in found):
        raise keys.wrong(key, f"a list of {layers} times {kinds[0]} or {kinds[1]}")
    return [kind == kinds[1] for kind in found]


_SIZES = (
    ("n_heads", "sparse_num_index_heads", 4), ("head_dim", "sparse_index_dim", 128),
    ("block_size", "sparse_block_size", 128), ("topk_blocks", "sparse_topk_blocks", 16),
    ("local_blocks", "sparse_local_block", 1),
)  # fmt: skip
_NAMES = MIXTRAL_NAMES | {"correction": "block_sparse_moe.e_score_correction_bias"} | {
    f"shared.{part}": f"block_sparse_moe.shared_experts.{part}_proj" for part in ("gate", "up", "down")
}  # fmt: skip
