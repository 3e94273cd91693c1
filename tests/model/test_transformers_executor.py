"""Models that transformers builds give the tokens of its generate: alone, in chunks, in company, quantized, by LLM."""

from __future__ import annotations

import inspect
import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.transformers_types import (
    PROMPT_TOKENS,
    VOCABULARY,
    compare,
    executor_tokens,
    make_executor,
    reference_tokens,
    save_tiny,
    tiny_config,
)
from tokenizers import Tokenizer, models
from tools import models_page
from transformers import PreTrainedTokenizerFast, dynamic_module_utils
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from forearm import LLM, SamplingParams
from forearm.errors import ConfigError
from forearm.model.families.families import FAMILIES, read_config
from forearm.model.modules import forward
from forearm.model.modules import open as modules
from forearm.model.modules.architecture import REFUSED, read_architecture
from forearm.model.modules.linear import GatedFeedForward, JointProduct, PackedLinear
from forearm.model.modules.llama_attention import NativeAttention
from forearm.model.modules.llama_layer import NativeLayer, NativeLayers
from forearm.model.modules.rotary import NativeRotary
from forearm.model.quantization.quantization import Asked

# Grouped queries; fused transposed matrices and learned positions; windows, softcaps and norms; experts; latent
# attention, whose keys and values differ in width; a parallel residual; LayerNorm and a partial rotation.
PAGED = ("llama", "gpt2", "gemma2", "mixtral", "deepseek_v2", "cohere2", "gpt_neox", "phi")
# Attention with a bias of its own; a state; a state beside attention; an attention class of its own; positions counted
# by the model; no cache at all.
OWN_CACHE = ("bloom", "mamba", "lfm2", "falcon", "bart", "openai-gpt")


# What `python -m tests.model.transformers_types` found, as docs/models.md tells it.
TABLE: dict[str, str] = json.loads(models_page.TRANSFORMERS_TYPES.read_text())
AGREE = sorted(name for name, found in TABLE.items() if found.startswith("agrees") and name not in FAMILIES)
NATIVE = sorted(name for name, found in TABLE.items() if found.startswith("agrees") and name in FAMILIES)


def prompt_of(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY - 4, PROMPT_TOKENS).tolist()


@pytest.mark.parametrize("model_type", PAGED)
def test_paged_attention_gives_the_tokens_of_generate(model_type: str, tmp_path: Path) -> None:
    wanted = reference_tokens(save_tiny(model_type, tmp_path), prompt_of(1))

    executor, own_cache = make_executor(tmp_path)

    assert own_cache == ""
    for chunk in (PROMPT_TOKENS, 8, 5):
        assert executor_tokens(executor, prompt_of(1), chunk) == wanted, f"in chunks of {chunk}"


def test_the_log_says_which_executor_serves_and_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for model_type in ("llama", "diffllama", "rwkv"):
        save_tiny(model_type, tmp_path / model_type)
    asked = {"auto": ("llama", "diffllama", "rwkv"), "forearm": ("llama",), "transformers": ("llama",)}

    said = {}
    for impl, types in asked.items():
        for model_type in types:
            caplog.clear()
            with caplog.at_level("INFO"):
                make_executor(tmp_path / model_type, model_impl=impl)
            (said[impl, model_type],) = (one for one in caplog.messages if "computes the model" in one)

    ours = "with forearm's attention and packed weights"
    assert said == {
        ("auto", "llama"): "forearm computes the model: it has the family llama",
        ("auto", "diffllama"): f"transformers computes the model (forearm has no family diffllama), {ours}",
        ("auto", "rwkv"): "transformers computes the model (forearm has no family rwkv) with its own cache, "
        "sequence by sequence: it keeps a state of its own",
        ("forearm", "llama"): "forearm computes the model: it has the family llama",
        ("transformers", "llama"): f"transformers computes the model (--model-impl says so), {ours}",
    }
    with pytest.raises(ConfigError, match='model_type = "diffllama"'):
        make_executor(tmp_path / "diffllama", model_impl="forearm")


def test_layers_with_the_same_input_are_one_matrix(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)

    linears = {one.name.partition(".layers.1.")[2]: one for one in read_architecture(tmp_path).config.linears}

    at, first = "model.layers.1.", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    assert {linears[name].matrix for name in first} == {f"{at}self_attn.q_proj"}
    assert [linears[f"mlp.{name}_proj"].matrix for name in ("gate", "up", "down")] == [
        f"{at}mlp.gate_proj", f"{at}mlp.gate_proj", f"{at}mlp.down_proj",
    ]  # fmt: skip
    assert {name: one.gate for name, one in linears.items() if one.gate} == {
        "mlp.gate_proj": "silu",
        "mlp.up_proj": "silu",
    }


# Models whose attention, feed-forward and layers have Llama's code or not.
@pytest.mark.parametrize(
    ("model_type", "native"),
    [
        ("llama", (NativeAttention, GatedFeedForward, NativeLayers)),
        ("qwen2", (NativeAttention, GatedFeedForward, NativeLayers)),
        ("mistral", (NativeAttention, GatedFeedForward, NativeLayers)),
        ("cwm", (NativeAttention, GatedFeedForward, NativeLayer)),
        ("qwen2_moe", (NativeAttention, NativeLayer)),
        ("granite", (NativeAttention, GatedFeedForward)),
        ("qwen3", (GatedFeedForward,)),
    ],
)
def test_what_has_llamas_code_is_native_and_gives_the_tokens_of_generate(
    model_type: str, native: tuple[type, ...], tmp_path: Path
) -> None:
    wanted = reference_tokens(save_tiny(model_type, tmp_path), prompt_of(1))

    executor: Any = make_executor(tmp_path)[0]

    layer: Any = executor._forward._model.model.layers[0]
    forwards = (layer.self_attn.forward, layer.mlp.forward, layer.forward)
    assert tuple(type(one) for one in forwards if not inspect.ismethod(one)) == native
    for chunk in (PROMPT_TOKENS, 8, 5):
        assert executor_tokens(executor, prompt_of(1), chunk) == wanted, f"in chunks of {chunk}"


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_native_layer_has_the_logits_of_its_modules_bit_for_bit(
    model_type: str, quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(model_type, tmp_path)
    found = []
    for apart in (False, True):
        if apart:
            monkeypatch.setattr(forward, "use_native_layers", lambda *_: None)
        executor, _ = make_executor(tmp_path, quantization=quantization)
        tokens = executor_tokens(executor, prompt_of(1), 7)
        found.append((tokens, executor.logits().tolist()))

    assert found[0] == found[1]


def test_halves_of_layers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    executor: Any = make_executor(tmp_path)[0]
    executor_tokens(executor, prompt_of(1), PROMPT_TOKENS)  # the last step has a token of two sequences
    native, layers = executor.native, executor._forward._model.model.layers[0].forward._layers
    width, dim = layers[0].attention._module.q_proj.in_features, layers[0].attention._dim
    end = layers[-1].first_half + layers[-1].halves
    norm, x, angles = np.ones(width, np.float32), np.zeros((2, width), np.float32), np.ones((2, dim // 2), np.float32)
    qkv, o = (product.name for product in layers[0].attention.products)

    apart = "are not the matrices of half a layer"
    for first, last, weight, said in (
        (o, qkv, norm, apart), (qkv, qkv, norm, apart), (qkv, o, norm[1:], "norm"), (qkv, "none", norm, "'none'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            native.add_half(weight, 1e-5, first, last)
    for last_half, layer, rows, cos, said in (
        (end + 1, 0, x, angles, "no such halves"), (0, 0, x, angles, "no such halves"),
        (end, 1, x, angles, "the cache has"), (end, -1, x, angles, "layer is -1"), (end, 0, x[:1], angles, "x must be"),
        (end, 0, x[:, 1:].copy(), angles, "x must be"), (end, 0, x, angles[:1], "cos must be"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            native.compute_halves(0, last_half, layer, rows, cos, angles)
    assert native.compute_halves(0, end, 0, x, angles, angles).shape == (2, width)


@pytest.mark.parametrize(("tokens", "alike"), [(1, True), (3, True), (9, True), (9, False)])
def test_native_rotation_is_that_of_transformers_bit_for_bit(tokens: int, alike: bool, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    rotary = NativeRotary(make_executor(tmp_path)[0].native)
    made = torch.Generator().manual_seed(1)
    q, k = torch.randn(1, tokens, 5, 16, generator=made).transpose(1, 2).split([3, 2], dim=1)
    cos, sin = (torch.randn(1, tokens, 16, generator=made) for _ in range(2))
    if alike:  # angles that differ within a pair go on to transformers' function
        cos[..., 8:], sin[..., 8:] = cos[..., :8], sin[..., :8]

    rotated = rotary(q, k, cos, sin)

    assert (rotary.halves(cos, sin) is not None) == alike
    for own, wanted in zip(rotated, apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert torch.equal(own, wanted)


def test_threads_of_torch_sleep_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny("llama", tmp_path)
    found = []
    for given in ("", "active"):
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
        if not given:
            monkeypatch.delenv("OMP_WAIT_POLICY")
        modules.open_modules(tmp_path, quantization=Asked())
        found.append(os.environ["OMP_WAIT_POLICY"])

    assert found == ["passive", "active"]


def test_each_layer_of_a_joint_product_has_the_columns_of_its_own_input() -> None:
    joint = JointProduct(lambda x: x * torch.tensor([1.0, 10.0]), 2)
    one, ten = PackedLinear(joint, (1, 1), 0), PackedLinear(joint, (1, 1), 1)
    first, other = torch.ones(1, 1), torch.full((1, 1), 3.0)

    found = [layer(x).item() for layer, x in ((one, first), (ten, first), (one, first), (ten, other), (one, other))]

    assert found == [1.0, 10.0, 1.0, 30.0, 3.0]


@pytest.mark.parametrize("model_type", OWN_CACHE)
def test_a_cache_of_transformers_gives_the_tokens_of_generate(model_type: str, tmp_path: Path) -> None:
    wanted = reference_tokens(save_tiny(model_type, tmp_path), prompt_of(2))

    executor, own_cache = make_executor(tmp_path)

    assert own_cache
    assert executor_tokens(executor, prompt_of(2), PROMPT_TOKENS) == wanted


@pytest.mark.parametrize("model_type", random.Random(29).sample(AGREE, 3) + random.Random(29).sample(NATIVE, 3))
def test_a_sample_of_the_types_that_the_page_lists_agrees(model_type: str) -> None:
    assert compare(model_type) == TABLE[model_type]


def test_every_generating_type_was_tried() -> None:
    assert set(TABLE) >= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@pytest.mark.parametrize(
    ("config", "said"),
    [({"model_type": name}, f"model_type {name} can't be served: {why}") for name, why in REFUSED.items()]
    + [
        ({"model_type": "bart"}, "model_type bart can't be served: is_encoder_decoder is true"),
        ({"model_type": "electra"}, "model_type electra can't be served: is_decoder is false"),
    ],
)
def test_a_type_that_generates_no_text_from_text_is_refused_before_its_weights_are_read(
    config: dict[str, object], said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigError, match=re.escape(said)):
        modules.open_modules(tmp_path, quantization=Asked())


def test_an_encoder_is_refused_for_transformers_and_a_bert_decoder_is_not(tmp_path: Path) -> None:
    for name, decoder in (("encoder", False), ("decoder", True)):
        config = tiny_config("bert")
        config.is_decoder = decoder
        config.save_pretrained(tmp_path / name)

    with pytest.raises(ConfigError, match=r"--model-impl transformers: .*leave the flag out"):
        make_executor(tmp_path / "encoder")
    with pytest.raises(ConfigError, match="transformers can't load it"):  # this norm has no weights
        make_executor(tmp_path / "decoder")


def test_a_checkpoint_without_a_tensor_is_refused_instead_of_drawn_at_random(tmp_path: Path) -> None:
    save_tiny("persimmon", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: one for name, one in tensors.items() if name != "lm_head.weight"}, tmp_path / "model.safetensors")

    with pytest.raises(ConfigError, match=r"it has no lm_head\.weight"):
        make_executor(tmp_path)


def test_linear_layers_are_quantized_while_loading(tmp_path: Path) -> None:
    save_tiny("persimmon", tmp_path)
    plain, _ = make_executor(tmp_path)
    rounded, _ = make_executor(tmp_path, quantization="int8")

    executor_tokens(plain, prompt_of(3), PROMPT_TOKENS)
    executor_tokens(rounded, prompt_of(3), PROMPT_TOKENS)

    assert rounded.packed_bytes < plain.packed_bytes


@pytest.mark.parametrize("model_type", ["diffllama", "rwkv"])
def test_an_llm_serves_several_outputs_of_a_model_without_a_native_family(model_type: str, tmp_path: Path) -> None:
    wanted = reference_tokens(save_tiny(model_type, tmp_path), prompt_of(4))
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w3"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(tmp_path)
    llm = LLM(str(tmp_path), dtype="float32", max_model_len=128, threads=1)

    params = SamplingParams(temperature=1.0, top_k=1, max_tokens=len(wanted), n=2, ignore_eos=True, detokenize=False)
    for _ in range(2):  # the second time, the prompt's blocks are in the prefix cache
        (answer,) = llm.generate([{"prompt_token_ids": prompt_of(4)}], params)

        assert [list(one.token_ids) for one in answer.outputs] == [wanted, wanted]


CONFIGURATION = """
from transformers import LlamaConfig

class OwnConfig(LlamaConfig):
    model_type = "of-its-own"
"""
# A model on transformers' attention interface, and one whose attention is its own.
MODELINGS = {
    "paged": """
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
""",
    "own": """
from transformers import BloomConfig, BloomForCausalLM
from .configuration_own import OwnConfig

class OwnForCausalLM(BloomForCausalLM):
    config_class = OwnConfig
""",
}


def save_with_code(folder: Path, kind: str, base: str) -> Any:
    """Write a tiny model whose code is in its folder, and return it."""
    model = save_tiny(base, folder)
    (folder / "configuration_own.py").write_text(CONFIGURATION.replace("Llama", base.capitalize()))
    (folder / "modeling_own.py").write_text(MODELINGS[kind])
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "of-its-own", "auto_map": names}))
    return model


def test_a_checkpoints_code_is_run_only_if_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "modules"
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(cache))
    monkeypatch.setattr(sys, "path", list(sys.path))
    bases = {"paged": "llama", "own": "bloom"}
    saved = {kind: save_with_code(tmp_path / kind, kind, base) for kind, base in bases.items()}
    wanted = {kind: reference_tokens(model, prompt_of(1)) for kind, model in saved.items()}

    with pytest.raises(ConfigError, match=r"of-its-own.* --trust-remote-code runs it"):
        make_executor(tmp_path / "paged")
    assert not cache.exists()
    opened = {kind: make_executor(tmp_path / kind, model_impl="auto", trust_remote_code=True) for kind in saved}

    assert {kind: bool(own_cache) for kind, (_, own_cache) in opened.items()} == {"paged": False, "own": True}
    assert {kind: executor_tokens(one, prompt_of(1), PROMPT_TOKENS) for kind, (one, _) in opened.items()} == wanted


def test_without_torch_the_refusal_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_config("diffllama").save_pretrained(tmp_path)
    monkeypatch.setattr(modules, "find_spec", lambda _: None)

    with pytest.raises(ConfigError, match=r"forearm\[transformers\]"):
        modules.open_modules(tmp_path, quantization=Asked())
    assert not modules.needs_transformers(tmp_path, "auto")
    with pytest.raises(ConfigError, match=r"forearm\[transformers\]"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "persimmonn"}, r'model_type = "persimmonn"; .*the nearest name is persimmon\)'),
        ({"model_type": "persimmon", "hidden_size": "x"}, "transformers can't read its config.json: .*hidden_size"),
    ],
)
def test_a_config_that_transformers_cannot_read_is_refused_in_one_line(
    config: dict[str, object], said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigError, match=said) as caught:
        modules.open_modules(tmp_path, quantization=Asked())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
