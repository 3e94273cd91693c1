"""Quantized checkpoints on the native executor, on every tier, against transformers with the dequantized weights.

Where activations keep their bits, greedy tokens are transformers' own. Where they are rounded to int8, the logits are
those of numpy with the same rounding (but for a code here and there that falls to the other side of a half), and no
farther from transformers' than such roundings move them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.cases import CASES, Case
from tests.model.made_cases import make
from tests.model.reference import Rounding, load_weights, logits, tolerance
from tests.model.run_native import Run
from tests.model.stored_codes import FORMATS, Format
from transformers import AutoModelForCausalLM

from forearm import _native
from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.quantization.codes import CodedMatrix
from forearm.model.quantization.quantization import Asked

TIERS = _native.tier_names()
SUMS, BFLOAT16, BITS_16 = 2.0**-24, 2.0**-8, 2.0**-16
WIDEST = 256  # values of the longest row
LLAMA = Case("llama", "LlamaConfig", {
    "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
}, greedy=20)  # fmt: skip


@dataclass(frozen=True)
class Served:
    """One checkpoint, and how it is served."""

    case: Case
    format: Format
    activations: str = "auto"

    @property
    def name(self) -> str:
        """Return a name for test ids."""
        return f"{self.case.name}-{self.format.name}{'' if self.activations == 'auto' else '-' + self.activations}"


def family(name: str, **more: int) -> Case:
    """Return the case of that name with sizes that all formats support."""
    (case,) = (case for case in CASES if case.name == name)
    return replace(case, settings={**case.settings, **LLAMA.settings, **more}, greedy=20)


BY_NAME = {format.name: format for format in FORMATS}
GPTQ, AWQ, W8A8, W4A16 = "gptq-4bit-g32-sym-v1-actorder", "awq-g32", "ct-w8a8-int-channel", "ct-w4a16-packed-g32-asym"
SERVED = [Served(LLAMA, format) for format in FORMATS if not format.name.endswith("online")]
SERVED += [Served(LLAMA, BY_NAME[name], "float") for name in (GPTQ, AWQ, "mxfp4")]
SERVED += [Served(LLAMA, BY_NAME[name], "int8") for name in (W4A16, "ct-mxfp4")]
# Cases that take other branches of the loader: biases, fused tensors, tied heads, norms elsewhere, no gate.
SERVED += [
    Served(family("qwen2"), BY_NAME[AWQ]),
    Served(family("qwen3"), BY_NAME[GPTQ]),
    Served(family("phi3"), BY_NAME[GPTQ]),
    Served(family("phi3"), BY_NAME["fp8-block"]),
    Served(family("gemma2"), BY_NAME[W8A8]),
    Served(family("olmo2"), BY_NAME[W4A16]),
    Served(family("granite"), BY_NAME[AWQ]),
    Served(family("opt", ffn_dim=256, word_embed_proj_dim=128), BY_NAME[W8A8]),
]
# BitNet's own norms keep activations of ternary weights even: one code on the other side of a half moves little.
BITNET = [f"bitnet-{kind}" for kind in ("bitlinear", "autobitlinear", "autobitlinear-online")]
SERVED += [Served(family("bitnet"), BY_NAME[name]) for name in BITNET]
SERVED += [Served(family("bitnet"), BY_NAME["bitnet-autobitlinear"], "float")]
# Latent attention, whose matrices of heads are dequantized, half of them transposed.
LATENT = family(
    "minicpm3", num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16
)
SERVED += [Served(LATENT, BY_NAME[name]) for name in (GPTQ, W8A8, W4A16, "fp8-block")]


def quantize(plain: Path, format: Format, folder: Path, own: Callable[[str], Format] | None = None) -> None:
    """Write the checkpoint in `plain` quantized in folder/stored, and with the numbers it then has in folder/floats.

    own: the function that returns a module's own format; None: all have `format`.
    """
    config = json.loads((plain / "config.json").read_text())
    stored, floats = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if tensor.dim() != 2 or any(skip in name for skip in (*format.skip, "embed_positions")):
            stored[name] = floats[name] = tensor
            continue
        of_module = own(module) if own else format
        encoded = of_module.encode(tensor.double().numpy())
        stored |= {f"{module}.{end}": part for end, part in encoded.items()}
        shape = (tensor.shape[0], tensor.shape[1])
        floats[name] = torch.from_numpy(of_module.decode(encoded, shape)).float().contiguous()
    for kind, tensors, more in (("stored", stored, {"quantization_config": format.settings}), ("floats", floats, {})):
        shutil.copytree(plain, folder / kind)
        save_file(tensors, folder / kind / "model.safetensors", {"format": "pt"})
        (folder / kind / "config.json").write_text(json.dumps(config | more))


@dataclass(frozen=True, eq=False)
class Made:
    """A quantized checkpoint, and the same numbers as floats."""

    folder: Path

    @cache  # noqa: B019  (lives as long as the module's fixtures)
    def theirs(self, tokens: tuple[int, ...]) -> np.ndarray:
        """transformers' logits after every token, with the dequantized weights."""
        model = AutoModelForCausalLM.from_pretrained(
            self.folder / "floats", attn_implementation="eager", dtype=torch.float32
        )
        with torch.no_grad():
            logits: np.ndarray = model.eval()(torch.tensor([tokens])).logits[0].numpy()
        return logits

    @cache  # noqa: B019
    def allowed(self, tokens: tuple[int, ...], operands: float = 0.0, int8: bool = False, group: int = 0) -> float:
        """Return the largest allowed distance from them for these roundings and float32 sums (see Rounding)."""
        config, weights = load_weights(self.folder / "floats", dtype="float32")
        exact = logits(config, weights, list(tokens))
        theirs = tolerance(config, weights, list(tokens), Rounding(sums=SUMS), exact)
        rounding = Rounding(sums=SUMS, operands=operands, int8="noise" if int8 else "", group=group)
        return theirs + tolerance(config, weights, list(tokens), rounding, exact)

    @cache  # noqa: B019
    def in_codes(self, tokens: tuple[int, ...], group: int) -> np.ndarray:
        """numpy's logits with activations in int8 codes."""
        config, weights = load_weights(self.folder / "floats", dtype="float32")
        matrices = [stored for _, stored in open_checkpoint(self.folder / "stored").sources]
        coded = [matrix for matrix in matrices if isinstance(matrix, CodedMatrix)]
        orders = {matrix.shape[1]: matrix.order for matrix in coded if matrix.order is not None}
        return logits(config, weights, list(tokens), Rounding(int8="codes", group=group, orders=orders))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    plain: dict[str, Path] = {}
    found: dict[str, Made] = {}
    for served in SERVED:
        if served.case.name not in plain:
            plain[served.case.name] = tmp_path_factory.mktemp(served.case.name)
            make(served.case, plain[served.case.name])
        key = f"{served.case.name}-{served.format.name}"
        if key not in found:
            found[key] = Made(tmp_path_factory.mktemp(key))
            quantize(plain[served.case.name], served.format, found[key].folder)
    return found


@dataclass(frozen=True)
class Native:
    """Results of one tier, by served.name."""

    logits: dict[str, np.ndarray]
    chosen: dict[str, np.ndarray]
    forms: dict[str, str]


@pytest.fixture(scope="module", params=TIERS)
def native(request: pytest.FixtureRequest, made: dict[str, Made], tmp_path_factory: pytest.TempPathFactory) -> Native:
    runs = [
        Run(
            str(made[f"{s.case.name}-{s.format.name}"].folder / "stored"), s.case.tokens(), s.case.greedy,
            "float32", "float32", activations=s.activations,
        )
        for s in SERVED
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "job.json").write_text(json.dumps([asdict(run) for run in runs]))
    environment = os.environ | {"FOREARM_TIER": request.param, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "tests.model.run_native", str(folder / "job.json"), str(folder / "out.npz")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr

    out = np.load(folder / "out.npz")
    return Native(
        {s.name: out[f"logits{i}"] for i, s in enumerate(SERVED)},
        {s.name: out[f"chosen{i}"] for i, s in enumerate(SERVED)},
        json.loads(done.stdout),
    )


def kept(made: Made, served: Served) -> WeightFormat:
    """Return the format of all matrices but embedding and head, with the most activations that share a scale."""
    formats = open_checkpoint(made.folder / "stored", quantization=Asked(activations=served.activations)).formats
    of_layers = [format for name, format in formats.items() if name.startswith("layers.") and format.is_quantized]
    assert len({format.wide for format in of_layers}) == 1
    return max(of_layers, key=lambda format: format.group)


@pytest.mark.parametrize("served", SERVED, ids=lambda served: served.name)
def test_logits_are_those_of_the_dequantized_weights(served: Served, native: Native, made: dict[str, Made]) -> None:
    this = made[f"{served.case.name}-{served.format.name}"]
    ours, chosen = native.logits[served.name], native.chosen[served.name]
    tokens = (*served.case.tokens(), *chosen.tolist())
    format = kept(this, served)
    group, wide = format.group, format.wide
    theirs = this.theirs(tokens)
    worst = float(np.abs(ours - theirs).max())

    if wide and (format.is_integer or native.forms["fp8_e4m3"] == "float32"):
        # The largest of n values is at most sqrt(n) times their root mean square.
        allowed = this.allowed(tokens, operands=BITS_16 * (group or WIDEST) ** 0.5 if format.is_integer else 0.0)
        assert worst <= allowed < 0.02 * np.abs(theirs).max(), f"off by {worst:.3g}, allowed {allowed:.3g}"
        before = theirs[served.case.prompt - 1 : -1]
        best = np.sort(before, axis=-1)[:, -2:]
        clear = best[:, 1] - best[:, 0] > 2 * allowed  # a smaller margin: either token is right
        assert clear.mean() > 0.8
        assert chosen[clear].tolist() == before.argmax(axis=-1)[clear].tolist()
    elif wide:  # weights and activations are rounded to bfloat16
        allowed = this.allowed(tokens, operands=2**0.5 * BFLOAT16)
        assert worst <= allowed < 0.2 * np.abs(theirs).max(), f"off by {worst:.3g}, allowed {allowed:.3g}"
    else:
        allowed = this.allowed(tokens, int8=True, group=group)
        assert 0 < worst <= allowed < 0.3 * np.abs(theirs).max(), f"off by {worst:.3g}, allowed {allowed:.3g}"
        same = np.abs(ours - this.in_codes(tokens, group))
        assert np.median(same) < allowed / 100, (
            f"off by {np.median(same):.3g} in the middle, allowed {allowed / 100:.3g}"
        )
