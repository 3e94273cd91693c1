"""llama.cpp beside forearm: rows of quality.py for .gguf files of the same float model, which both engines read.

Most are quantized by llama.cpp, without an importance matrix; the last are written by `forearm quantize`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench.peers.gguf_file import FILE_TYPES

from forearm.array_types import Float32Array, Int32Array
from forearm.cli.main import main as forearm
from forearm.model.checkpoint.calibration import WINDOW
from forearm.model.checkpoint.quality_report import log_softmax
from forearm.model.gguf.gguf import read_gguf

QUANTIZED = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0")
WRITTEN = ("Q5_K_M", "Q4_K_M", "Q4_0")  # by forearm too
TRUTH_FILE = "bfloat16"  # the row of the file of floats, of which llama.cpp alone is measured
SAME_FILE = "llama.cpp, the same file"


class LlamaFile(NamedTuple):
    """A .gguf file. format: its row's name. peer: what llama.cpp's figures are called."""

    format: str
    peer: str
    path: Path


class LlamaModel:
    """llama.cpp with a file: the log-probabilities after the tokens of a text of at most WINDOW tokens.

    steps: the program that bench/peers/llama_steps.cpp is built to.
    """

    def __init__(self, steps: Path, path: Path, threads: int) -> None:
        command = [str(steps), "logits", str(path), str(threads), str(WINDOW)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdin
        assert self._process.stdout
        self._texts, self._logits = self._process.stdin, self._process.stdout
        assert self._logits.readline(), "llama-steps ended"  # its version, once the model is loaded
        self._vocabulary = read_gguf(path).tensors["token_embd.weight"].shape[0]

    def log_probabilities(self, tokens: Int32Array) -> Float32Array:
        """Return the log-probabilities of the token after each but the last, float32 [tokens - 1, vocab]."""
        self._texts.write((" ".join(map(str, tokens)) + "\n").encode())
        self._texts.flush()
        raw = self._logits.read(len(tokens) * self._vocabulary * 4)
        return log_softmax(np.frombuffer(bytearray(raw), np.float32).reshape(len(tokens), -1)[:-1])

    def close(self) -> None:
        """End the process."""
        self._texts.close()
        self._process.wait()
        self._logits.close()


def llama_files(given: Path, folder: Path, steps: Path, made: Path) -> Iterator[LlamaFile]:
    """Write and yield the files of a float model, one at a time.

    given: the .gguf file that the float model was made of, which comes first, or its folder. made: an empty folder.
    """
    if given.suffix == ".gguf":
        name = next(name for name, number in FILE_TYPES.items() if number == _file_type(given))
        yield LlamaFile(f"GGUF {name}", SAME_FILE, given)
    floats = _written(folder, "BF16", made)
    yield LlamaFile(TRUTH_FILE, "llama.cpp BF16", floats)
    for name in QUANTIZED:
        path = made / f"{name}.gguf"
        subprocess.run([steps, "quantize", floats, path, str(FILE_TYPES[name])], check=True, capture_output=True)
        yield LlamaFile(name, f"llama.cpp {name}", path)
        path.unlink()
    for name in WRITTEN:
        yield LlamaFile(f"{name} by forearm", SAME_FILE, _written(folder, name, made))


def bits_of_layers(path: Path) -> float:
    """Return the bits per weight of the layers' matrices in a .gguf file."""
    own = [one for one in read_gguf(path).tensors.values() if one.name.startswith("blk.") and len(one.shape) == 2]
    return 8 * sum(one.end - one.begin for one in own) / sum(one.shape[0] * one.shape[1] for one in own)


def _written(folder: Path, name: str, made: Path) -> Path:
    """Return the file that `forearm quantize` writes of a folder."""
    out = made / f"written-{name}"
    status = forearm(["quantize", str(folder), "-o", str(out), "--format", f"gguf-{name}", "--quality-tokens", "0"])
    assert status == 0
    (path,) = out.glob("*.gguf")
    return path


def _file_type(path: Path) -> int:
    return int(read_gguf(path).metadata["general.file_type"])
