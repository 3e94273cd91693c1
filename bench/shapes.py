"""The shapes that are measured, and folders with random weights of such a shape: nothing is downloaded.

A folder is what a model on the hub is: config.json, a tokenizer, bfloat16 safetensors. Weights are normal with variance
1 / columns, so that what flows through the layers stays of the order of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from forearm.model.checkpoint.names import parts
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.families.config import ModelConfig
from forearm.model.families.families import read_config
from forearm.model.families.matrices import matrices
from forearm.plan.shapes import tensor_shapes

POOL = 1 << 22  # normal numbers that all matrices are cut from
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Shape:
    """A decoder as config.json describes it. others: the keys beyond those of every family."""

    architecture: str  # its model_type
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    rope_theta: float
    tied: bool = False
    max_positions: int = 131072
    others: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """Return the content of its config.json."""
        lists = {key: value[: self.layers] for key, value in self.others.items() if key == "layer_types"}
        return {
            "architectures": [ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "eos_token_id": self.vocab - 1,
            "bos_token_id": self.vocab - 1,
            **self.others,
            **lists,
        }

    @cached_property
    def model(self) -> ModelConfig:
        """Return the model that the executor computes."""
        with TemporaryDirectory() as folder:
            write_config(self, Path(folder))
            return read_config(Path(folder))

    @property
    def head_dim(self) -> int:
        return self.model.head_dim

    def parts(self) -> list[TensorPart]:
        """Return every tensor of its checkpoint with the place of its rows in the executor."""
        return parts(self.model, {f"model.{self.model.names.get('embed', 'embed_tokens')}.weight"})

    def cut(self, layers: int) -> Shape:
        """Return the shape with fewer layers; 0: all."""
        return replace(self, layers=layers or self.layers)

    @property
    def multiplied(self) -> int:
        """Return the number of weights that a decoded token is multiplied with.

        Only the chosen experts count, and the embedding table does not: a token reads one row of it.
        """
        return self.head + sum(
            spec.rows * spec.k * spec.active for spec in matrices(self.model) if spec.role not in ("embedding", "head")
        )

    @property
    def head(self) -> int:
        """Return the number of weights of the head, which a prompt is multiplied with once."""
        return self.vocab * self.hidden


ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "mamba": "MambaForCausalLM",
    "rwkv7": "RWKV7ForCausalLM",
}
# Three layers of four have the gated delta rule.
_QWEN3_5 = {
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
_LFM2 = {
    "layer_types": ["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)],
    "conv_L_cache": 3,
    "conv_bias": False,
    "block_auto_adjust_ff_dim": False,
}
_QWEN3_MOE = {
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
_MAMBA = {"state_size": 16, "time_step_rank": 128, "conv_kernel": 4, "use_conv_bias": True, "use_bias": False}
_RWKV7 = {
    "head_dim": 64,
    "decay_low_rank_dim": 64,
    "a_low_rank_dim": 64,
    "v_low_rank_dim": 32,
    "gate_low_rank_dim": 128,
    "hidden_act": "sqrelu",
    "norm_eps": 1e-5,
}

SHAPES = {
    "smollm2-135m": Shape("llama", 49152, 576, 1536, 30, 9, 3, 1e5, tied=True),
    "qwen2.5-0.5b": Shape("qwen2", 151936, 896, 4864, 24, 14, 2, 1e6, tied=True),
    "r1-distill-qwen-1.5b": Shape("qwen2", 151936, 1536, 8960, 28, 12, 2, 1e4),
    "tinyllama-1.1b": Shape("llama", 32000, 2048, 5632, 22, 32, 4, 1e4),
    "llama-2-7b": Shape("llama", 32000, 4096, 11008, 32, 32, 32, 1e4),
    "qwen3-30b-a3b": Shape("qwen3_moe", 151936, 2048, 6144, 48, 32, 4, 1e6, others=_QWEN3_MOE),
    "qwen3.5-9b": Shape("qwen3_5_text", 248320, 4096, 12288, 32, 16, 4, 1e7, others=_QWEN3_5),
    "lfm2-1.2b": Shape("lfm2", 65536, 2048, 8192, 16, 32, 8, 1e6, tied=True, others=_LFM2),
    "mamba-1.4b": Shape("mamba", 50280, 2048, 4096, 48, 1, 1, 1e4, tied=True, others=_MAMBA),
    "rwkv7-0.4b": Shape("rwkv7", 65536, 1024, 4096, 24, 16, 16, 1e4, others=_RWKV7),
}


def shape_of(name: str) -> Shape:
    """Return the shape of a name of SHAPES; `name@4` is cut to 4 layers.

    `name@12th` is cut to a twelfth of its layers and of its vocabulary, so that the head keeps its share of a step.
    """
    own, _, cut = name.partition("@")
    whole = SHAPES[own]
    if cut.endswith("th"):
        part = int(cut.removesuffix("th"))
        return replace(whole, layers=whole.layers // part, vocab=whole.vocab // part)
    return whole.cut(int(cut or 0))


def write_model(shape: Shape, folder: Path) -> None:
    """Write the folder, unless it exists already."""
    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_config(shape, folder)
    write_tokenizer(shape.vocab, folder)
    write_weights(shape, folder / "model.safetensors")
    (folder / "complete").touch()


def write_config(shape: Shape, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))


def vocabulary(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Return tokens and merges of a byte-level BPE: bytes, printable pairs and triples, and last the end of a text."""
    printable = [chr(c) for c in range(33, 127)]
    others = [c for c in range(256) if not (33 <= c < 127 or 161 <= c <= 172 or 174 <= c <= 255)]
    alphabet = printable + [chr(c) for c in [*range(161, 173), *range(174, 256)]]
    alphabet += [chr(256 + i) for i in range(len(others))]  # GPT-2's names of the bytes that do not print
    merges = list(product(printable, printable))
    merges += [(a + b, c) for a, b, c in product(printable, printable, printable)]
    merges = merges[: size - len(alphabet) - 1]
    return [*alphabet, *(a + b for a, b in merges), "<|endoftext|>"], merges


def write_tokenizer(size: int, folder: Path) -> None:
    tokens, merges = vocabulary(size)
    end = {"id": size - 1, "content": tokens[-1], "special": True, "normalized": False}
    end |= {"single_word": False, "lstrip": False, "rstrip": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[-1], "pad_token": tokens[-1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
    """Yield name, shape, mean and deviation of every tensor; one may hold several parts of the executor."""
    for name, size in tensor_shapes(shape.model).items():
        if len(size) == 2:
            yield name, size, 0.0, size[1] ** -0.5
        else:
            yield name, size, 1.0 if "norm" in name else 0.0, 0.1


@dataclass(frozen=True)
class Tensor:
    """A tensor of a safetensors file. parts: its values, piece by piece, in the stored dtype."""

    name: str
    dtype: str
    size: tuple[int, ...]
    parts: Iterator[npt.NDArray[Any]]


DTYPE_BYTES = {"BF16": 2, "I8": 1, "I32": 4, "I64": 8}


def write_weights(shape: Shape, path: Path) -> None:
    """Write every tensor in bfloat16."""
    rng = np.random.default_rng(0)
    pool = rng.normal(0, 1, POOL).astype(np.float32)
    cuts = [
        Tensor(name, "BF16", size, normal(pool[int(rng.integers(POOL // 4)) :], size, mean, deviation))
        for name, size, mean, deviation in tensors(shape)
    ]
    write_safetensors(cuts, path)


def write_safetensors(tensors: list[Tensor], path: Path) -> None:
    """Write one file piece by piece: 8 bytes with the header's length, the header, the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + DTYPE_BYTES[tensor.dtype] * int(np.prod(tensor.size))
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.size, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            for part in tensor.parts:
                file.write(part.tobytes())


def normal(
    pool: npt.NDArray[np.float32], size: tuple[int, ...], mean: float, deviation: float
) -> Iterator[npt.NDArray[np.uint16]]:
    """Yield a tensor cut from normally distributed numbers, as bits of bfloat16."""
    for part in cut(pool, int(np.prod(size))):
        yield bfloat16(part * np.float32(deviation) + np.float32(mean))


def cut(pool: npt.NDArray[Number], count: int) -> Iterator[npt.NDArray[Number]]:
    """Yield `count` numbers in pieces of odd length, so that no two rows are equal."""
    length = len(pool) // 2 * 2 - 1
    for begin in range(0, count, length):
        yield pool[: min(length, count - begin)]


def bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the upper 16 bits of float32 numbers."""
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


def prompt(shape: Shape, length: int, seed: int) -> list[int]:
    """Return the token ids of a prompt; no two prompts have the same beginning."""
    return [int(token) for token in np.random.default_rng(seed).integers(300, shape.vocab - 1, length)]
