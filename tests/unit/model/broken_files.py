"""Reads broken copies of a model's files: `python -m tests.unit.model.broken_files FILE COUNT SEED`.

A process of its own, so that a reader that ends it, takes gigabytes or never comes back is seen. A line of JSON is
written before each case (its number), and one after it: [word, text], as `outcome` has them.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.api.letters import write_letters
from tests.model.kept_weights import wait_until_kept
from tests.unit.model.small_families import SMALL, write_small
from tests.unit.model.stored import LLAMA, llama, llama_shapes, write
from tests.unit.model.test_gguf_config import opened

from forearm.api.services import load_services
from forearm.config.api_config import ApiConfig
from forearm.errors import ConfigError
from forearm.model.checkpoint import weights
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.weights import load_native
from forearm.model.generation import generation_defaults
from forearm.model.gguf.gguf import read_gguf_file
from forearm.model.pooling.plan import PoolingAsked
from forearm.model.pooling.pooling import pooling_plan
from forearm.text.grammars.grammar_tokens import tokenizer_text

MORE: dict[str, Any] = {
    "rope_theta": 5e5, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "bos_token_id": 1, "torch_dtype": "float32", "transformers_version": "4.51.0",
}  # fmt: skip
MOST_S = 5  # of a core's time, limit of one case
MOST_BYTES = 3 << 30  # address space beyond what the process uses after all imports
MOST_LOADED = 64 << 20  # larger models are not loaded here: their size is no fault of the file reader
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1 << 31, -(1 << 31), 1 << 62, 1 << 64, 1 << 200, 0.5, -0.5, 1e308, 1e-308),
    *(float("nan"), float("inf"), "", "x", "\x00", "\ud800", "../../etc/passwd", "/etc/passwd", "x" * 5000),
    *([], [None], [[]], [0] * 3000, {}, {"": None}, {"type": "x"}, [1 << 70, -1]),
)


def changed(dice: random.Random, value: Any) -> Any:
    """JSON with one to three places changed."""
    made = copy.deepcopy(value)
    for _ in range(dice.randint(1, 3)):
        holder, key = dice.choice(list(_places(made))[:3000])
        if dice.random() < 0.5:
            nearly(dice, holder, key)
        elif dice.random() < 0.2:
            del holder[key]
        elif dice.random() < 0.15:
            holder[key] = [holder[key]]
        else:
            holder[key] = copy.deepcopy(dice.choice((*ODD, -7, 3, 4096, "llama", "BPE", "F16", [0, 8])))
        if not made:
            break
    return made


def nearly(dice: random.Random, holder: Any, key: Any) -> None:
    """A change that leaves everything plausible: a number beside the right one, a sibling's value, another name."""
    value = holder[key]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        holder[key] = dice.choice((value - 1, value + 1, 2 * value, value / 2, -value, float(value)))
    elif isinstance(value, bool):
        holder[key] = not value
    elif isinstance(holder, dict) and dice.random() < 0.5:
        holder[f"{key}{dice.choice(('', '_', '2'))}"] = holder[dice.choice(list(holder))]
    elif isinstance(holder, dict):
        holder[str(key).replace("0", "1").replace("weight", "bias")] = holder.pop(key)
    else:
        holder[key] = dice.choice(holder)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in it, outer ones first."""
    inner = [node]
    while inner:
        holder = inner.pop(0)
        keys: Any = holder.keys() if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], (dict, list)) and holder[key]:
                inner.append(holder[key])


def garbled(dice: random.Random, content: bytes) -> bytes:
    """Bytes changed, cut off, put in, or other ones altogether."""
    kind = dice.randrange(8)
    if kind == 0:
        other = (
            b"",
            b"\x00",
            b"{",
            b"[" * 200_000,
            b'{"a":' * 200_000,
            b"\xff\xfe{}",
            b"NaN",
            b'"\\ud800"',
            b"[]",
            b"null",
        )
        return dice.choice(other)
    if kind == 1:
        return content[: dice.randrange(len(content))]
    data = bytearray(content)
    for _ in range(dice.randint(1, 5)):
        at = dice.randrange(len(data))
        if kind < 6:
            data[at] = dice.choice((0, 1, 127, 128, 255, dice.randrange(256)))
        else:
            data[at:at] = dice.choice((b"\x00", b"\xff" * 8, b'"', b"}", dice.randbytes(3)))
    return bytes(data)


def broken_json(dice: random.Random, content: bytes) -> bytes:
    """JSON of another shape, or no JSON any more."""
    if dice.random() < 0.3:
        return garbled(dice, content)
    return json.dumps(changed(dice, json.loads(content))).encode()


def broken_safetensors(dice: random.Random, content: bytes) -> bytes:
    """The header as broken JSON, its length as another number, or bytes."""
    kind, size = dice.random(), int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + size], content[8 + size :]
    if kind < 0.2:
        length = dice.choice((0, 1, size - 1, size + 1, len(content), 1 << 31, 1 << 40, 1 << 63, (1 << 64) - 1))
        return length.to_bytes(8, "little") + content[8:]
    if kind < 0.3:
        return garbled(dice, content[: 8 + size]) + data
    made = broken_json(dice, header)
    return len(made).to_bytes(8, "little") + made + data[: len(data) if dice.random() < 0.9 else len(data) // 2]


def broken_gguf(dice: random.Random, content: bytes) -> bytes:
    """Bytes of the header changed: counts, lengths and types stand in it as they are."""
    head = content.find(b"output_norm.weight") + 2000
    if dice.random() < 0.5:
        return garbled(dice, content[:head]) + content[head:]
    data, at = bytearray(content), dice.randrange(head - 8)
    if dice.random() < 0.5:
        data[at] = (data[at] + dice.choice((1, -1))) % 256
        return bytes(data)
    data[at : at + 8] = dice.choice((0, 1, 255, 1 << 31, 1 << 40, 1 << 62, (1 << 64) - 1)).to_bytes(8, "little")
    return bytes(data)


def broken_weights(dice: random.Random, content: bytes) -> bytes:
    """Bytes or a bit changed, anywhere."""
    if dice.random() < 0.5:
        return garbled(dice, content)
    data, bit = bytearray(content), dice.randrange(8 * len(content))
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


@dataclass(frozen=True)
class Answer:
    """A model's answer: logits of a prompt and ids of a text; and the settings behind it.

    settings: GGUF's keys, which change answers as other values of config.json do.
    """

    logits: bytes
    ids: tuple[int, ...]
    layers: int
    settings: str = ""


def read_folder(folder: Path) -> Answer:
    """All that serve reads of a folder, and its weights."""
    asked = PoolingAsked()
    plan = pooling_plan(folder, asked)
    checkpoint = open_checkpoint(folder, pooling=plan)
    generation_defaults(folder)
    return Answer(_logits(checkpoint), _read_text(folder), len(checkpoint.config.layers))


def read_small(folder: Path) -> Answer:
    """The model of a folder without a tokenizer."""
    checkpoint = open_checkpoint(folder, pooling=pooling_plan(folder, PoolingAsked()))
    return Answer(_logits(checkpoint), (), len(checkpoint.config.layers))


def read_gguf_model(folder: Path, cache: str = "") -> Answer:
    """The same of a .gguf file."""
    checkpoint = open_checkpoint(folder / "m.gguf")
    settings = repr(sorted(read_gguf_file(folder / "m.gguf").metadata.items()))
    return Answer(_logits(checkpoint), _read_text(folder / "m.gguf", cache), len(checkpoint.config.layers), settings)


def read_kept(folder: Path) -> Answer:
    """The same of a folder with cached weights, or of a .gguf file with a cached tokenizer."""
    if (folder / "m.gguf").exists():
        return read_gguf_model(folder, str(folder / "cache"))
    checkpoint, cache = open_checkpoint(folder), str(folder / "cache")
    return Answer(_logits(checkpoint, cache), _read_text(folder, cache), len(checkpoint.config.layers))


def _logits(checkpoint: Checkpoint, cache: str = "") -> bytes:
    """Return the logits after four tokens; b"" for a model that is too large, or whose context is too short."""
    if max(checkpoint.packed_bytes, checkpoint.stored_bytes) > MOST_LOADED or checkpoint.max_model_len < 4:
        return b""
    executor = load_native(
        checkpoint, step_tokens=8, step_sequences=1, step_logit_rows=8, cores=(), threads=1, progress=False,
        weight_cache=cache,
    )  # fmt: skip
    wait_until_kept()
    executor.allocate_kv(1)
    states = np.zeros(1, np.int32) if checkpoint.config.has_states else None
    if states is not None:
        executor.allocate_states(1)
    ids, positions, ends, one = (np.array(v, np.int32) for v in ([7, 8, 9, 7], range(4), [0, 4], [0, 1]))
    executor.forward(ids, positions, ends, one, np.zeros(1, np.int32), np.array([3], np.int32), states=states)
    return executor.logits().tobytes()


def _read_text(path: Path, cache: str = "") -> tuple[int, ...]:
    services = load_services(ApiConfig(model_folder=str(path), weight_cache=cache))
    tokenizer_text(path)
    services.prompts.tokenizer.longest_token  # noqa: B018
    if services.prompts.template is not None:
        services.prompts.template.names  # noqa: B018
    return tuple(services.prompts.tokenizer.encode("Some text, 12."))


Break = Callable[[random.Random, bytes], bytes]
Read = Callable[[Path], Answer]
SMALL_FILES = "small/*/**/*.json"  # of one model of each family with experts, states, latents, or that looks both ways
FILES: dict[str, tuple[Break, Read]] = {
    "config.json": (broken_json, read_folder),
    "generation_config.json": (broken_json, read_folder),
    "model.safetensors.index.json": (broken_json, read_folder),
    "model.safetensors": (broken_safetensors, read_folder),
    "tokenizer.json": (broken_json, read_folder),
    "tokenizer_config.json": (broken_json, read_folder),
    "chat_template.jinja": (garbled, read_folder),
    "m.gguf": (broken_gguf, read_gguf_model),
    "cache/*.weights": (broken_weights, read_kept),
    "cache/*.tokenizer": (garbled, read_kept),
    SMALL_FILES: (lambda dice, content: json.dumps(changed(dice, json.loads(content))).encode(), read_small),
}
# A changed value of one of these keys may describe another valid model; a changed value of any other key may not.
SETTINGS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    SMALL_FILES,
)  # fmt: skip


def write_model(folder: Path, file: str) -> None:
    """A whole one, small: a Llama of random weights with a token a byte; or one of each other family."""
    if file == SMALL_FILES:
        for family in SMALL:
            write_small(folder / "small" / family, family)
        return
    if file in ("m.gguf", "cache/*.tokenizer"):
        opened(folder, **_gguf_vocabulary())
        if file.startswith("cache/"):
            read_kept(folder)
        return
    write_letters(folder)
    llama(folder, vocab_size=258, **MORE)
    fill(folder / "model.safetensors")
    if file.startswith("cache/"):
        read_kept(folder)
    if file == "model.safetensors.index.json":
        shapes = llama_shapes(LLAMA | {"vocab_size": 258})
        (folder / "model.safetensors").unlink()
        for number, half in enumerate((list(shapes)[::2], list(shapes)[1::2])):
            write(folder / f"model-{number}.safetensors", {name: shapes[name] for name in half})
            fill(folder / f"model-{number}.safetensors")
        names = {name: f"model-{list(shapes).index(name) % 2}.safetensors" for name in shapes}
        (folder / file).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": names}))


def fill(path: Path) -> None:
    """Random float32 instead of zeros, so that no tensor can stand for another."""
    content = path.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    values = np.random.default_rng(5).standard_normal((len(content) - data) // 4, np.float32)
    path.write_bytes(content[:data] + values.tobytes())


def _gguf_vocabulary() -> dict[str, Any]:
    letters = json.loads(write_letters(Path(tempfile.mkdtemp())).joinpath("tokenizer.json").read_text())
    tokens = [*sorted(letters["model"]["vocab"], key=letters["model"]["vocab"].__getitem__), "<eos>", "ab"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3, 1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 256,
        "llama.vocab_size": len(tokens),
    }


class Warnings(logging.Handler):
    """A log handler that collects warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def outcome(read: Read, folder: Path, told: Warnings, file: str, whole: Answer | None) -> tuple[str, str]:
    """Return the outcome of one case as a word and a text. `whole`: the answer of the unbroken file."""
    told.lines.clear()
    signal.setitimer(signal.ITIMER_PROF, MOST_S)
    try:
        answer = read(folder)
    except ConfigError as error:
        return "refused", str(error)
    except BaseException as error:
        return type(error).__name__, "".join(traceback.format_exception(error))[-3000:]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if whole is not None and _numbers(whole) and not _numbers(answer):
        return "refused", "no numbers: serve's first step ends the start (engine/start.py, warm_up)"
    if whole is None or (answer.logits, answer.ids) == (whole.logits, whole.ids):
        return ("warned", " ".join(told.lines)) if told.lines else ("same", "")
    if answer.layers == whole.layers and (file in SETTINGS or answer.settings != whole.settings):
        return "settings", "another value that a model may have"
    return "other model", " ".join(told.lines)


def _numbers(answer: Answer) -> bool:
    return bool(np.isfinite(np.frombuffer(answer.logits, np.float32)).all())


def too_slow(*_: object) -> None:
    """End a reading that takes too long. Raises: TimeoutError."""
    raise TimeoutError(f"more than {MOST_S} s of a core")


def main(file: str, count: int, seed: int) -> None:
    """One line before each case, one after it."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # printed by the tokenizers library itself
    told = Warnings()
    logging.getLogger().addHandler(told)
    signal.signal(signal.SIGPROF, too_slow)
    weights.check_source = lambda *_: None  # type: ignore[assignment]  # a process each
    break_, read = FILES[file]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, file)
        paths = sorted(folder.glob(file))
        roots = [folder / path.relative_to(folder).parents[-3] if file == SMALL_FILES else folder for path in paths]
        contents, wholes = [path.read_bytes() for path in paths], [read(root) for root in roots]
        for root, whole in zip(roots, wholes, strict=True):
            assert (kind := outcome(read, root, told, file, whole))[0] == "same", kind
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
        for number in range(count):
            at = number % len(paths)
            paths[at].write_bytes(break_(random.Random(f"{file} {seed} {number}"), contents[at]))
            print(json.dumps(number), file=lines)
            print(json.dumps(outcome(read, roots[at], told, file, wholes[at])), file=lines)
            paths[at].write_bytes(contents[at])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
