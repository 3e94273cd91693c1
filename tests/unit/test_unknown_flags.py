"""A command of llama-server's ends with what to write instead, as docs/from-llama-cpp.md says it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forearm.config.flags import CommandLine, CommandParser, add_compat_flags, add_settings, read_line
from forearm.config.unknown_flags import REMEDIES
from forearm.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "from-llama-cpp.md"


def line(*argv: str) -> CommandLine:
    return read_line(CommandParser("test", "test"), argv)


@pytest.fixture(scope="module")
def taken() -> set[str]:
    parser = CommandParser("test", "test")
    add_settings(parser)
    add_compat_flags(parser, [])
    return set(parser._option_string_actions)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-m", "model.gguf"], "unknown flag -m, which is llama-server's; name the model without a flag"),
        (["-hf", "owner/name"], "unknown flag -hf, .*: owner/name:Q4_K_M"),  # not -h with a part of the help
        (["model.gguf", "-ngl", "99"], "unknown flag -ngl, .*; leave it out: forearm runs on CPUs"),  # not -n gl
        (["model.gguf", "-np", "4"], "unknown flag -np, .*; write --max-num-seqs"),
        (["--ctx-size=4096"], "unknown flag --ctx-size, .*; write --max-model-len"),
        (["--ctx_size", "4096"], "unknown flag --ctx-size, .*; write --max-model-len"),
        (["--swa-full"], "unknown flag --swa-full, .*; leave it out"),
        (["-kvu"], "unknown flag -kvu, .*; leave it out: all sequences share one KV cache"),
        (["--draft-max", "8"], "unknown flag --draft-max, .*; write --spec-tokens"),
        (["-t", "8"], "unknown flag -t, .*; set the variable OMP_NUM_THREADS"),  # not -tp
    ],
)
def test_a_flag_of_llama_servers_is_told_its_counterpart(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        line(*argv)


def test_a_key_of_llama_servers_in_the_file_is_told_its_counterpart(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("ctx-size: 4096\n")

    with pytest.raises(ConfigError, match=r"unknown key ctx-size, which is llama-server's; write --max-model-len"):
        line("--config", str(file))


def test_a_flag_of_the_commands_own_is_no_flag_of_llama_servers() -> None:
    parser = CommandParser("test", "test")
    parser.add_argument("--top-k", type=int)

    assert read_line(parser, ["--top-k", "5"]).rest.top_k == 5


def test_flags_with_a_counterpart_are_none_of_forearms_and_name_its(taken: set[str]) -> None:
    named = {flag for remedy in REMEDIES.values() for flag in re.findall(r"--[a-z][\w-]*", remedy)}

    assert len(REMEDIES) > 80
    assert sorted(set(REMEDIES) & taken) == []
    assert sorted(named - taken) == []


def test_each_flag_of_the_page_is_taken_or_has_a_counterpart(taken: set[str]) -> None:
    table = PAGE.read_text(encoding="utf-8").split("## Flags")[1].split("## Endpoints")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `-")]
    flags = {flag for row in rows for flag in re.findall(r"`(--?[\w-]+)", row)}

    assert len(flags) > 50
    assert sorted(flags - taken - set(REMEDIES)) == []
