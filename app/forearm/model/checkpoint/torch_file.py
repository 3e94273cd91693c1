"""Tensors of a `pytorch_model.bin` file and the places of their bytes, found without running its pickle.

torch.save writes a zip archive since torch 1.6: `data.pkl`, a pickle of the state dict, and one uncompressed member
`data/KEY` for each storage. A pickle is a program. This file interprets the few opcodes that state dicts are made of
and knows the few names that they call; everything else is refused by its name, and nothing is ever imported or
called. Source: the modules torch.serialization and torch._utils of torch 2.13; opcodes: Python's pickletools.
"""

from __future__ import annotations

import math
import pickletools
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from forearm.errors import ConfigError
from forearm.model.families.keys import check_regular

MOST_PICKLE_BYTES = 64 << 20  # a state dict has about 150 bytes a tensor
# torch's storage classes: their dtype as safetensors calls it, and the bytes of a value.
_STORAGES = {
    "FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2), "BFloat16Storage": ("BF16", 2), "DoubleStorage": ("F64", 8),
    "LongStorage": ("I64", 8), "IntStorage": ("I32", 4), "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1), "BoolStorage": ("BOOL", 1),
}  # fmt: skip
_LOCAL_HEADER_BYTES = 30  # of a zip member, before its name and extra field (APPNOTE.TXT, 4.3.7)


class TensorPlace(NamedTuple):
    """A tensor's place in its file. dtype: safetensors' name for it; begin, end: bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class _Name:
    """A global that the pickle names; it is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: str
    item_bytes: int


@dataclass(frozen=True)
class _Tensor:
    """A contiguous part of a storage. offset: in values."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]


class _Mark:
    """The entry that opcode MARK puts on the stack."""


_ORDERED_DICT = _Name("collections", "OrderedDict")
_REBUILD_TENSOR = _Name("torch._utils", "_rebuild_tensor_v2")
_REBUILD_PARAMETER = _Name("torch._utils", "_rebuild_parameter")


def read_torch_file(path: Path) -> list[TensorPlace]:
    """Return the tensors of one file, in the order of its bytes. Tied tensors share their bytes.

    Raises: ConfigError naming the file, and the damage or the object that a plain state dict does not contain.
    """
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            pickle, members = _members(path, archive)
            state = _StateDict(path).read(archive.read(pickle))
            tensors = [
                _stored(path, name, tensor, _begin(file, members, tensor.storage, path), members)
                for name, tensor in state.items()
            ]
    except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, struct.error, zlib.error) as problem:
        raise ConfigError(
            f"{path} is damaged, or was written by a torch older than 1.6 ({problem}); download it again, or convert "
            "it to safetensors where torch is installed"
        ) from None
    except OSError as problem:
        raise ConfigError(f"{path} can't be read: {problem.strerror}; download the model again") from None
    return sorted(tensors, key=lambda one: (one.begin, one.end))


def _members(path: Path, archive: zipfile.ZipFile) -> tuple[zipfile.ZipInfo, dict[str, zipfile.ZipInfo]]:
    """Return the pickle's member, and the storages' by key."""
    pickles = [member for member in archive.infolist() if PurePosixPath(member.filename).name == "data.pkl"]
    if len(pickles) != 1 or pickles[0].file_size > MOST_PICKLE_BYTES:
        raise ConfigError(f"{path} has no data.pkl of at most {MOST_PICKLE_BYTES} bytes: it is no torch file")
    root = PurePosixPath(pickles[0].filename).parent
    order = next((member for member in archive.infolist() if member.filename == str(root / "byteorder")), None)
    if order is not None and archive.read(order) != b"little":
        raise ConfigError(f"{path} has big-endian values; convert it to safetensors on the machine that wrote it")
    storages = {}
    for member in archive.infolist():
        name = PurePosixPath(member.filename)
        if name.parent == root / "data":
            storages[name.name] = member
    return pickles[0], storages


def _begin(file: Any, members: dict[str, zipfile.ZipInfo], storage: _Storage, path: Path) -> int:
    """Return where a storage's bytes begin in the file."""
    member = members.get(storage.key)
    if member is None:
        raise ConfigError(f"{path}: storage {storage.key!r:.50} is missing; download it again")
    if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
        raise ConfigError(f"{path}: storage {storage.key!r:.50} is compressed, which torch.save never does")
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER_BYTES)
    if header[:4] != b"PK\x03\x04":
        raise ConfigError(f"{path}: storage {storage.key!r:.50} is not where the archive says; download it again")
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    return int(member.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes)


def _stored(path: Path, name: str, tensor: _Tensor, begin: int, members: dict[str, zipfile.ZipInfo]) -> TensorPlace:
    """Return the tensor's place in the file. Raises: ConfigError if it ends after its storage or the file."""
    storage = tensor.storage
    first = begin + tensor.offset * storage.item_bytes
    end = first + math.prod(tensor.shape) * storage.item_bytes
    if end > min(begin + members[storage.key].file_size, path.stat().st_size):
        raise ConfigError(f"{path} is cut short: tensor {name} ends after its storage; download it again")
    return TensorPlace(name, storage.dtype, tensor.shape, first, end)


class _StateDict:
    """An interpreter for the pickle of a state dict."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self, pickle: bytes) -> dict[str, _Tensor]:
        """Return the tensors by name. Raises: ConfigError."""
        try:
            for opcode, argument, _ in pickletools.genops(pickle):
                self._step(opcode.name, argument)
            state = self._stack.pop()
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise ConfigError(f"{self._path}: its pickle is damaged ({problem!r:.100}); download it again") from None
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise self._refused("an object that is not a state dict")
        tensors = {name: value for name, value in state.items() if isinstance(value, _Tensor)}
        if not tensors:
            raise self._refused("no tensor at its top level (a training checkpoint?)")
        return tensors

    def _step(self, name: str, argument: Any) -> None:
        """Execute one opcode."""
        stack = self._stack
        if name in ("PROTO", "FRAME", "STOP"):
            return
        if name in ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"):
            stack.append(argument)
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "MARK"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "MARK": _Mark}[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            count = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}.get(name)
            stack.append(tuple(self._marked() if count is None else [stack.pop() for _ in range(count)][::-1]))
        elif name in ("APPEND", "APPENDS"):
            values = self._marked() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            pairs = self._marked() if name == "SETITEMS" else [stack.pop() for _ in range(2)][::-1]
            stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))
        elif name == "GLOBAL":
            stack.append(_Name(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            attribute = stack.pop()
            stack.append(_Name(stack.pop(), attribute))
        elif name == "BINPERSID":
            stack.append(self._storage(stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(self._called(stack.pop(), arguments))
        elif name == "BUILD":
            state = stack.pop()  # the attributes of a state dict, `_metadata` of its modules, are not needed
            if not isinstance(stack[-1], dict) or not isinstance(state, dict):
                raise self._refused(f"a state of {type(stack[-1]).__name__}")
        else:
            raise self._refused(f"opcode {name}")

    def _marked(self) -> list[Any]:
        """Pop the values above the last mark, and the mark, from the stack; return the values."""
        at = max(place for place, one in enumerate(self._stack) if isinstance(one, _Mark))
        values = self._stack[at + 1 :]
        del self._stack[at:]
        return values

    def _storage(self, persistent: Any) -> _Storage:
        """Return the storage that a persistent id names: ("storage", class, key, location, values)."""
        kind, storage, key, *_ = persistent
        if kind != "storage" or not isinstance(storage, _Name) or not isinstance(key, str):
            raise self._refused(f"a persistent id {persistent!r:.100}")
        if storage.module != "torch" or storage.name not in _STORAGES:
            raise self._refused(f"a storage of class {storage}")
        return _Storage(key, *_STORAGES[storage.name])

    def _called(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return the result of a call of one of the known functions."""
        if function == _ORDERED_DICT and arguments == ():
            return {}
        if function == _REBUILD_PARAMETER and isinstance(arguments[0], _Tensor):
            return arguments[0]
        if function != _REBUILD_TENSOR:
            raise self._refused(f"a call of {function!s:.100}")
        storage, offset, shape, strides, *_ = arguments
        whole = (offset, *shape, *strides)
        if not isinstance(storage, _Storage) or not all(type(one) is int and one >= 0 for one in whole):
            raise self._refused(f"a tensor of {arguments!r:.100}")
        expected = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
        if any(size > 1 and here != right for size, here, right in zip(shape, strides, expected, strict=True)):
            raise self._refused(f"a tensor whose values are not in the order of its shape (strides {strides!r:.100})")
        return _Tensor(storage, offset, tuple(shape))

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._path} holds {what}, which a plain state dict does not have; it is not read, because a pickle can "
            "run code. Take a revision with safetensors (for a Hugging Face id often --revision refs/pr/1), or convert "
            "it where torch is installed and its author is trusted"
        )
