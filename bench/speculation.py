"""Measure the gain of drafts: tokens per second with and without, for texts that repeat more or less; equal answers.

Nothing is downloaded: a shape of bench/shapes.py gets random weights, and an output head that determines a successor of
each token. A text of --text tokens is a circle of such successors, and every other token is followed by one of the
text. At a low temperature the answer therefore quotes the prompt, at a higher one it sometimes leaves it (a summary),
and at the highest every token is random. All layers are computed: a step takes as long as with trained weights.

    python bench/speculation.py --shape r1-distill-qwen-1.5b --draft qwen2.5-0.5b \
        --quantization int8 --out bench/results/speculation/<machine>.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.records import Figure, figure, figures_of, line_of, record, run_of
from bench.shapes import SHAPES, Shape, write_model
from safetensors.numpy import save_file

from forearm import LLM, SamplingParams, _native
from forearm.config.configs import engine_config
from forearm.engine.host import placement
from forearm.engine.speculation.ngrams import Ngrams
from forearm.engine.speculation.speculation import Speculation

# By kind of text: the share of tokens that are the successor of the token before (approximately); 0: none.
TEXTS = {"quoted": 0.99, "summarized": 0.9, "loosely": 0.7, "random": 0.0}
_SOFT = 0.125  # scale of the logits: temperatures, which are then lower, are at most 2
_QUIET = 0.02  # scale of the layers' results, so small that the head sees the embedding of the current token


def follows(vocab: int, text: int) -> npt.NDArray[np.int64]:
    """Return the successor of each token: those of the text (300 ..) form a circle; all others lead back into it."""
    after = 300 + np.arange(vocab) % text
    after[300 : 300 + text] = 300 + (np.arange(text) + 1) % text
    return after


def write_follower(shape: Shape, folder: Path, text: int) -> None:
    """Write a model folder whose head determines the successor of each token."""
    if (folder / "follows").exists():
        return
    write_model(shape, folder)
    with tensors(folder / "model.safetensors") as found:
        for name, tensor in found.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                tensor[:] = bits(floats(tensor) * np.float32(_QUIET))
        embedding, head = floats(found["model.embed_tokens.weight"]), found["lm_head.weight"]
        after = follows(shape.vocab, text)
        inside = np.arange(300, 300 + text)
        rows = embedding[::-1].copy()  # logits of tokens outside the text: noise of the same size
        rows[shape.vocab - 1 - inside] = 0
        rows[after[inside]] = embedding[inside]
        head[:] = bits(rows * np.float32(_SOFT))
        # A token outside the text has an embedding like one in it, so that the same head leads back into the text.
        outside = np.setdiff1d(np.arange(shape.vocab), inside)
        mixed = embedding[outside] * np.float32(0.5) + embedding[after[outside]] * np.float32(0.85)
        embedding = embedding.copy()
        embedding[outside] = mixed
        found["model.embed_tokens.weight"][:] = bits(embedding * np.float32(shape.hidden**0.5))  # louder than layers
    (folder / "follows").touch()


def write_predicting(shape: Shape, folder: Path, text: int) -> None:
    """Write such a model whose last layer predicts further tokens: from the next token, as the head does."""
    if (folder / "predicts").exists():
        return
    write_follower(shape, folder, text)
    config, hidden, last = json.loads((folder / "config.json").read_text()), shape.hidden, shape.layers - 1
    config |= {"num_hidden_layers": last, "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    own, ones = f"model.layers.{last}.", np.ones(hidden, np.float32)
    added = {
        f"{own}eh_proj.weight": np.eye(hidden, 2 * hidden, dtype=np.float32),
        f"{own}enorm.weight": ones * np.float32(hidden**0.5),  # louder than the layer
        f"{own}hnorm.weight": ones,
        f"{own}shared_head.norm.weight": ones,
    }
    save_file(added, folder / "predicts.safetensors")
    with tensors(folder / "model.safetensors") as found:
        places = dict.fromkeys(found, "model.safetensors") | dict.fromkeys(added, "predicts.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "predicts").touch()


@contextmanager
def tensors(path: Path) -> Iterator[dict[str, npt.NDArray[np.uint16]]]:
    """Yield the bfloat16 tensors of a file, to be changed in place."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    mapped = np.memmap(path, np.uint8, "r+", offset=8 + length)
    yield {
        name: mapped[slice(*one["data_offsets"])].view(np.uint16).reshape(one["shape"])
        for name, one in header.items()
        if name != "__metadata__"
    }
    mapped.flush()


def floats(stored: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (stored.astype(np.uint32) << 16).view(np.float32)


def bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


def temperature_of(share: float, shape: Shape) -> float:
    """Return the temperature at which this share of tokens is the successor of the token before.

    One logit of sqrt(hidden) competes with normally distributed ones.
    """
    if share == 0:
        return 10.0 * _SOFT
    low, high = 0.05, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        margin = shape.hidden**0.5 / middle - np.log(shape.vocab) - 0.5 / middle**2
        low, high = (middle, high) if margin > np.log(share / (1 - share)) else (low, middle)
    return low * _SOFT


@dataclass(frozen=True)
class Run:
    """One answer to each prompt: its tokens, and tokens per second after the first."""

    tokens: list[list[int]]
    tokens_s: float
    drafted: float
    accepted: float
    steps: float


def run(llm: LLM, speculation: Speculation, prompts: list[list[int]], params: list[SamplingParams]) -> Run:
    """Run the prompts with this kind of drafts."""
    llm._loop._speculation = speculation
    before = counts(llm)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    counted = [now - then for now, then in zip(counts(llm), before, strict=True)]
    first = min(output.metrics.first_token_time or 0.0 for output in outputs)
    last = max(output.metrics.finished_time or 0.0 for output in outputs)
    tokens = [output.outputs[0].token_ids for output in outputs]
    return Run(tokens, (sum(map(len, tokens)) - len(tokens)) / (last - first), *counted)


def counts(llm: LLM) -> tuple[float, float, float]:
    """Return the counters: tokens drafted, tokens accepted, steps."""
    plain = llm._loop.meter._plain
    drafted, accepted = (plain[f"vllm:spec_decode_num_{name}_tokens"]._value.get() for name in ("draft", "accepted"))
    return drafted, accepted, sum(bucket.get() for bucket in plain["vllm:iteration_tokens_total"]._buckets)


def measure(llm: LLM, kinds: dict[str, Speculation], name: str, batch: int, args: argparse.Namespace) -> list[Figure]:
    """Return the figures of one text and batch, with each kind of drafts, `args.runs` times; the answers must be equal.

    Each run has its plain one beside it, before it and after it in turns: what else the machine does meets both.
    """
    shape = shape_of(args.shape, args)
    prompts = [[300 + (37 * i + j) % args.text for j in range(args.text)] for i in range(batch)]
    temperature = temperature_of(TEXTS[name], shape)
    found: dict[str, list[Run]] = {kind: [] for kind in kinds}
    for seed in range(args.runs):
        params = [
            SamplingParams(max_tokens=args.tokens, temperature=temperature, seed=100 * seed + i, ignore_eos=True)
            for i in range(batch)
        ]
        for kind in list(kinds) if seed % 2 == 0 else reversed(kinds):
            found[kind].append(run(llm, kinds[kind], prompts, params))
        if any(runs[-1].tokens != found["none"][-1].tokens for runs in found.values()):
            raise SystemExit(f"{name}, batch {batch}: answers differ")
    figures: list[Figure] = []
    for kind, runs in found.items():
        row = f"{name}, {batch} streams, {kind}"
        figures.append(figure(args.shape, args.quantization, row, "tokens_s", [one.tokens_s for one in runs]))
        counted = {
            "gain": median(a.tokens_s / b.tokens_s for a, b in zip(runs, found["none"], strict=True)),
            "accepted": sum(one.accepted for one in runs) / max(1, sum(one.drafted for one in runs)),
            "drafted_a_token": sum(one.drafted for one in runs) / (len(runs) * batch * args.tokens),
            # Counted, not timed: steps over those without drafts.
            "steps": sum(one.steps for one in runs) / sum(one.steps for one in found["none"]),
        }
        figures += figures_of(args.shape, args.quantization, row, counted if kind != "none" else {})
    return figures


def shape_of(name: str, args: argparse.Namespace) -> Shape:
    """Return the shape with an untied head, which determines the next token."""
    return replace(SHAPES[name].cut(args.layers), tied=False)


def engine(args: argparse.Namespace, folder: Path) -> tuple[LLM, dict[str, Speculation]]:
    """Return the model with this kind of drafts."""
    speculative: dict[str, object] = {"method": "ngram", "num_speculative_tokens": args.most}
    if args.draft:
        draft = folder / f"follow-{args.draft}-{args.layers}-{args.text}"
        write_follower(shape_of(args.draft, args), draft, args.text)
        speculative |= {"method": "draft_model", "model": str(draft), "quantization": args.draft_quantization}
    own = shape_of(args.shape, args)
    model = folder / f"follow-{args.shape}-{args.layers}-{args.text}"
    if args.predictor:
        model = model.with_name(f"{model.name}-mtp")
        speculative |= {"method": "mtp", "quantization": args.draft_quantization}
        write_predicting(replace(own, layers=own.layers + 1), model, args.text)
    else:
        write_follower(own, model, args.text)
    llm = LLM(
        model,
        max_model_len=args.text + args.tokens + 64,
        max_num_seqs=max(args.batches),
        quantization=args.quantization,
        speculative_config=speculative,
        kv_cache_memory_bytes=args.kv_bytes,
    )
    kinds = {"none": Speculation(), "ngram": Speculation(Ngrams(3, 5), args.most)}
    own_kind = speculative["method"]
    return llm, kinds if own_kind == "ngram" else kinds | {str(own_kind): llm._loop._speculation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--draft", default="", help="shape of the draft model, of the same vocabulary; absent: none")
    parser.add_argument("--predictor", action="store_true", help="a layer of the model drafts, always right at a quote")
    parser.add_argument("--quantization", default="none", help="none (bfloat16), int8, int4")
    parser.add_argument("--draft-quantization", default="int4")
    parser.add_argument("--layers", type=int, default=0, help="of the shapes; 0: all")
    parser.add_argument("--text", type=int, default=400, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=160, help="of each answer")
    parser.add_argument("--most", type=int, default=8, help="tokens of one draft")
    parser.add_argument("--batches", type=lambda text: [int(one) for one in text.split(",")], default=[1, 8])
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=TEXTS)
    parser.add_argument("--runs", type=int, default=4, help="an even number: each kind goes first as often as last")
    parser.add_argument("--kv-bytes", type=int, default=1 << 29)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "forearm-bench")
    parser.add_argument("--out", type=Path, help="machine's file that they are added to")
    args = parser.parse_args()

    args.threads = placement.plan(engine_config()).threads
    llm, kinds = engine(args, args.models)
    notes = [f"{args.layers or 'All'} layers.", *([f"Draft model: {args.draft}."] if args.draft else [])]
    notes += ["Its last layer predicts what follows a token of the text."] * args.predictor
    figures: list[Figure] = []
    for batch in args.batches:
        for name in args.texts:
            found = measure(llm, kinds, name, batch, args)
            print(*map(line_of, found), sep="\n", flush=True)
            figures += found
            if args.out:
                record(args.out, run_of(figures, args.threads, _native.tier(), notes=notes))


if __name__ == "__main__":
    main()
