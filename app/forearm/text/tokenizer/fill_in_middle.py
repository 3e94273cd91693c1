"""Fill in the middle: prompts for the text between a prefix and a suffix, for models that were trained on them."""

from __future__ import annotations

from dataclasses import dataclass

from forearm.text.tokenizer.tokenizer import Tokenizer

# Markers before the prefix, before the suffix and before the middle. Sources: the tokenizers and model cards of
# Qwen/Qwen2.5-Coder-7B, bigcode/starcoder2-7b and ibm-granite/granite-8b-code-base, codellama/CodeLlama-7b-hf,
# deepseek-ai/deepseek-coder-6.7b-base, google/codegemma-2b (Qwen's markers).
_MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
_CODESTRAL = ("[SUFFIX]", "[PREFIX]")  # the suffix comes first; the middle follows the prefix
# Tokens that end the middle: another file, another repository, padding.
_ENDS = ("<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<file_sep>", "<repo_name>", "<|file_separator|>", "▁<EOT>")


@dataclass(frozen=True)
class Infill:
    """The markers of one tokenizer. stops: tokens that end the middle, beside the model's own end token."""

    tokenizer: Tokenizer
    markers: tuple[int, ...]
    stops: tuple[int, ...]

    def prompt(self, prefix: list[int], suffix: str) -> list[int]:
        """Return the prompt's tokens. `prefix` may begin with the tokens that begin every prompt (BOS), which come
        first.
        """
        behind = self.tokenizer.encode(suffix, add_special_tokens=False)
        start = self.tokenizer.encode("")
        if start and prefix[: len(start)] == start:
            prefix = prefix[len(start) :]
        else:
            start = []
        if len(self.markers) == 2:
            return [*start, self.markers[0], *behind, self.markers[1], *prefix]
        return [*start, self.markers[0], *prefix, self.markers[1], *behind, self.markers[2]]


def infill_of(tokenizer: Tokenizer) -> Infill | None:
    """Return the tokenizer's markers; None if its tokens show that the model was not trained on them."""
    added = {text: token_id for token_id, text in tokenizer.added.items()}
    known = tokenizer.parts.backend_tokenizer.token_to_id  # CodeLlama's markers are not added tokens
    for texts in (*_MARKERS, _CODESTRAL):
        markers = tuple(token_id for text in texts if (token_id := known(text)) is not None)
        if len(markers) == len(texts):
            return Infill(tokenizer, markers, tuple(added[end] for end in _ENDS if end in added))
    return None
