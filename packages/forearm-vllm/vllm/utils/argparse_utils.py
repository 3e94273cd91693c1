"""The parser of vLLM's scripts: underscores in flags, dotted flags for JSON, --config FILE."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from forearm.config.flags import nested

__all__ = ["FlexibleArgumentParser"]


class FlexibleArgumentParser(argparse.ArgumentParser):
    """An argparse parser that takes flags as `vllm serve` does: --max_num_seqs, --hf-overrides.x 1, -O3.

    A flag that a script adds replaces one of the same name: EngineArgs.add_cli_args has flags of older releases, too.
    """

    def __init__(self, *args: Any, add_json_tip: bool = True, **others: Any) -> None:
        super().__init__(*args, **{"conflict_handler": "resolve", **others})

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Read a command line. A --config file comes before the other flags, which therefore win."""
        words = nested([_dashed(word) for word in (sys.argv[1:] if args is None else args)])
        if "--config" in words and "--config" not in self._option_string_actions:
            at = words.index("--config")
            if at + 1 == len(words):
                self.error("--config needs a YAML file")
            words = [*_words_of(Path(words[at + 1])), *words[:at], *words[at + 2 :]]
        return super().parse_known_args(words, namespace)

    @staticmethod
    def check_port(value: str) -> int:
        """Read the number of a port. Raises: ArgumentTypeError."""
        if not value.isdecimal() or not 1024 <= int(value) <= 65535:
            raise ArgumentTypeError(f"{value} is no port: write a number from 1024 to 65535")
        return int(value)


def _dashed(word: str) -> str:
    """Return --a-b for --a_b, and --optimization-level=3 for -O3 and -O=3; values stay as they are."""
    if optimization := re.fullmatch(r"-O=?(?P<level>\w+)", word):
        return f"--optimization-level={optimization['level']}"
    return (
        "--optimization-level" if word == "-O" else re.sub(r"^--[^=.]*", lambda name: name[0].replace("_", "-"), word)
    )


def _words_of(file: Path) -> Iterator[str]:
    """Yield the flags of a YAML file: true is a switch, a list several values; false and null give no flag."""
    for name, value in (yaml.safe_load(file.read_text()) or {}).items():
        if value is True or (value is not False and value is not None):
            yield "--" + str(name).replace("_", "-")
            yield from map(str, value if isinstance(value, list) else () if value is True else [value])
