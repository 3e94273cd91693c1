"""The help of each command has the flags that it reads, and no others."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from forearm.cli import main, run_batch
from forearm.config import configs
from forearm.config.configs import Configs
from forearm.config.settings import settings_of
from forearm.model.checkpoint.hub import DEMO_MODEL

# Runs a command several times and prints which fields of the configs were read, save by what copies or parses them.
READS = """import sys
from forearm.cli import main
from forearm.config import configs
seen = set()
def noted(kind):
    plain = kind.__getattribute__
    def read(self, name):
        caller = sys._getframe(1).f_code
        copies = caller.co_filename.endswith(("dataclasses.py", "flags.py")) or caller.co_name == "changed_settings"
        if name in configs.SETTINGS and not copies:
            seen.add(name)
        return plain(self, name)
    kind.__getattribute__ = read
for kind in configs.CONFIGS:
    noted(kind)
for line in sys.argv[1:]:
    main.main(line.split())
print()
print("READ", *sorted(seen))
"""
TOKENIZER = f"--tokenizer {DEMO_MODEL}"
LINES = {
    "pull": ["pull no/model"],
    "show": ["show", "show no/model", "show --model-impl transformers"],
    "plan": ["plan --machine c8g.12xlarge", "plan --model-impl transformers"],
    "generate": [f"generate --prompt ice --max-tokens 2 {TOKENIZER}"],
    "bench throughput": [f"bench throughput --input-len 4 --output-len 2 --num-prompts 1 {TOKENIZER}"],
    "bench latency": [
        "bench latency --input-len 4 --output-len 2 --batch-size 1 --num-iters 1 --num-iters-warmup 0 " + TOKENIZER
    ],
}


def helped(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main.main([*command.split(), "--help"])
    return capsys.readouterr().out


def told(text: str) -> set[str]:
    """Return the settings whose flags a help has."""
    lines = [line for line in text.splitlines() if line.startswith("  -")]
    flags = set(re.findall(r"(?<!\S)--?\w[\w-]*", "\n".join(lines)))
    return {name for name, setting in configs.SETTINGS.items() if flags & set(setting.flags)}


@pytest.mark.parametrize("command", LINES)
def test_a_command_reads_each_flag_of_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(helped(command, capsys))
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}

    done = subprocess.run(
        [sys.executable, "-c", READS, *LINES[command]], capture_output=True, text=True, env=environment, timeout=120
    )

    read = set(done.stdout.splitlines()[-1].split()[1:])
    assert {"model", "download_dir"} <= shown
    assert shown <= read, f"{sorted(shown - read)} are not read\n{done.stderr}"


def test_the_server_of_a_batch_gets_each_flag_of_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = told(helped("run-batch", capsys))
    marks = {name: object() for name in shown}
    given: list[Any] = []
    for kind in configs.CONFIGS:
        values: dict[str, Any] = {name: mark for name, mark in marks.items() if name in settings_of(kind)}
        given.append(kind(**values))
    served: list[Configs] = []

    async def server(own: Configs, runtime: object) -> int:
        served.append(own)
        return 0

    monkeypatch.setattr(run_batch, "server", server)
    work: Any = SimpleNamespace(done=lambda uds: asyncio.sleep(60))
    run_batch.serve_for(work, Configs(*given), None)

    (own,) = served
    parts = (own.engine, own.api, own.serve)
    assert len(shown) > 70
    assert [n for n, mark in marks.items() if any(getattr(part, n, mark) is not mark for part in parts)] == []


def test_starts_are_timed_with_each_flag_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(helped("bench startup", capsys))

    assert shown == told(helped("bench latency", capsys)) - {"logging_level", "log_format", "logging_config_path"}


def test_help_is_as_short_as_what_a_command_uses(capsys: pytest.CaptureFixture[str]) -> None:
    whole = helped("serve", capsys)
    lines = len(whole.splitlines())

    assert told(whole) == {name for name, setting in configs.SETTINGS.items() if setting.flags}
    assert len(helped("pull", capsys).splitlines()) < 20
    assert len(helped("generate", capsys).splitlines()) < 0.7 * lines
    assert "\napi:" not in helped("generate", capsys)


def test_a_line_written_for_serve_may_be_given_to_another_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan --machine c8g.12xlarge --port 8001 -dp 2 --api-key sesame --max-num-seqs 4"
    assert main.main(words.split()) == 0
    told = capsys.readouterr()
    assert "demo model" in told.out
    for flag in ("--port", "--data-parallel-size", "--api-key"):
        assert f"{flag} does nothing here: it is for forearm serve" in told.out + told.err
    assert "--max-num-seqs does nothing" not in told.out + told.err

    assert main.main(["generate", "--ssl-keyfil", "/k"]) == 78
    assert "unknown flag --ssl-keyfil; did you mean --ssl-keyfile?" in capsys.readouterr().err


def test_a_file_and_the_environment_may_have_settings_of_every_command(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 8001\nssl-keyfile: /k\nmax-num-seqs: 4\n")
    monkeypatch.setenv("VLLM_API_KEY", "sesame")

    words = ["plan", "--machine", "c8g.12xlarge", "--config", str(file), "--disable-log-stats", "--no-playground"]
    assert main.main(words) == 0
    assert "demo model" in capsys.readouterr().out
