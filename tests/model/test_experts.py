"""Layers with experts: their results against numpy, one expert against a dense feed-forward, and fused tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file
from tests.model import reference
from tests.model.cases import CASES, Case
from tests.model.made_cases import make
from tests.model.run_native import Run, Stepper
from tests.model.shapes import LLAMA, layers
from tests.model.test_same_tokens import Floats, Slice, prompt, run_alone, same, step

from forearm import _native
from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.shards import read_tensors
from forearm.model.families.config import Attention, Experts, FeedForward, Layer, ModelConfig
from forearm.model.families.matrices import matrices, uniform_formats

UNIT = 2.0**-24

MODELS = {
    "qwen3": Experts(40, count=12, active=3, renormalized=True),
    "qwen2": Experts(24, count=10, active=2, shared=FeedForward(72), shared_gate=True),
    "deepseek v3": Experts(
        40, count=16, active=4, score="sigmoid", correction=True, groups=4, groups_kept=2, renormalized=True,
        sum_epsilon=1e-20, scale=2.5, shared=FeedForward(40),
    ),
    "deepseek v2": Experts(40, count=16, active=3, groups=4, groups_kept=2, group_best=1, scale=3.0),
    "gpt-oss": Experts(
        56, count=8, active=4, activation="swiglu_oai", bias=True, score="softmax_chosen", router_bias=True
    ),
    "llama 4": Experts(48, count=8, active=1, score="sigmoid", scales_input=True, shared=FeedForward(88)),
    "step 3.5": Experts(
        40, count=9, active=3, score="sigmoid", correction=True, renormalized=True, scale=3.0, limit=0.2,
        gate_limit=0.3, shared=FeedForward(72, limit=0.3, gate_limit=0.45),
    ),
    "not gated": Experts(33, count=6, active=2, activation="relu", gated=False),
    "smallthinker": Experts(40, count=8, active=3, activation="relu", score="sigmoid", renormalized=True, ahead=True),
}  # fmt: skip


class Model:
    """Random float32 weights by the executor's names, and executors that hold them."""

    def __init__(self, config: ModelConfig) -> None:
        rng = np.random.default_rng(5)
        self.config = config
        self.weights: dict[str, npt.NDArray[np.float32]] = {}
        for spec in matrices(config):
            for part in spec.parts:
                rows = spec.experts * part.rows
                self.weights[part.name] = rng.normal(0, spec.k**-0.5, (rows, spec.k)).astype(np.float32)
                if spec.bias:
                    self.weights[f"{part.name}.bias"] = rng.normal(0, 0.5, rows).astype(np.float32)
        norms = ["final_norm"]
        for i, layer in enumerate(config.layers):
            norms += [f"layers.{i}.input_norm", f"layers.{i}.pre_mlp_norm"]
            if isinstance(layer.feed_forward, Experts) and layer.feed_forward.correction:
                self.weights[f"layers.{i}.correction"] = rng.normal(0, 0.2, layer.feed_forward.count).astype(np.float32)
        for name in norms:
            self.weights[name] = rng.normal(1, 0.2, config.hidden).astype(np.float32)

    def executor(self, weights: WeightFormat, threads: int = 2) -> _native.Executor:
        formats = uniform_formats(self.config, weights)
        executor = _native.Executor(
            self.config, matrices(self.config), formats, "float32", 512, 40, 40, 4096, [], threads
        )
        for name, values in self.weights.items():
            executor.load_matrix(name, values, "float32") if values.ndim == 2 else executor.load_vector(name, values)
        executor.finish_loading()
        executor.allocate_kv(40)
        return executor


@pytest.mark.parametrize("name", MODELS)
def test_the_logits_are_those_of_numpy(name: str) -> None:
    """One row, few rows and many rows take ways of their own through a layer."""
    model = Model(replace(LLAMA, layers=layers(MODELS[name])))
    weights = {key: values.astype(np.float64) for key, values in model.weights.items()}
    executor = model.executor(WeightFormat("float32"))

    for length in (1, 2, 4, 9, 120):
        tokens = prompt(length, length)
        got = run_alone(executor, tokens, [length])

        wanted = reference.logits(model.config, weights, tokens)
        near = reference.tolerance(model.config, weights, tokens, reference.Rounding(sums=UNIT), wanted)
        assert np.abs(got - wanted[-1]).max() <= near, length


def test_experts_that_are_chosen_ahead_of_the_mixer_stand_alone() -> None:
    for alone in (replace(MODELS["qwen2"], ahead=True), replace(MODELS["smallthinker"], behind=1)):
        model = Model(replace(LLAMA, layers=layers(alone)))

        with pytest.raises(ValueError, match="experts that are chosen ahead of the mixer stand alone"):
            model.executor(WeightFormat("float32"))


def test_dense_layers_and_experts_stand_in_one_model() -> None:
    mixed = (
        Layer(Attention(0), FeedForward(176)),
        Layer(Attention(0), MODELS["qwen2"]),
        Layer(Attention(0), MODELS["deepseek v3"]),
    )
    model = Model(replace(LLAMA, layers=mixed))
    weights = {key: values.astype(np.float64) for key, values in model.weights.items()}
    tokens = prompt(3, 50)

    got = run_alone(model.executor(WeightFormat("float32"), threads=3), tokens, [20, 30])

    wanted = reference.logits(model.config, weights, tokens)
    near = reference.tolerance(model.config, weights, tokens, reference.Rounding(sums=UNIT), wanted)
    assert np.abs(got - wanted[-1]).max() <= near


@pytest.mark.parametrize(("rows", "most"), [(1, 6), (2, 7), (4, 7), (5, 8), (120, 8)])
def test_a_layer_has_few_barriers(rows: int, most: int) -> None:
    """A single row is not copied by expert, and up to four are routed by each thread for itself."""
    model = Model(replace(LLAMA, layers=layers(MODELS["qwen2"])))
    executor = model.executor(WeightFormat("int8"), threads=3)
    before = executor.barriers

    step(
        executor,
        [Slice(prompt(i, 1), 0, 1, [i]) for i in range(rows)]
        if rows < 40
        else [Slice(prompt(1, rows), 0, rows, [*range(4)])],
        [],
    )

    # The last layer computes only rows with logits; none are asked for here. One more barrier follows the embedding.
    assert executor.barriers - before == most + 3 + 1


FORMATS = [
    WeightFormat("float32"),
    WeightFormat("float16"),
    WeightFormat("bfloat16"),
    WeightFormat("int8"),
    WeightFormat("int8", 32, "bfloat16", wide=True),
    WeightFormat("int8", 32, zero="int8"),
    WeightFormat("int4", 16, "float16"),
    WeightFormat("int4", 32, wide=True),
    WeightFormat("int4", 48, "bfloat16", zero="int8"),
    WeightFormat("int4", 32, zero="float16"),
    WeightFormat("int4", 32, zero="float16", wide=True),
    WeightFormat("int4", 32, ordered=True),
    WeightFormat("fp8_e4m3"),
    WeightFormat("fp8_e5m2", 48),
]


class CodedModel:
    """A model whose only expert that is chosen, number 3 of 5, may also be its dense feed-forward."""

    COUNT, CHOSEN, WIDTH = 5, 3, 56

    def __init__(self, format: WeightFormat) -> None:
        self.format = format
        self.dense = replace(LLAMA, layers=layers(FeedForward(self.WIDTH)))
        one = Experts(self.WIDTH, count=self.COUNT, active=1, score="softmax_chosen", router_bias=True)
        self.experts = replace(LLAMA, layers=layers(one))

    def logits(self, config: ModelConfig, tokens: list[int], chunks: list[int]) -> Floats:
        formats = {
            spec.name: self.format if spec.role.startswith("feed_forward") else WeightFormat("float32")
            for spec in matrices(config)
        }
        executor = _native.Executor(config, matrices(config), formats, "float32", 512, 40, 40, 4096, [], 2)
        for spec in matrices(config):
            for part in spec.parts:
                self.load(executor, part.name, part.rows, spec.k, spec.experts)
            if spec.role == "router":
                bias = np.full(self.COUNT, -100, np.float32)
                bias[self.CHOSEN] = 100
                executor.load_vector(f"{spec.name}.bias", bias)
        names = ("input_norm", "pre_mlp_norm")
        for name in ("final_norm", *(f"layers.{i}.{n}" for i in range(len(config.layers)) for n in names)):
            executor.load_vector(name, np.ones(config.hidden, np.float32))
        executor.finish_loading()
        executor.allocate_kv(40)
        return run_alone(executor, tokens, chunks)

    def load(self, executor: _native.Executor, name: str, rows: int, k: int, experts: int) -> None:
        dense_name = name.replace("experts.", "")
        for expert in range(experts):
            seed = [*dense_name.encode(), expert if experts > 1 else self.CHOSEN]
            rng, row = np.random.default_rng(seed), expert * rows
            coded = self.format.zero != "none" or self.format.ordered
            if not coded or dense_name.endswith((".q", ".k", ".v", ".o", "embed", "head", "router")):
                values = rng.normal(0, k**-0.5, (rows, k)).astype(np.float32)
                executor.load_matrix(name, values, "float32", row)
                continue
            groups = -(-k // self.format.group)
            largest = 7 if self.format.dtype == "int4" else 127
            codes = rng.integers(-largest, largest, (rows, k), dtype=np.int8)
            scales = (rng.integers(1, 9, (rows, groups)) / (8 * largest * k**0.5)).astype(np.float16).astype(np.float32)
            scales = (scales.view(np.uint32) & 0xFFFF0000).view(np.float32)  # also a bfloat16
            zeros = rng.integers(-5, 5, (rows, groups), dtype=np.int8) if self.format.zero == "int8" else None
            offsets = rng.normal(0, 0.05, (rows, groups)).astype(np.float16) if self.format.zero == "float16" else None
            mixed = np.random.default_rng([k, seed[-1]]).permutation(k).astype(np.int32)
            offsets = None if offsets is None else offsets.astype(np.float32)
            executor.load_codes(name, codes, scales, zeros, offsets, mixed if self.format.ordered else None, row)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_single_expert_gives_the_bits_of_a_dense_feed_forward(format: WeightFormat) -> None:
    """Hold for every format that a weight of 1 changes nothing, and that other experts' weights are not read."""
    model, tokens = CodedModel(format), prompt(1, 70)

    dense = model.logits(model.dense, tokens, [70])

    for chunks in ([70], [66, 1, 3]):
        assert same(model.logits(model.experts, tokens, chunks), dense), chunks


SPARSE = [case for case in CASES if "moe" in case.config.lower() or case.config in ("MixtralConfig", "Qwen4ExpConfig")]
SPARSE = [case for case in SPARSE if case.settings.get("num_local_experts") != 0]


@pytest.mark.parametrize("case", SPARSE, ids=lambda case: case.name)
def test_fused_tensors_give_the_bits_of_one_tensor_an_expert(case: Case, tmp_path: Path) -> None:
    """transformers 5 may keep all experts of a layer in two tensors, as it computes with them."""
    single, fused = tmp_path / "single", tmp_path / "fused"
    make(case, single).save_pretrained(fused, save_original_format=False)
    names = read_tensors(fused).keys()
    assert any(name.endswith("experts.gate_up_proj") for name in names)
    assert not any(".experts.0." in name for name in names)

    for quantization in ("none", "int8", "int4"):
        wanted, got = (Stepper(Run(str(at), [], 45, quantization=quantization)) for at in (single, fused))

        assert same(got.step(case.tokens()[:33]), wanted.step(case.tokens()[:33])), quantization


def test_llama_4_reads_one_tensor_an_expert_as_quantized_checkpoints_have_them(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "llama4-text")
    fused, single = tmp_path / "fused", tmp_path / "single"
    make(case, fused)
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for name, values in load_file(fused / "model.safetensors").items():
        module, _, end = name.rpartition(".")
        for expert, columns in enumerate(values if module.endswith(".experts") else ()):
            parts = ["down_proj"] if end == "down_proj" else ["gate_proj", "up_proj"]
            for part, own in zip(parts, np.split(columns, len(parts), axis=1), strict=True):
                tensors[f"{module}.{expert}.{part}.weight"] = np.ascontiguousarray(own.T)
        if not module.endswith(".experts"):
            tensors[name] = values
    copytree(fused, single)
    save_file(tensors, single / "model.safetensors", {"format": "pt"})

    for quantization in ("none", "int8"):
        wanted, got = (Stepper(Run(str(at), [], 45, quantization=quantization)) for at in (fused, single))

        assert same(got.step(case.tokens()[:33]), wanted.step(case.tokens()[:33])), quantization


def test_step_3_5_alone_reads_one_tensor_an_expert_and_leaves_layers_that_predict(tmp_path: Path) -> None:
    """Quantized checkpoints have a tensor an expert; transformers has no class for the text model alone."""
    case = next(case for case in CASES if case.name == "step3p7")
    inside, alone = tmp_path / "inside", tmp_path / "alone"
    make(case, inside)
    stored = load_file(inside / "model.safetensors")
    tensors = {name: values for name, values in stored.items() if name.startswith(("model.", "lm_head."))}
    for name in [name for name in tensors if ".moe." in name and "_proj." in name]:
        of_layer, part = name.split(".moe.")
        parts = enumerate(tensors.pop(name))
        tensors |= {f"{of_layer}.moe.experts.{i}.{part}": np.ascontiguousarray(one) for i, one in parts}
    for name in ("input_layernorm", "enorm", "transformer.shared_head.norm"):
        tensors[f"model.layers.5.{name}.weight"] = np.ones(72, np.float32)
    alone.mkdir()
    save_file(tensors, alone / "model.safetensors", {"format": "pt"})
    text = json.loads((inside / "config.json").read_text())["text_config"]
    (alone / "config.json").write_text(json.dumps(text | {"architectures": ["Step3p5ForCausalLM"]}))

    wanted, got = (Stepper(Run(str(at), [], 45)) for at in (inside, alone))

    assert same(got.step(case.tokens()[:33]), wanted.step(case.tokens()[:33]))


def test_qwen3_vl_reads_experts_whose_columns_are_stored_as_on_the_hub(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "qwen3_vl_moe")
    rows, columns = tmp_path / "rows", tmp_path / "columns"
    make(case, rows)
    tensors = load_file(rows / "model.safetensors")
    turned = {name: np.ascontiguousarray(x.swapaxes(1, 2)) for name, x in tensors.items() if ".experts." in name}
    copytree(rows, columns)
    save_file(tensors | turned, columns / "model.safetensors", {"format": "pt"})

    for quantization in ("none", "int8"):
        wanted, got = (Stepper(Run(str(at), [], 45, quantization=quantization)) for at in (rows, columns))

        assert same(got.step(case.tokens()[:33]), wanted.step(case.tokens()[:33])), quantization


def test_fused_tensors_of_another_shape_are_refused(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "olmoe")
    make(case, tmp_path).save_pretrained(tmp_path, save_original_format=False)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 100', '"intermediate_size": 50'))

    with pytest.raises(ConfigError, match=r"experts\.\S+ has shape \[8, .*; config\.json makes it \["):
        open_checkpoint(tmp_path)
