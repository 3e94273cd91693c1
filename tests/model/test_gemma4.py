"""Gemma 4 E2B's embeddings of each layer and 26B-A4B's experts: rounded at load, and what of them a step reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.model.cases import CASES
from tests.model.made_cases import make
from tests.model.reference import Array, Rounding, load_weights, logits
from tests.model.run_native import Run, compute

from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.formats import spec_bytes
from forearm.model.families.matrices import matrices
from forearm.model.quantization.quantization import Asked
from forearm.plan.work import by_format, work_of

BY_NAME = {case.name: case for case in CASES if case.name in ("gemma4-per-layer", "gemma4-experts")}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in BY_NAME}
    for name, case in BY_NAME.items():
        make(case, folders[name])
    return folders


def moved(checkpoint: Checkpoint, weights: dict[str, Array], seed: int) -> dict[str, Array]:
    """The weights with random errors of half a step of their format at most: of int8 and int4 the largest of a group
    over 127 and 7, of fp8_e4m3 an eighth of the weight."""
    rng, found = np.random.default_rng(seed), dict(weights)
    for spec in matrices(checkpoint.config):
        format = checkpoint.formats[spec.name]
        # A head that is made of the embedding has the errors of the embedding's.
        for part in spec.parts if format.is_quantized and spec.parts[0].name in weights else ():
            w = weights[part.name]
            steps = np.abs(w) / 8
            group = format.group or spec.k
            for first in range(0, spec.k if format.is_integer else 0, group):
                own = np.abs(w[:, first : first + group]).max(axis=1, keepdims=True)
                steps[:, first : first + group] = own / (127 if format.dtype == "int8" else 7)
            found[part.name] = w + steps * rng.uniform(-0.5, 0.5, w.shape)
    return found


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_weights_rounded_at_load_move_the_logits_no_more_than_their_steps(
    quantization: str, name: str, stored: dict[str, Path]
) -> None:
    """Twice the farthest of three random experiments, as `tolerance` has it; int8 activations move with them."""
    tokens = BY_NAME[name].tokens()
    checkpoint = open_checkpoint(stored[name], dtype="float32", quantization=Asked(quantization))
    config, weights = load_weights(stored[name], dtype="float32")

    found, _ = compute(Run(str(stored[name]), tokens, 0, "float32", "float32", quantization=quantization))

    exact = logits(config, weights, tokens)
    noisy = (
        logits(config, moved(checkpoint, weights, seed), tokens, Rounding(int8="noise", int8_head=True, seed=seed))
        for seed in range(3)
    )
    allowed = 2 * max(float(np.abs(one - exact).max()) for one in noisy)
    assert 0 < np.abs(found - exact).max() <= allowed
    if quantization == "int8":
        assert allowed < np.abs(exact).max(), "a tolerance this wide would pass anything"


def test_the_table_of_an_embedding_of_each_layer_is_held_but_not_read(stored: dict[str, Path]) -> None:
    checkpoint = open_checkpoint(stored["gemma4-per-layer"], quantization=Asked("int8"))
    specs = {spec.name: spec for spec in matrices(checkpoint.config)}
    sizes = {name: spec_bytes(spec, checkpoint.formats[name]) for name, spec in specs.items()}

    held = by_format(checkpoint)
    read = work_of(checkpoint).read_bytes(1, 1)

    assert checkpoint.formats["embed_per_layer"].dtype == "int8"
    assert specs["embed_per_layer"].k == 7 * 20
    assert sum(held.values()) - held["vectors"] == sum(sizes.values())
    assert read == sum(sizes.values()) - sizes["embed_per_layer"]
