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

from vllm import EngineArgs, LLMEngine
from vllm.config import PoolerConfig
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.llm_engine import LLMEngine
from vllm.logger import init_logger
from vllm.outputs import LateChunk, LateChunkingMetadata
from vllm.pooling_params import LateChunkingParams, PoolingParams
from vllm.tokenizers import get_tokenizer
from vllm.usage.usage_lib import UsageContext
from vllm.utils import FlexibleArgumentParser, get_open_port, random_uuid
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.print_utils import print_embeddings
from vllm.v1.metrics.reader import Counter, Gauge, Histogram, Vector
from vllm.version import __version__

llm = LLM(model="", max_model_len=128, max_num_seqs=4, enforce_eager=True, trust_remote_code=True)
prompts = ["A glacier is", TextPrompt(prompt="A glacier is")]
outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=5), use_tqdm=False)
assert all(isinstance(output, RequestOutput) for output in outputs)
assert len({output.outputs[0].text for output in outputs}) == 1
assert any(isinstance(metric, Counter) for metric in llm.get_metrics())
print("answered")
"""
# In the manner of vLLM's examples: the engine's flags beside a script's own.
WITH_FLAGS = """
from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
parser.set_defaults(model="", enforce_eager=True)
sampling = parser.add_argument_group("sampling")
sampling.add_argument("--max-tokens", type=int)
sampling.add_argument("--device", type=str)
args = vars(parser.parse_args())
max_tokens, device = args.pop("max_tokens"), args.pop("device")
llm = LLM(**args)
params = llm.get_default_sampling_params()
params.max_tokens = max_tokens
[output] = llm.generate("A glacier is", params, use_tqdm=False)
print(device, args["max_model_len"], args["hf_overrides"], len(output.outputs[0].token_ids))
"""


def python(*argv: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, timeout=120, env=environment(PACKAGE, path)
    )


def environment(*paths: Path | None) -> dict[str, str]:
    """Return this process' environment with these folders before those of its PYTHONPATH."""
    given = [str(path) for path in paths if path] + [os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, given))}


def test_a_script_for_vllm_runs() -> None:
    done = python("-c", SCRIPT)

    assert done.stdout == "answered\n", done.stderr


def test_a_script_reads_the_engines_flags_beside_its_own(tmp_path: Path) -> None:
    (tmp_path / "flags.yaml").write_text("max-model-len: 64\nmax_num_seqs: 4\nenable-prefix-caching: true\n")
    flags = ["--config", str(tmp_path / "flags.yaml"), "--max_model_len=128", "--max_tokens", "3", "-O3", "--device=x"]

    done = python("-c", WITH_FLAGS, *flags, "--hf-overrides.rope_theta", "10000")

    assert done.stdout == "x 128 {'rope_theta': 10000} 3\n", done.stderr


def test_an_adapter_is_refused_with_the_remedy() -> None:
    done = python("-c", "from vllm.lora.request import LoRARequest; LoRARequest('sql', 1, '/adapter')")

    assert "merge the adapter into the model" in done.stderr


def test_the_command_and_the_old_module_are_forearms() -> None:
    assert python("-m", "vllm.entrypoints.cli.main", "--version").stdout.startswith("forearm ")
    port = free_port()
    argv = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen([sys.executable, *argv, "--served-model-name", "old"], env=environment(PACKAGE))
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
