"""Fill in the middle: a prompt for what stands between two texts, for models that were trained on it."""

from __future__ import annotations

from dataclasses import dataclass

from forearm.text.tokenizer.tokenizer import Tokenizer

# Marker before the text in front, before the text behind, before what is to be written. Sources: the tokenizers and
# model cards of Qwen/Qwen2.5-Coder-7B, bigcode/starcoder2-7b and ibm-granite/granite-8b-code-base, codellama/CodeLlama-
# 7b-hf, deepseek-ai/deepseek-coder-6.7b-base, google/codegemma-2b (Qwen's markers).
_MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
_CODESTRAL = ("[SUFFIX]", "[PREFIX]")  # behind before in front; what follows is to be written
# What such a model writes when it is done: another file, another repository, padding.
_ENDS = ("<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<file_sep>", "<repo_name>", "<|file_separator|>", "▁<EOT>")


@dataclass(frozen=True)
class Infill:
    """How one tokenizer marks the middle. `stops`: tokens that end it, beside the model's own end."""

    tokenizer: Tokenizer
    markers: tuple[int, ...]
    stops: tuple[int, ...]

    def prompt(self, prefix: list[int], suffix: str) -> list[int]:
        """Tokens to go on from. `prefix` may begin with what every prompt begins with (BOS), which comes first."""
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
    """None where the model was not trained for it, as far as its tokens tell."""
    ids = {text: token_id for token_id, text in tokenizer.added.items()}
    for texts in (*_MARKERS, _CODESTRAL):
        # Where they are no added tokens, as in CodeLlama, they are pieces of the vocabulary.
        found = [ids[text] if text in ids else tokenizer.id_of(text) for text in texts]
        if all(token_id is not None for token_id in found):
            markers = tuple(token_id for token_id in found if token_id is not None)
            return Infill(tokenizer, markers, tuple(ids[end] for end in _ENDS if end in ids))
    return None
