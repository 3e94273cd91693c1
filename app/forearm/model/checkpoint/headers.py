"""A model's headers without its weights, fetched from the hub by HTTP range requests, for `forearm plan`.

Each weight file of the hub becomes a sparse local file of the same size: it holds the header, and the rest is a hole
that takes no disk space and is never read. The few small tensors that opening a checkpoint reads (orders of columns,
factors of rotary angles) are fetched as well.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies

from forearm.errors import ConfigError
from forearm.model.checkpoint.hub import IGNORED, explained, find_file, gguf_patterns, local_model, no_safetensors
from forearm.model.checkpoint.shards import MAX_HEADER_BYTES, StoredTensor, read_tensors
from forearm.model.gguf.gguf import read_gguf, read_gguf_file
from forearm.model.gguf.short_names import full_name

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

SETTINGS = (
    "config.json", "generation_config.json", "*.index.json", "quant*_config.json", "hf_quant_config.json",
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "[0-9]*/config.json",
)  # fmt: skip
MOST_SETTINGS_BYTES = 64 << 20  # bound for an index, which has about 100 bytes a tensor
FIRST_BYTES = 256 << 10  # holds the header of most safetensors files
FIRST_GGUF_BYTES, MOST_GGUF_BYTES = 8 << 20, 256 << 20  # the header holds the vocabulary and its merges
MOST_FILES = 5000
AT_ONCE = 8
TIMEOUT_S = 30.0  # without receiving a byte
REACH_S = 2.0  # until a connection to the hub is there
# Tensors whose data the opening of a checkpoint reads.
_READ = ("*.g_idx", "*.weight_g_idx", "rope_freqs.weight", "rope_factors_*.weight")


@dataclass(frozen=True)
class _Repository:
    """A model repository on the hub, at one revision."""

    model: str
    revision: str
    token: str

    def files(self) -> list[RepoFile]:
        """List all files of the repository with their sizes.

        Raises: ConfigError naming a path that leads out of the folder, or the number of files if there are too many.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        tree = HfApi(token=self.token or None).list_repo_tree(self.model, recursive=True, revision=self.revision)
        files = [entry for entry in tree if isinstance(entry, RepoFile)]
        wrong = [file.path for file in files if file.path.startswith("/") or ".." in file.path.split("/")]
        if len(files) > MOST_FILES:
            raise ConfigError(
                f"model {self.model!r}: the repository has {len(files)} files; at most {MOST_FILES} are read"
            )
        if wrong:
            raise ConfigError(f"model {self.model!r}: the hub lists {wrong[0]!r}, which is no place inside a folder")
        return files

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Read bytes begin .. end - 1 of a file; fewer if the file is shorter."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # named in its __init__, without __all__
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        url = hf_hub_url(self.model, name, revision=self.revision)
        headers = build_hf_headers(token=self.token or None) | {"Range": f"bytes={begin}-{end - 1}"}
        content = bytearray()
        with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S) as reply:
            hf_raise_for_status(reply)
            skipped = 0 if reply.status_code == 206 else begin  # a server may send the whole file
            for piece in reply.iter_bytes():
                content += piece
                if len(content) >= skipped + end - begin:
                    break
        return bytes(content[skipped : skipped + end - begin])


def find_headers(model: str, into: Path, *, revision: str = "", download_dir: str = "", token: str = "") -> Path:
    """Return the folder or .gguf file of MODEL (see hub.find_model), possibly without weights, for open_checkpoint.

    into: an empty folder that receives headers from the hub; a model that is in the cache is opened there instead.
    Raises: ConfigError naming what was not found, and the remedy.
    """
    found = local_model(model)
    model = full_name(model)
    found = found or _cached(model, revision, download_dir)
    if found is not None:
        return found
    import httpx2  # huggingface_hub's

    name, _, quantization = model.partition(":")
    repository = _Repository(name, revision or "main", token)
    with explained(name, repository.revision):
        _check_reach()
        try:
            return _fetch(repository, model, quantization, into)
        except httpx2.RequestError as problem:
            raise OSError(f"the hub can't be reached ({problem})") from None


def _check_reach() -> None:
    """Connect to the hub once, if no proxy stands between: huggingface_hub itself tries for 24 s before it gives up.

    Raises: OSError if nothing answers within REACH_S.
    """
    from huggingface_hub import constants

    if getproxies() or constants.is_offline_mode():
        return
    hub = urlsplit(constants.ENDPOINT)
    failed: list[OSError] = [TimeoutError(f"{hub.hostname} does not answer within {REACH_S:g} s")]

    def connect() -> None:
        try:
            port = hub.port or (80 if hub.scheme == "http" else 443)
            socket.create_connection((str(hub.hostname), port), REACH_S).close()
            failed.clear()
        except OSError as problem:
            failed[:] = [problem]

    # In a thread, because the resolver of names has a time limit of its own.
    attempt = Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(REACH_S)
    if failed:
        raise OSError(f"the hub can't be reached ({failed[0]})")


def _cached(model: str, revision: str, download_dir: str) -> Path | None:
    """Return the model's place in the hub's cache; None if any of its weights are missing there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    name, _, quantization = model.partition(":")
    cache = download_dir or None
    try:
        folder = Path(snapshot_download(name, revision=revision or "main", cache_dir=cache, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    try:
        if quantization:
            return find_file(folder, model, gguf_patterns(quantization))
        read_tensors(folder)  # every file that the index names
        return folder if (folder / "config.json").is_file() else None
    except ConfigError:
        return None


def _fetch(repository: _Repository, model: str, quantization: str, into: Path) -> Path:
    """Fetch the settings and headers of a repository into a folder.

    Raises: ConfigError if the repository has none; httpx2.RequestError and huggingface_hub's errors.
    """
    files = repository.files()
    if quantization:
        patterns = gguf_patterns(quantization)
        for file in (f for f in files if any(fnmatchcase(f"/{f.path}", pattern) for pattern in patterns)):
            _fetch_gguf(repository, file, into / file.path)
        path = find_file(into, model, patterns)
        _fetch_data(repository, into, list(read_gguf(path).tensors.values()))
        return path
    top = [file for file in files if not any(fnmatchcase(file.path, pattern) for pattern in IGNORED)]
    for file in (f for f in top if any(fnmatchcase(f.path, pattern) for pattern in SETTINGS)):
        if file.size > MOST_SETTINGS_BYTES:
            raise ConfigError(
                f"model {model!r}: {file.path} has {file.size} bytes; a settings file may have {MOST_SETTINGS_BYTES}"
            )
        (into / file.path).parent.mkdir(parents=True, exist_ok=True)
        (into / file.path).write_bytes(repository.read(file.path, 0, file.size))
    weights = [file for file in top if fnmatchcase(file.path, "*.safetensors")]
    if not weights and any(fnmatchcase(file.path, "pytorch_model*.bin") for file in top):
        raise ConfigError(
            f"model {model!r} has its weights as pytorch_model.bin, which cannot be planned with before it is "
            "downloaded; download it (`forearm serve` does) and name the folder"
        )
    if not weights:
        raise no_safetensors(model, repository.revision)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda file: _fetch_safetensors(repository, file, into / file.path), weights))
    _fetch_data(repository, into, list(read_tensors(into).values()))
    return into


def _fetch_safetensors(repository: _Repository, file: RepoFile, path: Path) -> None:
    """Write a sparse file with the header of a safetensors file on the hub."""
    head = repository.read(file.path, 0, min(FIRST_BYTES, file.size))
    length = 8 + struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else 0
    if len(head) < length <= min(MAX_HEADER_BYTES, file.size):
        head += repository.read(file.path, len(head), length)
    _write_sparse(path, head[:length], file.size)  # read_tensors refuses by name what is not a header


def _fetch_gguf(repository: _Repository, file: RepoFile, path: Path) -> None:
    """Write a sparse file with the header of a .gguf file on the hub.

    A GGUF header does not state its own length, so more bytes are fetched until it can be read whole.
    Raises: ConfigError if the header is not complete within MOST_GGUF_BYTES.
    """
    head, wanted = b"", FIRST_GGUF_BYTES
    while True:
        head += repository.read(file.path, len(head), min(wanted, file.size))
        _write_sparse(path, head, file.size)
        try:
            begins = [tensor.begin for tensor in read_gguf_file(path, texts=False).tensors.values()]
            if min(begins, default=0) <= len(head):
                return
        except ConfigError:
            if len(head) == file.size or wanted >= MOST_GGUF_BYTES:
                raise
        wanted *= 2


def _fetch_data(repository: _Repository, into: Path, tensors: Sequence[StoredTensor]) -> None:
    """Fetch the data of the few small tensors that planning reads."""
    wanted = [tensor for tensor in tensors if any(fnmatchcase(tensor.name, pattern) for pattern in _READ)]

    def fetch(tensor: StoredTensor) -> None:
        content = repository.read(tensor.path.relative_to(into).as_posix(), tensor.begin, tensor.end)
        with tensor.path.open("r+b") as file:
            file.seek(tensor.begin)
            file.write(content)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(fetch, wanted))


def _write_sparse(path: Path, head: bytes, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
