"""`forearm bench throughput` and `latency`: the engine in this process, without HTTP, as `vllm bench` measures it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from forearm import log
from forearm.bench import datasets, options
from forearm.bench.datasets import Sample
from forearm.bench.text import load_text
from forearm.config.configs import OFFLINE
from forearm.config.flags import CommandParser, read_line
from forearm.errors import ConfigError
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.offline.arguments import changed_settings
from forearm.offline.llm import LLM
from forearm.offline.outputs import RequestOutput
from forearm.wire import SamplingParams

PERCENTILES = (10, 25, 50, 75, 90, 99)
LARGEST_ID = 10_000  # of the tokens of latency's prompts, as in vLLM
BACKENDS = ("vllm", "vllm-chat")


def throughput(argv: Sequence[str]) -> int:
    """Time all requests of a dataset, sent at once. Returns: the exit status.

    Raises: ConfigError, InvalidRequest (a request that does not fit into the context).
    """
    parser = CommandParser("forearm bench throughput [MODEL] [flags]", "All requests at once: tokens a second.")
    options.add_dataset(parser)
    parser.add_argument("--backend", choices=BACKENDS, default="vllm", help="vllm-chat: prompts through the template")
    parser.add_argument("--dataset", help="old name of --dataset-path")
    parser.add_argument("--prefix-len", type=int, help="of random and sonnet: tokens that all prompts begin with")
    parser.add_argument("--n", type=int, default=1, help="answers to each prompt")
    parser.add_argument("--num-warmups", type=int, default=0, help="prompts before those that count")
    add_output(parser)
    line = read_line(parser, options.dashed(argv), OFFLINE)
    args, configs = line.rest, line.configs
    args.dataset_path = args.dataset_path or args.dataset
    if args.prefix_len is not None:
        args.random_prefix_len = args.sonnet_prefix_len = args.prefix_len
    if args.random_batch_size > 1:
        raise ConfigError(f"--random-batch-size {args.random_batch_size}: it is for bench serve's embeddings")
    log.set_up(configs.engine, "bench")
    text = load_text(configs.api.tokenizer or configs.engine.model or DEMO_MODEL.name)
    args.skip_chat_template = True  # LLM.chat has the template
    seed = configs.engine.seed
    samples = datasets.samples(options.wanted(args, seed), text)
    llm = LLM(**changed_settings(configs.engine))
    params = [sampling(args, sample.output_tokens) for sample in samples]
    if args.num_warmups > 0:
        warm = datasets.samples(dataclasses.replace(options.wanted(args, seed + 1), num_prompts=args.num_warmups), text)
        answers(llm, warm, [sampling(args, one.output_tokens) for one in warm], args.backend)
    begin = time.perf_counter()
    outputs = answers(llm, samples, params, args.backend)
    took_s = time.perf_counter() - begin
    model_id = configs.engine.model or DEMO_MODEL.name
    save({"model_id": model_id, **told(outputs, took_s)}, args.output_json)
    return 0


def told(outputs: Sequence[RequestOutput], took_s: float) -> dict[str, Any]:
    """Print the throughput. Returns: it under vLLM's keys."""
    prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    output_tokens = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    tokens = prompt_tokens + output_tokens
    print(
        f"Throughput: {len(outputs) / took_s:.2f} requests/s, {tokens / took_s:.2f} total tokens/s, "
        f"{output_tokens / took_s:.2f} output tokens/s\n"
        f"Total num prompt tokens:  {prompt_tokens}\nTotal num output tokens:  {output_tokens}"
    )
    return {
        "elapsed_time": took_s,
        "num_requests": len(outputs),
        "total_num_tokens": tokens,
        "requests_per_second": len(outputs) / took_s,
        "tokens_per_second": tokens / took_s,
    }


def answers(llm: LLM, samples: Sequence[Sample], params: list[SamplingParams], backend: str) -> list[RequestOutput]:
    """Generate the answers; with vllm-chat each prompt is a user's message."""
    if backend == "vllm-chat":
        return llm.chat([[{"role": "user", "content": sample.prompt}] for sample in samples], params)
    return llm.generate([sample.prompt for sample in samples], params)


def latency(argv: Sequence[str]) -> int:
    """Time one batch of random prompts, repeatedly. Returns: the exit status.

    Raises: ConfigError, InvalidRequest.
    """
    parser = CommandParser("forearm bench latency [MODEL] [flags]", "How long one batch of requests takes.")
    for flag, default, what in (
        ("--input-len", 32, "tokens of each prompt"),
        ("--output-len", 128, "tokens of each answer"),
        ("--batch-size", 8, "prompts"),
        ("--n", 1, "answers to each prompt"),
        ("--num-iters-warmup", 10, "runs before the measured ones"),
        ("--num-iters", 30, "measured runs"),
    ):
        parser.add_argument(flag, type=int, default=default, help=what)
    add_output(parser)
    argv = options.dashed(argv)
    line = read_line(parser, argv, OFFLINE)
    args, configs = line.rest, line.configs
    if min(args.input_len, args.output_len, args.batch_size, args.n, args.num_iters) < 1:
        raise ConfigError("--input-len, --output-len, --batch-size, --n and --num-iters are at least 1")
    log.set_up(configs.engine, "bench")
    # Every run has the same prompts: found in the cache, they would not be computed.
    cached = configs.engine.enable_prefix_caching and "--enable-prefix-caching" in argv
    llm = LLM(**changed_settings(dataclasses.replace(configs.engine, enable_prefix_caching=cached)))
    highest = min(LARGEST_ID, len(llm.get_tokenizer()))
    prompts = np.random.default_rng(configs.engine.seed).integers(highest, size=(args.batch_size, args.input_len))
    params = sampling(args, args.output_len)

    def once() -> float:
        begin = time.perf_counter()
        llm.generate(prompts.tolist(), params, use_tqdm=False)
        return time.perf_counter() - begin

    for _ in tqdm(range(args.num_iters_warmup), desc="Warmup iterations"):
        once()
    seconds = [once() for _ in tqdm(range(args.num_iters), desc="Bench iterations")]
    found = {"model_id": configs.engine.model or DEMO_MODEL.name, **summary(seconds)}
    print(f"Avg latency: {found['avg_latency']} seconds\nStd latency: {found['std_latency']} seconds")
    for percentile, value in found["percentiles"].items():
        print(f"{percentile}% percentile latency: {value} seconds")
    save(found, args.output_json)
    return 0


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the times under vLLM's keys."""
    return {
        "avg_latency": float(np.mean(seconds)),
        "std_latency": float(np.std(seconds)),
        "latencies": list(seconds),
        "percentiles": percentiles(seconds),
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return PERCENTILES of the times, linear between neighbours."""
    return {str(p): float(np.percentile(seconds, p)) for p in PERCENTILES}


def sampling(args: argparse.Namespace, output_tokens: int) -> SamplingParams:
    """Return vLLM's sampling parameters: temperature 1, and answers of exactly the given length."""
    return SamplingParams(
        n=args.n,
        temperature=1.0,
        top_p=1.0,
        ignore_eos=True,
        max_tokens=output_tokens,
        detokenize=not args.disable_detokenize,
    )


def add_output(parser: CommandParser) -> None:
    """Add the flags that throughput and latency share."""
    parser.add_argument("--disable-detokenize", action="store_true", help="do not detokenize outputs")
    parser.add_argument("--output-json", metavar="FILE", help="also write the result there")


def save(result: dict[str, Any], path: str | None) -> None:
    """Write the result. Raises: ConfigError if that fails."""
    if path is None:
        return
    try:
        Path(path).write_text(json.dumps(result, indent=4), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output-json {path}: {error.strerror}") from None
