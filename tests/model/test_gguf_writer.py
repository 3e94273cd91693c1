"""`forearm quantize --format gguf-...`: the file gives the float model's answers within the rounding, to any reader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from tests.model.cases import CASES, Case
from tests.model.gguf_converter import Conversion, convert
from tests.model.gguf_models import VOCABULARY, gguf_name, restored_rows
from tests.model.made_cases import make
from tests.model.reference import load_weights as reference_weights
from tests.model.reference import logits
from tests.model.run_native import Run, compute
from tests.model.test_gguf_architectures import ALL

from forearm import LLM, SamplingParams
from forearm.cli.main import main
from forearm.errors import ConfigError
from forearm.model.checkpoint.calibration import Team
from forearm.model.checkpoint.weights import load_weights
from forearm.model.gguf.conversion.written_families import GGUF_FAMILIES
from forearm.model.gguf.gguf import read_gguf
from forearm.model.gguf.gguf_writer import MIXTURES, GgufWriter, float_checkpoint
from forearm.model.quantization.quality import read_report

CASE = {case.name: case for case in CASES}
_BIASES = {"attention_bias": True, "mlp_bias": True}
CASE["llama-biases"] = replace(CASE["llama-gqa"], name="llama-biases", settings=_BIASES)
CASE["qwen3-biases"] = replace(
    CASE["qwen3"], name="qwen3-biases", settings=CASE["qwen3"].settings | {"attention_bias": True}
)
_EVERY_LAYER = CASE["qwen3-moe"].settings | {"mlp_only_layers": []}
CASE["qwen3-moe-all"] = replace(CASE["qwen3-moe"], name="qwen3-moe-all", settings=_EVERY_LAYER)
_PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}}
CASE["qwen3-next-even"] = replace(
    CASE["qwen3-next"],
    name="qwen3-next-even",
    settings=CASE["qwen3-next"].settings | _PARTIAL | {"mlp_only_layers": []},
)
# What the test's converter does not do: values of an odd number are rotated in no file, and tables of each layer have a
# row for every token.
_CONVERTED_AS = {"qwen3-next": _PARTIAL, "gemma3n-text": {"vocab_size_per_layer_input": 331}}
# Rows of q and k in another order, biases, one kv head, tied and sharded, factors of angles, norms of heads, no window;
# experts, a shared one with a gate; norms with a one more; experts in one tensor, with biases; states, and value heads
# in another order; latent attention; an embedding of each layer.
FAMILIES = (
    "llama-gqa", "llama-sharded-mqa-tied", "llama-biases", "llama-rope-llama3", "llama-rope-linear", "llama-rope-yarn",
    "mistral-nemo", "qwen2", "qwen2-yarn", "qwen3", "mixtral", "olmoe", "qwen2-moe", "qwen3-moe-all",
    "gemma2", "gemma3", "gemma3-mqa", "phi3", "phi3-window-tied", "phi3-partial", "phi3-longrope-short",
    "phi3-longrope-long", "smollm3", "granite", "olmo2", "hunyuan-alpha", "gpt-oss", "lfm2", "qwen3-next-even",
    "qwen3.5", "deepseek-v3", "gemma4-per-layer", "nemotron-biases", "stablelm-norms", "ernie-interleaved",
)  # fmt: skip
# Conversions of models that are written. Mistral Small 4's architecture has other families, too; DeepSeek's older
# files, with one tensor for the rows of keys and values, are not written.
WRITTEN = [
    (case, conversion) for case, conversion in ALL
    if any(family.architecture == conversion.architecture for family in GGUF_FAMILIES.values())
    and not case.name.startswith("mistral4") and "seed" not in case.settings
]  # fmt: skip
# Experts in one tensor or two, rows of a tensor with other parts, in pieces or turned, tensors of no matrix; states.
CONVERTED = (
    "qwen3.5-moe-text", "bamba", "falcon-h1", "nemotron-h-moe", "jamba", "lfm2-moe", "gemma4-per-layer", "gpt2",
    "llama4-text", "deepseek-v3", "deepseek_v4-long", "kimi-linear", "minimax_m2",
)  # fmt: skip
# Of falcon and mpt the converter writes 2048; of ernie4_5_moe a width that is divided by the number of key heads; the
# test's converter writes sizes of no use, and does not fill sections up.
_OTHER_KEYS = {
    "falcon.context_length", "mpt.context_length", "ernie4_5-moe.expert_shared_feed_forward_length",
    "granitehybrid.feed_forward_length", "mamba2.feed_forward_length", "qwen35.rope.dimension_sections",
}  # fmt: skip
PARTS = ("gate", "up", "down")
PARIS = [{"role": "user", "content": "What is the capital of France?"}]


def written(floats: Path, path: Path, mixture: str) -> Path:
    """A file of a model without a tokenizer."""
    checkpoint = float_checkpoint(floats, mixture)
    writer = GgufWriter(checkpoint, path, mixture, VOCABULARY, threads=2)
    load_weights(checkpoint, writer, floats, Team((), 2), progress=False)
    return path


def answer(model: Path) -> str:
    llm = LLM(str(model), max_model_len=64, quantization_activations="float")
    (found,) = llm.chat(PARIS, SamplingParams(temperature=0.0, max_tokens=20), use_tqdm=False)
    return str(found.outputs[0].text)


@pytest.mark.parametrize("family", FAMILIES)
def test_q8_0_computes_what_the_floats_do(family: str, tmp_path: Path) -> None:
    case = CASE[family]
    make(case, tmp_path / "floats")

    path = written(tmp_path / "floats", tmp_path / "made/model.gguf", "Q8_0")

    def run(model: Path) -> np.ndarray:
        asked = Run(str(model), case.tokens(), 0, "float32", activations="float", max_model_len=case.max_model_len)
        return compute(asked)[0]

    wanted, found = run(tmp_path / "floats"), run(path)
    # Q8_0 moves each weight by 0.5 % in the root mean square. Rows in a wrong order change all logits by their size;
    # another expert is chosen for a few tokens (qwen3-moe: 5 of 45 move by a tenth or more).
    errors = np.sqrt(((found - wanted) ** 2).mean(axis=1) / (wanted**2).mean(axis=1))
    assert 1e-4 < np.median(errors) < 0.05, "nothing was rounded, or more than that has changed"


@pytest.mark.parametrize(("case", "conversion"), WRITTEN, ids=[case.name for case, _ in WRITTEN])
def test_a_file_is_the_one_that_the_converter_of_llama_cpp_writes(
    case: Case, conversion: Conversion, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = replace(case, settings=case.settings | _CONVERTED_AS.get(case.name, {}))
    make(case, tmp_path / "floats")
    theirs = convert(tmp_path / "floats", conversion)
    caplog.clear()

    ours = written(tmp_path / "floats", tmp_path / "made/model.gguf", "F32")

    wanted, found = ({tensor.name: tensor for tensor in GGUFReader(path).tensors} for path in (theirs, ours))
    assert set(wanted) == set(found)
    for name, tensor in wanted.items():
        shapes = ([size for size in one.shape if size > 1] for one in (tensor, found[name]))
        assert next(shapes) == next(shapes), name
        assert np.array_equal(tensor.data.ravel(), found[name].data.ravel()), name
    keys, own = read_gguf(theirs).metadata, read_gguf(ours).metadata
    for key in set(keys) & set(own) - _OTHER_KEYS:
        few = isinstance(own[key], int) and isinstance(keys[key], list)  # one for all layers, where they are the same
        assert ([own[key]] * len(keys[key]) if few else own[key]) == (
            pytest.approx(keys[key], rel=1e-6) if isinstance(keys[key], float) else keys[key]
        ), key
    assert not [message for message in caplog.messages if "does not know" in message], "a key is of no use"
    config, weights = reference_weights(tmp_path / "floats", dtype="float32")
    floats = logits(config, weights, case.tokens())
    again = logits(*reference_weights(ours, dtype="float32"), case.tokens())
    np.testing.assert_allclose(again, floats, atol=1e-5 * float(np.abs(floats).max()), rtol=0)


def test_a_table_of_each_layer_has_zeros_for_tokens_that_it_does_not_know(tmp_path: Path) -> None:
    make(CASE["gemma3n-text"], tmp_path / "floats")

    path = written(tmp_path / "floats", tmp_path / "made/model.gguf", "F32")

    tensor = next(one for one in GGUFReader(path).tensors if one.name == "per_layer_token_embd.weight")
    rows = np.abs(np.asarray(tensor.data)).max(axis=1)
    assert (len(rows), bool(rows[:300].all()), rows[300:].max()) == (331, True, 0)


def test_every_family_that_is_written_has_a_case() -> None:
    cases = [CASE[name] for name in FAMILIES] + [case for case, _ in WRITTEN]
    types = {case.make_config().model_type for case in cases}
    types |= {text.model_type for case in cases if (text := getattr(case.make_config(), "text_config", None))}

    assert set(GGUF_FAMILIES) - types <= {"gemma3", "gemma3n", "gemma4", "qwen3_5_moe"}, (
        "text parts of multimodal models"
    )


@pytest.mark.parametrize("mixture", MIXTURES)
def test_another_reader_finds_every_weight_where_transformers_has_it(mixture: str, tmp_path: Path) -> None:
    case = CASE["llama-biases"]
    model = make(case, tmp_path / "floats")

    path = written(tmp_path / "floats", tmp_path / "made/model.gguf", mixture)

    found = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        own = found.pop(gguf_name(name, "llama"))
        rows = np.asarray(dequantize(own.data, own.tensor_type)).reshape(parameter.shape)
        turned = heads.get(own.name.split(".")[-2])
        values, wanted = restored_rows(rows, turned) if turned else rows, parameter.detach().numpy()
        if wanted.ndim == 1 or mixture == "F32":
            assert np.array_equal(values, wanted), own.name
        else:
            assert np.sqrt(((values - wanted) ** 2).sum() / (wanted**2).sum()) < 0.1, own.name
    assert not found


def test_another_reader_finds_the_experts_of_a_layer_in_one_tensor(tmp_path: Path) -> None:
    model = make(CASE["qwen2-moe"], tmp_path / "floats")

    path = written(tmp_path / "floats", tmp_path / "made/model.gguf", "Q8_0")

    found = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    block, own = model.model.layers[1].mlp, {name: found.pop(f"blk.1.ffn_{name}_exps.weight") for name in PARTS}
    gate, up = block.experts.gate_up_proj.detach().chunk(2, dim=1)
    for name, values in zip(PARTS, (gate, up, block.experts.down_proj.detach()), strict=True):
        wanted = values.numpy()
        rows = np.asarray(dequantize(own[name].data, own[name].tensor_type))
        assert rows.shape == wanted.shape
        assert np.sqrt(((rows - wanted) ** 2).sum() / (wanted**2).sum()) < 0.01, name
    router, shared = found["blk.1.ffn_gate_inp.weight"], found["blk.1.ffn_gate_inp_shexp.weight"]
    assert np.array_equal(router.data, block.gate.weight.detach().numpy())
    assert np.array_equal(shared.data, block.shared_expert_gate.weight.detach().numpy()[0]), "as a vector"


@pytest.mark.parametrize("family", CONVERTED)
def test_a_file_is_rounded_again_matrix_by_matrix_and_all_else_is_copied(family: str, tmp_path: Path) -> None:
    case, conversion = next(row for row in ALL if row[0].name == family)
    make(case, tmp_path)
    source = convert(tmp_path, conversion)

    path = written(source, tmp_path / "made/model.gguf", "Q8_0")

    before, after = ({tensor.name: tensor for tensor in GGUFReader(one).tensors} for one in (source, path))
    assert read_gguf(source).entries == read_gguf(path).entries
    rounded = {name for name, tensor in after.items() if tensor.tensor_type != before[name].tensor_type}
    assert any("ffn_down" in name for name in rounded)
    for name, tensor in before.items():
        if name not in rounded:
            assert np.array_equal(tensor.data, after[name].data), name
            continue
        found = np.asarray(dequantize(after[name].data, after[name].tensor_type))
        assert np.sqrt(((found - tensor.data) ** 2).sum() / (tensor.data**2).sum()) < 0.01, name


def test_beside_eight_experts_attention_has_more_bits(tmp_path: Path) -> None:
    wide = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "num_local_experts": 8}
    make(replace(CASE["mixtral"], settings=CASE["mixtral"].settings | wide), tmp_path / "floats")

    found = types(written(tmp_path / "floats", tmp_path / "made/model.gguf", "Q4_K_M"))

    assert [found[f"blk.0.attn_{name}"] for name in ("q", "k", "v", "output")] == ["Q4_K", "Q8_0", "Q8_0", "Q5_K"]
    assert (found["blk.0.ffn_gate_exps"], found["blk.0.ffn_gate_inp"]) == ("Q4_K", "F32")


def types(path: Path) -> dict[str, str]:
    return {name.removesuffix(".weight"): tensor.dtype for name, tensor in read_gguf(path).tensors.items()}


def test_q4_k_m_gives_more_bits_to_half_of_the_sensitive_matrices(tmp_path: Path) -> None:
    case = CASE["qwen3"]
    wide = {"hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 8, "tie_word_embeddings": False}
    make(replace(case, settings=case.settings | wide), tmp_path / "floats")

    found = types(written(tmp_path / "floats", tmp_path / "made/model.gguf", "Q4_K_M"))

    # Of 8 layers the first eighth, the last, and every third between (llama-quant.cpp, use_more_bits).
    assert [found[f"blk.{i}.attn_v"] == "Q6_K" for i in range(8)] == [i in (0, 3, 6, 7) for i in range(8)]
    assert [found[f"blk.{i}.ffn_down"] for i in (0, 1)] == ["Q8_0", "Q5_0"], "96 columns are no K blocks"
    assert (found["output"], found["token_embd"], found["blk.1.attn_q"]) == ("Q6_K", "Q4_K", "Q4_K")
    assert (found["blk.0.attn_norm"], found["blk.0.attn_q_norm"]) == ("F32", "F32")


def test_a_table_of_each_layer_has_the_bits_of_the_tied_embedding(tmp_path: Path) -> None:
    case = CASE["gemma4-per-layer"]
    wide = {"hidden_size": 256, "hidden_size_per_layer_input": 256}
    make(replace(case, settings=case.settings | wide), tmp_path / "floats")

    found = types(written(tmp_path / "floats", tmp_path / "made/model.gguf", "Q4_K_M"))

    assert (found["token_embd"], found["per_layer_token_embd"]) == ("Q6_K", "Q6_K")
    assert (found["blk.0.attn_q"], found["per_layer_model_proj"]) == ("Q4_K", "F32")


def test_of_layers_that_are_halves_those_with_a_feed_forward_are_counted(tmp_path: Path) -> None:
    case = CASE["nemotron-h"]
    kinds = ["mlp", "mamba"] * 8
    wide = {"layers_block_type": kinds, "num_hidden_layers": 16, "intermediate_size": 256}
    make(replace(case, settings=case.settings | wide), tmp_path / "floats")

    found = types(written(tmp_path / "floats", tmp_path / "made/model.gguf", "Q4_K_M"))

    # The 8 are counted as the first 8 of 16 layers, of which 0, 1, 4 and 7 have more bits.
    assert [found[f"blk.{2 * i}.ffn_down"] == "Q6_K" for i in range(8)] == [i in (0, 1, 4, 7) for i in range(8)]


def test_the_command_writes_a_file_with_tokenizer_template_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "made"

    assert main(["quantize", "-o", str(folder), "--format", "gguf-Q4_K_M", "--quality-tokens", "64"]) == 0

    (path,) = folder.glob("*.gguf")
    report = read_report(path)
    assert report is not None
    assert report.file == path.name
    assert report.text in (folder / "README.md").read_text()
    assert 0.005 < report.float_activations.divergence < 0.15, "0.067 as measured"
    assert answer(path) == "The capital of France is Paris."
    assert read_report(path.rename(folder / "other.gguf")) is None, "the report is of another file"


def test_a_gguf_file_is_rounded_again_with_its_metadata(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    plain = ["--quality-tokens", "0"]
    assert main(["quantize", "-o", str(first), "--format", "gguf-Q8_0", *plain]) == 0
    (source,) = first.glob("*.gguf")

    assert main(["quantize", str(source), "-o", str(second), "--format", "gguf-Q5_K_M", *plain]) == 0

    (path,) = second.glob("*.gguf")
    assert path.name == source.name.replace("Q8_0", "Q5_K_M")
    before, after = read_gguf(source).metadata, read_gguf(path).metadata
    assert {key for key in before | after if before.get(key) != after.get(key)} == {"general.file_type"}
    assert "Q8_0" not in types(path)["blk.0.attn_q"]
    assert answer(path) == "The capital of France is Paris."


def refusal(family: str, tmp_path: Path) -> str:
    make(CASE[family], tmp_path / "floats")
    with pytest.raises(ConfigError) as refused:
        written(tmp_path / "floats", tmp_path / "made/model.gguf", "Q8_0")
    assert not list(tmp_path.glob("made/*"))
    return str(refused.value)


def test_what_a_file_can_t_say_is_refused(tmp_path: Path) -> None:
    assert "helium: forearm writes no GGUF files of this family" in refusal("helium", tmp_path / "a")
    assert "layers of this mistral has no key" in refusal("mistral-window", tmp_path / "b")
    assert "layers of this qwen3_moe has no key" in refusal("qwen3-moe", tmp_path / "c"), "one layer is dense"


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("qwen3-biases", "qwen3 with blk.0.attn_output.bias, which this qwen3 has"),
        ("gptj", "gptj"),
        ("llama-biases", ""),
        ("qwen2", ""),
        ("gpt-oss", ""),
    ],
)
def test_what_llama_cpp_does_not_open_is_told(
    family: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(CASE[family], tmp_path / "floats")

    written(tmp_path / "floats", tmp_path / "made/model.gguf", "Q8_0")

    warnings = [message for message in caplog.messages if "llama.cpp opens no file" in message]
    begin = f"llama.cpp opens no file of the architecture {told}: forearm alone will read this one"
    assert [warning.startswith(begin) for warning in warnings] == [True] * bool(told)


def test_a_folder_with_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()

    assert main(["quantize", "-o", str(tmp_path), "--format", "gguf-Q8_0"]) == 78
    assert "has files; name a new folder" in capsys.readouterr().err
