"""The command `forearm plan`: its flags, and the choice of the report."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from forearm.config.configs import PLAN, Configs
from forearm.config.flags import CommandParser, read_line
from forearm.config.speculative import drafting_asked
from forearm.errors import ConfigError, DoesNotFit
from forearm.model.checkpoint.headers import find_headers
from forearm.plan import fleet, report, sizing
from forearm.plan.host import THIS, this_host, type_host
from forearm.plan.load import RequestTokens, Slo
from forearm.plan.machines import machine, machines
from forearm.plan.prediction import ModelHeaders, PlannedLoad, predict, smaller

MOST_TOKENS = 10_000_000
FLEET = tuple(
    f"{family}.{size}"
    for family in ("c7g", "r7g", "c8g", "r8g", "c9g", "m9g")
    for size in ("4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")
)
USAGE = "forearm plan [MODEL] [--machine TYPE] [flags]"
ABOUT = (
    "Predict the memory that a model needs on a machine and its speed, before any weights are downloaded: only "
    "config.json and headers are read. Exit status 1: it does not fit."
)


def run(argv: Sequence[str]) -> int:
    """Run the command. Returns: its exit status, 1 if the model does not fit.

    Raises: ConfigError naming a flag, or the error of the model.
    """
    parser = CommandParser(USAGE, ABOUT)
    parser.add_argument(
        "--machine", default=THIS, help="instance type such as c8g.12xlarge; this: measure this machine now [this]"
    )
    parser.add_argument("--input-len", type=_count, default=512, metavar="TOKENS", help="tokens of each prompt [512]")
    parser.add_argument("--output-len", type=_count, default=128, metavar="TOKENS", help="tokens of each answer [128]")
    parser.add_argument(
        "--rate", "--request-rate", type=_number, metavar="N", help="requests per second of all clients together"
    )
    parser.add_argument(
        "--slo-ttft", type=_seconds, metavar="TIME", help="longest time to first token: 2s, 500ms, or seconds"
    )
    parser.add_argument(
        "--slo-tpot", type=_seconds, metavar="TIME", help="longest time per token after the first, in the same form"
    )
    parser.add_argument(
        "--price-per-hour", type=_number, metavar="USD", help="price of the machine, to report $ per 1M tokens"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs, in bytes, seconds and tokens/s")
    parser.add_argument("--fleet", action="store_true", help="compare instance types at the load of --rate")
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help="YAML file for --fleet: $ per hour of each instance type"
    )
    parser.add_argument("--price-template", action="store_true", help="print a template for --prices, to be filled in")
    parser.add_argument("--sizing-table", action="store_true", help="print the page docs/sizing.md")
    line = read_line(parser, argv, PLAN)
    given, configs = line.rest, line.configs
    if given.sizing_table:
        print(sizing.page(), end="")
        return 0
    if given.price_template:
        print(fleet.template())
        return 0
    load = PlannedLoad(
        RequestTokens(given.input_len, given.output_len), Slo(given.slo_ttft, given.slo_tpot), given.rate
    )
    for note in line.notes:
        print(f"forearm plan: {note}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="forearm-plan-") as into:
        model = _headers(configs, Path(into))
        return _fleet(given, configs, model, load) if given.fleet else _one(given, configs, model, load)


def _headers(configs: Configs, into: Path) -> ModelHeaders:
    engine, drafting = configs.engine, drafting_asked(configs.engine)

    def find(name: str, revision: str, place: str) -> Path:
        (into / place).mkdir()
        return find_headers(
            name, into / place, revision=revision, download_dir=engine.download_dir, token=engine.hf_token
        )

    model = find(engine.model, engine.revision, "model")
    if drafting and drafting.predicts:
        return ModelHeaders(model, model)
    draft = find(drafting.model, drafting.revision, "draft") if drafting and drafting.model else None
    return ModelHeaders(model, draft)


def _one(given: argparse.Namespace, configs: Configs, model: ModelHeaders, load: PlannedLoad) -> int:
    host = this_host(configs) if given.machine == THIS else type_host(machine(given.machine), configs)
    try:
        found = predict(host, model, load)
    except DoesNotFit as problem:
        fitting = list(smaller(host, model)) if configs.engine.quantization == "none" else []
        remedy = f"It fits with --quantization {' or '.join(fitting)}." if fitting else ""
        if given.json:
            print(json.dumps({"fits": False, "machine": {"name": host.name}, "why": str(problem), "fitting": fitting}))
        else:
            print(f"{host.name}: {host.what}\nIt does not fit: {problem}. {remedy}".rstrip())
        return 1
    if given.json:
        print(json.dumps(report.as_json(found, load, given.price_per_hour), indent=2))
    else:
        print(f"{configs.engine.model or 'the demo model'} on {report.as_text(found, load, given.price_per_hour)}")
    return 0


def _fleet(given: argparse.Namespace, configs: Configs, model: ModelHeaders, load: PlannedLoad) -> int:
    if given.rate is None:
        raise ConfigError("--fleet: give the load with --rate REQUESTS_A_SECOND (and --input-len, --output-len)")
    prices = fleet.read_prices(given.prices) if given.prices else {}
    known = set(machines())
    names = [given.machine] if given.machine != THIS else list(prices) or [name for name in FLEET if name in known]
    rows = fleet.fleet(names, prices, configs, model, load)
    print(json.dumps(fleet.as_json(rows, load), indent=2) if given.json else fleet.as_text(rows, load))
    return 0 if any(row.hosts is not None for row in rows) else 1


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_TOKENS:
        _refuse(f"{text!r} is not a number of tokens from 1 to {MOST_TOKENS}")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:
        _refuse(f"{text!r} is not a number above 0")
    return value


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)(ms|s)?", text)
    if found is None:
        _refuse(f"{text!r} is not a time; write 2s or 500ms")
    return _number(found[1]) * (0.001 if found[2] == "ms" else 1.0)


def _refuse(message: str) -> NoReturn:
    raise argparse.ArgumentTypeError(message)
