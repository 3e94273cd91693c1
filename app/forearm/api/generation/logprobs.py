"""The engine's log-probabilities in OpenAI's three forms."""

from __future__ import annotations

from collections.abc import Iterable

from forearm.api.generation.response_bodies import (
    ChatLogprobs,
    CompletionLogprobs,
    ContentLogprob,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)
from forearm.text.tokenizer.tokenizer import Tokenizer
from forearm.wire import PositionLogprobs, TokenLogprob

# JSON has no minus infinity; vLLM writes this for it.
_LEAST = -9999.0


class TokenNames:
    """Writes tokens in log-probabilities: as their text, or as `token_id:N`."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def __call__(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._tokenizer.token_text(token_id)

    def lengths(self, token_ids: Iterable[int], skips_special: bool, text: str | None = None) -> list[int]:
        """Return how many characters each token takes in the text.

        skips_special: special tokens take none. text: the source of the tokens; a special token takes its characters
        if they occur there, and none if the tokenizer added it.
        """
        found, at = [], 0
        for token_id in token_ids:
            token = self._tokenizer.token_text(token_id)
            if token_id in self._tokenizer.special_ids and (
                skips_special if text is None else not text.startswith(token, at)
            ):
                token = ""
            found.append(len(token))
            at += len(token)
        return found

    def bytes(self, token_id: int) -> list[int]:
        """Return the token's own bytes: several tokens may form one character."""
        return list(self._tokenizer.token_bytes(token_id))


def chat_logprobs(positions: Iterable[PositionLogprobs], names: TokenNames) -> ChatLogprobs:
    """Return `choices[].logprobs` of a chat answer."""
    return ChatLogprobs(
        content=[
            ContentLogprob(
                token=names(chosen.token_id),
                logprob=_finite(chosen),
                bytes=names.bytes(chosen.token_id),
                top_logprobs=[
                    TopLogprob(token=names(one.token_id), logprob=_finite(one), bytes=names.bytes(one.token_id))
                    for one in alternatives
                ],
            )
            for chosen, *alternatives in positions
        ]
    )


def completion_logprobs(
    token_ids: Iterable[int],
    positions: Iterable[PositionLogprobs | None],
    names: TokenNames,
    offset: int,
    lengths: Iterable[int],
) -> CompletionLogprobs:
    """Return `choices[].logprobs` of a completion. The first token's text begins at character `offset` of the choice's
    text; `lengths` are the characters of each token.

    None stands for the first token of a prompt, which nothing predicted.
    """
    reply = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    for token_id, position, length in zip(token_ids, positions, lengths, strict=True):
        reply.text_offset.append(offset)
        reply.tokens.append(names(token_id))
        reply.token_logprobs.append(None if position is None else _finite(position[0]))
        # The chosen token is first, as in vLLM, and comes again last: where two tokens have one text, its value stays.
        ranked = None if position is None else [*position, position[0]]
        reply.top_logprobs.append(None if ranked is None else {names(one.token_id): _finite(one) for one in ranked})
        offset += length
    return reply


def prompt_logprobs(positions: Iterable[PositionLogprobs | None], names: TokenNames) -> PromptLogprobs:
    """Return vLLM's `prompt_logprobs`: at each position the token itself and the alternatives, by id."""
    return [
        None
        if position is None
        else {
            str(one.token_id): PromptLogprob(logprob=_finite(one), rank=one.rank, decoded_token=names(one.token_id))
            for one in position
        }
        for position in positions
    ]


def _finite(one: TokenLogprob) -> float:
    return max(one.logprob, _LEAST)
