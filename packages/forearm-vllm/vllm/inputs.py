"""What prompts are, as vLLM names it."""

from __future__ import annotations

from typing import TypedDict

from typing_extensions import NotRequired


class TextPrompt(TypedDict):
    """A text."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids, and the text where it is known."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]


PromptType = str | list[int] | TextPrompt | TokensPrompt
