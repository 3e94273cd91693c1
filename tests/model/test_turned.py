"""Activations are turned before int8 matrices of every kind of layer, whose columns are turned, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.model import made_cases
from tests.model.cases import CASES
from tests.model.shapes import SHAPES
from tests.model.test_same_tokens import BLOCK, Floats, Slice, Weights, prompt, step

from forearm import _native
from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.quality_report import TextModel
from forearm.model.families.config import Experts, FeedForward, Layer, ModelConfig
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.quantization import rotation
from forearm.model.quantization.quantization import Asked

LENGTH = 70


def in_64s(width: int) -> int:
    return -(-width // 64) * 64


def widened(config: ModelConfig) -> ModelConfig:
    """Return the model with a residual stream and feed-forwards whose rows can be turned."""

    def fitting(own: FeedForward | Experts | None) -> FeedForward | Experts | None:
        if own is None:
            return None
        if isinstance(own, FeedForward):
            return replace(own, width=in_64s(own.width))
        return replace(own, width=in_64s(own.width), shared=fitting(own.shared))

    layers: list[Layer] = [replace(layer, feed_forward=fitting(layer.feed_forward)) for layer in config.layers]
    dense = config.head_dense and replace(config.head_dense, outputs=192)
    return replace(config, hidden=192, layers=tuple(layers), head_dense=dense)


class TurnedWeights(Weights):
    """Random weights as Weights makes them, whose columns are turned as activations before them are."""

    def __init__(self, executor: _native.Executor, config: ModelConfig, formats: dict[str, WeightFormat]) -> None:
        super().__init__(executor, config)
        self.formats = {part.name: formats[spec.name] for spec in matrices(config) for part in spec.parts}

    def matrix(self, name: str, rows: int, columns: int) -> None:
        values = self.rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        format = self.formats[name]
        self.executor.load_matrix(name, rotation.turn(values, format.group) if format.turned else values, "float32")


def logits(config: ModelConfig, formats: dict[str, WeightFormat]) -> Floats:
    """Return the logits of all tokens of a prompt, and of the next one in a step of its own, beside one of another."""
    executor = _native.Executor(config, matrices(config), formats, "float32", 256, 40, 256, 4096, [], 2)
    TurnedWeights(executor, config, formats).load()
    executor.allocate_kv(40)
    if config.has_states:
        executor.allocate_states(40)
    tokens, blocks = prompt(1, LENGTH + 2), list(range(-(-(LENGTH + 2) // BLOCK)))
    whole = step(executor, [Slice(tokens, 0, LENGTH, blocks)], range(LENGTH))
    alone = step(executor, [Slice(tokens, LENGTH, 1, blocks)])
    beside = step(executor, [Slice(tokens, LENGTH + 1, 1, blocks), Slice(prompt(2, 40), 0, 40, [20, 21])])
    return np.concatenate([whole, alone, beside[:1]])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_that_is_turned_loses_no_more_than_int8_does(shape: str, wide: bool) -> None:
    config = widened(SHAPES[shape])
    plain = uniform_formats(config, WeightFormat("int8", wide=wide))
    plain |= {name: WeightFormat("float32") for name in ("embed", "head") if name in plain}
    turned = dict(plain)
    for spec in matrices(config):
        if spec.role in rotation.TURNED_ROLES and rotation.is_turnable(spec.k) and plain[spec.name].is_integer:
            turned[spec.name] = replace(plain[spec.name], turned=True)
    assert any(format.turned for format in turned.values())

    expected = logits(config, uniform_formats(config, WeightFormat("float32")))
    errors = [np.linalg.norm(logits(config, formats) - expected, axis=1) for formats in (plain, turned)]

    assert np.median(errors[1]) < 1.5 * np.median(errors[0])
    assert np.median(errors[1]) < 0.2 * np.median(np.linalg.norm(expected, axis=1))


@pytest.mark.parametrize(
    ("name", "matrix"),
    [("mixtral", "experts.down"), ("qwen3-moe", "experts.up"), ("gpt-oss", "experts.up"), ("gemma2", "up"),
     ("olmo3", "up"), ("gpt2", "up"), ("falcon", "down"), ("lfm2", "conv_in"), ("qwen3.5-text", "delta_in"),
     ("opt", "qkv")],
)  # fmt: skip
def test_a_checkpoint_that_is_not_calibrated_is_turned_while_it_is_loaded(
    name: str, matrix: str, tmp_path: Path
) -> None:
    """Int8 errs by some hundredths, or a tenth through a recurrence.

    Activations or weights that alone were turned would give other logits.
    """
    case = next(case for case in CASES if case.name == name)
    sizes = {"hidden_size": 192, "intermediate_size": 128, "moe_intermediate_size": 64, "n_embd": 192, "ffn_dim": 128}
    sizes |= {"word_embed_proj_dim": 192}
    known = {key: value for key, value in sizes.items() if hasattr(case.make_config(), key)}
    made_cases.make(replace(case, settings=case.settings | known), tmp_path)
    tokens = np.array(case.tokens()[:40], np.int32)

    opened = [
        open_checkpoint(tmp_path, dtype="float32", max_model_len=case.max_model_len, quantization=Asked(asked))
        for asked in ("none", "int8")
    ]
    exact, found = (TextModel(replace(one, kv_dtype="float32"), 2).logits(tokens) for one in opened)

    assert any(format.turned for own, format in opened[1].formats.items() if own.endswith(f".{matrix}"))
    assert np.median(np.linalg.norm(found - exact, axis=1)) < 0.2 * np.median(np.linalg.norm(exact, axis=1))


def test_the_shapes_have_experts_of_all_kinds() -> None:
    kinds = [layer.feed_forward for config in SHAPES.values() for layer in config.layers]
    experts = [own for own in kinds if isinstance(own, Experts)]

    assert {own.scales_input for own in experts} == {False, True}
    assert any(own.shared for own in experts)
