"""Models that pool, on every tier of this CPU, against transformers (float32) and against numpy float64 (16 bits)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.model.encoder_cases import ENCODER_CASES, ENCODER_HALF_CASES, EncoderCase, make
from tests.model.reference import Rounding
from tests.model.reference_pooled import load_pooled, pooled, pooled_tolerance
from tests.model.run_pooling import Run, pooler
from transformers import PreTrainedModel

from forearm import _native
from forearm.config.configs import engine_config
from forearm.engine.host import placement
from forearm.engine.host.memory_plan import fit
from forearm.model.checkpoint.weights import load_native

TIERS = _native.tier_names()
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
FLOAT32 = Rounding(sums=UNIT["float32"])
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")


@dataclass(frozen=True, eq=False)
class Made:
    """A case's checkpoint on disk, and transformers' reading of it."""

    case: EncoderCase
    folder: Path
    model: PreTrainedModel

    @property
    def asked(self) -> dict[str, Any] | None:
        return {"pooling_type": self.case.asked} if self.case.asked else None

    @cache  # noqa: B019  (lives as long as the module's fixtures)
    def expected(self) -> list[np.ndarray]:
        """Return transformers' result for each text: a classifier's logits, [tokens, labels] of one of tokens, or the
        pooled rows of the last layer."""
        return [self._one(ids, second) for ids, second in self.case.prompts()]

    def rows(self, ids: list[int], second: int) -> np.ndarray:
        """The last layer's rows of one text."""
        with torch.no_grad():
            rows: np.ndarray = self.model.base_model(**_inputs(ids, second)).last_hidden_state[0].numpy()
        return rows

    def _one(self, ids: list[int], second: int) -> np.ndarray:
        if hasattr(self.model, "num_labels") and self.case.model.endswith(CLASSIFIERS):
            with torch.no_grad():
                logits: np.ndarray = self.model(**_inputs(ids, second)).logits[0].numpy()
            return logits
        rows = self.rows(ids, second)
        return self._dense({"cls": rows[0], "last": rows[-1], "mean": rows.mean(axis=0)}[self.case.pool])

    def _dense(self, x: np.ndarray) -> np.ndarray:
        """Through the layers that stand in folders of their own."""
        for number in range(len(self.case.dense)):
            tensors = load_file(self.folder / f"{number + 2}_Dense" / "model.safetensors")
            x = tensors["linear.weight"] @ x + tensors.get("linear.bias", 0)
            x = x if number else np.tanh(x)
        return x

    @cache  # noqa: B019
    def exact(self, rounding: tuple[float, float, float]) -> tuple[list[np.ndarray], float]:
        """Float64 vectors of the weights as stored, and how far this arithmetic may be from them."""
        config, weights = load_pooled(self.folder, self.asked)
        exact = self.stored()
        order = sorted(zip(self.case.prompts(), exact, strict=True), key=lambda one: len(one[0][0]))
        allowed = max(
            pooled_tolerance(config, weights, prompt, self.case.pool, Rounding(*rounding), vector)
            for prompt, vector in (order[0], order[-1])
        )
        return exact, allowed

    @cache  # noqa: B019
    def stored(self) -> list[np.ndarray]:
        """Float64 vectors of the weights as stored."""
        config, weights = load_pooled(self.folder, self.asked)
        return [pooled(config, weights, ids, second, self.case.pool) for ids, second in self.case.prompts()]


def _inputs(ids: list[int], second: int) -> dict[str, torch.Tensor]:
    types = {"token_type_ids": torch.tensor([[0] * second + [1] * (len(ids) - second)])} if second else {}
    return {"input_ids": torch.tensor([ids]), **types}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    found: dict[str, Made] = {}
    for case in [*ENCODER_CASES, *ENCODER_HALF_CASES]:
        folder = tmp_path_factory.mktemp(case.name)
        found[case.name] = Made(case, folder, make(case, folder))
    return found


@dataclass(frozen=True)
class Native:
    """Results of one tier, by case."""

    arrays: dict[tuple[str, str], np.ndarray]
    forms: dict[str, str]


@pytest.fixture(scope="module", params=TIERS)
def native(request: pytest.FixtureRequest, made: dict[str, Made], tmp_path_factory: pytest.TempPathFactory) -> Native:
    runs = [Run(str(one.folder), one.case.prompts(), one.asked) for one in made.values()]
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "job.json").write_text(json.dumps([asdict(run) for run in runs]))
    environment = os.environ | {"FOREARM_TIER": request.param, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "tests.model.run_pooling", str(folder / "job.json"), str(folder / "out.npz")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    out = np.load(folder / "out.npz")
    names = list(made)
    arrays = {}
    for key in out.files:
        what = key.rstrip("0123456789")
        arrays[names[int(key.removeprefix(what))], what] = out[key]
    return Native(arrays, json.loads(done.stdout))


@pytest.mark.parametrize("case", ENCODER_CASES, ids=lambda case: case.name)
def test_float32_vectors_and_scores_are_those_of_transformers(
    case: EncoderCase, native: Native, made: dict[str, Made]
) -> None:
    theirs = np.vstack(made[case.name].expected())
    _, allowed = made[case.name].exact((UNIT["float32"], 0.0, 0.0))

    worst = float(np.abs(native.arrays[case.name, "together"] - theirs).max())

    assert worst <= 2 * allowed, f"{case.name}: off by {worst:.3g}, allowed {2 * allowed:.3g}"
    assert 2 * allowed < 0.02 * np.abs(theirs).max(), "a tolerance this wide would pass anything"


@pytest.mark.parametrize("case", ENCODER_HALF_CASES, ids=lambda case: case.name)
def test_16_bit_weights_give_the_vectors_of_float64_sums(
    case: EncoderCase, native: Native, made: dict[str, Made]
) -> None:
    form = 0.0 if native.forms[case.dtype] == "float32" else UNIT["bfloat16"]  # float16: as much, neon_fp16
    exact, allowed = made[case.name].exact((UNIT["float32"], form, UNIT[case.dtype]))

    worst = float(np.abs(native.arrays[case.name, "together"] - np.stack(exact)).max())

    assert 0 < worst <= allowed, f"{case.name}: off by {worst:.3g}, allowed {allowed:.3g}"


@pytest.mark.parametrize("case", [*ENCODER_CASES, *ENCODER_HALF_CASES], ids=lambda case: case.name)
def test_a_text_has_the_same_vector_bit_for_bit_in_any_batch_on_any_number_of_threads(
    case: EncoderCase, native: Native
) -> None:
    together, alone = native.arrays[case.name, "together"], native.arrays[case.name, "alone"]

    assert together.tobytes() == alone.tobytes()


@pytest.mark.parametrize("case", ENCODER_CASES, ids=lambda case: case.name)
def test_vectors_have_unit_length_and_scores_are_probabilities(case: EncoderCase, native: Native) -> None:
    raw, unit = (native.arrays[case.name, what].astype(np.float64) for what in ("together", "unit"))

    if not case.model.endswith(CLASSIFIERS):
        wanted = raw / np.sqrt((raw * raw).sum(axis=1, keepdims=True))
    elif raw.shape[1] == 1:
        wanted = 1 / (1 + np.exp(-raw))
    else:
        wanted = np.exp(raw - raw.max(axis=1, keepdims=True))
        wanted /= wanted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(unit, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "name", ["bert-plain", "modernbert-windows", "qwen3-embedding", "embeddinggemma", "albertmodel"]
)
def test_vectors_of_tokens_are_rows_through_the_dense_layers(name: str, native: Native, made: dict[str, Made]) -> None:
    one = made[name]
    ids, second = one.case.prompts()[1]
    _, allowed = one.exact((UNIT["float32"], 0.0, 0.0))
    wanted = np.stack([one._dense(row) for row in one.rows(ids, second)])

    worst = float(np.abs(native.arrays[name, "tokens"] - wanted).max())

    assert worst <= 2 * allowed


@pytest.mark.parametrize(("quantization", "least"), [("int8", 0.995), ("int4", 0.8)])
@pytest.mark.parametrize(
    "name",
    [
        "bert-pairs-mean", "mpnetmodel", "debertav2model", "t5-relu", "t5-gated-gelu", "camembertmodel", "electramodel",
        "albertmodel", "erniemodel", "xlmrobertaxlmodel", "robertaprelayernormmodel", "rembertmodel", "esmmodel",
        "eurobertmodel", "megatronbertmodel", "debertamodel",
    ],
)  # fmt: skip
def test_quantized_weights_turn_a_vector_by_little(
    name: str, quantization: str, least: float, made: dict[str, Made]
) -> None:
    one = made[name]
    run = Run(str(one.folder), one.case.prompts(), one.asked, quantization=quantization)

    ours = np.stack(pooler(run, 2).compute(run.prompts, "embed", True))

    theirs = np.stack(one.expected())
    cosines = (ours * theirs).sum(axis=1) / np.linalg.norm(theirs, axis=1)
    assert least < cosines.min() < 1 - 1e-6, cosines


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize(
    "name",
    [
        "bert-classifier", "deberta-long", "modernbert-windows", "qwen3-embedding", "embeddinggemma", "t5-relu",
        "electraforpretraining", "albertmodel", "rembertmodel", "esmmodel", "deberta-1-wide",
    ],
)  # fmt: skip
def test_what_is_said_to_fit_takes_no_more(name: str, quantization: str, made: dict[str, Made]) -> None:
    folder = made[name].folder
    config = engine_config(model=str(folder), runner="pooling", quantization=quantization)

    fitting = fit(config, folder, placement.memory(config), 2)
    native = load_native(
        fitting.checkpoint, step_tokens=fitting.limits.step_tokens, step_sequences=fitting.limits.running,
        step_logit_rows=fitting.limits.step_rows, cores=(), threads=2, progress=False,
    )  # fmt: skip

    assert native.scratch_bytes <= fitting.scratch_bytes < native.scratch_bytes + (2 << 20)
    assert native.packed_bytes <= fitting.checkpoint.packed_bytes
    assert native.kv_bytes_per_block == fitting.block_bytes


@pytest.mark.parametrize(
    ("settings", "kv_dtype"),
    [
        ({}, "float32"),
        ({"quantization": "int8"}, "bfloat16"),
        ({"quantization": "int8", "quantization_activations": "float"}, "float32"),
        ({"quantization": "int8", "kv_cache_dtype": "float32"}, "float32"),
    ],
)
def test_attention_is_in_bfloat16_beside_int8_activations_alone(
    settings: dict[str, Any], kv_dtype: str, made: dict[str, Made]
) -> None:
    folder = made["bert-pairs-mean"].folder
    config = engine_config(model=str(folder), runner="pooling", **settings)

    assert fit(config, folder, placement.memory(config), 2).checkpoint.kv_dtype == kv_dtype


def test_every_family_of_encoders_has_a_case(made: dict[str, Made]) -> None:
    from forearm.model.families.encoders.encoders import ENCODERS

    # Types that transformers has no classes of are in test_gguf_encoders.py and test_neobert.py.
    assert set(ENCODERS) - {"new", "nomic_bert_moe", "jina_bert_v2", "neobert"} <= {
        one.model.config.model_type for one in made.values()
    }
