"""Measures the loss of quality of a model whose weights, activations or KV cache are quantized.

    python bench/quality/quality.py MODEL [--rows int8 int4] [--peers DIR] [--out bench/results/quality/<machine>.json]

MODEL is a folder with float weights, or a .gguf file of the llama architecture; a quantized file is dequantized to
bfloat16 first, and those weights in float32 are the truth. Every row of quality_rows.py is served by the native
executor on the same windows of the texts in app/forearm/model/checkpoint/quality_texts (public domain), and compared
with the truth token by token:

- perplexity, as a rise over the truth's, over all predictions of a window; and counted as llama-perplexity counts, over
  the second half of each window of 512 tokens
- KL divergence of the next-token distribution from the truth's, in nats; how often the most probable token is the same
- with --tasks, tasks without downloads (quality_tasks.py): definitions chosen out of four, copying, sums, JSON
- with --share, the KL divergence when one kind of matrices, or one layer, alone is quantized
- with --peers, llama.cpp and forearm on files that llama.cpp quantizes of the same weights; `python bench/compare.py
  --install DIR` builds llama.cpp
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers.contestants import LLAMA_SOURCES, steps_of
from bench.quality.float_model import write_float_model
from bench.quality.llama_rows import TRUTH_FILE, LlamaModel, bits_of_layers, llama_files
from bench.quality.quality_rows import ROWS, TRUTH, Row
from bench.quality.quality_tasks import Tasks
from bench.records import Figure, figure, figures_of, line_of, record, run_of

from forearm import _native
from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.calibration import WINDOW
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.quality_report import TEXTS, Comparison, TextModel
from forearm.model.families.matrices import uniform_formats
from forearm.model.gguf.gguf import is_gguf
from forearm.model.quantization.quantization import Asked
from forearm.text.tokenizer.tokenizer import load_tokenizer

Ids = npt.NDArray[np.int32]


def opened(folder: Path, row: Row) -> Checkpoint:
    """Open the float model with the row's settings."""
    asked = Asked(row.quantization, row.embeddings, row.activations)
    return open_checkpoint(folder, dtype=row.dtype, kv_dtype=row.kv, max_model_len=WINDOW, quantization=asked)


def windows(texts: Mapping[str, Sequence[int]], tokens: int) -> list[Ids]:
    """Return the first `tokens` tokens of every text, or all that it has, in windows of 2 to WINDOW tokens."""
    step = min(WINDOW, tokens)
    starts = {name: range(0, min(tokens, len(ids) - 1), step) for name, ids in texts.items()}
    return [np.asarray(ids[i : i + step], np.int32) for name, ids in texts.items() for i in starts[name]]


class Predicts(Protocol):
    """A model that tells the log-probabilities of a text's tokens."""

    def log_probabilities(self, tokens: Ids) -> npt.NDArray[np.float32]:
        """Return the log-probabilities of the token after each but the last, float32 [tokens - 1, vocab]."""


class Yardstick:
    """The truth's predictions for some windows, with which another model's are compared."""

    def __init__(self, truth: TextModel, texts: Sequence[Ids]) -> None:
        self.texts = texts
        self._truth = [truth.log_probabilities(window) for window in texts]

    @property
    def perplexity(self) -> float:
        """Return the perplexity of the truth."""
        pairs = zip(self._truth, self.texts, strict=True)
        losses = [-rows[np.arange(len(rows)), window[1:]] for rows, window in pairs]
        return math.exp(float(np.concatenate(losses).mean()))

    @property
    def predictions(self) -> str:
        """Return how many there are, as the name of the figures' row."""
        return f"{sum(len(window) - 1 for window in self.texts):,} predictions"

    def compared(self, model: Predicts) -> Comparison:
        """Compare a model with the truth, window by window."""
        found = Comparison()
        for window, truth in zip(self.texts, self._truth, strict=True):
            found.add(window, truth, model.log_probabilities(window))
        return found


def shares(folder: Path, row: Row, yardstick: Yardstick, threads: int) -> dict[str, float]:
    """Return the KL divergence with only one kind of matrices, or only one layer, quantized as the row says."""
    checkpoint = opened(folder, row)
    exact = uniform_formats(checkpoint.config, WeightFormat("float32"))
    names = list(checkpoint.formats)
    parts = {kind: [name for name in names if name.endswith(kind)] for kind in ("embed", "qkv", ".o", "up", "down")}
    layers = range(len(checkpoint.config.layers))
    parts |= {f"layer {i}": [name for name in names if name.startswith(f"layers.{i}.")] for i in layers}
    found = {}
    for part, own in parts.items():
        formats = exact | {name: checkpoint.formats[name] for name in own}
        found[part.lstrip(".")] = yardstick.compared(
            TextModel(replace(checkpoint, formats=formats), threads)
        ).loss.divergence
    return found


def bits_a_weight(checkpoint: Checkpoint) -> float:
    """Return the bits per weight of the layers' matrices, including scales and zero points."""
    bits = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int6": 6, "int4": 4, "fp4_e2m1": 4, "e8m0": 8}
    bits |= {"fp8_e4m3": 8, "fp8_e5m2": 8, "none": 0}
    total = values = 0.0
    for part, _ in checkpoint.sources:
        if len(part.shape) == 2 and part.name.startswith("layers."):
            layer, _, name = part.name.rpartition(".")
            packed = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "up"}.get(name, name)
            format = checkpoint.formats[f"{layer}.{packed}"]
            size = part.shape[0] * part.shape[1]
            per_group = bits[format.scale_dtype] + bits[format.zero]
            scales = per_group / (format.group or part.shape[1]) if format.is_integer else 0.0
            total, values = total + size * (bits[format.dtype] + scales), values + size
    return total / values


def figures_of_row(
    names: tuple[str, str], yardstick: Yardstick, model: Predicts, bits: float, peer: str = ""
) -> list[Figure]:
    """Return a row's figures in the form of bench/records.py. names: of the model and of the format."""
    found = yardstick.compared(model)
    figures = figures_of(*names, yardstick.predictions, {"bits_a_weight": bits} | asdict(found.loss), peer)
    halves = np.concatenate([one[len(one) // 2 :] for one in found.changes])
    rise = math.expm1(float(halves.mean()))
    return [*figures, figure(*names, "second halves of windows", "perplexity_rise", rise, peer)]


def figures_beside(
    peers: Path, given: Path, folder: Path, name: str, yardstick: Yardstick, threads: int
) -> Iterator[Figure]:
    """Yield the figures of llama.cpp, and of forearm with the same files.

    peers: where bench/compare.py installed llama.cpp. given: the model that `folder`'s floats were made of.
    """
    steps = steps_of("llama", peers)
    with tempfile.TemporaryDirectory() as made:
        for format, peer, path in llama_files(given, folder, steps, Path(made)):
            names = (name, format)
            if format != TRUTH_FILE:
                checkpoint = opened(path, Row(format))
                yield from figures_of_row(names, yardstick, TextModel(checkpoint, threads), bits_a_weight(checkpoint))
            llama = LlamaModel(steps, path, threads)
            yield from figures_of_row(names, yardstick, llama, bits_of_layers(path), peer)
            llama.close()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--name", default="", help="of the model in the results; its file's or folder's by default")
    parser.add_argument(
        "--rows", nargs="+", default=[row.name for row in ROWS], help="of bench/quality/quality_rows.py"
    )
    parser.add_argument("--tokens", type=int, default=1024, help="of every text; windows are of 512")
    parser.add_argument("--tasks", action="store_true", help="also the tasks")
    parser.add_argument("--share", action="store_true", help="also quantize one part alone")
    parser.add_argument(
        "--peers", type=Path, metavar="DIR", help="also llama.cpp, as bench/compare.py installed it there"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="machine's file that the figures are added to")
    return parser.parse_args()


def main() -> None:
    """Measure, print and record."""
    given = arguments()
    tokenizer, name = load_tokenizer(given.model), given.name or given.model.stem
    texts = {path.stem: tokenizer.encode(path.read_text()) for path in sorted(TEXTS.glob("*.txt"))}
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as made:
        folder = given.model
        if is_gguf(folder):
            folder = Path(made)
            write_float_model(given.model, folder)
        yardstick = Yardstick(TextModel(opened(folder, TRUTH), given.threads), windows(texts, given.tokens))
        for row in (row for row in (TRUTH, *ROWS) if row.name in given.rows):
            checkpoint = opened(folder, row)
            model = TextModel(checkpoint, given.threads)
            figures = figures_of_row((name, row.name), yardstick, model, bits_a_weight(checkpoint))
            if given.tasks:
                right = Tasks(tokenizer).results(model)
                figures += [figure(name, row.name, task, "right_answers", part) for task, part in right.items()]
            if given.share:
                parts = shares(folder, row, yardstick, given.threads)
                figures += [figure(name, row.name, f"{part} alone", "divergence", own) for part, own in parts.items()]
            print(*map(line_of, figures), sep="\n", flush=True)
            found += figures
        if given.peers:
            for one in figures_beside(given.peers, given.model, folder, name, yardstick, given.threads):
                print(line_of(one), flush=True)
                found.append(one)
    if given.out:
        note = (
            f"Beside the same weights in float32, whose perplexity is {yardstick.perplexity:.2f}, on the texts in "
            "app/forearm/model/checkpoint/quality_texts. Weights of a .gguf file have been rounded before; small "
            "models lose the most."
        )
        versions = {"llama.cpp": LLAMA_SOURCES.partition("==")[2]} if given.peers else None
        record(given.out, run_of(found, given.threads, _native.tier(), versions, [note]))


if __name__ == "__main__":
    main()
