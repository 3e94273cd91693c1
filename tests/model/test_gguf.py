"""Models in .gguf files against transformers: every architecture's config and names in float64, every type natively."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.ggml import write_gguf
from tests.model.cases import CASES, Case
from tests.model.gguf_models import write_model
from tests.model.made_cases import make
from tests.model.reference import Rounding, load_weights, logits, tolerance
from tests.model.run_native import Run
from transformers import PreTrainedModel

from forearm import LLM, SamplingParams, _native
from forearm.api.services import load_services
from forearm.config.api_config import ApiConfig
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.model.gguf.gguf_codes import BLOCK_TYPES

_BY_NAME = {case.name: case for case in CASES}
_BIASED = replace(_BY_NAME["llama-gqa"], name="llama-biases", settings={"attention_bias": True, "mlp_bias": True})
_QWEN3_MOE = replace(  # llama.cpp's files of this family have experts in every layer
    _BY_NAME["qwen3-moe"], settings=_BY_NAME["qwen3-moe"].settings | {"mlp_only_layers": [], "decoder_sparse_step": 1}
)
_ALL_EXPERTS = replace(  # all experts are active, so that rounding cannot change the routing
    _BY_NAME["mixtral"], name="mixtral-all", settings={"num_local_experts": 3, "num_experts_per_tok": 3}
)
_GPT_OSS_ALL = replace(
    _BY_NAME["gpt-oss"], name="gpt-oss-all",
    settings=_BY_NAME["gpt-oss"].settings | {"num_local_experts": 3, "num_experts_per_tok": 3},
)  # fmt: skip
_LFM2 = replace(_BY_NAME["lfm2"], settings=_BY_NAME["lfm2"].settings | {"block_auto_adjust_ff_dim": False})
ARCHITECTURES: list[Case] = [
    _BIASED,
    _LFM2,
    _QWEN3_MOE,
    *(
        _BY_NAME[name]
        for name in (
            "llama-gqa", "llama-sharded-mqa-tied", "llama-head-96", "llama-rope-linear", "llama-rope-llama3",
            "llama-rope-yarn", "mistral-window", "mistral-nemo", "qwen2", "qwen2-yarn", "qwen3", "phi3",
            "phi3-window-tied", "phi3-partial", "phi3-longrope-short", "phi3-longrope-long", "gemma2", "gemma3",
            "gemma3-mqa", "olmo2", "smollm3", "granite", "ernie-interleaved", "mixtral", "qwen2-moe", "olmoe",
            "gpt-oss",
        )
    ),
]  # fmt: skip


def expected(model: torch.nn.Module, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.tensor([tokens])).logits[0].numpy())


@pytest.mark.parametrize("case", ARCHITECTURES, ids=lambda case: case.name)
def test_a_float32_file_computes_what_the_model_does(case: Case, tmp_path: Path) -> None:
    model = make(case, tmp_path)
    path = write_model(model, tmp_path / "model.gguf")

    config, weights = load_weights(path, dtype="float32", max_model_len=case.max_model_len)
    ours = logits(config, weights, case.tokens())

    theirs = expected(model, case.tokens())
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * float(np.abs(theirs).max()), rtol=0)
    assert config.eos_token_ids == (2, 3)


# --- natively, on every tier ---

_WIDE = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "query_pre_attn_scalar": 64, "num_hidden_layers": 2,
}  # fmt: skip
# As llama.cpp's Q4_K_M: more bits for v, down and the head.
_Q4_K_M = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "output": "Q6_K", "attn_qkv": "Q5_K"}


@dataclass(frozen=True)
class Typed:
    """A model whose matrices are of these types: `others` by the name in the file, `most` otherwise."""

    family: str
    most: str
    others: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return a name for test ids."""
        return f"{self.family}-{self.most}{'-mixed' if self.others else ''}"

    @property
    def case(self) -> Case:
        """Sizes that are multiples of a block of 256."""
        case = {**_BY_NAME, _BIASED.name: _BIASED, _ALL_EXPERTS.name: _ALL_EXPERTS, _GPT_OSS_ALL.name: _GPT_OSS_ALL}[
            self.family
        ]
        return replace(case, settings={**case.settings, **_WIDE}, prompt=20, greedy=4)

    def type_of(self, name: str) -> str:
        """Return the type of a matrix, by its name in the file."""
        return self.others.get(name.split(".")[-2], self.most)


TYPED = [
    Typed("llama-gqa", "Q4_K", {
        "attn_v": "Q6_K", "attn_output": "Q4_0", "ffn_gate": "Q5_K", "ffn_up": "Q3_K", "ffn_down": "Q2_K",
        "token_embd": "Q8_0", "output": "Q6_K",
    }),
    Typed("qwen2", "Q5_0", {
        "attn_k": "Q8_0", "attn_v": "Q5_1", "attn_output": "IQ4_NL", "ffn_gate": "IQ4_XS", "ffn_up": "MXFP4",
        "ffn_down": "Q4_1", "token_embd": "F16", "output": "BF16",
    }),
    Typed("llama-biases", "Q8_0"),
    Typed("llama-gqa", "IQ2_XXS", {
        "attn_k": "IQ2_S", "attn_v": "IQ3_S", "attn_output": "IQ1_M", "ffn_gate": "IQ2_XS", "ffn_up": "TQ1_0",
        "ffn_down": "IQ3_XXS", "token_embd": "TQ2_0", "output": "IQ1_S",
    }),
    Typed("qwen3", "NVFP4", {"attn_q": "Q1_0", "ffn_down": "Q1_0", "token_embd": "Q1_0", "output": "NVFP4"}),
    Typed("gpt-oss-all", "Q8_0", {"ffn_gate_exps": "MXFP4", "ffn_up_exps": "MXFP4", "ffn_down_exps": "MXFP4",
                                  "ffn_gate_inp": "F32"}),
    Typed("mixtral-all", "Q4_K", {"ffn_down_exps": "Q6_K", "ffn_gate_exps": "Q5_0", "ffn_gate_inp": "F32"}),
    *(Typed(family, "Q4_K", _Q4_K_M) for family in ("qwen3", "phi3", "gemma2", "gemma3-mqa", "olmo2")),
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Made:
    """The file, and the same numbers in float32."""

    path: Path
    floats: Path
    model: PreTrainedModel

    @cache  # noqa: B019  (lives as long as the module's fixtures)
    def theirs(self, tokens: tuple[int, ...]) -> tuple[np.ndarray, float]:
        """transformers' logits, and how far from them float32 sums of activations of 16 bits may be.

        A step of 2^-15 of a group's largest value errs by at most 2^-16 of it, which is at most 16 times the root mean
        square of 256 values.
        """
        config, weights = load_weights(self.floats, dtype="float32")
        floats = Rounding(sums=2.0**-24)
        exact = logits(config, weights, list(tokens))
        allowed = tolerance(config, weights, list(tokens), floats, exact)
        more = tolerance(config, weights, list(tokens), replace(floats, operands=2.0**-12), exact)
        return expected(self.model, list(tokens)), allowed + more


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    found = {}
    for typed in TYPED:
        folder = tmp_path_factory.mktemp(typed.name)
        model = make(typed.case, folder)
        path = write_model(model, folder / "typed.gguf", typed.type_of)
        found[typed.name] = Made(path, write_model(model, folder / "floats.gguf"), model)
    return found


@pytest.fixture(scope="module", params=_native.tier_names())
def computed(
    request: pytest.FixtureRequest, made: dict[str, Made], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], np.ndarray]:
    """One tier's logits by name and activations."""
    keys = [(typed, activations) for typed in TYPED for activations in ("float", "int8")]
    runs = []
    for typed, activations in keys:
        case = typed.case
        runs.append(
            Run(str(made[typed.name].path), case.tokens(), case.greedy, "float32", "float32", activations=activations)
        )
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "job.json").write_text(json.dumps([asdict(run) for run in runs]))
    environment = os.environ | {"FOREARM_TIER": request.param, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "tests.model.run_native", str(folder / "job.json"), str(folder / "out.npz")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    out = np.load(folder / "out.npz")
    found = {}
    for i, (typed, activations) in enumerate(keys):
        found[typed.name, activations] = out[f"logits{i}"]
        found[typed.name, f"{activations} chosen"] = out[f"chosen{i}"]
    return found


@pytest.mark.parametrize("typed", TYPED, ids=lambda typed: typed.name)
def test_a_file_of_any_type_computes_what_its_numbers_do_in_transformers(
    typed: Typed, computed: dict[tuple[str, str], np.ndarray], made: dict[str, Made]
) -> None:
    tokens = (*typed.case.tokens(), *computed[typed.name, "float chosen"].tolist())

    theirs, allowed = made[typed.name].theirs(tokens)

    worst = float(np.abs(computed[typed.name, "float"] - theirs).max())
    assert worst <= allowed < 0.02 * np.abs(theirs).max(), f"off by {worst:.3g}, allowed {allowed:.3g}"


@pytest.mark.parametrize("typed", TYPED, ids=lambda typed: typed.name)
def test_int8_activations_cost_what_eight_bits_cost(typed: Typed, computed: dict[tuple[str, str], np.ndarray]) -> None:
    exact, rounded = (computed[typed.name, activations][: typed.case.prompt] for activations in ("float", "int8"))

    error = float(np.linalg.norm(rounded - exact) / np.linalg.norm(exact))

    assert error <= 0.06
    assert error > 0


def test_every_type_is_in_one_of_these_files() -> None:
    used = {typed.most for typed in TYPED} | {kind for typed in TYPED for kind in typed.others.values()}

    assert used >= set(BLOCK_TYPES)


def test_the_demo_model_as_a_gguf_file_answers_like_itself(tmp_path: Path) -> None:
    write_gguf(DEMO_MODEL, tmp_path / "demo.gguf", "Q4_K")

    llm = LLM(tmp_path, max_model_len=256, max_num_seqs=1, threads=1)  # the folder, which has one .gguf file
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (answer,) = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=20), use_tqdm=False)

    assert answer.outputs[0].text == "The capital of France is Paris."
    assert answer.outputs[0].finish_reason == "stop"
    services = load_services(ApiConfig(model_folder=str(tmp_path / "demo.gguf")))  # the part that an API worker reads
    assert services.prompts.tokenizer.encode("Paris") == llm.get_tokenizer().encode("Paris", add_special_tokens=False)
