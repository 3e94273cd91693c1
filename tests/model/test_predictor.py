"""The layer of a checkpoint that predicts further tokens computes what transformers' layer does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.cases import CASES
from tests.model.gguf_conversions import STATES
from tests.model.gguf_converter import convert
from tests.model.made_cases import make
from tests.model.reference_predictor import Predicting, make_predicting
from tests.model.transformers_types import save_words

from forearm import LLM, SamplingParams, _native
from forearm.config.engine_config import EngineConfig
from forearm.config.speculative import drafting_asked
from forearm.engine.host.memory_plan import draft_checkpoint, fit
from forearm.engine.host.split_engines import memory_of
from forearm.engine.speculation.draft_length import Gain
from forearm.engine.speculation.predictor import Predictor
from forearm.engine.start import Cores, load
from forearm.errors import ConfigError
from forearm.model.checkpoint.calibration import Team
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.weights import load_weights
from forearm.model.families.keys import read_json
from forearm.model.families.matrices import matrices
from forearm.model.quantization.quantization import Asked

CASE = {case.name: case for case in CASES}
LENGTH = 40  # more than a block
FORMS = [("qwen3.5-text", "mtp"), ("qwen3.5-tied", "mtp"), ("qwen3.5-moe-text", "mtp"), ("deepseek-v3", "nextn")]


def executor(checkpoint: Checkpoint, threads: int = 2) -> _native.Executor:
    config = checkpoint.config
    made = _native.Executor(
        config, matrices(config), checkpoint.formats, "float32", 64, 4, 64, 256, [], threads
    )  # fmt: skip
    load_weights(checkpoint, made, checkpoint.folder, Team((), threads), progress=False)
    made.allocate_kv(8)
    return made


def step(made: _native.Executor, tokens: list[int], first: int, hidden: np.ndarray | None) -> np.ndarray:
    count = len(tokens)
    columns = (tokens, range(first, first + count), [0, count], [0, 2], [3, 5], range(count))
    states = np.zeros(1, np.int32) if made.state_bytes_per_slot else None
    made.forward(*(np.array(list(column), np.int32) for column in columns), states=states, hidden=hidden)
    return made.logits()


@pytest.mark.parametrize(("name", "form"), FORMS, ids=[name for name, _ in FORMS])
def test_its_logits_are_those_of_transformers_layer(name: str, form: str, tmp_path: Path) -> None:
    case = CASE[name]
    predicting = make_predicting(case, tmp_path, form)
    tokens = [int(one) for one in np.random.default_rng(3).integers(0, 331, LENGTH + 1)]
    hidden = predicting.hidden(tokens[:-1])
    theirs, own = predicting.logits(tokens[1:], hidden)
    checkpoint = open_checkpoint(tmp_path, dtype="float32", predicts=True)

    made = executor(checkpoint)
    ours = step(made, tokens[1:], 0, hidden.numpy())

    allowed = 1e-5 * float(np.abs(theirs.numpy()).max())  # float32 sums of rows of at most 200 numbers
    np.testing.assert_allclose(ours, theirs.numpy(), atol=allowed, rtol=0)
    np.testing.assert_allclose(made.hidden(), own.numpy(), atol=allowed, rtol=0)
    for cut in (1, 33):  # cut anywhere, it gives the same bits
        step(made, tokens[1 : cut + 1], 0, hidden.numpy()[:cut])
        assert np.array_equal(step(made, tokens[cut + 1 :], cut, hidden.numpy()[cut:]), ours[cut:])


def as_gguf(folder: Path) -> Path:
    """Return the file of a Qwen3.5, as llama.cpp's converter writes it: the layer stands behind the model's."""
    tensors = load_file(folder / "model.safetensors")
    config = read_json(folder / "config.json").values
    layers = config["num_hidden_layers"]
    around = {name: tensors.pop(f"mtp.{name}.weight").numpy() for name in ("fc", "norm", *_NORMS)}
    renamed = {name.replace("mtp.layers.0.", f"model.layers.{layers}."): values for name, values in tensors.items()}
    config |= {"num_hidden_layers": layers + 1, "layer_types": [*config["layer_types"], "full_attention"]}
    (folder / "whole").mkdir()
    (folder / "whole/config.json").write_text(json.dumps(config))
    save_file(renamed, folder / "whole/model.safetensors")
    conversion = next(row[1] for row in STATES if row[0].name == "qwen3.5-text")
    nextn = f"blk.{layers}.nextn."
    extra = {f"{nextn}eh_proj.weight": around["fc"], f"{nextn}shared_head_norm.weight": around["norm"] + 1}
    extra |= {f"{nextn}{short}norm.weight": around[name] + 1 for name, short in zip(_NORMS, "eh", strict=True)}
    return convert(
        folder / "whole",
        replace(
            conversion,
            keys=lambda config: conversion.keys(config) | {"nextn_predict_layers": 1},
            extra=lambda config: conversion.extra(config) | extra,
        ),
    )


_NORMS = ("pre_fc_norm_embedding", "pre_fc_norm_hidden")


def test_a_gguf_file_gives_the_same_logits(tmp_path: Path) -> None:
    predicting = make_predicting(CASE["qwen3.5-text"], tmp_path, "mtp")
    tokens = [int(one) for one in np.random.default_rng(3).integers(0, 331, LENGTH + 1)]
    hidden = predicting.hidden(tokens[:-1])
    theirs, _ = predicting.logits(tokens[1:], hidden)

    made = executor(open_checkpoint(as_gguf(tmp_path), dtype="float32", predicts=True))

    allowed = 1e-5 * float(np.abs(theirs.numpy()).max())
    np.testing.assert_allclose(step(made, tokens[1:], 0, hidden.numpy()), theirs.numpy(), atol=allowed, rtol=0)


def test_a_checkpoint_without_such_a_layer_is_told(tmp_path: Path) -> None:
    make(CASE["qwen3.5-text"], tmp_path)

    with pytest.raises(ConfigError, match=r"method mtp: the checkpoint has no layer that predicts further tokens"):
        open_checkpoint(tmp_path, predicts=True)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_it_is_rounded_without_calibration(weights: str, tmp_path: Path) -> None:
    make_predicting(CASE["qwen3.5-text"], tmp_path, "mtp")

    checkpoint = open_checkpoint(tmp_path, quantization=Asked(weights), predicts=True)

    assert not checkpoint.calibrated
    assert checkpoint.formats["fuse"].is_quantized


@pytest.fixture(scope="module", params=[("qwen3.5-text", "mtp"), ("deepseek-v3", "nextn")], ids=lambda pair: pair[1])
def predicting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Predicting, Path]:
    """A model with states, and one without, each with a layer that predicts."""
    folder = tmp_path_factory.mktemp("predicting")
    made = make_predicting(CASE[request.param[0]], folder, request.param[1])
    save_words(folder)
    return made, folder


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all drafts, whatever they cost."""
    monkeypatch.setattr(Gain, "lengths", lambda self, tokens, shares, available, round_s: list(available))


PROMPTS = [[int(one) for one in np.random.default_rng(seed).integers(3, 331, 6 + 9 * seed)] for seed in range(5)]


def served(folder: Path, **settings: Any) -> tuple[list[list[int]], LLM]:
    """Two outputs of each prompt, all at once."""
    llm = LLM(str(folder), dtype="float32", max_model_len=128, **settings)
    params = SamplingParams(temperature=1.0, top_k=3, seed=4, max_tokens=30, n=2, ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    return [list(one.token_ids) for answer in answers for one in answer.outputs], llm


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 4, "threads": 1},
        {"max_num_seqs": 3, "threads": 2, "max_num_batched_tokens": 7},
        {"max_num_seqs": 12, "threads": 2, "enable_prefix_caching": True},
        {"max_num_seqs": 6, "threads": 1, "blocks": 9},
        {"max_num_seqs": 12, "threads": 2, "quantization": "int8"},
    ],
    ids=["in turns", "in chunks", "together", "preempted", "int8"],
)
def test_drafts_change_no_token(predicting: tuple[Predicting, Path], settings: dict[str, Any]) -> None:
    _, folder = predicting
    own, blocks = {key: value for key, value in settings.items() if key != "blocks"}, settings.get("blocks")
    wanted, _ = served(folder, **own)
    asked = {"method": "mtp", "num_speculative_tokens": 3}
    if blocks:
        one = served(folder, **own, speculative_config=asked)[1]._loop._stepper.executor
        own["kv_cache_memory_bytes"] = blocks * one.block_bytes

    found, llm = served(folder, **own, speculative_config=asked)

    assert found == wanted
    text = llm._loop.meter.text()
    drafted = next(line for line in text.splitlines() if line.startswith("vllm:spec_decode_num_draft_tokens_total"))
    assert float(drafted.rsplit(" ", 1)[1]) > 100
    assert not blocks or llm._loop.scheduler.preemptions > 0


@pytest.mark.usefixtures("eager")
def test_drafts_are_what_transformers_layer_predicts(
    predicting: tuple[Predicting, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, folder = predicting
    seen: list[tuple[list[int], list[int]]] = []
    draft = Predictor.draft

    def noted(self: Predictor, wanted: Any, blocks: Any) -> list[list[int]]:
        drafts = draft(self, wanted, blocks)
        seen.extend((list(sequence.tokens), one) for (sequence, _), one in zip(wanted, drafts, strict=True))
        return drafts

    monkeypatch.setattr(Predictor, "draft", noted)
    served(
        folder, max_num_seqs=5, threads=2, max_num_batched_tokens=33,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3, "quantization": "none"},
    )  # fmt: skip

    assert len(seen) > 100
    compared = 0
    for tokens, drafts in seen[::7]:
        states, ahead = reference.hidden(tokens[:-1]), tokens[1:]
        for token in drafts:
            logits, own = reference.logits(ahead, states)
            best = logits[-1].topk(2)
            if best.values[0] - best.values[1] > 1e-3:  # float32 errors are 1e-5 of logits of a few units
                assert token == best.indices[0], f"after {len(tokens)} tokens, {drafts}"
                compared += 1
            states, ahead = torch.cat([states, own[-1:]]), [*ahead, token]
    assert compared > 30


LENT = [("none", "none"), ("int8", "none"), ("int8", "int8"), ("int4", "int8"), ("fp8", "int8")]


@pytest.mark.parametrize("ranks", [(), (1, 1)], ids=["one rank", "two ranks"])
@pytest.mark.parametrize(("weights", "own"), LENT, ids=[f"{weights}, {own}" for weights, own in LENT])
def test_it_computes_with_the_models_embedding_and_head(
    predicting: tuple[Predicting, Path], weights: str, own: str, ranks: tuple[int, ...]
) -> None:
    reference, folder = predicting
    asked = {"method": "mtp", "quantization": own}
    llm = LLM(str(folder), dtype="float32", quantization=weights, speculative_config=asked, threads=2, ranks=ranks)
    stepper, drafter = llm._loop._stepper, llm._loop._speculation._drafter
    assert isinstance(drafter, Predictor)
    tokens = [int(one) for one in np.random.default_rng(3).integers(0, 331, 30)]
    states = reference.hidden(tokens[:-1]).numpy()

    theirs = step(stepper.executor.native, tokens[:-1], 0, None)
    ours = step(drafter._executor.native, tokens[1:], 0, states)

    # What both keep, times the head of the checkpoint, are their logits: though an int8 head reads other rows.
    most = 1e-5 if weights == "none" else 0.05  # what int8 makes of a head with 48 columns
    head = reference.model.get_output_embeddings().weight.detach().numpy()
    for logits, kept in ((theirs, stepper.executor.hidden()), (ours, drafter._executor.hidden())):
        assert np.linalg.norm(logits - kept @ head.T) < most * np.linalg.norm(logits)
    if own == "none":
        _, behind = reference.logits(tokens[1:], reference.hidden(tokens[:-1]))
        assert np.linalg.norm(drafter._executor.hidden() - behind.numpy()) < most * np.linalg.norm(behind.numpy())


def layer_beside(folder: Path, weights: str, own: str) -> tuple[set[str], int, int]:
    """Return what a layer has of embedding and head, the bytes of its weights, and what its executor takes."""
    asked = {"method": "mtp", "quantization": own}
    config = EngineConfig(model=str(folder), quantization=weights, speculative_config=asked, max_num_seqs=4)
    drafting, cores = drafting_asked(config), Cores(2, (), (2,))
    assert drafting is not None
    planned = fit(config, folder, memory_of(config), 2, draft_checkpoint(config, drafting, folder))
    assert planned.draft is not None
    model = load(config, planned.checkpoint, planned.limits, cores, progress=False)
    layer = load(config, planned.draft, planned.limits, cores, progress=False, beside=model)
    assert planned.draft_bytes >= layer.packed_bytes + layer.scratch_bytes
    names = {spec.name for spec in matrices(planned.draft.config)} & {"embed", "head"}
    return names, planned.draft.packed_bytes, layer.packed_bytes


@pytest.mark.parametrize(
    ("weights", "own", "kept"),
    [("none", "none", set()), ("int8", "int8", set()), ("int4", "int8", set()), ("none", "int8", {"head"})],
)
def test_it_keeps_a_head_only_where_it_is_smaller(
    predicting: tuple[Predicting, Path], weights: str, own: str, kept: set[str]
) -> None:
    names, planned, taken = layer_beside(predicting[1], weights, own)

    assert names == kept
    assert planned * 0.9 < taken <= planned


@pytest.mark.parametrize("differs", [(), ("embed_tokens",), ("shared_head.head",)], ids=str)
def test_it_keeps_tensors_that_the_models_are_not(differs: tuple[str, ...], tmp_path: Path) -> None:
    predicting = make_predicting(CASE["deepseek-v3"], tmp_path, "nextn")
    tensors = load_file(tmp_path / "model.safetensors")
    behind = f"model.layers.{predicting.model.config.num_hidden_layers}."
    embed, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    for name, values in (("embed_tokens", embed), ("shared_head.head", head)):
        tensors[f"{behind}{name}.weight"] = -values if name in differs else values.clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})

    names, planned, taken = layer_beside(tmp_path, "none", "none")

    assert names == {{"embed_tokens": "embed", "shared_head.head": "head"}[name] for name in differs}
    assert taken <= planned
    made = executor(open_checkpoint(tmp_path, dtype="float32", predicts=True))
    tokens = [int(one) for one in np.random.default_rng(3).integers(0, 331, LENGTH + 1)]
    hidden = predicting.hidden(tokens[:-1])
    if "embed_tokens" in differs:
        embedding = predicting.model.get_input_embeddings()
        embedding.weight.data = -embedding.weight.data
    theirs = predicting.logits(tokens[1:], hidden)[0].numpy() * (-1 if "shared_head.head" in differs else 1)
    np.testing.assert_allclose(step(made, tokens[1:], 0, hidden.numpy()), theirs, atol=1e-5 * np.abs(theirs).max())
