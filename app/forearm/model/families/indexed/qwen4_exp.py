"""Qwen4-Exp: Qwen3.5's layers on several residual streams, chosen blocks of keys, embeddings of several tokens.

Source of the sizes, hashes and checks: Qwen4ExpTextConfig and the text model of transformers 5.23.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from itertools import count, islice
from typing import Any

from forearm.model.families.config import Attention, ModelConfig
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.hybrid import LINEAR, qwen3_5_moe
from forearm.model.families.indexed.indexers import BlockIndexer
from forearm.model.families.keys import Keys
from forearm.model.families.recurrences import GatedDelta, HashedNgrams, HyperConnections
from forearm.model.families.switches import FULL
from forearm.model.generation import eos_ids

_INDEXED = "indexed_attention"  # what transformers writes for full attention, whether there is an indexer or not


def qwen4_exp(inputs: FamilyInputs) -> ModelConfig:
    """Qwen4-Exp for text alone: residual streams with gates, blocks of keys that are chosen, hashed n-grams."""
    inputs = inputs.with_defaults(
        num_experts=512, num_experts_per_tok=10, hc_count=4, hc_lowrank=320, ngram_size=3, heads_per_ngram=8,
        ple_conv_kernel_size=4, ngram_vocab_size_base=20_000_000, make_ngram_vocab_size_divisible_by=128, seed=1234,
        partial_rotary_factor=1.0,
    )  # fmt: skip
    keys = inputs.keys
    kinds = keys.get("layer_types")
    if isinstance(kinds, list):
        inputs = replace(inputs, keys=keys.with_values(layer_types=[FULL if k == _INDEXED else k for k in kinds]))
    for key in (*_OF_NGRAMS, "split_ngram_parts", "number_of_conv_states"):
        keys.get(key)  # marks it as read, if no layer has n-grams: names of tensors, and other keys, say the last two
    streams, rank = keys.integer("hc_count"), keys.integer("hc_lowrank")
    for key, value, least, most in (("hc_count", streams, 2, 8), ("hc_lowrank", rank, 1, 1 << 16)):
        if not least <= value <= most:
            raise keys.wrong(key, f"{least} to {most}")
    config = qwen3_5_moe(inputs)
    attention = Attention(0, blocks=_blocks(keys, config))
    gate = keys.get("output_gate_type") or keys.get("hidden_act") or "silu"
    if gate not in ("silu", "sigmoid"):
        raise keys.wrong("output_gate_type" if keys.get("output_gate_type") else "hidden_act", "silu or sigmoid")
    linear = [i for i, one in enumerate(config.layers, 1) if isinstance(one.mixer, GatedDelta)]
    numbers = keys.get("ple_layer_ids") or []
    if not isinstance(numbers, list) or not all(type(i) is int and i in linear for i in numbers):
        raise keys.wrong("ple_layer_ids", f"a list of numbers from 1 to {len(config.layers)} of layers of {LINEAR}")
    places, layers = sorted(set(numbers)), []
    for i, one in enumerate(config.layers, 1):
        ngrams = _ngrams(keys, config, places.index(i)) if i in places else None
        mixer = replace(one.mixer, sigmoid_gate=gate == "sigmoid") if isinstance(one.mixer, GatedDelta) else attention
        layers.append(replace(one, mixer=mixer, ngrams=ngrams))
    return replace(
        config,
        layers=tuple(layers),
        norm_placement="none",
        final_norm=False,
        hyper_connections=HyperConnections(streams, 0, 0.0, rank=rank),
        names=config.names | _NAMES,
    )


def _blocks(keys: Keys, config: ModelConfig) -> BlockIndexer | None:
    """Return what chooses the blocks of keys that attention sees; None: it sees all."""
    given = {name: keys.optional_integer(f"indexer_{name}") for name in _INDEXER}
    if all(value is None for value in given.values()):
        return None
    for name, value in given.items():
        if value is None:
            raise keys.wrong(f"indexer_{name}", "a number, as others of the indexer have one")
    heads, kv_heads, dim, budget, ratio = (value or 0 for value in given.values())
    rotary = 2 * len(config.ropes[0].inv_freq)
    for name, value, least, most, unit in (
        ("n_heads", heads, 1, 4096, 1), ("kv_heads", kv_heads, 1, 1, 1),
        ("head_dim", dim, max(16, rotary), 4096, 16), ("compress_ratio", ratio, 1, 1 << 16, 1),
        ("budget", budget, ratio, 1 << 24, ratio),
    ):  # fmt: skip
        if not least <= value <= most or value % unit:
            raise keys.wrong(f"indexer_{name}", f"{least} to {most}" + f", a multiple of {unit}" * (unit > 1))
    return BlockIndexer(dim, ratio, budget // ratio, heads=heads)


def _ngrams(keys: Keys, config: ModelConfig, place: int) -> HashedNgrams:
    """Return the embeddings of several tokens of one layer; place: among those that have them."""
    size, heads, taps = (
        keys.integer("ngram_size"),
        keys.integer("heads_per_ngram"),
        keys.integer("ple_conv_kernel_size"),
    )
    base, unit = keys.integer("ngram_vocab_size_base"), keys.integer("make_ngram_vocab_size_divisible_by")
    for key, value, least, most in (
        ("ngram_size", size, 2, 64), ("heads_per_ngram", heads, 1, 4096), ("ple_conv_kernel_size", taps, 1, 64),
        ("ngram_vocab_size_base", base, 2, 1 << 30), ("make_ngram_vocab_size_divisible_by", unit, 1, 1 << 24),
    ):  # fmt: skip
        if not least <= value <= most:
            raise keys.wrong(key, f"{least} to {most}")
    width, every = keys.optional_integer("ple_embed_dim") or config.hidden, (size - 1) * heads
    if width < 1 or width % every:
        raise keys.wrong("ple_embed_dim", f"a multiple of the {every} heads that ngram_size and heads_per_ngram make")
    ends = eos_ids(keys, config.vocab_size)
    if not ends:
        raise keys.wrong("eos_token_id", "the token that ends a text: n-grams do not go beyond it")
    primes = (n for n in count(base) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
    sizes = tuple(islice(primes, place * every, (place + 1) * every))
    rows = -(-sum(sizes) // unit) * unit
    if rows >= 1 << 31:
        raise keys.wrong("ngram_vocab_size_base", f"less: {rows} rows of a table are more than {(1 << 31) - 1}")
    half, seed = max(1, ((1 << 63) - 1) // config.vocab_size // 2), keys.integer("seed") + 10007 * place
    gamma, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1  # of splitmix64 (Steele et al. 2014), which makes odd multipliers
    multipliers = []
    for i in range(1, size + 1):
        value = (seed + gamma * (i + 1)) & mask
        value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) & mask
        multipliers.append(2 * ((value ^ value >> 31) % half) + 1)
    return HashedNgrams(heads, width, taps, ends[0], tuple(multipliers), sizes, rows)


def shards(module: str, rows: int, stored: Collection[str]) -> list[tuple[str, int, int]]:
    """Return the tensors of an n-gram table, each with its first row and the number of its rows.

    Published files, and those that transformers writes, have it in equal parts, of which the last one may be smaller.
    """
    parts = sum(f"{module}.shard_{i}.weight" in stored for i in range(1 << 12))
    if not parts:
        return [(f"{module}.weight", 0, rows)]
    each = -(-rows // parts)
    return [
        (f"{module}.shard_{i}.weight", first, min(each, rows - first)) for i, first in enumerate(range(0, rows, each))
    ]


_OF_NGRAMS = (
    "ngram_size", "heads_per_ngram", "ple_conv_kernel_size", "ngram_vocab_size_base", "seed", "ple_embed_dim",
    "make_ngram_vocab_size_divisible_by",
)  # fmt: skip
_INDEXER = ("n_heads", "kv_heads", "head_dim", "budget", "compress_ratio")
_NAMES: dict[str, Any] = {
    "index_q": "self_attn.indexer.index_qk_proj", "index_k": "self_attn.indexer.index_qk_proj",
    "index_q_norm": "self_attn.indexer.q_layernorm", "index_norm": "self_attn.indexer.k_layernorm",
    "hyper_attention": "attn_hyper_connection", "hyper_mlp": "mlp_hyper_connection",
    "hyper_head": "hyper_connection_mixer",
}  # fmt: skip
