"""A broken file of a model is refused by name: without a crash, a traceback, gigabytes of memory or a long wait."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.api.letters import write_letters
from tests.unit.model.broken_files import FILES, SMALL_FILES
from tests.unit.model.mutations import GOOD
from tests.unit.model.stored import LLAMA, llama

from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.hub import find_model
from forearm.text.templates.chat_template import find_chat_template
from forearm.text.tokenizer.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[3]
CASES = 60
SMALL_CASES = 300  # of 25 files
# A missing tensor belongs to no file; an index that names other tensors is refused by their names.
ALSO = {
    "model.safetensors": ("missing from its safetensors files", "--ignore-unread-tensors"),
    "model.safetensors.index.json": (".safetensors",),
    SMALL_FILES: ("config.json", "modules.json", "safetensors", "--ignore-unread-tensors", "no numbers", "/small/"),
}


@pytest.mark.parametrize("file", FILES)
def test_a_broken_file_is_refused_by_its_name(file: str) -> None:
    cases = SMALL_CASES if file == SMALL_FILES else CASES
    argv = [sys.executable, "-m", "tests.unit.model.broken_files", file, str(cases), "1"]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=240)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]

    assert ended.returncode == 0, f"case {lines[-1] if lines else 'none'} ended the process: {ended.stderr[-2000:]}"
    outcomes = dict(zip(lines[::2], lines[1::2], strict=True))
    wrong = {
        number: (kind, text)
        for number, (kind, text) in outcomes.items()
        if kind not in GOOD or (kind == "refused" and not any(name in text for name in (file, *ALSO.get(file, ()))))
    }
    assert wrong == {}
    assert len(outcomes) == cases
    noticed = sum(kind in ("refused", "warned") for kind, _ in outcomes.values())
    assert noticed > cases // 4, "most were taken: this shows little"


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 1 << 40},
        {"num_attention_heads": 0},
        {"hidden_size": 1, "num_attention_heads": 3},
        {"architectures": 5},
        {"vocab_size": -1},
    ],
    ids=str,
)
def test_sizes_that_make_no_model_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = llama(tmp_path)
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))

    with pytest.raises(ConfigError, match=r"config\.json"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "..", "", "a/b.safetensors", 3, None])
def test_an_index_names_files_of_its_folder_alone(tmp_path: Path, name: Any) -> None:
    folder = llama(tmp_path)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))

    with pytest.raises(ConfigError, match=r"index\.json.*is not the name of a weight file"):
        open_checkpoint(folder)


def test_a_folder_without_a_model_is_said_to_have_none_whatever_links_it_has(tmp_path: Path) -> None:
    (tmp_path / "os-release").symlink_to("/usr/lib/os-release")

    with pytest.raises(ConfigError, match=r"has neither config.json nor a .gguf file; give the folder that has them"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"])
def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    llama(folder)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/etc/passwd")

    with pytest.raises(ConfigError, match="outside of the model's folder") as refused:
        find_model(str(folder))
    assert str(folder / name) in str(refused.value)
    assert "root:" not in str(refused.value)


def test_links_of_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "a1"
    blobs.mkdir()
    folder.mkdir(parents=True)
    for file in llama(blobs).iterdir():
        (folder / file.name).symlink_to(f"../../blobs/{file.name}")

    assert open_checkpoint(find_model(str(folder))).config.model_type == "llama"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("chat_template.jinja", b"\xff\xfe{{"),
        ("chat_template.json", b"[]"),
        ("chat_template.json", b"{" * 100_000),
        ("chat_template.json", b'{"chat_template": [1]}'),
    ],
)
def test_a_chat_template_that_cannot_be_read_is_named(tmp_path: Path, file: str, content: bytes) -> None:
    folder = write_letters(tmp_path, template=None)
    (folder / file).write_bytes(content)

    with pytest.raises(ConfigError, match=file):
        find_chat_template(folder, None, load_tokenizer(folder).parts.chat_template)
