"""The forward of a model that transformers builds: its modules, with our paged attention and packed matrices.

All tokens of a step are one row of batch 1, and the attention knows which sequence each belongs to. A model that
attends in another way, or keeps a state, runs sequence by sequence with transformers' own cache (Checkpoint.own_cache).
"""

from __future__ import annotations

from collections import OrderedDict
from inspect import signature
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from forearm import _native
from forearm.array_types import Float32Array, Int32Array
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.modules.attention import AttentionCall, bind
from forearm.model.modules.llama_attention import use_native_attention
from forearm.model.modules.llama_layer import use_native_layers
from forearm.model.modules.rotary import NativeRotary

# Names that models have for their cache, as an argument of forward and in its result.
_CACHES = ("past_key_values", "cache_params", "state")


class PagedForward:
    """A step in one call of the model, with keys and values in our paged cache."""

    def __init__(self, native: _native.Executor, checkpoint: Checkpoint, model: PreTrainedModel) -> None:
        self._native, self._model = native, model
        self._calls = 0
        config = checkpoint.config
        self._kv_heads, self._head_dim = config.kv_heads, config.head_dim
        bind(model, self._attend)
        shape = [config.heads, config.kv_heads, config.head_dim]
        use_native_attention(model, self._attend_rows, NativeRotary(native), shape)
        use_native_layers(model, native, self._next_layer)

    def __call__(self, *batch: Int32Array) -> None:
        """Compute one step; arguments as the native executor's forward.

        Raises: ValueError for a batch that is out of range.
        """
        self._native.begin(*batch)
        tokens, positions, _, _, _, logit_rows, *_ = batch
        self._calls = 0
        ids = _int64(tokens)[None]
        with torch.inference_mode():
            out = self._model(
                input_ids=ids, position_ids=_int64(positions)[None], attention_mask=torch.ones_like(ids),
                use_cache=False, logits_to_keep=_int64(logit_rows),
            )  # fmt: skip
        logits = out.logits[0]
        if len(logits) != len(logit_rows):  # some models compute the logits of all rows, whatever is asked for
            logits = logits[_int64(logit_rows)]
        self._native.take_logits(logits.float().contiguous().numpy())

    def _attend(self, call: AttentionCall) -> torch.Tensor:
        """Attend in the next layer of the KV cache."""
        repeat = self._kv_heads // call.k.shape[0]
        q, k, v = (self._rows(x, times) for x, times in ((call.q, 1), (call.k, repeat), (call.v, repeat)))
        sinks = None if call.sinks is None else call.sinks.float().contiguous().numpy()
        out = self._native.attend(self._next_layer(), q, k, v, call.scale, call.window, call.softcap, sinks)
        width = call.v.shape[-1]
        return torch.from_numpy(out if width == self._head_dim else out[..., :width])

    def _attend_rows(
        self, q: Float32Array, k: Float32Array, v: Float32Array, scale: float, window: int
    ) -> Float32Array:
        return self._native.attend(self._next_layer(), q, k, v, scale, window)

    def _next_layer(self) -> int:
        """Return the layer of the KV cache that the next attention of the step has, by its order."""
        self._calls += 1
        return self._calls - 1

    def _rows(self, x: torch.Tensor, repeat: int) -> Float32Array:
        """Return [heads, tokens, dim] as float32 [tokens, heads * repeat, head_dim], padded with zeros."""
        rows: Float32Array = (x if x.dtype is torch.float32 else x.float()).numpy().transpose(1, 0, 2)
        if repeat > 1:
            rows = rows.repeat(repeat, axis=1)
        if short := self._head_dim - rows.shape[2]:
            rows = np.pad(rows, ((0, 0), (0, 0), (0, short)))
        return np.ascontiguousarray(rows)


class CachedForward:
    """A step in one call of the model for each sequence, with transformers' own caches.

    A cache belongs to the sequence's first KV block, which it shares with none. The least recently used caches beyond
    twice the running sequences are dropped: those of sequences that have ended. A model that has no cache computes the
    whole text for each token: its tokens take the cache's place.
    """

    def __init__(
        self, native: _native.Executor | None, model: PreTrainedModel, sequences: int, recomputes: bool
    ) -> None:
        self._native, self._model, self._recomputes = native, model, recomputes
        self._most = 2 * sequences
        self._caches: OrderedDict[int, Any] = OrderedDict()
        self._takes = frozenset(signature(model.forward).parameters)
        self._cache_name = next((name for name in _CACHES if name in self._takes), "")

    def __call__(self, *batch: Int32Array) -> None:
        """Compute one step; arguments as the native executor's forward."""
        tokens, positions, starts, block_starts, blocks, logit_rows, *_ = batch
        bounds, firsts = starts.tolist(), blocks[block_starts[:-1]].tolist()
        found = []
        with torch.inference_mode():
            for first, begin, end in zip(firsts, bounds, bounds[1:], strict=False):
                logits = self.compute(first, tokens[begin:end], positions[begin:end])
                rows = logit_rows[(logit_rows >= begin) & (logit_rows < end)] - begin
                found.append(logits[_int64(rows)])
        assert self._native is not None
        self._native.take_logits(torch.cat(found).float().contiguous().numpy())

    def compute(self, first: int, tokens: Int32Array, positions: Int32Array) -> torch.Tensor:
        """Return the logits of the next tokens of one sequence, [tokens, vocab]. first: its first KV block.

        Raises: ConfigError if the model gives no cache back.
        """
        cache = self._caches.pop(first, None) if positions[0] else None
        count = len(tokens)
        if self._recomputes:
            tokens = tokens if cache is None else np.concatenate([cache, tokens])
            positions = np.arange(len(tokens), dtype=np.int32)
        given = {
            "input_ids": _int64(tokens)[None],
            "position_ids": _int64(positions)[None],
            "attention_mask": torch.ones((1, int(positions[-1]) + 1), dtype=torch.int64),
            "use_cache": not self._recomputes,
        }
        if not self._recomputes:
            given[self._cache_name] = cache
        out = self._model(**{name: value for name, value in given.items() if name in self._takes})
        self._caches[first] = tokens if self._recomputes else getattr(out, self._cache_name, None)
        if self._caches[first] is None:
            raise ConfigError(
                f"{type(self._model).__name__} of transformers gives no cache back, so its models can't be served"
            )
        while len(self._caches) > self._most:
            self._caches.popitem(last=False)
        logits: torch.Tensor = out.logits[0, -count:]
        return logits


def _int64(values: Int32Array) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))
