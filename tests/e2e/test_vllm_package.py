"""packages/forearm-vllm: scripts that say vllm, answered by forearm; not beside a real vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import httpx
from tests.e2e.served import free_port, stop

PACKAGE = Path(__file__).resolve().parents[2] / "packages" / "forearm-vllm"
SCRIPT = """
from vllm import LLM, AsyncEngineArgs, AsyncLLMEngine, RequestOutput, SamplingParams, TextPrompt, TokensPrompt
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.entrypoints.llm import LLM
from vllm.outputs import CompletionOutput, EmbeddingRequestOutput, RequestOutput
from vllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.beam_search import BeamSearchOutput
from vllm.v1.engine.async_llm import AsyncLLM

llm = LLM(model="", max_model_len=128, max_num_seqs=4, enforce_eager=True, trust_remote_code=True)
prompts = ["A glacier is", TextPrompt(prompt="A glacier is")]
outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=5), use_tqdm=False)
assert all(isinstance(output, RequestOutput) for output in outputs)
assert len({output.outputs[0].text for output in outputs}) == 1
print("answered")
"""


def python(*argv: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(each) for each in (PACKAGE, path) if each)
    return subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": paths}
    )


def test_a_script_for_vllm_runs() -> None:
    done = python("-c", SCRIPT)

    assert done.stdout == "answered\n", done.stderr


def test_the_command_and_the_old_module_are_forearms() -> None:
    assert python("-m", "vllm.entrypoints.cli.main", "--version").stdout.startswith("forearm ")
    port = free_port()
    argv = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    server = subprocess.Popen([sys.executable, *argv, "--served-model-name", "old"], env=environment)
    try:
        end = time.monotonic() + 60
        while not answers(port) and server.poll() is None:
            assert time.monotonic() < end, "it does not start"
            time.sleep(0.1)
        listed = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=60).json()["data"]
        assert [card["id"] for card in listed] == ["old"]
    finally:
        stop(server)


def test_the_module_of_batches_is_forearms(tmp_path: Path) -> None:
    body = {"prompt": "A glacier is", "max_tokens": 3}
    (tmp_path / "in.jsonl").write_text(
        json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}) + "\n"
    )

    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    done = python("-m", "vllm.entrypoints.openai.run_batch", *files)

    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text())["response"]["status_code"] == 200


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def test_beside_a_real_vllm_it_refuses(tmp_path: Path) -> None:
    real = tmp_path / "vllm-0.33.0.dist-info"
    real.mkdir()
    (real / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")

    done = python("-c", "import vllm", path=tmp_path)

    assert done.returncode == 1
    assert "vllm 0.33.0 and forearm-vllm are both installed" in done.stderr
    assert "pip uninstall forearm-vllm vllm" in done.stderr


def test_its_wheel_has_the_command_and_needs_forearm(tmp_path: Path) -> None:
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", *flags, str(PACKAGE)], check=True, timeout=120)

    (wheel,) = tmp_path.glob("forearm_vllm-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("METADATA"))
        (scripts,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert "vllm/entrypoints/openai/api_server.py" in names
    assert "vllm = vllm.entrypoints.cli.main:main" in scripts
    assert "Requires-Dist: forearm" in metadata
