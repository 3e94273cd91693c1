"""Measure the loss of accuracy of every weight format and KV format against float32, in one table.

    python bench/quality/accuracy.py --out bench/results/accuracy/<machine>.json

There are two measurements. The first is the error |y - y32| / |y32| over all tokens of the output of one layer (which
is added to the residual stream), in the shape of a real model, with three kinds of random weights (normal; Student's t
with 4 degrees of freedom, whose tails are long; normal with one column in a hundred 8 times as large) and activations
like those of large models: one channel in 200 is 20 times as large as the others (Dettmers et al. 2022,
arXiv:2208.07339, section 4). The second is the perplexity of the demo model on its held-out answers. It is a smoke test
and is not recorded: its activations have no outliers, so it hides what rounding them costs a real model.

The rows are in bench/quality/accuracy_rows.py, each with bounds that tests/model/test_accuracy.py holds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.ggml import rounded, write_gguf
from bench.quality.accuracy_rows import ROWS, Row
from bench.records import figure, record, run_of
from bench.shapes import SHAPES, Shape

from forearm import LLM, SamplingParams, _native
from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.model.families.config import ModelConfig
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.gguf.gguf_codes import BLOCK_TYPES, decode_rows

Floats = npt.NDArray[np.float32]

KINDS = ("normal", "long tails", "large columns")
BLOCK = 32


# --- one layer ---


def weights_of(kind: str, rows: int, columns: int, seed: int) -> Floats:
    """Return random weights with a variance of about 1 / columns."""
    random = np.random.default_rng(seed)
    if kind == "long tails":
        return (random.standard_t(4, (rows, columns)) / math.sqrt(2 * columns)).astype(np.float32)
    values = random.standard_normal((rows, columns), np.float32) / np.float32(math.sqrt(columns))
    if kind == "large columns":
        values[:, random.permutation(columns)[: columns // 100]] *= 8
    return values


def activations_of(hidden: int, tokens: int) -> Floats:
    """Return the layer's input, [tokens, hidden]."""
    random = np.random.default_rng(7)
    values = random.standard_normal((tokens, hidden), np.float32)
    values[:, random.permutation(hidden)[: hidden // 200]] *= 20
    return values


def matrices_of(shape: Shape) -> dict[str, tuple[int, int]]:
    """Return [rows, columns] of one layer's matrices, by the executor's names."""
    specs = matrices(shape.cut(1).model)
    return {part.name: (part.rows, spec.k) for spec in specs for part in spec.parts if spec.name.startswith("layers.")}


def layer_output(shape: Shape, weights: Mapping[str, Floats], row: Row, tokens: int, threads: int) -> Floats:
    """Return the layer's output before the residual addition, [tokens, hidden].

    The embedding holds the activations and the head is the identity, both in float32, so that logits are the residual
    stream after the layer.
    """
    small = replace(shape, vocab=shape.hidden, layers=1, tied=False, architecture="llama")
    config = replace(small.model, final_norm=False)
    formats = uniform_formats(config, WeightFormat("float32")) | _formats(config, row)
    executor = _native.Executor(config, matrices(config), formats, row.kv, tokens, 1, tokens, 4096, (), threads)
    x = activations_of(small.hidden, tokens)
    executor.load_matrix("embed", np.pad(x, ((0, small.hidden - tokens), (0, 0))), "float32")
    executor.load_matrix("head", np.eye(small.hidden, dtype=np.float32), "float32")
    for name, values in weights.items():
        _load(executor, name, values, row)
    for norm in ("input_norm", "pre_mlp_norm"):
        executor.load_vector(f"layers.0.{norm}", np.ones(small.hidden, np.float32))
    executor.finish_loading()
    return _forward(executor, tokens) - x


def _formats(config: ModelConfig, row: Row) -> dict[str, WeightFormat]:
    """Return the formats of the layer's packed matrices."""
    weights = row.weights
    return {
        spec.name: BLOCK_TYPES[_type(weights, spec.k)].format if isinstance(weights, str) else weights
        for spec in matrices(config)
        if spec.name.startswith("layers.")
    }


def _type(kind: str, columns: int) -> str:
    return rounded(np.zeros((1, columns), np.float32), kind)[0]


def _load(executor: _native.Executor, name: str, values: Floats, row: Row) -> None:
    if isinstance(row.weights, str):
        kind, blocks = rounded(values, row.weights)
        codes = decode_rows(kind, blocks, values.shape[1])
        executor.load_codes(name, codes.codes, codes.scales, offsets=codes.offsets)
    else:
        executor.load_matrix(name, values, "float32")


def _forward(executor: _native.Executor, tokens: int) -> Floats:
    blocks = -(-tokens // BLOCK)
    executor.allocate_kv(blocks)
    ids = np.arange(tokens, dtype=np.int32)
    starts, block_starts = np.array([0, tokens], np.int32), np.array([0, blocks], np.int32)
    executor.forward(ids, ids, starts, block_starts, np.arange(blocks, dtype=np.int32), ids)
    return executor.logits()


def layer_errors(
    shape: Shape, rows: Sequence[Row], tokens: int, threads: int, kinds: Sequence[str] = KINDS
) -> dict[str, dict[str, float]]:
    """Return |y - y32| / |y32| by row and kind of weights."""
    found: dict[str, dict[str, float]] = {row.name: {} for row in rows}
    for kind in kinds:
        weights = {name: weights_of(kind, *size, i) for i, (name, size) in enumerate(matrices_of(shape).items())}
        exact = layer_output(shape, weights, ROWS[0], tokens, threads).astype(np.float64)
        for row in rows:
            error = layer_output(shape, weights, row, tokens, threads) - exact
            found[row.name][kind] = float(np.linalg.norm(error) / np.linalg.norm(exact))
    return found


# --- the demo model ---


@dataclass(frozen=True)
class Answer:
    """One held-out turn: all its tokens, and the index of the answer's first one."""

    tokens: list[int]
    begin: int


def answers_of(llm: LLM, count: int) -> list[Answer]:
    """Return the first `count` held-out turns."""
    text = llm.get_tokenizer()
    found = []
    for line in (DEMO_MODEL / "heldout.jsonl").read_text(encoding="utf-8").splitlines()[:count]:
        messages = json.loads(line)["messages"]
        whole: Any = text.apply_chat_template(messages, tokenize=False)
        prompt: Any = text.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        begin = len(text.encode(prompt, add_special_tokens=False))
        found.append(Answer(text.encode(whole.rstrip("\n"), add_special_tokens=False), begin))  # to the end of the turn
    return found


def perplexity(row: Row, count: int, folder: Path, threads: int) -> float:
    """Return the perplexity of the demo model's held-out answers in the row's formats."""
    model = ""
    if isinstance(row.weights, str):
        model = str(folder / f"{row.weights}.gguf")
        write_gguf(DEMO_MODEL, Path(model), row.weights)
    options: dict[str, Any] = {"dtype": "float32", "kv_cache_dtype": "float32"} | (row.options or {})
    llm = LLM(model, max_model_len=512, max_num_seqs=16, threads=threads, **options)
    answers = answers_of(llm, count)
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    outputs = llm.generate([answer.tokens for answer in answers], params, use_tqdm=False)
    total, scored = 0.0, 0
    for answer, output in zip(answers, outputs, strict=True):
        assert output.prompt_logprobs is not None
        for token, known in list(zip(answer.tokens, output.prompt_logprobs, strict=True))[answer.begin :]:
            assert known is not None
            total -= known[token].logprob
            scored += 1
    return math.exp(total / scored)


# --- the table ---


@dataclass(frozen=True)
class Measured:
    """The figures of a row: errors by shape and kind, perplexity (None: not measured)."""

    name: str
    errors: dict[str, dict[str, float]]
    perplexity: float | None


def measure(shapes: Sequence[str], tokens: int, count: int, threads: int) -> list[Measured]:
    """Measure all rows."""
    errors = {shape: layer_errors(SHAPES[shape], ROWS, tokens, threads) for shape in shapes}
    with tempfile.TemporaryDirectory() as folder:
        return [
            Measured(
                row.name,
                {shape: errors[shape][row.name] for shape in shapes},
                None if row.options is None else perplexity(row, count, Path(folder), threads),
            )
            for row in ROWS
        ]


def table(rows: Sequence[Measured], heading: str) -> str:
    """Return the table as Markdown."""
    shapes = list(rows[0].errors)
    columns = [f"{shape}, {kind}" for shape in shapes for kind in KINDS]
    lines = [
        heading,
        "",
        f"| | {' | '.join(columns)} | perplexity | of float32's |",
        f"|---|{'---:|' * (len(columns) + 2)}",
    ]
    base = rows[0].perplexity or 1.0
    for row in rows:
        cells = [f"{row.errors[shape][kind]:.2%}" for shape in shapes for kind in KINDS]
        rise = ("", "") if row.perplexity is None else (f"{row.perplexity:.3f}", f"{row.perplexity / base - 1:+.2%}")
        lines.append(f"| {' | '.join([row.name, *cells, *rise])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="machine's file that the layers' errors are added to")
    parser.add_argument("--shapes", default="qwen2.5-0.5b,r1-distill-qwen-1.5b,llama-2-7b", help="of bench/shapes.py")
    parser.add_argument("--tokens", type=int, default=64, help="of a layer's measurement")
    parser.add_argument("--answers", type=int, default=100, help="held-out answers of the demo model")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()

    rows = measure(given.shapes.split(","), given.tokens, given.answers, given.threads)
    print(
        table(
            rows, f"Tier {_native.tier()}. K types are what llama.cpp takes for them where a row is no multiple of 256."
        )
    )
    if given.out:
        errors = [
            figure(shape, row.name, kind, "layer_error", error)
            for row in rows
            for shape, kinds in row.errors.items()
            for kind, error in kinds.items()
        ]
        record(given.out, run_of(errors, given.threads, _native.tier()))


if __name__ == "__main__":
    main()
