"""The native executor, on every tier of this CPU, against transformers (float32) and against numpy float64 (16 bits).

Greedy tokens are checked in one pass: if each token native chose has transformers' largest logit, given all tokens
before it, then greedy decoding with transformers gives the same tokens. The two best logits must be farther apart than
both arithmetics' errors together, or a seed is badly chosen and the test says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.model.cases import CASES, HALF_CASES, Case
from tests.model.made_cases import make
from tests.model.reference import Rounding, load_weights, logits, tolerance
from tests.model.run_native import Run
from transformers import PreTrainedModel

from forearm import _native

TIERS = _native.tier_names()
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # half a unit in the last place, relative
FLOAT32 = Rounding(sums=UNIT["float32"])


@dataclass(frozen=True, eq=False)
class Made:
    """A case's checkpoint on disk, and transformers' reading of it."""

    case: Case
    folder: Path
    model: PreTrainedModel

    @cache  # noqa: B019  (lives as long as the module's fixtures)
    def expected(self, tokens: tuple[int, ...]) -> tuple[np.ndarray, float]:
        """transformers' logits after every token, and how far apart two float32 arithmetics may be."""
        with torch.no_grad():
            theirs = self.model(torch.tensor([tokens])).logits[0].numpy()
        config, weights = load_weights(self.folder, dtype="float32", max_model_len=self.case.max_model_len)
        return theirs, 2 * tolerance(config, weights, list(tokens), FLOAT32)

    @cache  # noqa: B019
    def exact(self, tokens: tuple[int, ...], rounding: tuple[float, float, float]) -> tuple[np.ndarray, float]:
        """Float64 logits on the weights as stored, and how far this arithmetic may be from them."""
        exact = self.stored(tokens)
        return exact, tolerance(*load_weights(self.folder), list(tokens), Rounding(*rounding), exact)

    @cache  # noqa: B019
    def stored(self, tokens: tuple[int, ...]) -> np.ndarray:
        """Float64 logits on the weights as stored."""
        return logits(*load_weights(self.folder), list(tokens))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    found: dict[str, Made] = {}
    for case in [*CASES, *HALF_CASES]:
        folder = tmp_path_factory.mktemp(case.name)
        found[case.name] = Made(case, folder, make(case, folder))
    return found


@dataclass(frozen=True)
class Native:
    """Results of one tier, by case and KV dtype."""

    logits: dict[tuple[str, str], np.ndarray]
    chosen: dict[tuple[str, str], np.ndarray]
    forms: dict[str, str]


@pytest.fixture(scope="module", params=TIERS)
def native(request: pytest.FixtureRequest, made: dict[str, Made], tmp_path_factory: pytest.TempPathFactory) -> Native:
    keys = [(case.name, "float32") for case in CASES]
    keys += [(case.name, kv) for case in HALF_CASES for kv in ("float32", case.dtype)]
    runs = []
    for name, kv_dtype in keys:
        case = made[name].case
        runs.append(Run(str(made[name].folder), case.tokens(), case.greedy, "auto", kv_dtype, case.max_model_len))

    folder = tmp_path_factory.mktemp(request.param)
    (folder / "job.json").write_text(json.dumps([asdict(run) for run in runs]))
    environment = os.environ | {"FOREARM_TIER": request.param, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "tests.model.run_native", str(folder / "job.json"), str(folder / "out.npz")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr

    out = np.load(folder / "out.npz")
    forms = json.loads(done.stdout)
    return Native(
        {key: out[f"logits{i}"] for i, key in enumerate(keys)},
        {key: out[f"chosen{i}"] for i, key in enumerate(keys)},
        forms,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_float32_logits_and_greedy_tokens_are_those_of_transformers(
    case: Case, native: Native, made: dict[str, Made]
) -> None:
    ours, chosen = native.logits[case.name, "float32"], native.chosen[case.name, "float32"]
    tokens = (*case.tokens(), *chosen.tolist())

    theirs, allowed = made[case.name].expected(tokens)

    worst = float(np.abs(ours - theirs).max())
    assert worst <= allowed, f"{case.name}: off by {worst:.3g}, allowed {allowed:.3g}"
    assert allowed < 0.02 * np.abs(theirs).max(), "a tolerance this wide would pass anything"
    _check_greedy(theirs[case.prompt - 1 : len(tokens) - 1], chosen, allowed)


@pytest.mark.parametrize("case", HALF_CASES, ids=lambda case: case.name)
def test_16_bit_weights_give_the_logits_of_float64_sums(case: Case, native: Native, made: dict[str, Made]) -> None:
    form = 0.0 if native.forms[case.dtype] == "float32" else UNIT["bfloat16"]  # float16: as much, neon_fp16
    ours, chosen = native.logits[case.name, "float32"], native.chosen[case.name, "float32"]

    exact, allowed = made[case.name].exact((*case.tokens(), *chosen.tolist()), (UNIT["float32"], form, 0.0))

    worst = float(np.abs(ours - exact).max())
    assert worst <= allowed, f"{case.name}: off by {worst:.3g}, allowed {allowed:.3g}"
    if not form:
        _check_greedy(exact[case.prompt - 1 : -1], chosen, allowed)


@pytest.mark.parametrize("case", HALF_CASES, ids=lambda case: case.name)
def test_a_16_bit_cache_moves_logits_no_more_than_its_rounding(
    case: Case, native: Native, made: dict[str, Made]
) -> None:
    form = 0.0 if native.forms[case.dtype] == "float32" else UNIT["bfloat16"]  # float16: as much, neon_fp16
    ours, chosen = native.logits[case.name, case.dtype], native.chosen[case.name, case.dtype]

    rounding = (UNIT["float32"], form, UNIT[case.dtype])
    exact, allowed = made[case.name].exact((*case.tokens(), *chosen.tolist()), rounding)

    worst = float(np.abs(ours - exact).max())
    assert 0 < worst <= allowed, f"{case.name}: off by {worst:.3g}, allowed {allowed:.3g}"


def _check_greedy(before: np.ndarray, chosen: np.ndarray, allowed: float) -> None:
    """Each token chosen is the largest of the logits before it, and not by chance."""
    best = np.sort(before, axis=-1)[:, -2:]
    margin = float((best[:, 1] - best[:, 0]).min()) if len(best) else np.inf
    assert margin > 2 * allowed, f"choose another seed: two logits are {margin:.3g} apart, errors may be {allowed:.3g}"
    assert chosen.tolist() == before.argmax(axis=-1).tolist()


def test_every_family_has_a_case() -> None:
    from forearm.model.families.families import FAMILIES
    from forearm.model.families.own_code.families import OWN_CODE

    covered: Iterator[str] = (case.make_config().model_type for case in CASES)
    # multimodal wrappers and kimi_k2, which test_text_parts.py tests, mistral4 (inside mistral3), step3p5 (inside
    # step3p7), other text parts; a GPT-SW3 calls itself gpt2
    others = {"gemma3", "gemma3n", "glm4v_text", "kimi_k2", "mistral4", "qwen2_5_omni", "qwen3_omni_moe", "step3p5"}
    others |= {"emu3_text_model", "gpt-sw3", "mllama_text_model"}
    others |= OWN_CODE.keys()  # which transformers has no classes of: test_own_code.py
    assert set(FAMILIES) - set(covered) == others
