"""Encode a query and a document as one prompt for rerankers.

Encoders were trained on pairs in a form of their own. Qwen3-Reranker reads a chat of fixed words; other decoders read
one text after the other, or what the chat template makes of the roles query and document (as in vLLM).

Source of the words: the model card of Qwen/Qwen3-Reranker-0.6B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from forearm.text.templates.chat_template import ChatTemplate
from forearm.text.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from forearm.model.pooling.plan import PoolingPlan

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_CHAT = "<|im_start|>"
KeptEnd = Literal["start", "end"]


@dataclass(frozen=True)
class PairForm:
    """The form of this model's pairs. template: one given at the server's start."""

    plan: PoolingPlan
    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    instruction: str | None = None
    template_kwargs: Mapping[str, Any] | None = None

    @property
    def takes_instruction(self) -> bool:
        """True if the prompt contains an instruction."""
        return self.template is not None or self._is_qwen

    @property
    def _is_qwen(self) -> bool:
        return self.plan.model_type == "qwen3" and self.plan.kind == "classify"

    def encode(self, query: str, document: str, limit: int | None, keep: KeptEnd = "start") -> tuple[list[int], int]:
        """Return token ids, and where the second text begins for models that distinguish them.

        limit: the most tokens; the longer text is truncated, or in a chat the document. keep: the end that is
        kept.
        """
        if self.plan.lower_case:
            query, document = query.lower(), document.lower()
        if self.template is not None:
            instruction = {} if self.instruction is None else {"instruction": self.instruction}
            text = self.template.render(
                [{"role": "query", "content": query}, {"role": "document", "content": document}],
                add_generation_prompt=False,
                kwargs={**instruction, **(self.template_kwargs or {})},
            )
            return self.tokenizer.encode_cut(text, add_special_tokens=False, limit=limit, keep=keep)
        if self._is_qwen and not query.startswith(_CHAT):
            instruct = self.instruction or DEFAULT_INSTRUCTION
            before = f"{_BEFORE}<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {document}"
            first, last = (self.tokenizer.encode(one, add_special_tokens=False) for one in (before, _AFTER))
            return (first if limit is None else first[: max(limit - len(last), 0)]) + last, 0
        return self.tokenizer.encode_cut(query, document, limit=limit, keep=keep)
