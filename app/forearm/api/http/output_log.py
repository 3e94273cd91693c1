"""Log each output with its text, as the tokenizer decodes it (--enable-log-outputs)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from forearm import wire
from forearm.text.tokenizer.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class OutputLog:
    """Observes one HTTP request; an output that is aborted is logged as far as it was generated."""

    def __init__(self, tokenizer: Tokenizer, most_characters: int | None, request_id: str) -> None:
        self._tokenizer = tokenizer
        self._most = most_characters
        self._request_id = request_id
        self._open: defaultdict[tuple[str, int], list[int]] = defaultdict(list)

    def submitted(self, prompts: Sequence[Sequence[int]], params: wire.SamplingParams | None) -> None:
        """Do nothing: prompts are logged by --enable-log-requests."""

    def tokens(self, message: wire.Tokens) -> None:
        """Record the next tokens of an output."""
        output = (message.request_id, message.index)
        self._open[output] += message.token_ids
        if message.finish_reason is not None:
            self._write(*output, self._open.pop(output), message.finish_reason)

    def over(self) -> None:
        """Log the outputs that have not finished."""
        for (name, index), tokens in self._open.items():
            self._write(name, index, tokens, "aborted")
        self._open.clear()

    def _write(self, name: str, index: int, tokens: list[int], end: str) -> None:
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)[: self._most]
        fields = {"engine_request": name, "output": index, "tokens": len(tokens), "end": end, "text": text}
        extra = {"fields": fields, "request_id": self._request_id}
        log.info("output %s %d: %d tokens, %s, %r", name, index, len(tokens), end, text, extra=extra)
