"""The metadata of a .gguf file, read by key names without the architecture's prefix."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import Mapping, StoredTensor, widened
from forearm.model.families.keys import Keys
from forearm.model.gguf.gguf import Gguf

log = logging.getLogger(__name__)

# Keys that change the results, with the only values that the families compute. They are checked if the architecture's
# family did not read them.
_ONLY: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,), "expert_used_count": (0,), "attention.causal": (True,), "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,), "attention.sliding_window": (0,), "attention.scale": (0.0,),
    "attention.temperature_scale": (0.0, 1.0), "attention.temperature_length": (0,), "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,), "logit_scale": (0.0, 1.0), "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0), "nextn_predict_layers": (0,), "pooling_type": (0,), "swin_norm": (False,),
    "use_parallel_residual": (False,), "tensor_data_layout": ("llama",),
}  # fmt: skip
_IGNORED = (
    "vocab_size",
    "embedding_length_out",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_ext_factor",
    "attention.value_length",
    "rope.dimension_sections",
    "n_deepstack_layers",
    "rope.scaling.yarn_attn_factor",
    "classifier.output_labels",
)


@dataclass(frozen=True)
class GgufMetadata:
    """The metadata of a file. Keys are named without the architecture's prefix, and count as read."""

    gguf: Gguf
    architecture: str
    keys: Keys

    @staticmethod
    def of(gguf: Gguf, architectures: Collection[str]) -> GgufMetadata:
        """Return the metadata. Raises: ConfigError unless the architecture is one of `architectures`."""
        keys = Keys(gguf.metadata, str(gguf.path))
        architecture = keys.text("general.architecture")
        if architecture not in architectures:
            raise keys.wrong("general.architecture", f"one of {', '.join(architectures)}")
        return GgufMetadata(gguf, architecture, keys)

    def has(self, tensor: str) -> bool:
        """Return whether the file has a tensor of this name."""
        return tensor in self.gguf.tensors

    def tensor(self, name: str) -> StoredTensor:
        """Return a tensor. Raises: ConfigError if the file has none of this name."""
        if name not in self.gguf.tensors:
            raise ConfigError(f"{self.gguf.path}: {name} is missing from its tensors; download it again")
        return self.gguf.tensors[name]

    def any_layer(self, tensor: str) -> bool:
        """Return whether a layer has a tensor of this name."""
        return any(name.startswith("blk.") and name.endswith(f".{tensor}") for name in self.gguf.tensors)

    def predicted_layers(self) -> int:
        """Return the number of layers behind the model's own that predict further tokens, and are not computed.

        DeepSeek V4's converter writes their number, but neither their tensors nor counts them as layers.
        """
        count = self.integer("nextn_predict_layers", 0)
        first = f"blk.{self.integer('block_count') - count}."
        own = [name.removeprefix(first) for name in self.gguf.tensors if name.startswith(first)]
        return 0 if own and not any(name.startswith("nextn.") for name in own) else count

    def integer(self, key: str, default: int | None = None, *, zeros: bool = False) -> int:
        """Return a whole number; a list with a value for each layer is accepted if all values are the same.

        zeros: layers may have 0 instead.
        """
        name = f"{self.architecture}.{key}"
        value = self.keys.get(name)
        each = [one for one in value if one or not zeros] if isinstance(value, list) else []
        if zeros and isinstance(value, list) and not each:
            return 0
        if each and all(type(one) is int and one == each[0] for one in each):
            return int(each[0])
        return self.keys.integer(name, default)

    def largest(self, key: str) -> int:
        """Return a whole number, or the largest of a list with a value for each layer."""
        value = self.keys.get(f"{self.architecture}.{key}")
        listed = isinstance(value, list) and value and all(type(one) is int for one in value)
        return max(value) if listed else self.integer(key)

    def size(self, key: str, default: int | None = None, *, zeros: bool = False) -> int:
        """Return a whole number of at least 1, because other sizes are divided by it."""
        value = self.integer(key, default, zeros=zeros)
        if value < 1:
            raise self.wrong(key, "at least 1")
        return value

    def each(self, key: str, layers: int, default: list[Any] | None = None) -> list[Any]:
        """Return a value for each of the first layers, of a list or the same for all."""
        name = f"{self.architecture}.{key}"
        value = self.keys.get(name)
        value = default if value is None else value if isinstance(value, list) else [value] * layers
        if value is None or len(value) < layers or not all(isinstance(one, int) and one >= 0 for one in value):
            raise self.keys.wrong(name, f"a list of {layers} values, one for each layer")
        return value[:layers]

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        return self.keys.number(f"{self.architecture}.{key}", default)

    def optional_number(self, key: str) -> float | None:
        """Return a finite number, or None if the key is absent."""
        return self.keys.optional_number(f"{self.architecture}.{key}")

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        return self.keys.flag(f"{self.architecture}.{key}", default)

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        return self.keys.text(f"{self.architecture}.{key}", default)

    def wrong(self, key: str, remedy: str) -> ConfigError:
        """Return the error to raise for the value of `key`; `remedy` describes a right value."""
        return self.keys.wrong(f"{self.architecture}.{key}", remedy)

    def factors(self, tensor: str) -> list[float]:
        """Return the values of a small vector of floats. Raises: ConfigError if the file has no such tensor."""
        stored = self.tensor(tensor)
        values = Mapping(stored.path).rows(stored, range(1))[0]
        return [float(value) for value in widened(values, stored.float_dtype)]

    def check_unread(self) -> None:
        """Refuse keys that change the results and that no family has read; log the unknown keys in one line."""
        start = f"{self.architecture}."
        unread = sorted(key for key in self.keys.values if key.startswith(start) and key not in self.keys.read)
        for key in unread:
            allowed = _ONLY.get(key.removeprefix(start))
            if allowed is not None and self.keys.values[key] not in allowed:
                raise self.keys.wrong(key, f"{' or '.join(map(str, allowed))}: more is not supported")
        unknown = [key for key in unread if key.removeprefix(start) not in (*_ONLY, *_IGNORED)]
        if unknown:
            log.warning("%s: keys this version does not know, and leaves out: %s", self.gguf.path, ", ".join(unknown))
