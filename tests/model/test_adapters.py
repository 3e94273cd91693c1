"""jina-embeddings-v3 as published, with the adapters of all tasks in its files, has the vectors of one of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.model.encoder_cases import ENCODER_CASES, make
from tests.model.run_pooling import Run, pooler

from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.weight_cache import key_of
from forearm.model.pooling.plan import PoolingAsked
from forearm.model.pooling.pooling import pooling_plan

CASE = next(case for case in ENCODER_CASES if case.model == "JinaEmbeddingsV3Model")
TASKS, RANK, ALPHA = ("retrieval.query", "classification", "text-matching"), 2, 1.0
SERVED = TASKS.index("text-matching")
# Each weight is the original in float32 plus the product, so it differs from the plain one by two roundings.
TOLERANCE = 1e-5


def publish(plain: Path, folder: Path) -> None:
    """Write the model in `plain` as the published one is stored: the adapter of text-matching restores its weights."""
    random, stored = np.random.default_rng(0), {}
    for name, values in load_file(plain / "model.safetensors").items():
        if values.ndim == 1:
            stored[f"roberta.{name}"] = values
            continue
        rows, columns = values.shape
        left = random.normal(0, 0.1, (len(TASKS), rows, RANK)).astype(np.float32)
        right = random.normal(0, 0.1, (len(TASKS), RANK, columns)).astype(np.float32)
        of_embedding = "embeddings" in name
        module = f"roberta.{name.removesuffix('.weight')}.parametrizations.weight"
        stored[f"{module}.original"] = values - np.float32(ALPHA / RANK) * (left[SERVED] @ right[SERVED])
        stored[f"{module}.0.lora_A"], stored[f"{module}.0.lora_B"] = (left, right) if of_embedding else (right, left)
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    del config["rope_parameters"]
    own = {"model_type": "xlm-roberta", "architectures": ["XLMRobertaLoRA"], "position_embedding_type": "rotary"}
    own |= {"rotary_emb_base": 20000.0, "lora_adaptations": TASKS, "lora_alpha": ALPHA, "lora_rank": RANK}
    (folder / "config.json").write_text(json.dumps(config | own))


def vectors(folder: Path) -> np.ndarray:
    run = Run(str(folder), CASE.prompts(), {"pooling_type": "MEAN"})
    return np.stack(pooler(run, 2).compute(run.prompts, "embed", False))


def key(folder: Path, task: str) -> str:
    plan = pooling_plan(folder, PoolingAsked(hf_overrides={"default_task": task}))
    return key_of(open_checkpoint(folder, pooling=plan))


def test_the_adapter_of_one_task_is_added_to_the_published_weights(tmp_path: Path) -> None:
    make(CASE, tmp_path / "plain")
    publish(tmp_path / "plain", tmp_path / "published")
    config = tmp_path / "published" / "config.json"

    plain, default = vectors(tmp_path / "plain"), vectors(tmp_path / "published")
    config.write_text(config.read_text()[:-1] + ', "default_task": "classification"}')
    other = vectors(tmp_path / "published")

    assert np.abs(default - plain).max() <= TOLERANCE * np.abs(plain).max()
    assert np.abs(other - plain).max() > 100 * TOLERANCE * np.abs(plain).max()
    assert key(config.parent, "text-matching") != key(config.parent, "classification")  # of packed weights on disk


@pytest.mark.parametrize(
    ("task", "lost", "said"),
    [
        ("separation", "", r'default_task = "separation".*one of retrieval\.query, classification, text-matching'),
        ("classification", "layers.1.mixer.out_proj.parametrizations.weight.0.lora_B", r"1\.mixer.*original needs"),
    ],
)
def test_a_task_or_tensor_that_is_not_there_is_named(task: str, lost: str, said: str, tmp_path: Path) -> None:
    make(CASE, tmp_path / "plain")
    publish(tmp_path / "plain", tmp_path / "published")
    path = tmp_path / "published" / "model.safetensors"
    save_file({name: one for name, one in load_file(path).items() if not (lost and lost in name)}, path)

    with pytest.raises(ConfigError, match=said):
        key(tmp_path / "published", task)
