"""Short names of models, as Ollama's users know them: qwen3, qwen3:4b. Each stands for a GGUF file on the hub.

Without a size, a name stands for the largest one whose weights take a quarter of this machine's memory at most: the
rest is for the KV cache and other programs, and a larger model would answer slowly.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from forearm.errors import ConfigError

_MEMORY_SHARE = 0.25
# Q4_K_M has 4.5 bits a weight, and 6.6 in the tensors that it keeps in Q6_K. Llama 3.1 8B has 8.03 billion: 4.92 GB.
_BYTES_A_PARAMETER = 4.9 / 8


@dataclass(frozen=True)
class ModelSize:
    """One size of a model. parameters: their number; file: of the hub, as owner/name:quantization."""

    parameters: float
    file: str


@dataclass(frozen=True)
class ShortName:
    """A short name. family: the model_type of all its sizes; sizes: by what follows the colon, the smallest first."""

    family: str
    sizes: dict[str, ModelSize]


def _sizes(labels: str, file: str) -> dict[str, ModelSize]:
    """Return sizes whose files are named alike, {} being the label: numbers of parameters such as 270m and 1.7B."""
    units = {"m": 1e6, "b": 1e9}
    return {
        label.lower(): ModelSize(float(label[:-1]) * units[label[-1].lower()], file.format(label))
        for label in labels.split()
    }


SHORT_NAMES: dict[str, ShortName] = {
    "qwen3": ShortName(
        "qwen3", _sizes("0.6B 1.7B", "Qwen/Qwen3-{}-GGUF:Q8_0") | _sizes("4B 8B 14B 32B", "Qwen/Qwen3-{}-GGUF:Q4_K_M")
    ),
    "qwen3.5": ShortName(
        "qwen3_5_text",
        _sizes("0.8B 2B", "unsloth/Qwen3.5-{}-GGUF:Q8_0") | _sizes("4B 9B 27B", "unsloth/Qwen3.5-{}-GGUF:Q4_K_M"),
    ),
    "qwen3.5-moe": ShortName("qwen3_5_moe_text", _sizes("35B", "unsloth/Qwen3.5-{}-A3B-GGUF:Q4_K_M")),
    "qwen3-moe": ShortName("qwen3_moe", _sizes("30B", "Qwen/Qwen3-{}-A3B-GGUF:Q4_K_M")),
    "qwen3-coder": ShortName("qwen3_moe", _sizes("30B", "unsloth/Qwen3-Coder-{}-A3B-Instruct-GGUF:Q4_K_M")),
    "qwen2.5": ShortName("qwen2", _sizes("0.5B 1.5B 3B 7B 14B 32B 72B", "Qwen/Qwen2.5-{}-Instruct-GGUF:Q4_K_M")),
    "qwen2.5-coder": ShortName(
        "qwen2", _sizes("0.5B 1.5B 3B 7B 14B 32B", "Qwen/Qwen2.5-Coder-{}-Instruct-GGUF:Q4_K_M")
    ),
    "deepseek-r1": ShortName("qwen2", _sizes("1.5B 7B 14B 32B", "bartowski/DeepSeek-R1-Distill-Qwen-{}-GGUF:Q4_K_M")),
    "llama3.3": ShortName("llama", _sizes("70B", "bartowski/Llama-3.3-{}-Instruct-GGUF:Q4_K_M")),
    "llama3.2": ShortName("llama", _sizes("1B 3B", "bartowski/Llama-3.2-{}-Instruct-GGUF:Q4_K_M")),
    "llama3.1": ShortName("llama", _sizes("8B 70B", "bartowski/Meta-Llama-3.1-{}-Instruct-GGUF:Q4_K_M")),
    "tinyllama": ShortName("llama", _sizes("1.1B", "TheBloke/TinyLlama-{}-Chat-v1.0-GGUF:Q4_K_M")),
    "smollm2": ShortName("llama", _sizes("135M 360M 1.7B", "bartowski/SmolLM2-{}-Instruct-GGUF:Q4_K_M")),
    "smollm3": ShortName("smollm3", _sizes("3B", "ggml-org/SmolLM3-{}-GGUF:Q4_K_M")),
    "gemma4": ShortName(
        "gemma4_text",
        {
            "e2b": ModelSize(5.1e9, "unsloth/gemma-4-E2B-it-GGUF:Q4_K_M"),
            "e4b": ModelSize(8.0e9, "unsloth/gemma-4-E4B-it-GGUF:Q4_K_M"),
            "26b": ModelSize(25.2e9, "unsloth/gemma-4-26B-A4B-it-GGUF:Q4_K_M"),
        }
        | _sizes("31b", "ggml-org/gemma-4-31B-it-GGUF:Q4_K_M"),
    ),
    "gemma3": ShortName(
        "gemma3_text",
        _sizes("270m", "ggml-org/gemma-3-{}-it-GGUF:Q8_0")
        | _sizes("1b 4b 12b 27b", "ggml-org/gemma-3-{}-it-GGUF:Q4_K_M"),
    ),
    "gemma2": ShortName("gemma2", _sizes("2b 9b 27b", "bartowski/gemma-2-{}-it-GGUF:Q4_K_M")),
    "mistral": ShortName("mistral", _sizes("7B", "bartowski/Mistral-{}-Instruct-v0.3-GGUF:Q4_K_M")),
    "mistral-nemo": ShortName(
        "mistral", {"12b": ModelSize(12.2e9, "bartowski/Mistral-Nemo-Instruct-2407-GGUF:Q4_K_M")}
    ),
    "mistral-small": ShortName(
        "mistral", _sizes("24B", "bartowski/mistralai_Mistral-Small-3.2-{}-Instruct-2506-GGUF:Q4_K_M")
    ),
    "phi4": ShortName("phi3", {"14b": ModelSize(14.7e9, "bartowski/phi-4-GGUF:Q4_K_M")}),
    "phi4-mini": ShortName("phi3", {"3.8b": ModelSize(3.8e9, "bartowski/microsoft_Phi-4-mini-instruct-GGUF:Q4_K_M")}),
    "gpt-oss": ShortName("gpt_oss", _sizes("20b 120b", "ggml-org/gpt-oss-{}-GGUF:MXFP4")),
    "granite3.3": ShortName("granite", _sizes("2b 8b", "ibm-granite/granite-3.3-{}-instruct-GGUF:Q4_K_M")),
    "olmo2": ShortName(
        "olmo2",
        _sizes("1B", "allenai/OLMo-2-0425-{}-Instruct-GGUF:Q4_K_M")
        | _sizes("7B 13B", "allenai/OLMo-2-1124-{}-Instruct-GGUF:Q4_K_M")
        | _sizes("32B", "allenai/OLMo-2-0325-{}-Instruct-GGUF:Q4_K_M"),
    ),
    "olmoe": ShortName("olmoe", _sizes("7B", "allenai/OLMoE-1B-{}-0924-Instruct-GGUF:Q4_K_M")),
    "lfm2": ShortName("lfm2", _sizes("350M 700M 1.2B 2.6B", "LiquidAI/LFM2-{}-GGUF:Q4_K_M")),
    # embedding models
    "qwen3-embedding": ShortName("qwen3", _sizes("0.6B 4B 8B", "Qwen/Qwen3-Embedding-{}-GGUF:Q8_0")),
    "embeddinggemma": ShortName("gemma3_text", _sizes("300M", "ggml-org/embeddinggemma-{}-GGUF:Q8_0")),
    "nomic-embed-text": ShortName("nomic_bert", {"137m": ModelSize(137e6, "nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0")}),
    "bge-m3": ShortName("bert", {"567m": ModelSize(567e6, "gpustack/bge-m3-GGUF:Q8_0")}),
    "all-minilm": ShortName("bert", {"22m": ModelSize(22.7e6, "second-state/All-MiniLM-L6-v2-Embedding-GGUF:Q8_0")}),
}


def full_name(model: str, memory_bytes: int = 0) -> str:
    """Return the file on the hub that a short name stands for; any other name as it is.

    memory_bytes: of the machine to choose a size for; 0: this machine's, or its container's limit.
    Raises: ConfigError for a size that the name does not have.
    """
    name, _, label = model.lower().partition(":")
    if name not in SHORT_NAMES:
        return model
    sizes = SHORT_NAMES[name].sizes
    if label in ("", "latest"):  # Ollama's word for the size of its choice
        if not memory_bytes:
            from forearm import _native

            topology = _native.topology("")
            memory_bytes = min(one.total_bytes for one in (topology.machine, topology.cgroup) if one is not None)
        room = _MEMORY_SHARE * memory_bytes
        fitting = [one for one in sizes.values() if one.parameters * _BYTES_A_PARAMETER <= room]
        return (fitting or list(sizes.values())[:1])[-1].file
    label = label if label in sizes else f"e{label}"  # gemma4:4b is gemma4:e4b, of 4 billion effective parameters
    if label not in sizes:
        raise ConfigError(f"model {model!r}: there is no such size; write {' or '.join(f'{name}:{s}' for s in sizes)}")
    return sizes[label].file


def nearest(model: str) -> str:
    """Return a hint for a name that is not found: the short name that it resembles; "" if none does."""
    near = difflib.get_close_matches(model.lower().partition(":")[0], SHORT_NAMES, n=1)
    return f"; did you mean {near[0]}?" if near else ""
