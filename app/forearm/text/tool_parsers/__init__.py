"""Formats in which models call tools, by vLLM's names, and how a chat template tells which one its model uses.

To add one: a function here or in a file beside, a row in FORMATS, its name in api_config.py, texts in tests/unit/text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forearm.text.tool_parsers import deepseek, llama, mistral, pythonic
from forearm.text.tool_parsers.hermes import hermes
from forearm.text.tool_parsers.json_calls import CallReader, long_id, short_id
from forearm.text.tool_parsers.lists import granite, granite_20b_fc, jamba, phi4_mini_json
from forearm.text.tool_parsers.qwen_coder import qwen3_coder


@dataclass(frozen=True)
class ToolCallFormat:
    """A format of tool calls. marks: special tokens that must be visible in the text. read None: harmony.py
    reads it.
    """

    read: CallReader | None
    marks: tuple[str, ...] = ()
    new_id: Callable[[], str] = long_id


_HERMES = ToolCallFormat(hermes, ("<tool_call>", "</tool_call>"))
_QWEN_CODER = ToolCallFormat(qwen3_coder, ("<tool_call>", "</tool_call>"))
_LLAMA = ToolCallFormat(llama.llama3_json, (llama.TAG,))
_PYTHONIC = ToolCallFormat(pythonic.pythonic, (pythonic.BEGIN, pythonic.END))

FORMATS: dict[str, ToolCallFormat] = {
    "deepseek_v3": ToolCallFormat(deepseek.deepseek_v3, deepseek.MARKS),
    "deepseek_v31": ToolCallFormat(deepseek.deepseek_v31, deepseek.MARKS),
    "granite": ToolCallFormat(granite, ("<|tool_call|>", "<tool_call>")),
    "granite-20b-fc": ToolCallFormat(granite_20b_fc, ("<function_call>",)),
    "granite4": _HERMES,
    "hermes": _HERMES,
    "jamba": ToolCallFormat(jamba, ("<tool_calls>", "</tool_calls>")),
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "llama4_pythonic": _PYTHONIC,
    "mistral": ToolCallFormat(mistral.mistral, (mistral.BEGIN, mistral.CALL_ID, mistral.ARGS), short_id),
    "openai": ToolCallFormat(None),
    "phi4_mini_json": ToolCallFormat(phi4_mini_json, ("<|tool_call|>", "<|/tool_call|>")),
    "pythonic": _PYTHONIC,
    "qwen3_coder": _QWEN_CODER,
    "qwen3_xml": _QWEN_CODER,
}
# Markers that a template contains if its model uses the format. The first match counts: more specific ones come first.
MARKERS = (
    (("<|channel|>", "<|message|>"), "openai"),
    (("[TOOL_CALLS]",), "mistral"),
    ((deepseek.ALL_BEGIN, "```json"), "deepseek_v3"),
    ((deepseek.ALL_BEGIN,), "deepseek_v31"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("functools",), "phi4_mini_json"),
    (("<|tool|>", "<|/tool|>"), "phi4_mini_json"),
    (("<|tool_call|>",), "granite"),
    (("<|start_of_role|>", "<tool_call>["), "granite"),
    (("<tool_call>",), "hermes"),
    (("<tool_calls>",), "jamba"),
    (("<function_call>",), "granite-20b-fc"),
    (("func_name1(",), "pythonic"),
    (("<|python_start|>",), "pythonic"),
    (('"parameters": dictionary of argument name',), "llama3_json"),
    (("<|python_tag|>",), "llama3_json"),
)
