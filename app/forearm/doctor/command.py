"""`forearm doctor`: all checks, as text or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from forearm import __version__
from forearm.config.api_config import ApiConfig
from forearm.config.configs import Configs
from forearm.config.engine_config import EngineConfig
from forearm.config.environment import environment
from forearm.config.flags import CommandParser, read_line
from forearm.config.serve_config import ServeConfig
from forearm.doctor import limits, processor, server_checks
from forearm.doctor.finding import ORDER, Check, CheckedHost, Finding
from forearm.errors import ConfigError

CHECKS: tuple[Check, ...] = (
    processor.kernel,
    processor.processor,
    processor.tier,
    processor.governor,
    processor.cores,
    limits.quota,
    limits.hyper_threads,
    limits.numa,
    limits.huge_pages,
    limits.memory,
    limits.swap,
    limits.processes,
    server_checks.allocator,
    server_checks.settings,
    server_checks.address,
    server_checks.hub,
    server_checks.model,
)


def run(argv: Sequence[str], root: str = "") -> int:
    """Run the command. root: prefix of /proc and /sys, for tests. Returns: 1 with --strict if there is a problem.

    Raises: ConfigError naming a wrong flag.
    """
    about = "What this host lacks or wastes, each with its remedy and how it was found; nothing is changed."
    parser = CommandParser("forearm doctor [MODEL] [--json] [--strict] [flags of serve]", about)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--strict", action="store_true", help="exit status 1 for a warning or an error")
    wrong: list[Finding] = []
    try:
        chosen = read_line(parser, argv).configs
    except ConfigError as problem:
        if re.split("[ =]", str(problem), maxsplit=1)[0] not in environment():
            raise
        chosen = Configs(EngineConfig(), ApiConfig(), ServeConfig())
        wrong = [Finding("settings", "error", str(problem), "the environment", server_checks.SET_RIGHT)]
    found = list(dict.fromkeys([*wrong, *examine(CheckedHost(chosen, environment(), root))]))
    print(json.dumps(as_json(found), indent=2) if "--json" in argv else as_text(found))
    amiss = any(finding.status in ("error", "warning") for finding in found)
    return int(amiss and "--strict" in argv)


def examine(host: CheckedHost) -> Iterator[Finding]:
    """Yield every finding. A check that can't read its sources becomes a note."""
    for check in CHECKS:
        try:
            yield from check(host)
        except (OSError, ValueError, RuntimeError) as problem:  # noqa: PERF203  (17 checks)
            name = check.__name__.replace("_", " ")
            yield Finding(name, "note", f"cannot be checked here: {problem}", type(problem).__name__)


def as_text(found: Sequence[Finding]) -> str:
    """Return the findings as text, problems first."""
    width = max(len(finding.check) for finding in found)
    lines = [f"forearm {__version__}"]
    for status in ORDER:
        for finding in (one for one in found if one.status == status):
            lines.append(f"{status:8}{finding.check:{width}}  {finding.what}  [{finding.how}]")
            if finding.remedy:
                lines.append(f"{'':8}{'':{width}}  -> {finding.remedy}")
    counts = {status: sum(finding.status == status for finding in found) for status in ORDER}
    lines.append(
        ", ".join(f"{count} {status}{'s' if count != 1 and status != 'ok' else ''}" for status, count in counts.items())
    )
    return "\n".join(lines)


def as_json(found: Sequence[Finding]) -> dict[str, object]:
    """Return the findings as JSON, in the order of the checks."""
    counts = {status: sum(finding.status == status for finding in found) for status in ORDER}
    return {"version": __version__, "counts": counts, "findings": [asdict(finding) for finding in found]}
