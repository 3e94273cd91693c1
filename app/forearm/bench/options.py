"""The flags of `forearm bench`, with vLLM's names and defaults, and the parsers of their values."""

from __future__ import annotations

import argparse
import dataclasses
import json
import uuid
from collections.abc import Sequence
from typing import Any

from forearm.bench.datasets import DatasetOptions
from forearm.bench.report import METRICS
from forearm.bench.request import ENDPOINTS
from forearm.bench.statistics import OBJECTIVES
from forearm.config.flags import CommandParser
from forearm.errors import ConfigError

SAMPLING = ("top_p", "top_k", "min_p", "temperature", "frequency_penalty", "presence_penalty", "repetition_penalty")
# Flags of vLLM's that are accepted without effect: (flags, takes a value).
NEEDLESS = ((("--trust-remote-code", "--no-stream"), False), (("--tokenizer-mode",), True))
REFUSED = {
    "--use-beam-search": 'write --extra-body \'{"use_beam_search": true, "n": 2}\'',
    "--async-engine": "requests go to the engine directly; leave it out",
    "--skip-tokenizer-init": "prompts are made and counted here",
    "--plot-timeline": "it is not supported; --save-detailed has every request's times",
    "--plot-dataset-stats": "it is not supported; --save-detailed has every request's lengths",
    "--self-timed": "traces with arrival times are not supported",
    "--probe-request-rate": "it is not supported; run a second bench beside this one",
    **dict.fromkeys(
        ("--hf-split", "--hf-subset", "--hf-name", "--hf-output-len"),
        "data sets of Hugging Face's hub are not read; write one as a JSONL of prompts: --dataset-name custom",
    ),
}


def dashed(argv: Sequence[str]) -> list[str]:
    """Replace _ by - in flags: --request_rate is --request-rate.

    Raises: ConfigError for a flag of vLLM's that is not supported.
    """
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name in REFUSED:
            raise ConfigError(f"{name}: {REFUSED[name]}")
        words.append(name + equals + value)
    return words


def add_dataset(parser: CommandParser, name: str = "random") -> None:
    """Add the flags of datasets."""
    default = DatasetOptions()
    parser.add_argument("--dataset-name", default=name, help="random, sharegpt, custom, sonnet or prefix_repetition")
    parser.add_argument(
        "--dataset-path", help="file of sharegpt (JSON), custom (JSONL) or sonnet (text; own if absent)"
    )
    parser.add_argument("--num-prompts", type=_whole(1), default=default.num_prompts, help="requests to make")
    parser.add_argument("--no-oversample", action="store_true", help="a file with fewer requests is not repeated")
    parser.add_argument("--disable-shuffle", action="store_true", help="requests in the order of the file")
    parser.add_argument("--skip-chat-template", action="store_true", help="prompts as they stand")
    parser.add_argument("--chat-template-kwargs", type=json_object, help="JSON: variables for the template")
    parser.add_argument("--input-len", type=_whole(1), help="of every dataset whose prompts are made up, in tokens")
    parser.add_argument("--output-len", type=_whole(1), help="of every dataset, in tokens")
    for field in dataclasses.fields(DatasetOptions):
        if field.name.startswith(("random_", "sharegpt_", "custom_", "sonnet_", "prefix_repetition_")):
            flag = "--" + field.name.replace("_", "-")
            low = {"custom_output_len": -1, "random_batch_size": 1}.get(field.name, 0)
            kind = float if field.name.endswith("ratio") else _whole(low)
            parser.add_argument(flag, type=kind, default=field.default, help=f"default: {field.default}")


def wanted(args: argparse.Namespace, seed: int, chat: bool = False) -> DatasetOptions:
    """Read the dataset's options."""
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(DatasetOptions) if hasattr(args, f.name)}
    if args.input_len is not None:
        given |= dict.fromkeys(("random_input_len", "sonnet_input_len"), args.input_len)
    if args.output_len is not None:
        given |= {name: args.output_len for name in given if name.endswith("_output_len")}
    if given["dataset_path"] and args.dataset_name in ("random", "prefix_repetition"):
        raise ConfigError(f"--dataset-path {given['dataset_path']}: {args.dataset_name} prompts are made up, not read")
    return DatasetOptions(**{**given, "seed": seed, "chat": chat})


def add_serve(parser: CommandParser) -> None:
    """Add the flags of bench serve beside the dataset's: the server and its requests, arrival times, results."""
    add = parser.add_argument
    add("--backend", "--endpoint-type", default="openai", choices=tuple(ENDPOINTS), help="vllm is openai")
    add("--base-url", help="http(s)://host:port, or unix:/path of a socket; absent: --host and --port")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--endpoint", help="absent: that of the backend")
    add("--header", metavar="KEY=VALUE", nargs="*", default=[], help="of every request")
    add("--insecure", action="store_true", help="do not check certificates")
    add("--model", help="for tokenizer and requests; absent: the first one that the server has")
    add("--served-model-name", help="of requests, where it is not --model")
    add("--tokenizer", help="folder or Hugging Face id; absent: the model's")
    add("--lora-modules", nargs="+", default=[], help="models to ask instead, alternately")
    add("--lora-assignment", choices=("random", "round-robin"), default="random")
    add("--ready-check-timeout-sec", type=float, default=0, help="wait this long for a first answer")
    add("--num-warmups", type=_whole(0), default=0, help="requests before the measured ones")
    add("--profile", action="store_true", help="POST /start_profile before and /stop_profile after")
    add("--request-id-prefix", default=f"bench-{uuid.uuid4().hex[:8]}-", help="of X-Request-Id; default: random")
    add("--logprobs", type=_whole(0), help="log-probabilities for each token")
    add("--ignore-eos", action="store_true", help="answers are as long as asked for; random: always")
    add("--extra-body", type=json_object, default={}, help="JSON: further fields of every request")
    for name in SAMPLING:
        add("--" + name.replace("_", "-"), type=int if name == "top_k" else float)
    add("--request-rate", nargs="+", default=["inf"], help="requests/s; inf: at once; several: a sweep")
    add("--burstiness", type=_above_0, default=1.0, help="1: Poisson; less: burstier; more: more even")
    add("--max-concurrency", type=_whole(1), help="most requests at a time")
    add("--ramp-up-strategy", choices=("linear", "exponential"), help="the rate grows during the run")
    add("--ramp-up-start-rps", type=float)
    add("--ramp-up-end-rps", type=float)
    add("--label", help="of the results; absent: the backend")
    add("--percentile-metrics", help=f"of {', '.join(METRICS)}; absent: ttft,tpot,itl, of vectors e2el")
    add("--metric-percentiles", default="99", help="such as 50,90,99")
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help=f"of {', '.join(OBJECTIVES)}")
    add("--save-result", action="store_true", help="write a JSON file")
    add("--append-result", action="store_true", help="add a line to it")
    add("--save-detailed", action="store_true", help="with every request's times and text")
    add("--result-dir", default=".", help="folder for it")
    add("--result-filename", help="its name; absent: label, rate, model and time")
    add("--metadata", metavar="KEY=VALUE", nargs="*", default=[], help="put into the file")
    add("--plot", metavar="FILE.svg", help="TTFT and TPOT against throughput, a point for each rate")
    add("--disable-tqdm", action="store_true", help="no progress bar")
    for flags, takes_value in NEEDLESS:
        action: Any = "store" if takes_value else "store_true"
        for flag in flags:
            add(flag, action=action, help=argparse.SUPPRESS)


def rates(texts: Sequence[str]) -> list[float]:
    """Read --request-rate. Raises: ConfigError."""
    found = [_number("--request-rate", text) for words in texts for text in words.split(",") if text]
    if not found or min(found) <= 0:
        raise ConfigError(f"--request-rate {' '.join(texts)}: write numbers above 0, or inf")
    return found


def metrics(text: str) -> list[str]:
    """Read --percentile-metrics. Raises: ConfigError naming a wrong one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METRICS:
            raise ConfigError(f"--percentile-metrics {text}: {name} is not one of {', '.join(METRICS)}")
    return names


def percentiles(text: str) -> list[float]:
    """Read --metric-percentiles. Raises: ConfigError."""
    found = [_number("--metric-percentiles", part) for part in text.split(",") if part]
    if not all(0 <= p <= 100 for p in found):
        raise ConfigError(f"--metric-percentiles {text}: they are from 0 to 100")
    return found


def objectives_ms(pairs: Sequence[str]) -> dict[str, float]:
    """Read --goodput. Raises: ConfigError naming it."""
    found = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        if name not in OBJECTIVES or not value or not _number("--goodput", value) >= 0:
            raise ConfigError(f"--goodput {pair}: write {' or '.join(f'{o}:MS' for o in OBJECTIVES)}, in milliseconds")
        found[name] = float(value)
    return found


def pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE texts. Raises: ConfigError naming the flag."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or "\n" in text or "\r" in text:
            raise ConfigError(f"{flag} {text!r}: write KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object. Raises: argparse.ArgumentTypeError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text}: write a JSON object")
    return found


def _number(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value:  # nan
        raise ConfigError(f"{flag} {text}: write a number")
    return value


def _above_0(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text}: it must be more than 0")
    return value


def _whole(low: int) -> Any:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text}: write a whole number") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"{text}: it must be at least {low}")
        return value

    return read
