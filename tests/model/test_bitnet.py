"""BitNet checkpoints have the logits that transformers computes with its own ternary linear layers.

transformers rounds activations to int8 in floats, a scale for each token, half to even, as we do in codes: both have
the same codes, but where a sum in another order falls to the other side of a half.
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.cases import Case
from tests.model.made_cases import make
from tests.model.reference import Rounding, load_weights, logits, tolerance
from tests.model.run_native import Run, compute
from tests.model.stored_codes import FORMATS
from tests.model.test_quantized import quantize
from tests.unit.model.published import PUBLISHED
from transformers import AutoConfig, AutoModelForCausalLM, BitNetQuantConfig, PreTrainedModel

from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.families.families import read_config
from forearm.plan.shapes import tensor_shapes

with warnings.catch_warnings():  # torch.compile imports a module that says that a part of torch is deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from transformers.integrations.bitnet import pack_weights, replace_with_bitnet_linear, unpack_weights

CASE = Case("bitnet", "BitNetConfig", {
    "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
})  # fmt: skip
KINDS = {
    "bitnet-bitlinear": BitNetQuantConfig(),
    "bitnet-autobitlinear": BitNetQuantConfig(linear_class="autobitlinear"),
    "bitnet-autobitlinear-online": BitNetQuantConfig(linear_class="autobitlinear", quantization_mode="online"),
}


def stored_by_transformers(plain: Path, folder: Path, config: BitNetQuantConfig) -> dict[str, torch.Tensor]:
    """Write the checkpoint in `plain` as the quantizer stores it; return its tensors."""
    tensors = load_file(plain / "model.safetensors")
    for name in [n for n in tensors if "_proj." in n and config.quantization_mode == "offline"]:
        mean = tensors[name].abs().mean()
        tensors[f"{name}_scale"] = (1 / mean if config.linear_class == "bitlinear" else mean).reshape(1)
        tensors[name] = pack_weights((tensors[name] / mean).round().clamp(-1, 1))
    shutil.copytree(plain, folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((plain / "config.json").read_text()) | {"quantization_config": config.to_dict()}
    (folder / "config.json").write_text(json.dumps(settings))
    return tensors


def with_ternary_layers(plain: Path, tensors: dict[str, torch.Tensor], config: BitNetQuantConfig) -> PreTrainedModel:
    """Return transformers' model, whose linear layers are replaced by its quantizer's."""
    floats = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(plain), attn_implementation="eager")
    model = replace_with_bitnet_linear(floats.float(), ["lm_head"], config)
    if config.linear_class == "autobitlinear":
        packed = {name for name, tensor in tensors.items() if tensor.dtype == torch.uint8}
        tensors = tensors | {name: unpack_weights(tensors[name], dtype=torch.float32) for name in packed}
    model.load_state_dict(tensors, assign=True)
    return model.eval()


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_transformers_own_ternary_layers(name: str, tmp_path: Path) -> None:
    config = KINDS[name]
    make(CASE, tmp_path / "plain")
    tensors = stored_by_transformers(tmp_path / "plain", tmp_path / "served", config)
    (format,) = (one for one in FORMATS if one.name == name)
    quantize(tmp_path / "plain", format, tmp_path)  # the same numbers as floats: for the tolerance

    ours, chosen = compute(Run(str(tmp_path / "served"), CASE.tokens(), CASE.greedy, "float32", "float32"))
    tokens = [*CASE.tokens(), *chosen.tolist()]
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        theirs = with_ternary_layers(tmp_path / "plain", tensors, config)(torch.tensor([tokens])).logits[0].numpy()

    plain, weights = load_weights(tmp_path / "floats", dtype="float32")
    exact = logits(plain, weights, tokens)
    roundings = (Rounding(2.0**-24), Rounding(2.0**-24, int8="noise"))
    sums, codes = (tolerance(plain, weights, tokens, one, exact) for one in roundings)
    apart = np.abs(ours - theirs).max(axis=1)
    assert apart.max() <= codes < 0.1 * np.abs(theirs).max()
    best = np.sort(theirs[CASE.prompt - 1 : -1], axis=-1)[:, -2:]
    near = (apart <= 2 * sums)[CASE.prompt - 1 : -1]  # no code differs
    clear = near & (best[:, 1] - best[:, 0] > 4 * sums)
    assert min((apart <= 2 * sums).mean(), clear.mean()) > 0.8
    assert chosen[clear].tolist() == theirs[CASE.prompt - 1 : -1].argmax(axis=-1)[clear].tolist()


def published(folder: Path) -> Path:
    """Write BitNet b1.58 2B4T's config.json, and a sparse file of its tensors as they are stored."""
    config = PUBLISHED["bitnet-b1.58-2B-4T"]
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {}
    end = 0

    def add(name: str, dtype: str, shape: Sequence[int], size: int) -> None:
        nonlocal end
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size * math.prod(shape)]}
        end += size * math.prod(shape)

    for name, shape in tensor_shapes(read_config(folder)).items():
        if "_proj" in name:
            add(name, "U8", (shape[0] // 4, shape[1]), 1)
            add(f"{name}_scale", "BF16", (1,), 2)
        else:
            add(name, "BF16", shape, 2)
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


def test_the_published_model_takes_four_bits_a_ternary_weight_beside_its_embedding(tmp_path: Path) -> None:
    opened = open_checkpoint(published(tmp_path))

    layers = 30 * (2560 * (2560 + 2 * 640 + 2560) + 3 * 2560 * 6912)
    embedding = 128256 * 2560
    assert opened.parameters == layers + embedding + 30 * (3 * 2560 + 6912) + 2560
    formats = {name: format for name, format in opened.formats.items() if name != "embed"}
    assert set(formats.values()) == {WeightFormat("int4", 0, "bfloat16")}
    assert opened.formats["embed"] == WeightFormat("bfloat16")
    assert opened.packed_bytes == pytest.approx(layers * 4.01 / 8 + embedding * 2, rel=0.01)
