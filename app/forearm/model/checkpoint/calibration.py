"""Calibration: the rows that a model's matrices are multiplied with on a short text, so that rounding loses least.

The float model computes the text layer by layer. Each layer has an executor of its own whose weights are float32 and
whose embedding is the residual stream before the layer, so that memory beside the packed weights is that of one layer.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from forearm import _native
from forearm.array_types import Float32Array, Int32Array
from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.formats import spec_bytes
from forearm.model.families.config import ModelConfig
from forearm.model.families.matrices import matrices, uniform_formats

log = logging.getLogger(__name__)

TEXT = Path(__file__).with_name("calibration.txt")  # written for this purpose: prose, verse, chat, code, records
VERSION = f"1 {hashlib.sha256(TEXT.read_bytes()).hexdigest()[:16]}"  # of the method and the text
WINDOW, BLOCK = 512, 32  # tokens of a step, and of a block of the KV cache
MOST_TOKENS = 4096  # of the text, in the tokens of any model
# Added to every mean square, as a part of their mean: a column that the text does not use is not worthless.
DAMPING = 0.01


@dataclass(frozen=True)
class Team:
    """The threads of an executor."""

    cores: Sequence[int]
    threads: int
    ranks: Sequence[int] = ()


def calibration_tokens(tokenizer: Path, vocab_size: int) -> Int32Array:
    """Return the token ids of the calibration text, as tokens_of does."""
    return tokens_of(tokenizer, TEXT.read_text(encoding="utf-8"), vocab_size)[:MOST_TOKENS]


def tokens_of(tokenizer: Path, text: str, vocab_size: int) -> Int32Array:
    """Return the token ids of a text, by the tokenizer of a model folder or .gguf file.

    Raises: ConfigError if there is no tokenizer, or it cannot be read.
    """
    from tokenizers import Tokenizer

    from forearm.text.grammars.grammar_tokens import tokenizer_text

    source, _ = tokenizer_text(tokenizer)
    try:
        ids = Tokenizer.from_str(source).encode(text).ids
    except Exception as error:
        raise ConfigError(f"cannot read the tokenizer of {tokenizer}: {error!r:.300}") from error
    found = np.array(ids, np.int32)
    return found[found < vocab_size]


def calibration_bytes(config: ModelConfig, threads: int, any_tier: bool = False) -> int:
    """Return the most bytes that calibration takes beside the packed weights: those of the largest layer.

    any_tier: on another machine, whose tier may need more scratch.
    """
    floats, window, most = WeightFormat("float32"), _window(config), 0
    for layer in range(len(config.layers)):
        one = _one_layer(config, layer, MOST_TOKENS)
        specs, formats = matrices(one), uniform_formats(one, floats)
        scratch = _native.scratch_bytes(one, specs, formats, WINDOW, WINDOW, window, threads, any_tier)
        cache = WINDOW // BLOCK * _native.kv_block_bytes(one, "float32") + _native.state_bytes(one)
        recorded = 4 * WINDOW * (sum(spec.k for spec in specs) + 2 * max(spec.k for spec in specs))  # and copies of one
        most = max(most, sum(spec_bytes(spec, floats) for spec in specs) + scratch + cache + recorded)
    return most + 4 * (MOST_TOKENS + WINDOW) * config.hidden  # the residual stream


def calibrated_layers(
    config: ModelConfig, residual: Float32Array, load: Callable[[_native.Executor, int], None], team: Team
) -> Iterator[dict[str, Float32Array]]:
    """Yield, layer by layer, the importance of the columns of the layer's packed matrices, by their names.

    The importance, float32 [k], weighs the columns' errors when floats are rounded to 4 bits (kernels.h, RoundTask).
    Experts, and those beside them that every token has, are left out.
    residual: float32 [tokens, hidden], the embeddings of the text; becomes the residual stream after each layer.
    load: loads the tensors of a layer into an executor that has this layer alone, as layer 0.
    """
    window = _window(config)
    for layer in range(len(config.layers)):
        one = _one_layer(config, layer, len(residual))
        specs, formats = matrices(one), uniform_formats(one, WeightFormat("float32"))
        executor = _native.Executor(
            one, specs, formats, "float32", WINDOW, 1, WINDOW, window, team.cores, team.threads, team.ranks
        )
        executor.load_matrix("embed", residual, "float32")
        load(executor, layer)
        executor.finish_loading()
        executor.allocate_kv(WINDOW // BLOCK)
        if one.has_states:
            executor.allocate_states(1)
        executor.record_inputs()
        squares: dict[str, Float32Array] = {}
        for first in range(0, len(residual), window):
            ids = np.arange(first, min(first + window, len(residual)), dtype=np.int32)
            rows = np.arange(len(ids), dtype=np.int32)
            blocks = np.arange(-(-len(ids) // BLOCK), dtype=np.int32)
            ends, block_ends = (np.array([0, len(values)], np.int32) for values in (ids, blocks))
            states = np.zeros(1, np.int32) if one.has_states else None
            executor.forward(ids, rows, ends, block_ends, blocks, rows, states=states)
            residual[ids] = executor.logits()
            for spec in specs[1:]:  # all but the embedding
                own = np.square(executor.inputs(spec.parts[0].name)).sum(axis=0)
                name = spec.name.replace("layers.0.", f"layers.{layer}.")
                squares[name] = squares.get(name, np.float32(0)) + own
        # Inputs that are all 0 or no numbers tell nothing of the columns.
        means = {name: (total, total.mean()) for name, total in squares.items() if 0 < total.mean() < np.inf}
        yield {name: total / mean + np.float32(DAMPING) for name, (total, mean) in means.items()}


def _window(config: ModelConfig) -> int:
    """Return the number of tokens that are computed together, as a prompt of their own."""
    return min(WINDOW, config.max_positions)


def _one_layer(config: ModelConfig, layer: int, tokens: int) -> ModelConfig:
    """Return a model of one layer whose steps return the residual stream after it."""
    first = layer == 0
    return replace(
        config, layers=(config.layers[layer],), vocab_size=tokens, tied_head=True, head_bias=False, pooled=True,
        dense=(), final_norm=False, embedding_scale=config.embedding_scale if first else 1.0,
        learned_positions=config.learned_positions and first,
    )  # fmt: skip
