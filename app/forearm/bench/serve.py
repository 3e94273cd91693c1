"""`forearm bench serve`: latencies and throughput of a running server of OpenAI's API, ours or another's."""

from __future__ import annotations

import argparse
import asyncio
import errno
import gc
import json
import os
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import uvloop
from tqdm import tqdm

from forearm.bench import datasets, options, plot, report, speculation, statistics
from forearm.bench.arrivals import RampUp
from forearm.bench.datasets import DatasetOptions, ModelText, Sample
from forearm.bench.http import Broken, Http, reason
from forearm.bench.load import LoadRun, Traffic, run
from forearm.bench.report import BenchResult
from forearm.bench.request import ENDPOINTS, POOLING, RequestForm, ask
from forearm.bench.text import load_text
from forearm.config.environment import client_api_key
from forearm.config.flags import CommandParser
from forearm.errors import ConfigError, EngineUnavailable

RETRY_S = 1.0  # of the ready check
_NO_PROFILES = "this server was started without --profiler-config, so it does not profile; leave out --profile"


def serve(argv: Sequence[str]) -> int:
    """Run one load, or one for each request rate. Returns: the exit status, 1 where every request failed.

    Raises: ConfigError for a flag or a file; EngineUnavailable if no server answers.
    """
    parser = CommandParser("forearm bench serve [flags]", "Measure a running server, as vllm bench serve does.")
    parser.add_argument("--seed", type=int, default=0)
    options.add_serve(parser)
    options.add_dataset(parser)
    args = parser.parse_args(options.dashed(argv))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a connection each
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    results = uvloop.run(Bench(args).results())
    if args.plot:
        try:
            Path(args.plot).write_text(plot.svg(results), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--plot {args.plot}: {error.strerror}") from None
    return 0 if any(result["completed"] for result in results) else 1


@dataclass(frozen=True)
class Target:
    """The target of requests. `models`: to choose from; `model_id`: the model of the results and the tokenizer."""

    http: Http
    form: RequestForm
    models: Sequence[str]
    model_id: str


class Bench:
    """The runs of one command line."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Read the flags. Raises: ConfigError."""
        self._args = args
        self._rates = options.rates(args.request_rate)
        self._ramp_up = None
        if args.ramp_up_strategy is not None:
            if list(self._rates) != [float("inf")]:
                raise ConfigError("--ramp-up-strategy: the ramp is the rate; leave out --request-rate")
            if args.ramp_up_start_rps is None or args.ramp_up_end_rps is None:
                raise ConfigError("--ramp-up-strategy: give --ramp-up-start-rps and --ramp-up-end-rps as well")
            self._ramp_up = RampUp(args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps)
        self._metrics, self._percentiles = (
            options.metrics(args.percentile_metrics or ("e2el" if args.backend in POOLING else "ttft,tpot,itl")),
            options.percentiles(args.metric_percentiles),
        )
        self._objectives_ms = options.objectives_ms(args.goodput)
        self._metadata = options.pairs("--metadata", args.metadata)
        if args.plot and not args.plot.endswith(".svg"):
            raise ConfigError(f"--plot {args.plot}: figures are SVG; write a name that ends in .svg")
        if args.save_result or args.append_result:  # before the run, whose figures would be lost
            folder = Path(args.result_dir)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if not os.access(folder, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            except OSError as error:
                remedy = "name a folder that can be written"
                raise ConfigError(f"--result-dir {folder}: {error.strerror}; {remedy}") from None

    async def results(self) -> list[BenchResult]:
        """Run each rate; print and save its result, and return the results.

        Raises: ConfigError, EngineUnavailable.
        """
        http = Http(address(self._args), headers(self._args), self._args.insecure)
        try:
            model, model_id = await self._model(http)
            models = self._args.lora_modules or [model]
            asked = Target(http, form(self._args), models, model_id)
            text = await asyncio.to_thread(load_text, self._args.tokenizer or model_id)
            found = [await self._one(asked, text, number, rate) for number, rate in enumerate(self._rates)]
        finally:
            http.close()
        return found

    async def _model(self, http: Http) -> tuple[str, str]:
        """Return the model's name for requests, and the one that the tokenizer is found by.

        Raises: EngineUnavailable.
        """
        if self._args.model:
            return self._args.served_model_name or self._args.model, self._args.model
        try:
            status, body = await http.get("/v1/models")
            first = json.loads(body)["data"][0]
            return self._args.served_model_name or str(first["id"]), str(first.get("root") or first["id"])
        except (OSError, Broken, asyncio.TimeoutError) as error:
            raise EngineUnavailable(f"{http.address}: {error}; is a server running there? (--base-url)") from None
        except (ValueError, LookupError, TypeError):
            raise EngineUnavailable(f"{http.address}/v1/models names no model (HTTP {status}); give --model") from None

    async def _one(self, asked: Target, text: ModelText, number: int, rate: float) -> BenchResult:
        args = self._args
        # Another seed for each rate of a sweep: the same prompts would be in the prefix cache from the rate before.
        wanted = options.wanted(args, args.seed + number, chat=args.backend == "openai-chat")
        samples = datasets.samples(wanted, text)
        traffic = Traffic(rate, args.burstiness, args.max_concurrency, self._ramp_up, wanted.seed)
        await self._warm_up(asked, samples[0], text)
        print("\n".join(report.traffic(traffic)), flush=True)
        gc.freeze()  # the prompts: nothing to look through in the middle of a run
        before = await self._counts(asked.http)
        await self._profile(asked.http, "/start_profile")
        done = await self._run(asked, samples, traffic, text)
        await self._profile(asked.http, "/stop_profile")
        speculated = speculation.gained(before, await self._counts(asked.http))
        result = self._result(asked, wanted, traffic, done) | speculated
        for outcome in [one for one in done.outcomes if one.error][:10]:
            print(f"failed: {outcome.error}", file=sys.stderr)
        # The spreads of the chosen metrics, with the client's queue where there is one.
        values = statistics.latencies_s(done.outcomes)
        if args.backend in POOLING:
            del values["ttft"], values["tpot"], values["itl"]
        if traffic.max_concurrency is None:
            del values["client_queue_time"], values["e2el_including_client_queue"]
        elif traffic.rate == float("inf"):
            del values["e2el_including_client_queue"]
        for metric in values:
            if metric in self._metrics:
                result |= statistics.spread(metric, values[metric], self._percentiles)
        print(report.table(result, self._percentiles), flush=True)
        self._save(result, rate)
        return result

    async def _run(self, asked: Target, samples: Sequence[Sample], traffic: Traffic, text: ModelText) -> LoadRun:
        args, models = self._args, asked.models
        rng = random.Random(traffic.seed)
        chosen = [models[i % len(models)] for i in range(len(samples))]
        if args.lora_assignment == "random":
            chosen = rng.choices(list(models), k=len(samples))
        with tqdm(total=len(samples), disable=args.disable_tqdm) as bar:
            return await run(
                samples,
                traffic,
                lambda number, sample: ask(asked.http, asked.form, sample, chosen[number], text.count_alone),
                bar.update,
            )

    async def _warm_up(self, asked: Target, sample: Sample, text: ModelText) -> None:
        """Wait for the first answer, if --ready-check-timeout-sec is set; then send the warm-up requests.

        Raises: EngineUnavailable.
        """
        end = time.monotonic() + self._args.ready_check_timeout_sec
        ready = not self._args.ready_check_timeout_sec
        while not ready:
            outcome = await ask(asked.http, asked.form, sample, asked.models[0], text.count_alone)
            ready = not outcome.error
            if not ready and time.monotonic() > end:
                raise EngineUnavailable(f"the first request failed: {outcome.error} (--ready-check-timeout-sec)")
            await asyncio.sleep(0 if ready else RETRY_S)
        if self._args.num_warmups:
            quiet = Traffic(float("inf"), max_concurrency=self._args.max_concurrency)
            await self._run(asked, [sample] * self._args.num_warmups, quiet, text)

    async def _profile(self, http: Http, path: str) -> None:
        """Start or stop the server's profile. Raises: EngineUnavailable."""
        if self._args.profile:
            try:
                reply = await http.post(path, b"", {}, lambda *_: None)
                why = "" if reply.status == 200 else _NO_PROFILES if reply.status == 404 else reason(reply)
            except (OSError, Broken, asyncio.TimeoutError) as error:
                why = str(error)
            if why:
                raise EngineUnavailable(f"--profile: {path}: {why}")

    async def _counts(self, http: Http) -> speculation.Counts:
        try:
            status, body = await http.get("/metrics")
        except (OSError, Broken, asyncio.TimeoutError):
            return {}
        return speculation.counts(body.decode(errors="replace")) if status == 200 else {}

    def _result(self, asked: Target, wanted: DatasetOptions, traffic: Traffic, done: LoadRun) -> BenchResult:
        args = self._args
        if asked.form.pooling:
            figures = statistics.pooling_figures(done.outcomes, done.duration_s)
        else:
            figures = statistics.figures(done.outcomes, done.duration_s, self._objectives_ms)
        ramp: dict[str, Any] = {}
        if traffic.ramp_up is not None:
            ramp = {f"ramp_up_{name}": value for name, value in vars(traffic.ramp_up).items()}
        return {
            "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": args.backend,
            "backend": args.backend,
            "label": args.label,
            "model_id": asked.model_id,
            "tokenizer_id": args.tokenizer or asked.model_id,
            "num_prompts": wanted.num_prompts,
            **self._metadata,
            "request_rate": traffic.rate if traffic.rate < float("inf") else "inf",
            "burstiness": traffic.burstiness,
            "max_concurrency": traffic.max_concurrency,
            **ramp,
            **figures,
            **({"rps_change_events": done.rate_changes} if done.rate_changes else {}),
        }

    def _save(self, result: BenchResult, rate: float) -> None:
        args = self._args
        if not (args.save_result or args.append_result):
            return
        name = args.result_filename or report.file_name(result, rate)
        several = len(self._rates) > 1 and args.result_filename
        path = Path(args.result_dir, name)
        if several and not args.append_result:  # one name for all rates: each gets its own
            path = path.with_name(f"{path.stem}-{rate}qps{path.suffix}")
        try:
            report.save(report.kept(result, args.save_detailed), path, args.append_result)
        except OSError as error:
            raise ConfigError(f"--result-dir {args.result_dir}: {error}") from None


def address(args: argparse.Namespace) -> str:
    """Return the server's address."""
    if args.base_url:
        return str(args.base_url).rstrip("/").removesuffix("/v1")  # as OpenAI's clients have it: --endpoint has it too
    host = f"[{args.host}]" if ":" in args.host else args.host
    return f"http://{host}:{args.port}"


def headers(args: argparse.Namespace) -> dict[str, str]:
    """Return the headers: the key from the environment, and those of --header."""
    key = client_api_key()
    return {**({"Authorization": f"Bearer {key}"} if key else {}), **options.pairs("--header", args.header)}


def form(args: argparse.Namespace) -> RequestForm:
    """Read the requests' form; answers to random prompts have exactly the given length, as in vLLM."""
    backend = args.backend
    endpoint = args.endpoint or ENDPOINTS[backend]
    usual = ENDPOINTS[backend]
    if not endpoint.endswith(usual.removeprefix("/v1")) or (backend != "openai-chat" and "/chat/" in endpoint):
        raise ConfigError(f"--endpoint {endpoint}: --backend {backend} asks {usual}")
    if args.random_batch_size > 1 and backend not in POOLING:
        raise ConfigError(f"--random-batch-size {args.random_batch_size}: only {' and '.join(POOLING)} take several")
    sampling = {name: getattr(args, name) for name in options.SAMPLING if getattr(args, name) is not None}
    if sampling and backend in POOLING:
        raise ConfigError(f"--backend {backend}: it takes no sampling parameters ({', '.join(sampling)})")
    ignore_eos = args.ignore_eos or args.dataset_name == "random"
    return RequestForm(endpoint, backend, args.logprobs, ignore_eos, sampling | args.extra_body)
