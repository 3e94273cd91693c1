"""Write docs/settings.md from app/forearm/config: every flag and variable. tests/house checks that it is current.

python tools/settings_page.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from forearm.config import vllm_compat
from forearm.config.api_config import ApiConfig
from forearm.config.common import Common
from forearm.config.engine_config import EngineConfig
from forearm.config.serve_config import ServeConfig
from forearm.config.settings import settings_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"

HEAD = """# Settings

A flag wins over the environment, the environment over the `--config` file (YAML; flags without their dashes as keys),
that over the default. Names are vLLM's wherever the thing is the same; `_` and `-` are the same in flags. A switch is
put off with `--no-` before its name. Numbers may be written 4k (4000) or 4K (4096). A wrong value ends the start with
exit status 78 and a line that names the value and the remedy; unknown `VLLM_*` and `FOREARM_*` variables are listed.

This page is made by `tools/settings_page.py` from `app/forearm/config/`, `vllm_compat.py` and `vllm_flags.py`.
"""
MORE = """
## Read elsewhere

| Variable | What it does |
|---|---|
| `FOREARM_TIER` | forces a kernel tier by name, for tests and comparisons; one that this CPU can't run ends the start |
| `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE` and the like | as Hugging Face's library has them |
"""


FROM_VLLM = """
## Scripts of vLLM's

Each of the 344 flags of `vllm serve --help` (0.33) is above, or in a table below with what becomes of it. Parts of JSON
may be given by themselves: `--speculative-config.method ngram`, `--a-config.list+ x`; in the file also with points.

`vllm serve ...` is `forearm serve ...`. No `vllm` command is installed, because it would hide a real one; `pip install
./packages/forearm-vllm` adds it, with `python -m vllm.entrypoints.openai.api_server` and `from vllm import LLM,
SamplingParams` (the async engine, outputs, prompts), all forearm's. It refuses to be imported beside a real vLLM.
"""


def page() -> str:
    """The whole page."""
    common = {field.name for field in dataclasses.fields(Common)}
    parts = [HEAD]
    for title, config in (
        ("Every process", Common),
        ("Engine (and `LLM`)", EngineConfig),
        ("API", ApiConfig),
        ("Supervisor", ServeConfig),
    ):
        rows = rows_of(config, skip=set() if config is Common else common)
        parts.append(f"\n## {title}\n\n| Flag | Variable | Default | What it is |\n|---|---|---|---|\n" + rows)
    return "".join((*parts, MORE, FROM_VLLM, foreign_tables()))


def rows_of(config: type[Common], skip: set[str]) -> str:
    """A line for each setting of a config."""
    defaults = config()
    lines = []
    for name, setting in settings_of(config).items():
        if name not in skip:
            value = getattr(defaults, name)
            shown = f"{value}{f' {setting.unit}' if setting.unit else ''}" if value not in (None, "", ()) else ""
            flags = ", ".join(f"`{flag}`" for flag in setting.flags)
            variable = f"`{setting.env}`" if setting.env else ""
            lines.append(f"| {flags} | {variable} | {shown} | {setting.help.replace('|', chr(92) + '|')} |\n")
    return "".join(lines)


def foreign_tables() -> str:
    """What is accepted without effect, what with some values only, and what is refused."""
    accepted = [(f"`{flag}`", one.reason) for flag, one in vllm_compat.FLAGS.items() if one.allowed is None]
    accepted += [(f"`{name}`", reason) for name, reason in vllm_compat.VARIABLES.items()]
    limited = [
        (f"`{flag}` {' or '.join(one.allowed)}", one.reason) for flag, one in vllm_compat.FLAGS.items() if one.allowed
    ]
    refused = [(f"`{flag}`", one.reason) for flag, one in vllm_compat.REFUSED.items()]
    return (
        table("Of vLLM, accepted with one log line", "Why it has no effect", accepted)
        + table("Of vLLM, accepted with these values alone", "Why the others are refused", limited)
        + table("Of vLLM, refused", "Why", refused)
    )


def table(title: str, column: str, rows: list[tuple[str, str]]) -> str:
    """Names with the same reason share a line."""
    reasons: dict[str, list[str]] = {}
    for name, reason in rows:
        reasons.setdefault(reason, []).append(name)
    body = "".join(f"| {', '.join(names)} | {reason} |\n" for reason, names in reasons.items())
    return f"\n## {title}\n\n| Name | {column} |\n|---|---|\n{body}"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
