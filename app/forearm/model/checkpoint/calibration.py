"""Calibration: the rows that a model's matrices are multiplied with on a short text, so that rounding loses least.

The float model computes the text layer by layer. Each layer has an executor of its own whose weights are float32 and
whose embedding is the residual stream before the layer, so that memory beside the packed weights is that of one layer.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from forearm import _native
from forearm.array_types import Float32Array, Int32Array, UInt16Array
from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.formats import spec_bytes
from forearm.model.checkpoint.rounding_errors import TensorReceiver
from forearm.model.families.config import Attention, ModelConfig
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.quantization.feedback import RANK
from forearm.model.quantization.rounding import PLAIN, Rounding, expert_slices

log = logging.getLogger(__name__)

TEXT = Path(__file__).with_name("calibration.txt")  # written for this purpose: prose, verse, chat, code, records
VERSION = f"3 {hashlib.sha256(TEXT.read_bytes()).hexdigest()[:16]}"  # of the method and the text
WINDOW, BLOCK = 512, 32  # tokens of a step, and of a block of the KV cache
MOST_TOKENS = 4096  # of the text, in the tokens of any model
CENTRED_TOKENS = 2048  # of them, for means and main directions (centred.py)
# Added to every mean square, as a part of their mean: a column that the text does not use is not worthless.
DAMPING = 0.01
# Added to an expert's squares, as a part of the mean of all experts: where 8 of 128 are chosen, an expert has 256
# tokens of the text on average, and 13 count as much as this.
FEW_TOKENS = 0.05


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
        recorded, widest = sum(spec.k for spec in specs), max(spec.k for spec in specs)
        of_experts = 4 * 4 * sum(spec.experts * spec.k for spec in specs if is_of_experts(spec.name))  # 4 copies
        kept = 0
        if config.centred:  # copies of the widest, and three float64 matrices for each of its columns (feedback.py)
            kept = CENTRED_TOKENS * (recorded + 3 * widest) + 6 * RANK**2 * widest
        recorded = 4 * (WINDOW * (recorded + 2 * widest) + kept)
        most = max(most, sum(spec_bytes(spec, floats) for spec in specs) + scratch + cache + recorded + of_experts)
    return most + 4 * (MOST_TOKENS + WINDOW) * config.hidden  # the residual stream


def calibrated_layers(
    config: ModelConfig,
    residual: Float32Array,
    load: Callable[[_native.Executor, int], None],
    team: Team,
    squares_alone: bool = False,
) -> Iterator[dict[str, Float32Array]]:
    """Yield, layer by layer, the rows that the layer's packed matrices are multiplied with, float32 [tokens, k].

    They are by the matrices' names; those before experts are one row for each, the roots of the sums of its rows'
    squares, float32 [experts, k]. Rows that are all 0 or not all numbers are left out.
    residual: float32 [tokens, hidden], the embeddings of the text; becomes the residual stream after each layer.
    load: loads the tensors of a layer into an executor that has this layer alone, as layer 0.
    squares_alone: of each window's rows one is kept, with their sums of squares.
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
        seen: dict[str, list[Float32Array]] = defaultdict(list)
        for first in range(0, len(residual), window):
            ids = np.arange(first, min(first + window, len(residual)), dtype=np.int32)
            rows = np.arange(len(ids), dtype=np.int32)
            blocks = np.arange(-(-len(ids) // BLOCK), dtype=np.int32)
            ends, block_ends = (np.array([0, len(values)], np.int32) for values in (ids, blocks))
            states = np.zeros(1, np.int32) if one.has_states else None
            executor.forward(ids, rows, ends, block_ends, blocks, rows, states=states)
            residual[ids] = executor.logits()
            for spec in specs[1:]:  # all but the embedding
                name = spec.name.replace("layers.0.", f"layers.{layer}.")
                own = executor.inputs(spec.parts[0].name)
                if is_of_experts(name):
                    seen[name] = [np.sqrt(own)]  # of all windows so far
                else:
                    seen[name].append(np.sqrt(np.square(own).sum(axis=0, keepdims=True)) if squares_alone else own)
        joined = {name: np.concatenate(seen.pop(name)) for name in tuple(seen)}
        yield {name: rows for name, rows in joined.items() if 0 < np.abs(rows).sum() < np.inf}


class CalibratedWeights:
    """Passes a model's tensors on to an executor or a writer, matrices with the importance of their columns."""

    def __init__(self, config: ModelConfig, target: TensorReceiver) -> None:
        self._target = target
        self._matrix_of = {part.name: (spec.name, part.rows) for spec in matrices(config) for part in spec.parts}
        self._importance: dict[str, Float32Array] = {}  # by matrix, float32 [experts, k]

    def see(self, rows: Mapping[str, Float32Array]) -> None:
        """Take what the matrices that are loaded next are multiplied with (calibrated_layers)."""
        self._importance = {
            name: importance_of_experts(own) if is_of_experts(name) else importance(own)[None]
            for name, own in rows.items()
        }

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Pass rows of a matrix on, those of each expert by themselves."""
        matrix, expert_rows = self._matrix_of[name]
        known = self._importance.get(matrix)
        if known is None:
            self._target.load_matrix(name, data, dtype, row, rounding)
            return
        for expert, own in expert_slices(expert_rows, row, len(data)):
            own_rounding = replace(rounding, importance=known[expert])
            self._target.load_matrix(name, data[own], dtype, row + own.start, own_rounding)

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Pass a norm or a bias on."""
        self._target.load_vector(name, values, row)

    def finish_loading(self) -> None:
        """Note that all tensors were taken."""
        self._target.finish_loading()


def importance(rows: Float32Array) -> Float32Array:
    """Return the weights of the errors of columns when floats are rounded (kernels.h, RoundTask), float32 [k].

    rows: what the matrix is multiplied with, float32 [tokens, k].
    """
    squares = np.square(rows).sum(axis=0)
    weighed: Float32Array = squares / squares.mean() + np.float32(DAMPING)
    return weighed


def importance_of_experts(rows: Float32Array) -> Float32Array:
    """Return the same for each expert, float32 [experts, k]: of one that few tokens chose, columns count alike.

    rows: of each expert the roots of the sums of the squares of its columns, float32 [experts, k].
    """
    squares = squares_of_experts(rows)
    weighed: Float32Array = squares / squares.mean(axis=1, keepdims=True) + np.float32(DAMPING)
    return weighed


def squares_of_experts(rows: Float32Array) -> Float32Array:
    """Return the squares of an expert's columns, float32 [experts, k], which are alike if few tokens chose it.

    rows: the roots of their sums.
    """
    squares = np.square(rows)
    squares += np.float32(FEW_TOKENS) * squares.mean()
    return squares


def is_of_experts(matrix: str) -> bool:
    """Return whether the matrix of this name is that of experts."""
    return ".experts." in matrix


def _window(config: ModelConfig) -> int:
    """Return the number of tokens that are computed together, as a prompt of their own."""
    return min(WINDOW, config.max_positions)


def _one_layer(config: ModelConfig, layer: int, tokens: int) -> ModelConfig:
    """Return a model of one layer whose steps return the residual stream after it."""
    first, own = layer == 0, config.layers[layer]
    if isinstance(mixer := own.mixer, Attention):
        heads, kv_heads, head_dim = config.heads_of(mixer)
        config = replace(config, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        own = replace(own, mixer=replace(mixer, heads=0, kv_heads=0, head_dim=0))
    return replace(
        config, layers=(own,), vocab_size=tokens, tied_head=True, head_bias=False, pooled=True,
        dense=(), head_dense=None, final_norm=False, centred=False, keeps_hidden=False,
        embedding_scale=config.embedding_scale if first else 1.0,
        norm_residual=config.norm_residual if first else "none",
        learned_positions=config.learned_positions and first, embed_norm=config.embed_norm and first,
        token_types=config.token_types * first, dropped_token=None,
    )  # fmt: skip
