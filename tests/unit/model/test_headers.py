"""Headers of a model on the hub are enough to open its checkpoint as if it were here, whatever its size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from tests.unit.model import stored
from tests.unit.model.gguf_files import write_gguf
from tests.unit.model.header_hub import header_hub

from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.hub import DEMO_MODEL

ASK = """
import json, sys, tempfile
from pathlib import Path
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.headers import find_headers
with tempfile.TemporaryDirectory() as into:
    try:
        found = find_headers(sys.argv[1], Path(into), download_dir=sys.argv[2])
        opened = open_checkpoint(found)
    except ConfigError as problem:
        sys.exit(f"refused: {problem}")
    taken = sum(path.stat().st_blocks * 512 for path in Path(into).rglob("*") if path.is_file())
    print(json.dumps({
        "packed": opened.packed_bytes, "parts": [(part.name, part.shape) for part, _ in opened.sources],
        "ordered": sorted({format.ordered for format in opened.formats.values()}), "taken": taken,
        "in_cache": str(found).startswith(sys.argv[2]),
        "rope": float(opened.config.ropes[0].inv_freq[-1]),
    }))
"""


def ask(model: str, cache: Path, **environment: str) -> dict[str, object] | str:
    """Return what a new process finds: huggingface_hub reads its environment when it is imported."""
    own = {"HF_HOME": str(cache / "home"), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", ASK, model, str(cache)],
        env=os.environ | own | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_model_of_ten_gigabytes_is_opened_with_its_headers_alone(tmp_path: Path) -> None:
    large = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 24, "vocab_size": 32000}
    folder = tmp_path / "large"
    folder.mkdir()
    stored.llama(folder, "BF16", **large, num_attention_heads=32, num_key_value_heads=32)  # sparse: it takes no disk
    size = (folder / "model.safetensors").stat().st_size
    assert size > 10e9

    with header_hub({"someone/large": folder}) as hub:
        found = ask("someone/large", tmp_path, HF_ENDPOINT=hub.address)

    assert isinstance(found, dict), found
    here = open_checkpoint(folder)
    assert found["packed"] == here.packed_bytes
    assert found["parts"] == [[part.name, list(part.shape)] for part, _ in here.sources]
    assert hub.sent["model.safetensors"] < 1 << 20
    assert int(str(found["taken"])) < 1 << 20
    assert sorted(hub.sent) == ["config.json", "model.safetensors"]


def test_a_server_that_knows_no_ranges_is_not_read_to_the_end(tmp_path: Path) -> None:
    with header_hub({"someone/demo": DEMO_MODEL}, ranges=False) as hub:
        found = ask("someone/demo", tmp_path, HF_ENDPOINT=hub.address)

    assert isinstance(found, dict), found
    assert found["packed"] == open_checkpoint(DEMO_MODEL).packed_bytes
    assert hub.sent["model.safetensors"] < (DEMO_MODEL / "model.safetensors").stat().st_size


def test_files_of_several_parts_and_long_headers_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "split"
    folder.mkdir()
    config = stored.LLAMA | {"num_hidden_layers": 400}
    shapes = list(stored.llama_shapes(config).items())
    (folder / "config.json").write_text(json.dumps(config))
    files = {"model-00001-of-00002.safetensors": shapes[::2], "model-00002-of-00002.safetensors": shapes[1::2]}
    for name, some in files.items():
        stored.write(folder / name, dict(some))
    index = {"weight_map": {tensor: name for name, some in files.items() for tensor, _ in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    with header_hub({"someone/split": folder}) as hub:
        found = ask("someone/split", tmp_path, HF_ENDPOINT=hub.address)

    assert isinstance(found, dict), found
    assert found["packed"] == open_checkpoint(folder).packed_bytes


def test_folders_that_belong_to_the_model_come_along_and_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "modules"
    for name in ("1_Pooling", "onnx"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}")
    stored.llama(folder)

    with header_hub({"someone/modules": folder}) as hub:
        assert isinstance(ask("someone/modules", tmp_path, HF_ENDPOINT=hub.address), dict)

    assert sorted(hub.sent) == ["1_Pooling/config.json", "config.json", "model.safetensors"]


def test_a_gguf_files_header_and_the_factors_of_its_angles_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "gguf"
    folder.mkdir()
    file = write_gguf(folder / "tiny-Q8_0.gguf", "llama", gguf_keys(), gguf_tensors())

    with header_hub({"someone/tiny-GGUF": folder}) as hub:
        found = ask("someone/tiny-GGUF:Q8_0", tmp_path, HF_ENDPOINT=hub.address)
        missing = ask("someone/tiny-GGUF:Q4_K_M", tmp_path, HF_ENDPOINT=hub.address)

    assert isinstance(found, dict), found
    here = open_checkpoint(file)
    assert found["packed"] == here.packed_bytes
    assert found["rope"] == float(here.config.ropes[0].inv_freq[-1])
    assert "has no .gguf file of that quantization" in str(missing)


def gguf_keys() -> dict[str, object]:
    sizes = {"embedding_length": 64, "feed_forward_length": 96, "block_count": 1, "context_length": 128}
    heads = {"attention.head_count": 2, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5}
    return {f"llama.{key}": value for key, value in (sizes | heads).items()} | {
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(100)], "tokenizer.ggml.eos_token_id": 1,
    }  # fmt: skip


def gguf_tensors() -> dict[str, np.ndarray]:
    at = "blk.0."
    shapes = {
        "token_embd": (100, 64), "output": (100, 64), f"{at}attn_q": (64, 64), f"{at}attn_k": (32, 64),
        f"{at}attn_v": (32, 64), f"{at}attn_output": (64, 64), f"{at}ffn_gate": (96, 64), f"{at}ffn_up": (96, 64),
        f"{at}ffn_down": (64, 96), f"{at}attn_norm": (64,), f"{at}ffn_norm": (64,), "output_norm": (64,),
    }  # fmt: skip
    tensors = {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    return {"rope_freqs.weight": np.linspace(1, 8, 16, dtype=np.float32), **tensors}


def test_a_model_in_the_cache_is_opened_there(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--someone--demo" / "snapshots" / stored_commit(tmp_path)
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(DEMO_MODEL / name)

    found = ask("someone/demo", tmp_path, HF_HUB_OFFLINE="1")

    assert isinstance(found, dict), found
    assert found["in_cache"] is True
    assert found["taken"] == 0


def stored_commit(cache: Path) -> str:
    refs = cache / "models--someone--demo" / "refs"
    refs.mkdir(parents=True)
    commit = "0123456789abcdef0123456789abcdef01234567"
    (refs / "main").write_text(commit)
    return commit


def test_what_the_hub_has_not_is_said_with_a_remedy(tmp_path: Path) -> None:
    evil = tmp_path / "pickled"
    evil.mkdir()
    (evil / "config.json").write_text("{}")
    (evil / "pytorch_model.bin").write_text("a pickle")

    with header_hub({"someone/pickled": evil}) as hub:
        unknown = ask("someone/nobody", tmp_path, HF_ENDPOINT=hub.address)
        pickled = ask("someone/pickled", tmp_path, HF_ENDPOINT=hub.address)
    begun = time.monotonic()
    nobody_there = ask("someone/demo", tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    took_s = time.monotonic() - begun
    offline = ask("someone/demo", tmp_path, HF_HUB_OFFLINE="1")

    assert "neither a folder here nor a model on the hub" in str(unknown)
    assert "has its weights as pytorch_model.bin, which cannot be planned with" in str(pickled)
    assert "can't be downloaded: the hub can't be reached" in str(nobody_there)
    assert took_s < 10, "huggingface_hub tried again and again"
    assert "refused: model 'someone/demo', revision main can't be downloaded" in str(offline)
