"""Reads sentence-transformers' files: modules.json and the folders that it names.

Source: sentence_transformers 5, models/{Transformer,Pooling,Dense,Normalize}.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forearm.errors import ConfigError
from forearm.model.families.encoders.dense import Dense, DenseActivation
from forearm.model.families.keys import Keys, read_json

_ACTIVATIONS: dict[str, DenseActivation] = {
    "Identity": "none", "Tanh": "tanh", "GELU": "gelu_erf", "ReLU": "relu", "SiLU": "silu",
}  # fmt: skip
_MODES: dict[str, Literal["mean", "cls", "last"]] = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last",
}  # fmt: skip
_NAMES: dict[str, Literal["mean", "cls", "last"]] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}


@dataclass(frozen=True)
class SentenceModules:
    """The modules that modules.json names. dense_folders: the folder of each dense layer's tensors.

    late_interaction: nothing pools, as in PyLate's ColBERT models; the dense layers project each token's row.
    """

    pool: Literal["mean", "cls", "last"]
    normalize: bool
    dense: tuple[Dense, ...]
    dense_folders: tuple[Path, ...]
    max_tokens: int | None
    lower_case: bool
    late_interaction: bool


def read_modules(folder: Path) -> SentenceModules | None:
    """Return the model's modules; None if it has no modules.json, or one without pooling and dense layers.

    Raises: ConfigError naming what is not supported.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    try:
        listed = [(str(m["type"]).rsplit(".", 1)[-1], folder / str(m["path"])) for m in json.loads(path.read_text())]
        outside = [kind for kind, at in listed if not at.resolve().is_relative_to(folder.resolve())]
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as problem:
        raise ConfigError(f"{path} can't be read: {problem!r:.300}") from None
    if outside:
        raise ConfigError(f"{path}: the module {outside[0]} lies outside the model's folder")
    for kind, _ in listed:
        if kind not in ("Transformer", "Pooling", "Normalize", "Dense"):
            raise ConfigError(
                f"{path}: the module {kind} is not supported; only Transformer, Pooling, Dense, Normalize"
            )
    pools = [_pool(at) for kind, at in listed if kind == "Pooling"]
    folders = tuple(at for kind, at in listed if kind == "Dense")
    if not pools and not folders:
        return None
    # sentence_bert_config.json, or its namesake for another architecture
    files = (folder / f"sentence_{name}_config.json" for name in ("bert", "roberta", "distilbert", "xlm-roberta"))
    own = next((read_json(file) for file in files if file.is_file()), Keys({}, str(folder)))
    return SentenceModules(
        pool=pools[0] if pools else "mean",
        normalize=not pools or any(kind == "Normalize" for kind, _ in listed),
        dense=tuple(_dense(at, number) for number, at in enumerate(folders)),
        dense_folders=folders,
        max_tokens=own.optional_integer("max_seq_length"),
        lower_case=own.flag("do_lower_case"),
        late_interaction=not pools,
    )


def _pool(folder: Path) -> Literal["mean", "cls", "last"]:
    keys = read_json(folder / "config.json")
    named = keys.get("pooling_mode")
    if isinstance(named, str) and named in _NAMES:
        return _NAMES[named]
    on = [key for key in keys.values if key.startswith("pooling_mode_") and keys.values[key] is True]
    if len(on) != 1 or on[0] not in _MODES:
        key = on[0] if on else "pooling_mode"
        raise keys.wrong(key, f"one of {', '.join(_MODES)}, and no other")
    return _MODES[on[0]]


def _dense(folder: Path, number: int) -> Dense:
    keys = read_json(folder / "config.json")
    name = keys.text("activation_function", "torch.nn.modules.activation.Tanh").rsplit(".", 1)[-1]
    if name not in _ACTIVATIONS:
        raise keys.wrong("activation_function", f"one of {', '.join(_ACTIVATIONS)}")
    bias = keys.flag("bias", True)
    if keys.flag("use_residual"):
        raise keys.wrong("use_residual", "false: a residual around a dense layer is not supported")
    return Dense(keys.integer("out_features"), f"behind.{number}", bias, _ACTIVATIONS[name])
