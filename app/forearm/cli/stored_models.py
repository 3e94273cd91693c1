"""`forearm list`, `show`, `pull` and `rm`: the models of this machine, in Hugging Face's cache."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from forearm.cli.servers import RunningServer, running_servers
from forearm.config import configs
from forearm.config.flags import CommandParser, read_line
from forearm.config.settings import hub_id
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.hub import find_model, local_model
from forearm.model.gguf.short_names import full_name
from forearm.model.pooling.plan import PoolingAsked
from forearm.model.pooling.pooling import pooling_plan

# llama.cpp's names of number formats, at the end of a file's name; a large file is split into numbered parts.
_GGUF = re.compile(r"[-._/]((?:IQ|TQ|MXFP|Q|BF|F)\d\w*?)(-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE)
_WEIGHTS = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class StoredModel:
    """A model in the cache.

    name: as serve takes it. place: its folder or .gguf file. files: the links of a .gguf file's parts; empty: the whole
    repository is the model. modified: seconds since 1970.
    """

    name: str
    place: Path
    size_bytes: int
    modified: float
    repository: Path
    files: tuple[Path, ...] = ()


def stored_models(download_dir: str) -> list[StoredModel]:
    """Return the models of the cache, the newest first; each .gguf file of a repository counts as one.

    download_dir: empty selects Hugging Face's cache (HF_HOME).
    """
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(download_dir or None).repos
    except CacheNotFound:
        return []
    found: list[StoredModel] = []
    for one in repositories:
        revision = max(one.revisions, key=lambda revision: revision.last_modified, default=None)
        if one.repo_type != "model" or revision is None:
            continue
        quantizations: dict[str, list[Path]] = {}
        for file in sorted(revision.files, key=lambda file: file.file_path):
            if match := _GGUF.search(str(file.file_path)):
                quantizations.setdefault(match[1], []).append(file.file_path)
        for quantization, paths in quantizations.items():
            size, name = sum(path.stat().st_size for path in paths), f"{one.repo_id}:{quantization}"
            found.append(StoredModel(name, paths[0], size, revision.last_modified, one.repo_path, tuple(paths)))
        if not quantizations and any(file.file_name.endswith(_WEIGHTS) for file in revision.files):
            place, size = revision.snapshot_path, one.size_on_disk
            found.append(StoredModel(one.repo_id, place, size, revision.last_modified, one.repo_path))
    return sorted(found, key=lambda model: -model.modified)


def _opened(place: Path) -> Checkpoint:
    """Return a model's checkpoint, as `forearm serve` opens it without flags. Raises: ConfigError if it cannot."""
    return open_checkpoint(place, pooling=pooling_plan(place, PoolingAsked()))


def run_list(argv: Sequence[str]) -> int:
    """Print a line for each model of the cache. Returns: the exit status."""
    parser = CommandParser("forearm list [--download-dir FOLDER]", "List the downloaded models of this machine.")
    add_download_dir(parser)
    servers = running_servers()
    rows = [("NAME", "SIZE", "FAMILY", "FORMAT", "CONTEXT", "MODIFIED", "SERVED AT")]
    for model in stored_models(parser.parse_args(argv).download_dir):
        try:
            opened = _opened(model.place)
            facts = (opened.config.model_type, opened.number_format, str(opened.max_model_len))
        except ConfigError:
            facts = ("?", "?", "?")  # `forearm show` says why
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.modified))
        rows.append((model.name, in_words(model.size_bytes), *facts, day, _addresses(model.place, servers)))
    print(table(rows))
    return 0


def run_show(argv: Sequence[str]) -> int:
    """Print what a model is, and whether this machine has the memory for it. Returns: the exit status."""
    from forearm.plan.host import this_host
    from forearm.plan.load import RequestTokens, Slo
    from forearm.plan.prediction import ModelHeaders, PlannedLoad, predict, smaller

    parser = CommandParser("forearm show [MODEL] [flags]", "Say what a downloaded model is, and whether it fits here.")
    line = read_line(parser, argv, configs.PLAN - {"revision", "hf_token"})
    engine = line.configs.engine
    place = local_model(engine.model) or _named(engine.model, stored_models(engine.download_dir)).place
    opened = _opened(place)
    host = this_host(line.configs)
    try:
        found = predict(host, ModelHeaders(place), PlannedLoad(RequestTokens(512, 128), Slo(None, None)))
        fits = f"yes; {in_words(found.peak_bytes)} with a full KV cache of {found.kv_tokens} tokens"
    except ConfigError as problem:
        fitting = list(smaller(host, ModelHeaders(place)))
        fits = f"no: {problem}" + (f"; it fits with --quantization {' or '.join(fitting)}" if fitting else "")
    shown = {
        "model": engine.model or "the demo model",
        "place": str(place),
        "family": opened.config.model_type,
        "parameters": in_words(opened.parameters, "B", "M"),
        "format": opened.number_format,
        "on disk": in_words(opened.stored_bytes),
        "in memory": in_words(opened.packed_bytes),
        "context": f"{opened.max_model_len} tokens",
        "layers": str(len(opened.config.layers)),
        "fits here": fits,
        "served at": _addresses(place, running_servers()) or f"nowhere; forearm serve {engine.model}".rstrip(),
    }
    print(table(shown.items()))
    return 0


def run_pull(argv: Sequence[str]) -> int:
    """Download a model, with a progress bar. Returns: the exit status."""
    line = read_line(CommandParser("forearm pull MODEL [flags]", "Download a model."), argv, configs.DOWNLOAD)
    engine = line.configs.engine
    if not engine.model:
        raise ConfigError("name the model: forearm pull owner/name, owner/name:Q4_K_M for a GGUF file, or qwen3:4b")
    print(find_model(engine.model, revision=engine.revision, **line.configs.serve.hub))
    return 0


def run_rm(argv: Sequence[str]) -> int:
    """Delete models of the cache; those that a server has open are refused. Returns: the exit status."""
    parser = CommandParser("forearm rm MODEL...", "Delete downloaded models, by the names of `forearm list`.")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    add_download_dir(parser)
    given = parser.parse_args(argv)
    servers = running_servers()
    for name in given.models:
        model = _named(name, stored_models(given.download_dir))
        if where := _addresses(model.place, servers):
            raise ConfigError(f"{name} is served at {where}; stop it first: forearm stop {name}")
        for link in model.files:
            link.resolve().unlink()
            link.unlink(missing_ok=True)
        others = [one for one in stored_models(given.download_dir) if one.repository == model.repository]
        if not (model.files and others):
            shutil.rmtree(model.repository)
        print(f"deleted {model.name}: {in_words(model.size_bytes)}", file=sys.stderr)
    return 0


def add_download_dir(parser: CommandParser) -> None:
    """Add the flag that names another cache than Hugging Face's."""
    parser.add_argument("--download-dir", default="", metavar="FOLDER", help="absent: Hugging Face's cache (HF_HOME)")


def _named(name: str, models: Sequence[StoredModel]) -> StoredModel:
    """Return the model with this name, in upper or lower case, or with this address of its page on the hub.

    Raises: ConfigError with the nearest name if there is none.
    """
    from difflib import get_close_matches

    name, by_name = full_name(hub_id(name)), {model.name.lower(): model for model in models}
    if name.lower() in by_name:
        return by_name[name.lower()]
    near = get_close_matches(name.lower(), by_name, n=1)
    parts = [model.name for model in models if model.name.lower().startswith(f"{name.lower()}:")]
    asked = f"; name one of {', '.join(parts)}" if parts else f"; did you mean {by_name[near[0]].name}?" if near else ""
    raise ConfigError(f"{name} is not in the cache{asked or '; see forearm list, or download it: forearm pull'}")


def _addresses(place: Path, servers: Sequence[RunningServer]) -> str:
    """Return the addresses of the servers that have a model open."""
    return ", ".join(server.url for server in servers if Path(server.folder).resolve() == place.resolve())


def in_words(count: int, billions: str = " GB", millions: str = " MB") -> str:
    """Return a count in the unit that suits it, as Ollama does: bytes as 94 MB, 4.7 GB; parameters as 135M, 7.2B."""
    return f"{count / 1e9:.1f}{billions}" if count >= 1e9 else f"{count / 1e6:.0f}{millions}"


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows of texts in columns, without spaces at the ends of lines."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("   ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
