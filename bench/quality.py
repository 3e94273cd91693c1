"""How far a model's answers move when its weights, activations or KV cache are quantised.

    python bench/quality.py MODEL [--rows int8,int4] [--out bench/results/quality-smollm2]

MODEL is a folder with float weights, or a .gguf file of the llama architecture; a quantised file is dequantised to
bfloat16 first, and those weights in float32 are the truth. Every row of bench/quality_rows.py is served by the native
executor on the same windows of the texts in bench/texts (public domain), and compared with the truth token by token:

- perplexity, as a rise over the truth's, over all predictions of a window; and counted as llama-perplexity counts, over
  the second half of each window of 512 tokens
- KL divergence of the next-token distribution from the truth's, in nats; how often the most probable token is the same
- tasks that need no download (bench/quality_tasks.py): definitions chosen out of four, copying, sums, JSON
- with --share, the KL divergence when one kind of matrices, or one layer, alone is quantised
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.float_model import write_float_model
from bench.quality_rows import ROWS, TRUTH, Row
from bench.quality_tasks import Tasks

from forearm import _native
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.weights import load_native
from forearm.model.families.config import WeightFormat, uniform_formats
from forearm.model.gguf.gguf import is_gguf
from forearm.model.quantization.quantization import Asked
from forearm.text.tokenizer.tokenizer import load_tokenizer

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

TEXTS = Path(__file__).parent / "texts"
WINDOW = 512
BLOCK = 32


class Model:
    """One way to serve the model: the logits after every token of a sequence that begins at position 0."""

    def __init__(self, checkpoint: Checkpoint, threads: int) -> None:
        self._executor = load_native(
            checkpoint,
            step_tokens=WINDOW,
            step_sequences=1,
            step_logit_rows=WINDOW,
            cores=(),
            threads=threads,
            progress=False,
        )
        self._executor.allocate_kv(WINDOW // BLOCK)

    def logits(self, tokens: Sequence[int] | Ids, begin: int = 0) -> Floats:
        """Logits after tokens that stand at positions begin, begin + 1, ...: float32 [tokens, vocab]."""
        rows = np.arange(len(tokens), dtype=np.int32)
        blocks = np.arange(-(-(begin + len(tokens)) // BLOCK), dtype=np.int32)
        self._executor.forward(
            np.asarray(tokens, np.int32),
            rows + np.int32(begin),
            np.array([0, len(tokens)], np.int32),
            np.array([0, len(blocks)], np.int32),
            blocks,
            rows,
        )
        return self._executor.logits()

    def log_probabilities(self, tokens: Ids) -> Floats:
        """Log-probabilities of every next token but the one behind the last, float32 [tokens - 1, vocab]."""
        return log_softmax(self.logits(tokens)[:-1])


def log_softmax(logits: Floats) -> Floats:
    """In place, row by row."""
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


def opened(folder: Path, row: Row) -> Checkpoint:
    """The float model as the row serves it."""
    asked = Asked(row.quantization, row.embeddings, row.activations)
    return open_checkpoint(folder, dtype=row.dtype, kv_dtype=row.kv, max_model_len=WINDOW, quantization=asked)


def windows(texts: Mapping[str, Sequence[int]], tokens: int) -> list[Ids]:
    """The first `tokens` tokens of every text in windows of at most WINDOW."""
    step = min(WINDOW, tokens)
    return [np.asarray(ids[i : i + step], np.int32) for ids in texts.values() for i in range(0, tokens, step)]


@dataclass(frozen=True)
class Score:
    """A row against the truth. rise, spread: of the perplexity, relative, and its standard error."""

    perplexity: float
    rise: float
    spread: float
    rise_of_second_halves: float
    divergence: float
    same_best: float


class Yardstick:
    """The truth's predictions for some windows, and how far another model's are from them."""

    def __init__(self, truth: Model, texts: Sequence[Ids]) -> None:
        self.texts = texts
        self._truth = [truth.log_probabilities(window) for window in texts]
        self._losses = [_losses(rows, window) for rows, window in zip(self._truth, texts, strict=True)]

    @property
    def perplexity(self) -> float:
        """The truth's."""
        return math.exp(float(np.concatenate(self._losses).mean()))

    def score(self, model: Model) -> Score:
        """Compare a model with the truth, window by window."""
        losses, divergences, same = [], [], []
        for window, truth in zip(self.texts, self._truth, strict=True):
            rows = model.log_probabilities(window)
            losses.append(_losses(rows, window))
            divergences.append(np.einsum("ij,ij->i", np.exp(truth), truth - rows))
            same.append(rows.argmax(axis=1) == truth.argmax(axis=1))
        changes = [mine - true for mine, true in zip(losses, self._losses, strict=True)]
        change = np.concatenate(changes)
        halves = np.concatenate([one[len(one) // 2 :] for one in changes])
        return Score(
            perplexity=math.exp(float(np.concatenate(losses).mean())),
            rise=math.expm1(float(change.mean())),
            spread=float(change.std() / math.sqrt(len(change))),
            rise_of_second_halves=math.expm1(float(halves.mean())),
            divergence=float(np.concatenate(divergences).mean()),
            same_best=float(np.concatenate(same).mean()),
        )


def _losses(rows: Floats, window: Ids) -> Floats:
    return np.asarray(-rows[np.arange(len(rows)), window[1:]])


def shares(folder: Path, row: Row, yardstick: Yardstick, threads: int) -> dict[str, float]:
    """The KL divergence when one kind of matrices, or one layer, alone is quantised as the row says."""
    checkpoint = opened(folder, row)
    exact = uniform_formats(checkpoint.config, WeightFormat("float32"))
    names = list(checkpoint.formats)
    parts = {kind: [name for name in names if name.endswith(kind)] for kind in ("embed", "qkv", ".o", "up", "down")}
    layers = range(len(checkpoint.config.layers))
    parts |= {f"layer {i}": [name for name in names if name.startswith(f"layers.{i}.")] for i in layers}
    found = {}
    for part, own in parts.items():
        formats = exact | {name: checkpoint.formats[name] for name in own}
        found[part.lstrip(".")] = yardstick.score(Model(replace(checkpoint, formats=formats), threads)).divergence
    return found


@dataclass(frozen=True)
class Measured:
    """Figures of a row. bits: of a weight of the layers, scales and all. tasks: part of the answers that are right."""

    name: str
    bits: float
    score: Score
    tasks: dict[str, float]
    shares: dict[str, float]


def bits_a_weight(checkpoint: Checkpoint) -> float:
    """Bits of a weight of the layers' matrices, scales and zero points counted."""
    bits = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4, "fp8_e4m3": 8, "fp8_e5m2": 8}
    total = values = 0.0
    for part, _ in checkpoint.sources:
        if len(part.shape) == 2 and part.name.startswith("layers."):
            layer, _, name = part.name.rpartition(".")
            packed = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "up"}.get(name, name)
            format = checkpoint.formats[f"{layer}.{packed}"]
            size = part.shape[0] * part.shape[1]
            per_group = bits[format.scale_dtype] + {"none": 0, "int8": 8, "float32": 32}[format.zero]
            scales = per_group / (format.group or part.shape[1]) if format.dtype in ("int8", "int4") else 0.0
            total, values = total + size * (bits[format.dtype] + scales), values + size
    return total / values


def table(rows: Sequence[Measured], heading: str) -> str:
    """Markdown."""
    tasks = list(rows[0].tasks)
    names = ["", "bits", "perplexity", "rise", "of second halves", "KL", "same best", *tasks]
    lines = [heading, "", f"| {' | '.join(names)} |", f"|---|{'---:|' * (len(names) - 1)}"]
    for row in rows:
        score = row.score
        cells = [
            row.name, f"{row.bits:.2f}", f"{score.perplexity:.3f}", f"{score.rise:+.2%} ± {score.spread:.2%}",
            f"{score.rise_of_second_halves:+.2%}", f"{score.divergence:.4f}", f"{score.same_best:.1%}",
            *(f"{row.tasks[task]:.0%}" for task in tasks),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    for row in (row for row in rows if row.shares):
        worst = sorted(row.shares.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{part} {share:.4f}" for part, share in worst[:10])
        lines += ["", f"KL when one part alone is {row.name}: {shown}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", default=",".join(row.name for row in ROWS), help="of bench/quality_rows.py")
    parser.add_argument("--tokens", type=int, default=1024, help="of every text; windows are of 512")
    parser.add_argument("--share", action="store_true", help="also quantise one part alone")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="writes OUT.md and OUT.json")
    given = parser.parse_args()

    tokenizer = load_tokenizer(given.model)
    texts = {path.stem: tokenizer.encode(path.read_text()) for path in sorted(TEXTS.glob("*.txt"))}
    chosen = [row for row in ROWS if row.name in given.rows.split(",")]
    with tempfile.TemporaryDirectory() as made:
        folder = given.model
        if is_gguf(folder):
            folder = Path(made)
            write_float_model(given.model, folder)
        truth = Model(opened(folder, TRUTH), given.threads)
        yardstick = Yardstick(truth, windows(texts, given.tokens))
        tasks = Tasks(tokenizer)
        results = []
        for row in chosen:
            checkpoint = opened(folder, row)
            model = Model(checkpoint, given.threads)
            score, right = yardstick.score(model), tasks.results(model)
            share = shares(folder, row, yardstick, given.threads) if given.share else {}
            results.append(Measured(row.name, bits_a_weight(checkpoint), score, right, share))
            print(row.name, score, right, flush=True)
    predictions = sum(len(window) - 1 for window in yardstick.texts)
    heading = (
        f"`python bench/quality.py {given.model.name} --tokens {given.tokens}`: {predictions} predictions, perplexity "
        f"of the truth {yardstick.perplexity:.3f}; tier {_native.tier()} ({platform.machine()}); "
        f"{datetime.date.today()}. What is measured: the first lines of bench/quality.py."
    )
    text = table(results, heading)
    print(text)
    if given.out:
        Path(f"{given.out}.md").write_text(f"# What quantisation costs in quality\n\n{text}")
        stored = {"tier": _native.tier(), "predictions": predictions, "perplexity": yardstick.perplexity}
        Path(f"{given.out}.json").write_text(json.dumps(stored | {"rows": [asdict(row) for row in results]}, indent=1))


if __name__ == "__main__":
    main()
