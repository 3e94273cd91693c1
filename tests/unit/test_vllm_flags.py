"""Every flag of vLLM's `serve --help` has a verdict here, and dotted flags are JSON, as vLLM has them.

vllm_serve_flags.txt: the names and kinds (switch, one value, many) of vLLM 0.33, read off its add_argument calls and
the types of its configs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from forearm.config import configs, vllm_compat
from forearm.config.flags import CommandLine, CommandParser, add_compat_flags, add_settings, nested, read_line
from forearm.config.settings import inverses
from forearm.errors import ConfigError

KINDS = dict(line.split() for line in (Path(__file__).parent / "vllm_serve_flags.txt").read_text().splitlines())
OWN = {flag for setting in configs.SETTINGS.values() for flag in (*setting.flags, *setting.off_flags)} | {"--config"}
VALUES = {"switch": 0, "one": 1, "many": 2}
# Flags that say how to read a checkpoint must not be ignored; nor may old flags that left vLLM's list.
APPLIED = ("--rope-scaling", "--rope-theta", "--hf-overrides")


def line(*argv: str) -> CommandLine:
    return read_line(CommandParser("test", "test"), argv)


def test_the_list_is_whole() -> None:
    assert len(KINDS) > 300
    assert set(KINDS.values()) == set(VALUES)


@pytest.fixture(scope="module")
def parser() -> CommandParser:
    one = CommandParser("test", "test")
    add_settings(one)
    add_compat_flags(one, [])
    return one


@pytest.mark.parametrize("flag", KINDS)
def test_a_flag_of_vllm_is_set_accepted_or_refused_with_a_reason(flag: str, parser: CommandParser) -> None:
    count = VALUES[KINDS[flag]]

    verdicts = [flag in OWN, flag in vllm_compat.FLAGS, flag in vllm_compat.REFUSED]

    assert sum(verdicts) == 1, f"{flag} has no verdict, or several"
    if flag in vllm_compat.REFUSED:
        assert vllm_compat.REFUSED[flag].values == count
        return
    known = vllm_compat.FLAGS.get(flag)
    allowed = "1" if known is None or known.allowed is None else known.allowed[0]
    _, over = parser.parse_known_args([flag, *[allowed] * count])
    assert over == []  # takes a list of values, as vLLM's


def test_a_switch_can_be_put_off_as_in_vllm() -> None:
    switches = [flag for flag, kind in KINDS.items() if kind == "switch" and flag not in OWN]
    off = [other for flag in switches for other in inverses(flag)]
    assert len(off) > 50

    assert line("model", *off).notes == []


def test_dotted_flags_are_json_as_in_vllm() -> None:
    words = [
        *("m", "--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens=4"),
        *("--a.b.c", "1", "--a.b.d", "x", "--a.list+", "p", "--a.list+=q,r", "--a.large", "80g", "--a.none", "null"),
        *("--port", "8001", "-O.level", "3", "--host=1.2.3.4", "-0.5"),
    ]

    assert nested(words) == [
        *("m", "--port", "8001", "--host=1.2.3.4", "-0.5"),
        *("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'),
        *("--a", '{"b": {"c": 1, "d": "x"}, "list": ["p", "q", "r"], "large": 80000000000, "none": null}'),
        *("-O", '{"level": 3}'),
    ]
    with pytest.raises(ConfigError, match=r"--speculative-config.method needs a value"):
        nested(["--speculative-config.method"])


def test_dotted_flags_set_what_their_json_sets(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "speculative-config.method: ngram\nspeculative-config.num_speculative_tokens: 4\nenable-lora: false\n"
    )
    whole = line("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}').configs.engine

    for argv in (
        ("--speculative_config.method", "ngram", "--speculative-config.num_speculative_tokens", "4"),
        ("-sc.method=ngram", "-sc.num_speculative_tokens=4"),
        ("--config", str(file)),
    ):
        assert line("m", *argv).configs.engine.speculative_config == whole.speculative_config


@pytest.mark.parametrize("flag", sorted(vllm_compat.REFUSED))
def test_a_refused_flag_is_told_its_remedy(flag: str) -> None:
    with pytest.raises(ConfigError, match=r"(use|see|lower|merge|leave) "):
        vllm_compat.refuse(flag)


def test_commands_from_vllms_pages_start_here() -> None:
    read = line(
        *("Qwen/Qwen3-8B", "--enable-reasoning", "--reasoning-parser", "qwen3", "--max-seq-len-to-capture", "8192"),
        *("--structured-outputs-config.backend", "xgrammar", "--compilation-config.level", "3", "-O3"),
        *("--model-impl", "vllm", "--limit-mm-per-prompt", '{"image": 0}', "--data-parallel-size", "2"),
        *("--data-parallel-size-local", "2", "--data-parallel-address", "10.0.0.1", "--no-enable-lora"),
        *("--device-memory-utilization", "0.5", "--no-async-scheduling", "--disable-chunked-prefill"),
    )

    assert read.configs.serve.data_parallel_size == 2
    assert read.configs.engine.memory_utilization == 0.5
    assert not read.configs.engine.enable_chunked_prefill
    assert [note.split()[0] for note in read.notes] == [
        *("--enable-reasoning", "--max-seq-len-to-capture", "-O", "--limit-mm-per-prompt", "--data-parallel-address"),
        "--compilation-config",
    ]
    assert read.configs.engine.model_impl == "forearm"
    with pytest.raises(ConfigError, match=r"--model-impl terratorch"):
        line("m", "--model-impl", "terratorch")
    with pytest.raises(ConfigError, match=r"--data-parallel-size-local 1: all 2 engines"):
        line("m", "--data-parallel-size", "2", "--data-parallel-size-local", "1")


@pytest.mark.parametrize("flag", APPLIED)
def test_what_changes_the_maths_is_never_without_effect(flag: str) -> None:
    assert flag in OWN
