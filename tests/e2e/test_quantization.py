"""quantization=... of LLM reaches the executor: the demo model, rounded while it is loaded, still answers."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forearm import LLM, SamplingParams
from forearm.errors import ConfigError

GREEDY = SamplingParams(temperature=0, max_tokens=12)


def answer(**settings: str) -> str:
    llm = LLM(max_model_len=128, max_num_seqs=4, kv_cache_memory_bytes=1 << 24, **settings)  # type: ignore[arg-type]
    [output] = llm.generate("A glacier is", GREEDY, use_tqdm=False)
    return output.outputs[0].text


@pytest.mark.parametrize(
    ("settings", "formats"),
    [
        ({"quantization": "int8"}, "rotated and rounded while loading: "),
        ({"quantization": "int8"}, "int8 in groups of 64 0."),  # of the 704 columns of down, 128 do not
        ({"quantization": "int4"}, "int4 in groups of 128 0."),
        ({"quantization": "int4-fast"}, "int4 in groups of 128 0."),
        ({"quantization": "int4-g32", "quantization_activations": "float"}, "int4 in groups of 32 (16-bit"),
        ({"quantization": "int8", "quantization_embeddings": "none"}, "bfloat16 0."),
        ({"quantization": "fp8"}, "fp8_e4m3 0."),
    ],
    ids=str,
)
def test_weights_are_rounded_as_asked_and_the_log_says_so(
    settings: dict[str, str], formats: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    text = answer(**settings)

    assert formats in next(line for line in caplog.messages if line.startswith("weights, ") and "rounded while" in line)
    assert text.startswith(" a "), "the demo model gives a definition"
    calibrated = settings["quantization"] != "int4-fast"
    assert any(line.startswith("weights: calibrated on ") for line in caplog.messages) == calibrated


def test_a_method_that_the_checkpoint_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="--quantization awq: the checkpoint is not quantized; int8, int4"):
        answer(quantization="awq")


def test_an_unknown_quantization_is_refused() -> None:
    with pytest.raises(ConfigError, match="int3: write one of none, int8, int4"):
        answer(quantization="int3")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_file_that_was_not_completed_has_not_its_name(tmp_path: Path, number: signal.Signals) -> None:
    """A .gguf file has its full length before its weights are written: half of one would be served."""
    folder = tmp_path / "codes"
    argv = [sys.executable, "-m", "forearm", "quantize", "-o", str(folder), "--format", "gguf-Q4_K_M"]
    with subprocess.Popen([*argv, "--threads", "1"], stderr=subprocess.DEVNULL) as process:
        while not list(folder.glob("*.partial")):
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(number)
        status = process.wait(60)

    assert status == (130 if number == signal.SIGINT else -number)
    assert not list(folder.glob("*.gguf"))
    assert folder.exists() == (number == signal.SIGKILL)
