"""Quantized checkpoints with experts, a module an expert as quantizers write them, against the dequantized weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.cases import CASES
from tests.model.made_cases import make
from tests.model.reference import Rounding, load_weights, logits
from tests.model.run_native import Run, Stepper, compute
from tests.model.stored_codes import FORMATS, Format, gptq
from tests.model.test_quantized import BFLOAT16, BITS_16, BY_NAME, SUMS, WIDEST, Made, quantize

from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.quantization.quantization import Asked

ROUTERS = (".mlp.gate.", ".block_sparse_moe.gate.")
SIZES = {"hidden_size": 256, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS = {
    case.name: replace(case, settings=case.settings | SIZES | {"moe_intermediate_size": 64}, greedy=20)
    for case in CASES
    if case.name in ("mixtral", "qwen3-moe")
}
NAMES = [
    "gptq-4bit-g32-sym-v1", "gptq-4bit-g64-v2-actorder", "gptq-8bit-g64-sym-v1", "awq-g32", "ct-w8a8-int-channel",
    "ct-w4a16-packed-g32-asym", "ct-w4a16-packed-g64-actorder", "fp8-block", "ct-fp8-channel", "mxfp4", "ct-mxfp4",
]  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a model's name and its checkpoint of floats."""
    folder = tmp_path_factory.mktemp(request.param)
    make(MODELS[request.param], folder)
    return request.param, folder


def check(name: str, folder: Path) -> None:
    """Assert that a quantized checkpoint's logits and tokens are those of its dequantized weights."""
    formats = {asked: format_of_experts(folder / "stored", asked) for asked in ("float", "auto")}
    assert all(format.is_quantized for format in formats.values())
    config, weights = load_weights(folder / "floats", dtype="float32")
    made, case = Made(folder), MODELS[name]
    for asked, format in formats.items():
        if asked == "auto" and format == formats["float"]:
            continue
        stored = str(folder / "stored")
        ours, chosen = compute(Run(stored, case.tokens(), case.greedy, "float32", "float32", activations=asked))
        tokens = [*case.tokens(), *chosen.tolist()]
        theirs = made.theirs(tuple(tokens))
        errors = np.abs(ours - theirs)
        if format.is_integer and format.wide:
            assert errors.max() < 0.01 * theirs.std(), f"off by {errors.max():.3g}"
            assert chosen.tolist() == theirs[case.prompt - 1 : -1].argmax(axis=-1).tolist()
        # The middle error: roundings choose another expert for a few tokens, in the experiment as in the executor.
        noise = np.abs(logits(config, weights, tokens, rounding_of(format)) - logits(config, weights, tokens))
        assert 0 < np.median(errors) <= 1.5 * np.median(noise) < 0.1 * theirs.std(), asked


def format_of_experts(folder: Path, activations: str) -> WeightFormat:
    formats = open_checkpoint(folder, quantization=Asked(activations=activations)).formats
    return next(format for key, format in formats.items() if key.endswith(".experts.down"))


def rounding_of(format: WeightFormat) -> Rounding:
    if not format.wide:
        return Rounding(int8="noise", group=format.group)
    if not format.is_integer:
        return Rounding(operands=2**0.5 * BFLOAT16)
    # The largest of n values is at most sqrt(n) times their root mean square.
    return Rounding(sums=SUMS, operands=BITS_16 * (format.group or WIDEST) ** 0.5)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_dequantized_experts(name: str, plain: tuple[str, Path], tmp_path: Path) -> None:
    format = next(format for format in FORMATS if format.name == name)
    quantize(plain[1], replace(format, skip=(*format.skip, *ROUTERS)), tmp_path)

    check(plain[0], tmp_path)


def test_each_expert_has_an_order_of_columns_of_its_own(plain: tuple[str, Path], tmp_path: Path) -> None:
    """GPTQ sorts an expert's columns by the tokens that it sees; one that saw none keeps them as they are."""
    ordered = gptq(4, 32, sym=True, act_order=True)

    def own(module: str) -> Format:
        _, _, rest = module.partition(".experts.")
        expert = int(rest.split(".")[0]) if rest else 0
        return gptq(4, 32, sym=True, act_order=not rest or expert > 0, seed=expert)

    quantize(plain[1], replace(ordered, skip=(*ordered.skip, *ROUTERS)), tmp_path, own)

    check(plain[0], tmp_path)


def test_quantized_dense_layers_may_have_the_name_of_those_with_experts(tmp_path: Path) -> None:
    """transformers 5 writes Kimi Linear so."""
    case = replace(next(case for case in CASES if case.name == "kimi-linear"), greedy=12)
    plain = tmp_path / "plain"
    make(case, plain)
    format = next(format for format in FORMATS if format.name == "ct-w4a16-packed-g32-asym")
    quantize(plain, replace(format, skip=(*format.skip, *ROUTERS, "conv1d", "A_log")), tmp_path)

    ours, theirs = (
        compute(Run(str(tmp_path / kind), case.tokens(), case.greedy, "float32", "float32", activations="float"))
        for kind in ("stored", "floats")
    )

    assert np.abs(ours[0] - theirs[0]).max() < 0.01 * theirs[0].std()
    assert ours[1].tolist() == theirs[1].tolist()


_SMALL = next(case for case in CASES if case.name == "glm_moe_dsa")
_INDEX = {"hidden_size": 256, "q_lora_rank": 128, "index_head_dim": 128, "index_topk": 20}
INDEXED = replace(_SMALL, settings=_SMALL.settings | _INDEX)


def prompt_logits(folder: Path, activations: str = "auto") -> np.ndarray:
    """The logits of INDEXED after 33 tokens, of which a token sees 20."""
    run = Run(str(folder), [], 45, "float32", "float32", activations=activations)
    return Stepper(run).step(INDEXED.tokens()[:33])


def test_an_indexer_may_be_floats_beside_codes(tmp_path: Path) -> None:
    """Quantizers leave it out: its queries and the heads' are made of one latent, by matrices of two formats."""
    make(INDEXED, tmp_path / "plain")
    format = BY_NAME["ct-w4a16-packed-g32-asym"]
    quantize(tmp_path / "plain", replace(format, skip=(*format.skip, *ROUTERS, "indexer")), tmp_path)

    formats = open_checkpoint(tmp_path / "stored").formats
    ours, theirs = (prompt_logits(tmp_path / kind, "float") for kind in ("stored", "floats"))

    assert (formats["layers.1.q_up"].dtype, formats["layers.1.index_q"].dtype) == ("int4", "float32")
    assert np.abs(ours - theirs).max() < 0.01 * theirs.std()


@pytest.mark.parametrize(
    ("skip", "allowed"),
    [(("proj", "embed", "head", ".gate.", "wq_b"), 0.0), ((*BY_NAME["fp8-block"].skip, *ROUTERS, "weights_proj"), 0.1)],
    ids=["keys", "all"],
)
def test_an_indexer_may_be_fp8_beside_bfloat16(skip: tuple[str, ...], allowed: float, tmp_path: Path) -> None:
    """DeepSeek publishes keys in FP8 and weights of heads in bfloat16: one matrix in memory, of floats, exactly."""
    make(replace(INDEXED, dtype="bfloat16"), tmp_path / "plain")
    format = replace(BY_NAME["fp8-block"], skip=skip)
    quantize(tmp_path / "plain", replace(format, settings=format.settings | {"scale_fmt": "ue8m0"}), tmp_path)
    stored = load_file(tmp_path / "stored/model.safetensors")
    indexer = "model.layers.1.self_attn.indexer"
    assert stored[f"{indexer}.wk.weight"].dtype == torch.float8_e4m3fn
    assert stored[f"{indexer}.wk.weight_scale_inv"].shape == (1, 2)
    assert stored[f"{indexer}.weights_proj.weight"].dtype == torch.bfloat16

    formats = open_checkpoint(tmp_path / "stored").formats
    ours, theirs = (prompt_logits(tmp_path / kind) for kind in ("stored", "floats"))

    assert formats["layers.1.index_in"] == WeightFormat("float32")
    assert (formats["layers.1.index_q"].dtype == "fp8_e4m3") == bool(allowed)
    assert np.median(np.abs(ours - theirs)) <= allowed * theirs.std()


def test_floats_are_rounded_at_load(plain: tuple[str, Path]) -> None:
    """Four bits are farther from the floats than eight, and none is far."""
    tokens = MODELS[plain[0]].tokens()[:33]
    exact = Stepper(Run(str(plain[1]), tokens, 0)).step(tokens)

    errors = []
    for quantization in ("int8", "fp8", "int4"):
        got = Stepper(Run(str(plain[1]), tokens, 0, quantization=quantization)).step(tokens)
        errors.append(float(np.median(np.abs(got - exact)) / exact.std()))
    assert 0 < max(errors[:2]) < errors[2] < 0.4, errors


# Ends of their scales' names.
FUSED = {"qwen3-moe": "_scale_inv", "granite-moe": "_scale", "mistral4": "_scale_inv", "step3p7": "_scale_inv"}


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("qwen3-moe", "fp8-block"),
        ("qwen3-moe", "fp8-tensor"),
        ("mistral4", "fp8-tensor"),
        ("granite-moe", "ct-fp8-channel"),
        ("step3p7", "fp8-block"),
    ],
)
def test_fp8_experts_may_be_in_one_tensor(model: str, form: str, tmp_path: Path) -> None:
    """transformers 5, Mistral Small 4, Granite and Step 3.5 stack codes and scales; a block may hold gate and up."""
    case = next(case for case in CASES if case.name == model)
    make(case, tmp_path / "made").save_pretrained(tmp_path / "plain", save_original_format=model != "qwen3-moe")
    format = next(format for format in FORMATS if format.name == form)
    config = json.loads((tmp_path / "plain/config.json").read_text())
    stored, floats = {}, {}
    for name, tensor in load_file(tmp_path / "plain/model.safetensors").items():
        stored[name] = floats[name] = tensor
        if tensor.dim() == 3:
            encoded = [format.encode(one.double().numpy()) for one in tensor]
            scales = next(end for end in encoded[0] if end != "weight")
            shape = (tensor.shape[1], tensor.shape[2])
            floats[name] = torch.stack([torch.from_numpy(format.decode(one, shape)).float() for one in encoded])
            stored[name] = torch.stack([one["weight"] for one in encoded])
            joint = torch.stack([one[scales] for one in encoded])
            stored[f"{name}{FUSED[model]}"] = joint.reshape(len(tensor), 1, 1) if form == "fp8-tensor" else joint
    for kind, tensors, more in (("stored", stored, {"quantization_config": format.settings}), ("floats", floats, {})):
        shutil.copytree(tmp_path / "plain", tmp_path / kind)
        save_file(tensors, tmp_path / kind / "model.safetensors", {"format": "pt"})
        (tmp_path / kind / "config.json").write_text(json.dumps(config | more))

    ours, theirs = (
        Stepper(Run(str(tmp_path / kind), [], 45, "float32", "float32")).step(case.tokens()[:33])
        for kind in ("stored", "floats")
    )

    assert format_of_experts(tmp_path / "stored", "auto").dtype == "fp8_e4m3"
    assert 0 < np.median(np.abs(ours - theirs)) < 0.01 * theirs.std()


_V4 = next(case for case in CASES if case.name == "deepseek_v4")
_V4_SIZES = {"hidden_size": 256, "q_lora_rank": 128, "head_dim": 64, "index_topk": 5, "o_lora_rank": 128}
_V4_WIDTHS = {"moe_intermediate_size": 96, "intermediate_size": 96}
# transformers' names, as they follow each other in a name, and those of published files.
_V4_NAMES = (
    ("model.", ""), (".self_attn.", ".attn."), (".mlp.", ".ffn."), ("embed_tokens", "embed"), ("lm_head", "head"),
    ("compressor.indexer.scorer.weights_proj", "indexer.weights_proj"), ("compressor.indexer.q_b_proj", "indexer.wq_b"),
    ("compressor.indexer.", "indexer.compressor."), ("compressor.kv_norm", "compressor.norm"),
    ("position_bias", "ape"), ("kv_proj", "wkv"), ("compressor.gate_proj", "compressor.wgate"), ("q_a_proj", "wq_a"),
    ("q_b_proj", "wq_b"), ("o_a_proj", "wo_a"), ("o_b_proj", "wo_b"), ("q_a_norm", "q_norm"), ("sinks", "attn_sink"),
    ("e_score_correction_bias", "bias"), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
    ("attn_hc.", "hc_attn_"), ("ffn_hc.", "hc_ffn_"), ("hc_head.hc_", "hc_head_"), ("gate_proj", "w1"),
    ("down_proj", "w2"), ("up_proj", "w3"),
)  # fmt: skip


def published(name: str) -> str:
    """Return the name that DeepSeek V4's published files have for transformers' name of a tensor."""
    for ours, theirs in _V4_NAMES:
        name = name.replace(ours, theirs)
    return name


def in_blocks(w: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return E4M3 with a power of two for each block of 128 x 128, and the numbers that these are."""
    rows, k = w.shape
    codes, scales = torch.empty_like(w), torch.empty(-(-rows // 128), -(-k // 128))
    back = torch.empty_like(w)
    for i, j in np.ndindex(*scales.shape):
        at = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
        scales[i, j] = 2 ** torch.ceil(torch.log2(w[at].abs().max() / 448))
        codes[at] = (w[at] / scales[i, j]).to(torch.float8_e4m3fn).float()
        back[at] = codes[at] * scales[i, j]
    stored = {"weight": codes.to(torch.float8_e4m3fn), "scale": scales.to(torch.float8_e8m0fnu)}
    return stored, back


def in_four_bits(w: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return MXFP4, two numbers in an int8, and the numbers that these are."""
    encoded = BY_NAME["mxfp4"].encode(w.double().numpy())
    back = BY_NAME["mxfp4"].decode(encoded, (w.shape[0], w.shape[1]))
    codes = encoded["weight_blocks"].reshape(w.shape[0], -1).view(torch.int8)
    scales = encoded["weight_scales"].view(torch.float8_e8m0fnu)
    return {"weight": codes, "scale": scales}, torch.from_numpy(back).float()


def as_published(name: str, tensor: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return what a published file has of transformers' tensor, by their names, and the numbers that these are."""
    at, kind = published(name).removesuffix(".weight"), name.rpartition("self_attn.")[2]
    if "mlp.experts." in name:
        stored, back, parts = {}, tensor.float(), ("w1", "w3") if "gate_up" in name else ("w2",)
        for expert, joint in enumerate(back):
            for part, rows in zip(parts, joint.chunk(len(parts)), strict=True):
                codes, numbers = in_four_bits(rows)
                rows.copy_(numbers)
                one = f"{at.rpartition('.')[0]}.{expert}.{part}"
                stored |= {f"{one}.{end}": value for end, value in codes.items()}
        return stored, back
    of_entries = "compressor" in kind and "q_b_proj" not in kind
    if not name.endswith("proj.weight") or of_entries:
        return {published(name): tensor}, tensor
    codes, back = in_blocks(tensor.float())
    return {f"{at}.{end}": value for end, value in codes.items()}, back


def test_deepseek_v4_opens_as_it_is_published(tmp_path: Path) -> None:
    """FP8 in blocks, MXFP4 experts and bfloat16 or float32 beside them, under names of their own."""
    case = replace(_V4, settings=_V4.settings | _V4_SIZES | _V4_WIDTHS, dtype="bfloat16")
    make(case, tmp_path / "plain")
    stored: dict[str, torch.Tensor] = {}
    floats: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(tmp_path / "plain/model.safetensors").items():
        own, floats[name] = as_published(name, tensor)
        stored |= {one: value.contiguous() for one, value in own.items()}
    config = json.loads((tmp_path / "plain/config.json").read_text()) | {"expert_dtype": "fp4"}
    method = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0", "fmt": "e4m3"}
    for kind, tensors, more in (("stored", stored, {"quantization_config": method}), ("floats", floats, {})):
        (tmp_path / kind).mkdir()
        save_file(tensors, tmp_path / kind / "model.safetensors", {"format": "pt"})
        (tmp_path / kind / "config.json").write_text(json.dumps(config | more))

    formats = open_checkpoint(tmp_path / "stored", quantization=Asked(activations="float")).formats
    ours, theirs = (
        Stepper(Run(str(tmp_path / kind), [], 45, "float32", "float32", activations="float")).step(case.tokens()[:33])
        for kind in ("stored", "floats")
    )

    assert formats["layers.1.experts.up"] == WeightFormat("fp4_e2m1", 32, "e8m0", wide=True)
    coded = ("latent_in", "q_up", "index_q", "groups", "o", "shared.up")
    assert {formats[f"layers.1.{name}"].dtype for name in coded} == {"fp8_e4m3"}
    assert formats["layers.1.entry_in"] == formats["layers.1.router"] == WeightFormat("float32")
    assert 0 < np.median(np.abs(ours - theirs)) < 0.01 * theirs.std()
