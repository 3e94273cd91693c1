"""Texts a second of an embedding model, beside transformers on torch with as many threads.

    python bench/embeddings.py --model FOLDER --threads 2 --out bench/results/embeddings/<machine>.json

Both get token ids of random words and give vectors of unit length. Runs take turns, so that what else the machine
does meets both; the best run of each counts, and the median is told beside it. transformers pads nothing here: all
texts of a batch are equally long, which is its best case. With one thread it is processor time that counts, which
changes little with what else runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.records import Figure, figure, line_of, record, run_of

from forearm import LLM, _native

Embed = Callable[[list[list[int]]], np.ndarray]


def ours(args: argparse.Namespace) -> Embed:
    """LLM.embed: the engine's loop without sockets."""
    settings: dict[str, Any] = {"quantization": args.quantization} if args.quantization else {}
    llm = LLM(args.model, dtype=args.dtype, runner="pooling", omp_num_threads=args.threads, **settings)

    def embed(texts: list[list[int]]) -> np.ndarray:
        return np.array([one.outputs.data for one in llm.encode(texts, use_tqdm=False)])

    return embed


def theirs(args: argparse.Namespace) -> Embed:
    """transformers' AutoModel with torch's fused attention, then the mean at unit length."""
    import torch
    from transformers import AutoModel

    torch.set_num_threads(args.threads)
    model = AutoModel.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()

    def embed(texts: list[list[int]]) -> np.ndarray:
        with torch.inference_mode():
            rows = model(input_ids=torch.tensor(texts)).last_hidden_state
            found: np.ndarray = torch.nn.functional.normalize(rows.mean(dim=1).float(), dim=1).numpy()
            return found

    return embed


def measured(
    engines: dict[str, Embed], texts: list[list[int]], runs: int, clock: Callable[[], float]
) -> dict[str, dict[str, float]]:
    """Texts a second of each engine, runs taking turns."""
    vectors = {name: embed(texts) for name, embed in engines.items()}  # warm
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(runs):
        for name, embed in engines.items():
            begin = clock()
            embed(texts)
            seconds[name].append(clock() - begin)
    result = {
        name: {"best": len(texts) / min(taken), "median": len(texts) / median(taken)} for name, taken in seconds.items()
    }
    if len(vectors) == 2:
        first, second = vectors.values()
        apart = float(np.abs(first - second).max())
        result["vectors"] = {"apart": apart}
    return result


def figures(found: dict[str, dict[str, float]], row: str, args: argparse.Namespace) -> list[Figure]:
    """Return each engine's best and median speed."""
    name, format, lines = Path(args.model).name, args.quantization or args.dtype, []
    for engine in ("forearm", "transformers"):
        if engine in found:
            peer = "" if engine == "forearm" else f"{engine} {args.dtype}"
            ratio = found["forearm"]["best"] / found[engine]["best"] if peer else None
            lines.append(figure(name, format, row, "texts_s", found[engine]["best"], peer, ratio))
            lines.append(figure(name, format, row, "median_texts_s", found[engine]["median"], peer))
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of an embedding model with mean pooling")
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", default="")
    parser.add_argument("--tokens", default="32,128", help="of a text")
    parser.add_argument("--batches", default="1,32", help="texts at a time")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--alone", action="store_true", help="without transformers")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    engines = {"forearm": ours(args)} | ({} if args.alone else {"transformers": theirs(args)})
    vocabulary = json.loads((Path(args.model) / "config.json").read_text())["vocab_size"]
    clock = time.process_time if args.threads == 1 else time.perf_counter
    random, recorded = np.random.default_rng(0), list[Figure]()
    for tokens in map(int, args.tokens.split(",")):
        for batch in map(int, args.batches.split(",")):
            texts = random.integers(1000, vocabulary, (batch, tokens)).tolist()
            found = measured(engines, texts, args.runs, clock)
            lines = figures(found, f"{batch} at a time, {tokens} tokens", args)
            print(*map(line_of, lines), sep="\n", flush=True)
            recorded += lines
    if args.out:
        record(args.out, run_of(recorded, args.threads, _native.tier()))


if __name__ == "__main__":
    main()
