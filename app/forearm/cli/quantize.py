"""`forearm quantize`: a model rounded as --quantization rounds it, or to GGUF's blocks, and written to a folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from forearm.config.flags import CommandParser
from forearm.config.number_formats import AT_LOAD, INTEGERS
from forearm.errors import ConfigError, ForearmError
from forearm.model.checkpoint.calibration import Team
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.hub import find_model
from forearm.model.checkpoint.quality_report import TEXTS, measured_quality
from forearm.model.checkpoint.quantized_writer import CheckpointWriter
from forearm.model.checkpoint.weights import load_weights
from forearm.model.gguf.conversion.written_families import family_of
from forearm.model.gguf.gguf import is_gguf
from forearm.model.gguf.gguf_writer import MIXTURES, GgufWriter, float_checkpoint
from forearm.model.pooling.plan import PoolingAsked
from forearm.model.pooling.pooling import pooling_plan
from forearm.model.quantization.quantization import Asked
from forearm.text.tokenizer.gguf_vocabulary import gguf_vocabulary

_GGUF = "gguf-"
FORMATS = [*(name for name in AT_LOAD if name != "fp8"), *(f"{_GGUF}{name}" for name in MIXTURES)]


def run(argv: Sequence[str]) -> int:
    """Write a compressed-tensors checkpoint or a .gguf file. Returns: the exit status. Raises: ConfigError."""
    parser = CommandParser(
        "forearm quantize [MODEL] -o FOLDER [flags]",
        "Write a model of floats as a compressed-tensors checkpoint, which forearm, vLLM and transformers read, or as "
        "a GGUF file, which forearm and llama.cpp read.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        default="",
        help="a folder, a Hugging Face id, or a .gguf file for another; absent: the demo model",
    )
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--format",
        default=INTEGERS[4],
        choices=FORMATS,
        help="as --quantization of serve, or as llama.cpp calls its files",
    )
    parser.add_argument("--threads", type=int, default=0, help="absent: the cores that this process may use")
    parser.add_argument(
        "--quality-tokens", type=int, default=512, metavar="N", help="of each of five texts for quality.json; 0: none"
    )
    given = parser.parse_args(argv)
    if given.threads < 0:
        raise ConfigError(f"--threads {given.threads}: it must be at least 1")
    if given.quality_tokens < 0 or given.quality_tokens == 1:
        raise ConfigError(f"--quality-tokens {given.quality_tokens}: it must be 0 or at least 2")
    threads = given.threads or len(os.sched_getaffinity(0))
    place = find_model(given.model)
    if pooling_plan(place, PoolingAsked()) is not None:
        raise ConfigError(f"{given.model}: it generates no text, so it is not written; serve it with --quantization")
    with _new_folder(given.output):
        written = (_write_gguf if given.format.startswith(_GGUF) else _write_codes)(given, place, threads)
    if given.quality_tokens:
        try:
            report = measured_quality(place, written, given.quality_tokens, threads)
        except ConfigError as problem:
            print(f"no quality report: {problem}", file=sys.stderr)
        else:
            report.write(given.output)
            print(report.text)
    print(f"{given.output}: {sum(file.stat().st_size for file in given.output.iterdir()) / 2**20:.0f} MiB")
    return 0


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Leave nothing in the folder if the writing within fails: a part of a checkpoint could be taken for a whole one.

    Raises: ConfigError if the folder can't be a new one; ForearmError if it can't be written, as on a full disk.
    """
    with contextlib.suppress(FileNotFoundError):
        if not folder.is_dir() and folder.lstat():
            raise ConfigError(f"--output {folder}: it is a file; name a new folder")
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} has files; name a new folder")
    was_there = folder.exists()
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if was_there:
            folder.mkdir(exist_ok=True)
        if isinstance(error, OSError):
            raise ForearmError(f"--output {folder}: {error.strerror or error}; nothing is left there") from None
        raise


def _write_codes(given: Namespace, place: Path, threads: int) -> Path:
    """Write a compressed-tensors checkpoint. Returns: its folder."""
    if method := open_checkpoint(place).method:
        raise ConfigError(f"{given.model}: the checkpoint is quantized already ({method}); name one of floats")
    checkpoint = open_checkpoint(place, quantization=Asked(given.format, "none", portable=True))
    writer = CheckpointWriter(checkpoint, given.output, threads)
    errors = load_weights(checkpoint, writer, checkpoint.folder, Team((), threads), progress=sys.stderr.isatty())
    if errors.by_matrix:
        worst = errors.by_matrix[errors.worst]
        print(f"weights: relative error {errors.mean:.2%} on average, {worst:.2%} at worst ({errors.worst})")
    return Path(given.output)


def _write_gguf(given: Namespace, place: Path, threads: int) -> Path:
    """Write a .gguf file, with the model's README and licence beside it. Returns: the file."""
    mixture = given.format.removeprefix(_GGUF)
    checkpoint = float_checkpoint(place, mixture)
    name = re.sub(r"[-.](I?Q\d\w*|B?F16|F32)$", "", place.stem) if is_gguf(place) else Path(given.model).name
    path = Path(given.output) / f"{name or place.name}-{mixture}.gguf"
    own, config = is_gguf(place), checkpoint.config
    vocabulary = {}
    if not own:
        text = "\n".join(text.read_text("utf-8") for text in sorted(TEXTS.glob("*.txt")))
        architecture = family_of(config).architecture
        vocabulary = gguf_vocabulary(place, config.vocab_size, config.eos_token_ids, architecture, text)
    writer = GgufWriter(checkpoint, path, mixture, vocabulary, threads)
    load_weights(checkpoint, writer, checkpoint.folder, Team((), threads), progress=sys.stderr.isatty())
    if not own:
        for file in (file for kind in ("README.md", "LICENSE*", "NOTICE*") for file in place.glob(kind)):
            shutil.copyfile(file, path.parent / file.name)
    return path
