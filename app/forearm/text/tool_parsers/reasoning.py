"""Formats in which models write reasoning before the answer, and how a chat template tells which one its model uses.

Markers and the newlines beside them belong to neither the reasoning nor the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from forearm.text.grammars.lark import Lark, either
from forearm.text.tokenizer.tokenizer import Tokenizer
from forearm.text.tool_parsers.deepseek import PLAMO_PIECES
from forearm.text.tool_parsers.dsml import RESPONSE, XTML
from forearm.text.tool_parsers.glm import suffix_of
from forearm.text.tool_parsers.hermes import ANSWER_TAGS
from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, prose, space, word
from forearm.text.tool_parsers.lists import COHERE_ANSWER, HUNYUAN_ANSWER
from forearm.text.tool_parsers.parts import ReasoningPart, TextPart

_NEWLINES = re.compile(r"[\r\n]+")


@dataclass
class ReasoningState:
    """The state of an output. is_open: the text that comes now is reasoning."""

    is_open: bool = False


@dataclass(frozen=True)
class ReasoningFormat:
    """A format of reasoning, marked by any of `begins` and any of `ends`.

    always: an output without a beginning marker is reasoning too, unless its prompt closed it. forced: ends
    reasoning that exceeds its budget. answers: the marker before the answer, where there is one; closes: the marker
    behind it, which may be missing. answer_tags: tags around the answer, which are dropped. stays: reasoning is part of
    the answer, with its beginning marker even where the prompt has it. pieces: the special tokens of markers that are
    several tokens. ends_at_calls: a call ends reasoning whose own end the model leaves out.
    """

    begins: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    always: bool = False
    forced: str = ""
    answers: str = ""
    closes: str = ""
    answer_tags: tuple[str, ...] = ()
    stays: bool = False
    pieces: tuple[str, ...] = ()
    ends_at_calls: bool = False

    def opened(self, prompt: str) -> bool | None:
        """Return whether this prompt leaves reasoning open (True), closes it (False), or neither (None)."""
        prompt = prompt[-200:].rstrip()
        if prompt.endswith(self.begins):
            return True
        return False if prompt.endswith((self.answers,) if self.answers else self.ends) else None

    def left_open(self, text: str) -> bool | None:
        """Return, as `opened`, whether an answer that is to be continued leaves reasoning open."""
        begun = max(text.rfind(marker) for marker in self.begins)
        ended = max(text.rfind(marker) for marker in self.ends)
        return None if begun == ended else begun > ended

    def steps(
        self, source: TextStream, thinking: ReasoningState, opened: bool | None, calls: tuple[str, ...] = ()
    ) -> Steps[None]:
        """Read the reasoning, if any comes, and leave the text after it. calls: markers of calls that may come."""
        lead = yield from space(source)
        is_open = bool(opened) or (self.always and opened is None)
        for marker in self.begins:
            if (yield from literal(source, marker)):
                is_open, lead = True, ""
                break
        if is_open and self.stays:
            yield TextPart(self.begins[0] + lead)
            return
        if not is_open:
            source.back(lead)
            return
        thinking.is_open = True
        yield from word(source, _NEWLINES)
        calls = calls if self.ends_at_calls else ()
        marker = yield from prose(source, (*self.ends, *calls), ReasoningPart)
        thinking.is_open = False
        if marker in calls:
            source.back(marker)
        else:
            yield from word(source, _NEWLINES)

    def end_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the tokens after which the answer begins, and with it the constraint on the answer."""
        return tuple(tokenizer.encode(self.answers or self.ends[-1], add_special_tokens=False))

    def before(self, grammar: str, special: Mapping[str, int]) -> str:
        """Return a grammar made by constraints.py, extended to allow reasoning before the answer."""
        lark = Lark(special)
        begin = either([lark.literal(marker) for marker in self.begins])
        return _around(lark, f"({begin} {lark.until(self.ends)} /\\n*/)? @answer", grammar)

    def closed(self, grammar: str, special: Mapping[str, int]) -> str:
        """Return a grammar made by constraints.py, extended to allow the marker behind the answer."""
        lark = Lark(special)
        return _around(lark, f"@answer ({lark.literal(self.closes)})?", grammar) if self.closes else grammar

    @property
    def marks(self) -> tuple[str, ...]:
        """The markers, which must be visible in the text even if they are special tokens."""
        return (*self.begins, *self.ends, *self.pieces)


def _around(lark: Lark, start: str, grammar: str) -> str:
    """Return the grammar that begins with the rule `start`, in which @answer is `grammar`."""
    given = json.loads(grammar)
    others = given["grammars"]
    others[0]["name"] = "answer"
    return json.dumps({**given, "grammars": [*json.loads(lark.text(start))["grammars"], *others]}, ensure_ascii=False)


_COHERE = ReasoningFormat(("<|START_THINKING|>",), ("<|END_THINKING|>",), answer_tags=COHERE_ANSWER)
_EFFORTS = ("", "_fast", "_faster")
# By vLLM's names. Sources: the chat templates of deepseek-ai/DeepSeek-R1, Qwen/Qwen3-8B, ibm-granite/granite-3.2-8b-
# instruct, mistralai/Magistral-Small-2507, openai/gpt-oss-20b, google/gemma-4-E4B-it, zai-org/GLM-4.5-Air,
# ByteDance-Seed/Seed-OSS-36B-Instruct, allenai/Olmo-3-7B-Think and baidu/ERNIE-4.5-21B-A3B-Thinking; for outputs
# without markers, and for Inkling, vLLM's parsers.
FORMATS: dict[str, ReasoningFormat] = {
    **dict.fromkeys(("deepseek_v3", "hy_v3", "hy_v4", "olmo3", "poolside_v1"), ReasoningFormat()),
    **dict.fromkeys(
        ("deepseek_v4", "deepseek_v41", "glm45", "glm47", "kimi_k2", "ling3", "mimo", "minicpmv", "qwen3"),
        ReasoningFormat(ends_at_calls=True),
    ),
    # The prompt opens reasoning, or the model may leave the marker out.
    **dict.fromkeys(("deepseek_r1", "holo2", "step3", "step5"), ReasoningFormat(always=True)),
    **dict.fromkeys(
        ("granite_thinking_parser", "minimax_m2", "nemotron_v3", "step3p5"),
        ReasoningFormat(always=True, ends_at_calls=True),
    ),
    "minimax_m2_append_think": ReasoningFormat(always=True, stays=True),
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "hunyuan_a13b": ReasoningFormat(answer_tags=HUNYUAN_ANSWER),
    "k2_horizon": ReasoningFormat(
        tuple(f"<ifm|think{effort}>" for effort in _EFFORTS),
        tuple(f"</ifm|think{effort}>" for effort in _EFFORTS),
        ends_at_calls=True,
    ),
    "kimi_k3": ReasoningFormat(
        ("<|open|>think<|sep|>",), ("<|close|>think<|sep|>",), answer_tags=RESPONSE, pieces=XTML
    ),
    "plamo3": ReasoningFormat(
        ("<|plamo:begin_think:plamo|>",), ("<|plamo:end_think:plamo|>",), pieces=PLAMO_PIECES, ends_at_calls=True
    ),
    "minimax_m3": ReasoningFormat(("<mm:think>",), ("</mm:think>",)),
    "ernie45": ReasoningFormat(always=True, answer_tags=ANSWER_TAGS),
    "gemma4": ReasoningFormat(("<|channel>thought", "<|channel>"), ("<channel|>",)),
    "granite": ReasoningFormat(
        ("Here's my thought process:", "Here is my thought process:"), ("Here's my response:", "Here is my response:")
    ),
    "seed_oss": ReasoningFormat(("<seed:think>",), ("</seed:think>",), ends_at_calls=True),
    "mistral": ReasoningFormat(("[THINK]",), ("[/THINK]",)),
    # Its reasoning is cut by the end of the message alone, as in vLLM: a call may follow, or an answer.
    "inkling": ReasoningFormat(
        ("<|content_thinking|>",), ("<|end_message|>",), answers="<|content_text|>", closes="<|end_message|>"
    ),
    "openai_gptoss": ReasoningFormat(
        begins=("<|channel|>analysis<|message|>",),
        ends=("<|end|>",),
        forced="<|end|><|start|>assistant<|channel|>final<|message|>",
        answers="<|channel|>final<|message|>",
    ),
}


def format_of(name: str, tokens: Collection[str] = ()) -> ReasoningFormat | None:
    """Return the format of this name; None where there is none. tokens: the tokenizer's added tokens."""
    suffix = suffix_of(name, tokens)
    return ReasoningFormat((f"<think{suffix}>",), (f"</think{suffix}>",)) if suffix else FORMATS.get(name)


# Markers that a template contains if its model uses the format. "</think>" alone: the model itself opens reasoning, as
# the first R1 did. The format is never one that takes an unmarked output for reasoning, because a template only shows
# what the model may do.
MARKERS = (
    (("<|channel|>",), "openai_gptoss"),
    (("<|content_thinking|>",), "inkling"),
    (("<|channel>",), "gemma4"),
    (("<seed:think>",), "seed_oss"),
    (("</think>", "<response>"), "ernie45"),
    (("<tool_sep", "<think"), "hy_v3"),
    (("</think>", "<answer>"), "hunyuan_a13b"),
    (("[THINK]",), "mistral"),
    (("<|START_THINKING|>",), "cohere_command3"),
    (("<ifm|think>",), "k2_horizon"),
    (("<mm:think>",), "minimax_m3"),
    (("<|open|>", "<|sep|>"), "kimi_k3"),
    (("<|plamo:begin_think",), "plamo3"),
    (("Here is my thought process:",), "granite"),
    (("</think>",), "qwen3"),
    (("<think>",), "qwen3"),
)
