"""torch and transformers with default settings: eager mode, one forward a step, greedy decoding."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from typing import Any


class Engine:
    """A model of transformers. format: a dtype of torch."""

    version = f"{version('torch')}, transformers {version('transformers')}"

    def __init__(self, model: str, format: str, threads: int, context: int, sequences: int) -> None:
        self._torch: Any = import_module("torch")
        self._torch.set_num_threads(threads)
        classes = import_module("transformers")
        dtype = getattr(self._torch, format)
        self._model = classes.AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()

    def generate(self, prompts: list[list[int]], tokens: int) -> Iterator[tuple[float, list[int]]]:
        """Return the times of each step's tokens, and their prompts, which are of one length."""
        ids, past = self._torch.tensor(prompts), None
        for _ in range(tokens):
            with self._torch.inference_mode():
                out = self._model(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, ids = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
            yield time.perf_counter(), list(range(len(prompts)))
