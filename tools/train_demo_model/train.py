"""Train forearm's demo model on a CPU for a given wall-clock time, with checkpoints.

    python train.py --wordnet /usr/share/wordnet --work work --minutes 72

The learning rate follows the clock, so that the run ends with the lowest rate, however fast or slow the machine was.
"""

import argparse
import json
import math
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from data import IGNORED, Corpus, Message, encode_conversation, pack_rows, read_corpus, write_held_out
from tokenizer import VOCABULARY, train_tokenizer
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM

ROW_TOKENS = 256
CHECKPOINT_S = 240.0
REPORT_S = 60.0
MUON_RATE = 0.02
ADAM_RATE = 0.003
WARM_UP = 0.02  # of the whole time


@dataclass
class Progress:
    """The state of a training run, kept beside the weights so that it can be resumed."""

    steps: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0


def model_config() -> Qwen2Config:
    """The demo model's shape: 6 million parameters, 12 MB in bfloat16."""
    return Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )


def split_parameters(model: Qwen2ForCausalLM) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Return the layers' matrices, for Muon, and all other parameters (embedding, norms, biases), for AdamW."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    return matrices, [p for name, p in named if p.ndim != 2 or "embed" in name]


def make_optimizers(model: Qwen2ForCausalLM, threads: int) -> list[torch.optim.Optimizer]:
    """Make a Muon for each thread, and an AdamW.

    Muon reaches the same loss with fewer tokens than AdamW (Jordan et al. 2024), and tokens are what a CPU lacks. Its
    matrix products are 28 GFLOP per step by count, beside 74 for the gradients of 2048 tokens.
    """
    matrices, others = split_parameters(model)
    found: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices[part::threads], lr=MUON_RATE, momentum=0.95, weight_decay=0.01)
        for part in range(threads)
    ]
    found.append(torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0))
    for optimizer in found:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return found


def rate(done: float) -> float:
    """Return the share of the peak learning rate after the share `done` of the time: warm-up, then a cosine to 1 %."""
    if done < WARM_UP:
        return max(done, 0.0005) / WARM_UP
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, (done - WARM_UP) / (1 - WARM_UP))))


def batches(rows: Iterator[tuple[object, object]], count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Stack rows into (ids, labels), each int64 [count, ROW_TOKENS]."""
    while True:
        pairs = [next(rows) for _ in range(count)]
        yield torch.stack([torch.as_tensor(a) for a, _ in pairs]), torch.stack([torch.as_tensor(b) for _, b in pairs])


def gradients(
    model: Qwen2ForCausalLM, ids: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, int, tuple[torch.Tensor, ...]]:
    """Return the summed loss of the assistant's tokens, their count, and the gradients.

    The output layer is computed for these tokens alone (about two in five).
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        kept = labels != IGNORED
        logits = model.lm_head(hidden[kept])
    loss = cross_entropy(logits.float(), labels[kept], reduction="sum")
    return loss.detach(), int(kept.sum()), torch.autograd.grad(loss, list(model.parameters()))


def step(
    model: Qwen2ForCausalLM,
    optimizers: list[torch.optim.Optimizer],
    pool: ThreadPoolExecutor,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    threads: int,
) -> tuple[float, int]:
    """Update the weights with one batch per thread. Returns: the mean loss and the number of tokens.

    Each thread computes whole batches on one core. If every matrix product were split over the cores, each would wait
    for the slower core: on a busy machine that gave 500 tokens per second instead of 1100.
    """
    found = list(
        pool.map(lambda batch: (batch[0].numel(), *gradients(model, *batch)), [next(data) for _ in range(threads)])
    )
    count = sum(said for _, _, said, _ in found)
    for parameter, *parts in zip(model.parameters(), *(grads for _, _, _, grads in found), strict=True):
        parameter.grad = torch.stack(parts).sum(0) / count
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    list(pool.map(lambda optimizer: optimizer.step(), optimizers))
    return sum(loss.item() for _, loss, _, _ in found) / count, sum(taken for taken, _, _, _ in found)


@torch.no_grad()
def held_out_loss(model: Qwen2ForCausalLM, tokenizer: Tokenizer, held_out: list[list[Message]]) -> float:
    """Return the mean loss (natural logarithm) per token of the assistant, with <|im_end|>, one conversation a time."""
    total, count = 0.0, 0
    for messages in held_out:
        ids, said = encode_conversation(tokenizer, messages)
        labels = torch.tensor([i if mine else IGNORED for i, mine in zip(ids[1:], said[1:], strict=True)])
        logits = model(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits[0]
        total += cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum").item()
        count += sum(said)
    return total / count


def save(path: Path, state: object) -> None:
    """Write a checkpoint; it replaces the previous one only once it is complete."""
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def own_tokenizer(corpus: Corpus, path: Path, seed: int) -> Tokenizer:
    """Return the tokenizer that an earlier start of this run wrote to `path`, or write a new one there."""
    if not path.exists():
        train_tokenizer(corpus, seed).save(str(path))
    return Tokenizer.from_file(str(path))


def train(arguments: argparse.Namespace) -> None:
    """Train until the time is over, then write the last checkpoint and the held-out loss."""
    torch.manual_seed(arguments.seed)
    work: Path = arguments.work
    corpus = read_corpus(arguments.wordnet)
    tokenizer = own_tokenizer(corpus, work / "tokenizer.json", arguments.seed)
    write_held_out(corpus, work / "heldout.jsonl")
    model = Qwen2ForCausalLM(model_config())
    optimizers = make_optimizers(model, arguments.threads)
    progress = Progress()
    latest = work / "checkpoint.pt"
    if latest.exists():
        state = torch.load(latest, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        progress = Progress(**state["progress"])
    run(
        arguments,
        model,
        optimizers,
        progress,
        batches(
            pack_rows(corpus, tokenizer, random.Random(arguments.seed + progress.steps), ROW_TOKENS), arguments.rows
        ),
    )
    loss = held_out_loss(model.train(False), tokenizer, corpus.held_out)
    print(json.dumps({**vars(progress), "held_out_loss": loss, "perplexity": math.exp(loss)}), flush=True)


def run(
    arguments: argparse.Namespace,
    model: Qwen2ForCausalLM,
    optimizers: list[torch.optim.Optimizer],
    progress: Progress,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Run steps, with learning rates by the clock; print a line every minute and write a checkpoint every four."""
    pool = ThreadPoolExecutor(arguments.threads, initializer=torch.set_num_threads, initargs=(1,))
    start = time.monotonic() - progress.elapsed_s
    reported = saved = time.monotonic()
    losses: list[float] = []
    while progress.elapsed_s < arguments.minutes * 60:
        factor = rate(progress.elapsed_s / (arguments.minutes * 60))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * factor
        loss, taken = step(model, optimizers, pool, data, arguments.threads)
        losses.append(loss)
        now = time.monotonic()
        progress.steps, progress.tokens, progress.elapsed_s = progress.steps + 1, progress.tokens + taken, now - start
        if now - reported >= REPORT_S:
            print(json.dumps({**vars(progress), "loss": sum(losses) / len(losses), "rate": factor}), flush=True)
            reported, losses = now, []
        if now - saved >= CHECKPOINT_S or progress.elapsed_s >= arguments.minutes * 60:
            states = [optimizer.state_dict() for optimizer in optimizers]
            state = {"model": model.state_dict(), "optimizers": states, "progress": vars(progress)}
            save(arguments.work / "checkpoint.pt", state)
            saved = now


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="folder of data.noun and the like"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for checkpoints; a run goes on from the one in it"
    )
    parser.add_argument("--minutes", type=float, default=72.0, help="wall-clock time to train, resumed time included")
    parser.add_argument("--rows", type=int, default=4, help=f"rows of {ROW_TOKENS} tokens in a thread's batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    (arguments.work / "pid").write_text(f"{os.getpid()}\n")
    torch.set_num_threads(1)
    train(arguments)


if __name__ == "__main__":
    main()
