"""A pytest plugin for vLLM's HTTP tests: RemoteOpenAIServer starts forearm, and `vllm` is not there.

Tests that ask a server are selected; what they take from `vllm` beside it is a tokenizer, the size of a vocabulary
and the platform, which the model that is served here gives. Any other name of it is a stub.
"""

from __future__ import annotations

import base64
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest.mock import MagicMock

import anthropic
import openai
import pytest
import transformers
from served import serve  # tests/e2e, on the path of this process

MODEL = Path(os.environ["PEERS_MODEL"])
# Flags for adapters, GPUs or other kinds of models; tests that need them stand in the judged list.
WITHOUT_VALUE = ("--enable-lora",)
WITH_VALUE = ("--lora-modules", "--max-lora-rank", "--max-cpu-loras", "--gpu-memory-utilization", "--port", "--runner")


class RemoteOpenAIServer:
    """`forearm serve` with the model at hand under the name that a test asks for."""

    DUMMY_API_KEY = "token-abc123"
    show_hidden_metrics = False
    uds = None

    def __init__(
        self, model: str, args: Sequence[str], *, env_dict: Mapping[str, str] | None = None, **_unused: object
    ) -> None:
        name = [] if "--served-model-name" in args else ["--served-model-name", model]
        self._open = ExitStack()
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        key = (env_dict or {}).get("VLLM_API_KEY", self.DUMMY_API_KEY)
        flags = [str(MODEL), *name, "--seed", "0", *_known(args)]
        self.url_root = self._open.enter_context(serve(folder, *flags, env=env_dict, key=key)).url
        self.host, _, port = self.url_root.removeprefix("http://").partition(":")
        self.port = int(port)

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *parts])

    def get_client(self, **fields: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._openai(fields))

    def get_async_client(self, **fields: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._openai(fields))

    def get_client_anthropic(self, **fields: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url_root, api_key=self.DUMMY_API_KEY, max_retries=0, **fields)

    def get_async_client_anthropic(self, **fields: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url_root, api_key=self.DUMMY_API_KEY, max_retries=0, **fields)

    def _openai(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 30, **fields
        }  # fmt: skip


def _known(args: Sequence[str]) -> list[str]:
    known, left = [], iter(args)
    for arg in left:
        if arg in WITH_VALUE:
            next(left)
        elif arg not in WITHOUT_VALUE:
            known.append(arg)
    return known


class Stub(ModuleType):
    """A module of vLLM: any name that is asked of it is there, and false."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> MagicMock:
        if name.startswith("__"):
            raise AttributeError(name)
        stub = MagicMock(name=f"{self.__name__}.{name}")
        stub.__bool__.return_value = False
        setattr(self, name, stub)
        return stub


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stub for every module of vLLM."""

    def find_spec(self, name: str, *_path: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name.split(".")[0] == "vllm" else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the stub empty."""


def tokenizer(*_name: object, **_options: object) -> Any:
    """Return the tokenizer of the model that is served, whatever model is named."""
    return FROM_PRETRAINED(str(MODEL.parent), gguf_file=MODEL.name)


FROM_PRETRAINED = transformers.AutoTokenizer.from_pretrained


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put the stubs in place before the first test is imported."""
    sys.meta_path.insert(0, Stubs())
    transformers.AutoTokenizer.from_pretrained = tokenizer
    import vllm.config
    import vllm.platforms
    import vllm.tokenizers

    vllm.tokenizers.get_tokenizer = tokenizer
    vllm.config.ModelConfig.return_value = MagicMock(get_vocab_size=lambda: len(tokenizer()))
    vllm.platforms.current_platform.configure_mock(**{f"is_{n}.return_value": False for n in ("rocm", "xpu", "cuda")})
    utils = Stub("tests.utils")
    utils.RemoteOpenAIServer = RemoteOpenAIServer
    utils.ROCM_EXTRA_ARGS = []
    utils.VLLM_PATH = Path.cwd()
    # The first two hold tests of vLLM's classes, whose helpers some files of HTTP tests take.
    for name in ("tests.conftest", "tests.entrypoints.openai.chat_completion.test_serving_chat"):
        sys.modules[name] = Stub(name)
    sys.modules |= {"tests.utils": utils, "pybase64": base64}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that ask a server; the others are of vLLM's classes."""
    asking = [item for item in items if _asks(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _asks(item)])
    items[:] = asking


def _asks(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    fixtures = [name for name in item.fixturenames if "server" in name or "client" in name]
    return bool(fixtures) or "RemoteOpenAIServer" in inspect.getsource(item.function)


@pytest.fixture(scope="session")
def qwen3_lora_files() -> str:
    return "no adapter"


@pytest.fixture(scope="session")
def local_asset_server() -> None:
    return None


@pytest.fixture(scope="session")
def zephyr_lora_files() -> str:
    return "no adapter"
