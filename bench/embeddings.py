"""Measure texts per second of an embedding model, beside torch's libraries and ONNX Runtime with as many threads.

    python bench/embeddings.py --model FOLDER --threads 2 --out bench/results/embeddings/<machine>.json
    python bench/embeddings.py --model FOLDER --quantization int8 --peers transformers,onnxruntime

All engines get the token ids of random words and return vectors of unit length. Engines take turns, of one call or as
many as fit in 0.1 s, so that other load on the machine affects all alike; before a turn there is a rest, in which the
threads of the last engine stop spinning. The best call of each counts, and the median is given beside it. Peers pad
nothing here: all texts of a batch are equally long, which is their best case. With one thread processor time is
measured, which other load changes little. onnxruntime (pip install onnx onnxruntime) runs the exported model with int8
weights and quantizes activations at run time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.records import Figure, figure, line_of, record, run_of

from forearm import LLM, _native

Embed = Callable[[list[list[int]]], np.ndarray]
# ONNX Runtime's idle threads spin for 20 to 50 ms (session.intra_op.allow_spinning) on cores that others need:
# one text of 32 tokens by bge-base took 13.8 ms at once after it, 9.7 after 20 ms and 7.5 from 50 ms on (two cores).
REST_S, TURN_S = 0.25, 0.1
BATCH = 32  # texts: the default of sentence-transformers' encode()


def ours(args: argparse.Namespace) -> Embed:
    """Return LLM.encode: the engine's loop without sockets."""
    settings: dict[str, Any] = {"quantization": args.quantization} if args.quantization else {}
    llm = LLM(args.model, dtype=args.dtype, runner="pooling", omp_num_threads=args.threads, **settings)

    def embed(texts: list[list[int]]) -> np.ndarray:
        return np.array([one.outputs.data for one in llm.encode(texts, use_tqdm=False)])

    return embed


def theirs(args: argparse.Namespace) -> Embed:
    """Return transformers' AutoModel with torch's fused attention, followed by the mean at unit length."""
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


def sentence_transformers(args: argparse.Namespace) -> Embed:
    """Return sentence-transformers' modules on token ids, in batches of its default size."""
    import torch

    torch.set_num_threads(args.threads)
    library = importlib.import_module("sentence_transformers")
    model = library.SentenceTransformer(args.model, device="cpu", model_kwargs={"dtype": getattr(torch, args.dtype)})
    model.eval()

    def embed(texts: list[list[int]]) -> np.ndarray:
        ids, found = torch.tensor(texts), []
        with torch.inference_mode():
            for at in range(0, len(texts), BATCH):
                batch = ids[at : at + BATCH]
                features = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
                vectors = model(features)["sentence_embedding"].float()
                found.append(torch.nn.functional.normalize(vectors, dim=1))
        every: np.ndarray = torch.cat(found).numpy()
        return every

    return embed


def onnx_int8(args: argparse.Namespace) -> Embed:
    """Return ONNX Runtime on the model that torch exports, with int8 matrices and a scale for each output."""
    import torch
    from transformers import AutoModel

    onnxruntime, quantization = map(importlib.import_module, ("onnxruntime", "onnxruntime.quantization"))
    model = AutoModel.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    ids, free = torch.ones(2, 16, dtype=torch.int64), {0: "texts", 1: "tokens"}
    names = ["input_ids", "attention_mask"]
    with tempfile.TemporaryDirectory() as folder:
        exported, quantized = f"{folder}/float32.onnx", f"{folder}/int8.onnx"

        class Rows(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
                rows: torch.Tensor = self.model(input_ids, attention_mask).last_hidden_state
                return rows

        torch.onnx.export(
            Rows(), (ids, ids), exported, input_names=names, output_names=["rows"], dynamo=False, opset_version=17,
            dynamic_axes=dict.fromkeys([*names, "rows"], free),
        )  # fmt: skip
        quantization.quantize_dynamic(exported, quantized, per_channel=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = args.threads
        session = onnxruntime.InferenceSession(quantized, options, providers=["CPUExecutionProvider"])

    def embed(texts: list[list[int]]) -> np.ndarray:
        given = np.array(texts, np.int64)
        rows = session.run(["rows"], dict(zip(names, (given, np.ones_like(given)), strict=True)))[0]
        mean = rows.mean(axis=1)
        unit: np.ndarray = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return unit

    return embed


PEERS = {"transformers": theirs, "sentence-transformers": sentence_transformers, "onnxruntime": onnx_int8}


def turn(embed: Embed, texts: list[list[int]], clock: Callable[[], float]) -> list[float]:
    """Return the seconds of calls one after the other, once the threads of other engines have stopped spinning."""
    time.sleep(REST_S)
    end, seconds = time.perf_counter() + TURN_S, list[float]()
    while not seconds or time.perf_counter() < end:
        begin = clock()
        embed(texts)
        seconds.append(clock() - begin)
    return seconds


def measured(
    engines: dict[str, Embed], texts: list[list[int]], runs: int, clock: Callable[[], float]
) -> dict[str, dict[str, float]]:
    """Return texts per second of each engine; they take turns."""
    vectors = {name: embed(texts) for name, embed in engines.items()}  # also the warm-up
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(runs):
        for name, embed in engines.items():
            seconds[name] += turn(embed, texts, clock)
    result = {
        name: {"best": len(texts) / min(taken), "median": len(texts) / median(taken)} for name, taken in seconds.items()
    }
    own = vectors.pop("forearm")
    for name, other in vectors.items():
        print(f"# cosine of forearm's vectors to those of {name}: at least {(own * other).sum(axis=1).min():.5f}")
    return result


def figures(found: dict[str, dict[str, float]], row: str, args: argparse.Namespace) -> list[Figure]:
    """Return each engine's best and median speed."""
    name, format, lines = Path(args.model).name, args.quantization or args.dtype, []
    forms = {"forearm": "", "onnxruntime": "ONNX Runtime int8"}
    for engine, speed in found.items():
        peer = forms.get(engine, f"{engine} {args.dtype}")
        for what, metric in (("best", "texts_s"), ("median", "median_texts_s")):
            ratio = found["forearm"][what] / speed[what] if peer else None
            lines.append(figure(name, format, row, metric, speed[what], peer, ratio))
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
    parser.add_argument("--runs", type=int, default=15, help="turns of each engine")
    parser.add_argument("--peers", default="transformers", help=f"of {', '.join(PEERS)}; empty: none")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    peers = [name for name in args.peers.split(",") if name]
    engines = {"forearm": ours(args)} | {name: PEERS[name](args) for name in peers}
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
        versions = {name: version(name) for name in ("torch", "transformers", *peers)} if peers else {}
        record(args.out, run_of(recorded, args.threads, _native.tier(), versions))


if __name__ == "__main__":
    main()
