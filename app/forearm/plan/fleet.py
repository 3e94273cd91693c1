"""The number of hosts of each instance type for a load, and their cost at the user's prices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forearm.config.configs import Configs
from forearm.errors import ConfigError
from forearm.plan.host import type_host
from forearm.plan.load import at_rate
from forearm.plan.machines import machine, machines
from forearm.plan.prediction import ModelHeaders, PlannedLoad, predict
from forearm.plan.report import NOT_MEASURED, figure, seconds, table

MOST_HOSTS = 10_000


@dataclass(frozen=True)
class Row:
    """One instance type. hosts: None if it can't serve the load, for the reason `why`.

    used: share of the hosts' capacity. price: $ per hour of one host.
    """

    name: str
    hosts: int | None
    why: str = ""
    used: float = 0.0
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    price: float | None = None
    usd_an_hour: float | None = None
    usd_per_million_output_tokens: float | None = None


def fleet(
    names: Sequence[str], prices: Mapping[str, float], configs: Configs, model: ModelHeaders, load: PlannedLoad
) -> list[Row]:
    """Return a row per type: the cheapest first, then those without a price by number of hosts, then unsuitable ones.

    Raises: ConfigError for an unknown type.
    """
    rows = [_row(name, prices.get(name), configs, model, load) for name in names]
    return sorted(
        rows, key=lambda row: (row.hosts is None, row.usd_an_hour is None, row.usd_an_hour or 0, row.hosts or 0)
    )


def read_prices(path: Path) -> dict[str, float]:
    """Read a YAML file of instance types and $ per hour; types without a price are left out.

    Raises: ConfigError naming the file and the line that is wrong.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--prices {path}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"--prices {path}: write a line for each type, such as c8g.12xlarge: PRICE; see --price-template"
        )
    prices: dict[str, float] = {}
    for name, price in content.items():
        machine(str(name))
        if price is None:
            continue
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 < price < math.inf:
            raise ConfigError(f"--prices {path}: {name}: {price!r} is not a price; write $ per hour")
        prices[str(name)] = float(price)
    return prices


def template() -> str:
    """Return a price file to fill in: prices depend on region and contract, so none are built in."""
    lines = ["# Price of each instance type in $ per hour; types without a price are not compared."]
    return "\n".join([*lines, *(f"{name}:" for name in machines())])


def as_text(rows: Sequence[Row], load: PlannedLoad) -> str:
    """Return the comparison as a table."""
    head = ["type", "hosts", "TTFT", "TPOT", "used", "$ an hour", "$ per 1M out"]
    lines = [
        NOT_MEASURED,
        f"{load.requests_s:g} requests/s, prompts of {load.lengths.prompt} tokens, outputs of {load.lengths.output}",
        table(head, [_cells(row) for row in rows if row.hosts is not None]),
    ]
    lines += [f"{row.name}: {row.why}" for row in rows if row.hosts is None]
    return "\n".join(lines)


def as_json(rows: Sequence[Row], load: PlannedLoad) -> dict[str, Any]:
    """Return the comparison as JSON."""
    told = {"requests_s": load.requests_s, "input_len": load.lengths.prompt, "output_len": load.lengths.output}
    return {"predicted": True, "load": told | asdict(load.slo), "fleet": [asdict(row) for row in rows]}


def _row(name: str, price: float | None, configs: Configs, model: ModelHeaders, load: PlannedLoad) -> Row:
    try:
        found = predict(type_host(machine(name), configs), model, load)
    except ConfigError as problem:
        return Row(name, None, f"does not fit: {problem}", price=price)
    if found.best is None:
        return Row(name, None, "a single request misses the SLO or does not fit into the KV cache", price=price)
    assert load.requests_s is not None
    hosts = math.ceil(load.requests_s / found.best.requests_s)
    if hosts > MOST_HOSTS:
        return Row(name, None, f"takes more than {MOST_HOSTS} hosts", price=price)
    state = at_rate(found.cost, load.requests_s / hosts / found.engines, load.lengths, found.fitting.limits.running)
    state = state or found.best
    used = load.requests_s / hosts / found.best.requests_s
    hour = None if price is None else price * hosts
    million = None if hour is None else hour / (load.requests_s * load.lengths.output * 3600) * 1e6
    return Row(name, hosts, "", used, state.ttft_s, state.tpot_s, price, hour, million)


def _cells(row: Row) -> list[str]:
    money = ["–" if value is None else f"{value:.2f}" for value in (row.usd_an_hour, row.usd_per_million_output_tokens)]
    return [
        row.name,
        figure(row.hosts or 0),
        seconds(row.ttft_s),
        seconds(row.tpot_s),
        f"{100 * row.used:.0f} %",
        *money,
    ]
