"""`forearm list`, `show`, `pull` and `rm` on a cache as Hugging Face's library lays it out."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from bench.ggml import write_gguf

from forearm.cli import main
from forearm.model.checkpoint.hub import DEMO_MODEL

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put(cache: Path, model: str, files: dict[str, Path]) -> Path:
    """Put files into the cache as a downloaded repository. Returns: its folder in the cache."""
    repository = cache / f"models--{model.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for name, source in files.items():
        blob = repository / "blobs" / hashlib.sha256(name.encode()).hexdigest()
        blob.write_bytes(source.read_bytes())
        (snapshot / name).symlink_to(Path("../../blobs") / blob.name)
    return repository


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with a model as safetensors, and one as two GGUF files."""
    for quantization in ("Q4_K", "Q8_0"):
        write_gguf(DEMO_MODEL, tmp_path / f"{quantization}.gguf", quantization)
    put(tmp_path / "hub", "we/demo", {file.name: file for file in DEMO_MODEL.iterdir() if file.suffix != ".md"})
    names = {f"demo-{quantization}.gguf": tmp_path / f"{quantization}.gguf" for quantization in ("Q4_K", "Q8_0")}
    put(tmp_path / "hub", "we/demo-GGUF", names)
    return tmp_path / "hub"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main.main(argv) == 0
    return capsys.readouterr().out


def test_list_says_what_is_there(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = said(capsys, "list", "--download-dir", str(cache)).splitlines()

    assert head.split() == ["NAME", "SIZE", "FAMILY", "FORMAT", "CONTEXT", "MODIFIED", "SERVED", "AT"]
    assert sorted(row.split()[0] for row in rows) == ["we/demo", "we/demo-GGUF:Q4_K", "we/demo-GGUF:Q8_0"]
    sizes = {row.split()[0]: row.split()[1] for row in rows}
    assert int(sizes["we/demo"]) == round(sum(f.stat().st_size for f in cache.glob("models--we--demo/blobs/*")) / 1e6)
    assert int(sizes["we/demo-GGUF:Q4_K"]) < int(sizes["we/demo-GGUF:Q8_0"])
    assert all("qwen2" in row and "2048" in row for row in rows)


def test_list_of_an_empty_cache_is_its_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "list", "--download-dir", str(tmp_path / "none")).count("\n") == 1


@pytest.mark.parametrize("name", ["we/demo", "we/demo-GGUF:q4_k", ""])
def test_show_names_family_context_and_fit(
    name: str, cache: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    words = [name] if name else []
    lines = said(capsys, "show", *words, "--download-dir", str(cache)).splitlines()

    shown = dict(line.split(maxsplit=1) for line in lines if not line.startswith(("on ", "in ", "fits", "served")))
    assert shown["family"] == "qwen2"
    assert shown["context"] == "2048 tokens"
    assert shown["parameters"] == "6M"
    assert any(line.startswith("fits here") and " yes; " in line for line in lines)
    assert caplog.messages == [], "about zeros that are timed"


def test_show_of_a_model_that_does_not_fit_names_a_quantization_or_the_reason(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("show", "we/demo", "--download-dir", str(cache), "--kv-cache-memory-bytes", str(1 << 50))

    assert "fits here    no: " in said(capsys, *words)


def test_pull_of_what_is_there_prints_its_place(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    place = said(capsys, "pull", "we/demo-GGUF:Q8_0", "--download-dir", str(cache)).strip()

    assert place == str(cache / "models--we--demo-GGUF" / "snapshots" / COMMIT / "demo-Q8_0.gguf")


def test_pull_wants_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["pull"]) == 78
    assert "forearm pull owner/name" in capsys.readouterr().err


def test_rm_deletes_one_file_and_with_the_last_one_the_repository(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--download-dir", str(cache))

    said(capsys, "rm", "we/demo-GGUF:Q4_K", *where)
    assert "Q4_K" not in said(capsys, "list", *where)
    assert len(list((cache / "models--we--demo-GGUF" / "blobs").iterdir())) == 1

    said(capsys, "rm", "we/demo-gguf:q8_0", "https://huggingface.co/we/demo", *where)
    assert [path for path in cache.iterdir() if path.name.startswith("models--")] == []


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("we/demo-GGUF", "name one of we/demo-GGUF:Q4_K, we/demo-GGUF:Q8_0"),
        ("we/demos", "did you mean we/demo?"),
        ("zzz", "see forearm list"),
    ],
)
def test_rm_of_an_unknown_name_has_a_remedy(
    name: str, remedy: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["rm", name, "--download-dir", str(cache)]) == 78
    assert remedy in capsys.readouterr().err
    assert len(list(cache.glob("models--*"))) == 2
