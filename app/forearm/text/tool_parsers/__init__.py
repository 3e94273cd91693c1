"""Formats in which models call tools, by vLLM's names, and how a chat template tells which one its model uses.

To add one: a function here or in a file beside, a row in FORMATS, its name in api_config.py, texts in tests/unit/text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forearm.text.tool_parsers import deepseek, dsml, gemma, llama, mistral, pythonic, qwen_coder
from forearm.text.tool_parsers.glm import glm45
from forearm.text.tool_parsers.hermes import ernie45, hermes
from forearm.text.tool_parsers.json_calls import CallReader, long_id, short_id
from forearm.text.tool_parsers.lists import granite, granite_20b_fc, jamba, nemotron_json, phi4_mini_json


@dataclass(frozen=True)
class ToolCallFormat:
    """A format of tool calls. marks: special tokens that must be visible in the text. read None: harmony.py
    reads it.
    """

    read: CallReader | None
    marks: tuple[str, ...] = ()
    new_id: Callable[[], str] = long_id


_HERMES = ToolCallFormat(hermes, ("<tool_call>", "</tool_call>"))
_QWEN_CODER = ToolCallFormat(qwen_coder.qwen3_coder, ("<tool_call>", "</tool_call>"))
_GLM = ToolCallFormat(glm45, ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"))
_LLAMA = ToolCallFormat(llama.llama3_json, (llama.TAG,))
_PYTHONIC = ToolCallFormat(pythonic.pythonic, (pythonic.BEGIN, pythonic.END))
_LFM = ToolCallFormat(pythonic.lfm2, (pythonic.TAGGED_BEGIN, pythonic.TAGGED_END))

FORMATS: dict[str, ToolCallFormat] = {
    "deepseek_v3": ToolCallFormat(deepseek.deepseek_v3, deepseek.MARKS),
    "deepseek_v31": ToolCallFormat(deepseek.deepseek_v31, deepseek.MARKS),
    "deepseek_v32": ToolCallFormat(dsml.deepseek_v32, (dsml.DSML,)),
    "deepseek_v4": ToolCallFormat(dsml.deepseek_v4, (dsml.DSML,)),
    "deepseek_v41": ToolCallFormat(dsml.deepseek_v41, (dsml.DSML,)),
    "ernie45": ToolCallFormat(ernie45, ("<tool_call>", "</tool_call>", "<response>", "</response>")),
    "functiongemma": ToolCallFormat(
        gemma.functiongemma, (gemma.FUNCTION_BEGIN, gemma.FUNCTION_END, gemma.FUNCTION_QUOTE)
    ),
    "gemma4": ToolCallFormat(gemma.gemma4, (gemma.BEGIN, gemma.END, gemma.QUOTE)),
    "glm45": _GLM,
    "glm47": _GLM,
    "granite": ToolCallFormat(granite, ("<|tool_call|>", "<tool_call>")),
    "granite-20b-fc": ToolCallFormat(granite_20b_fc, ("<function_call>",)),
    "granite4": _HERMES,
    "hermes": _HERMES,
    "jamba": ToolCallFormat(jamba, ("<tool_calls>", "</tool_calls>")),
    "kimi_k2": ToolCallFormat(deepseek.kimi_k2, deepseek.KIMI_MARKS),
    "lfm2": _LFM,
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "llama4_pythonic": _PYTHONIC,
    "minicpm": _LFM,
    "minicpm5": ToolCallFormat(qwen_coder.minicpm5),
    "mistral": ToolCallFormat(mistral.mistral, (mistral.BEGIN, mistral.CALL_ID, mistral.ARGS), short_id),
    "nemotron_json": ToolCallFormat(nemotron_json, ("<TOOLCALL>", "</TOOLCALL>")),
    "olmo3": ToolCallFormat(pythonic.olmo3, (pythonic.OLMO_BEGIN, pythonic.OLMO_END)),
    "openai": ToolCallFormat(None),
    "phi4_mini_json": ToolCallFormat(phi4_mini_json, ("<|tool_call|>", "<|/tool_call|>")),
    "pythonic": _PYTHONIC,
    "qwen3_coder": _QWEN_CODER,
    "qwen3_xml": _QWEN_CODER,
    "seed_oss": ToolCallFormat(qwen_coder.seed_oss, (qwen_coder.SEED_BEGIN, qwen_coder.SEED_END)),
}
# Markers that a template contains if its model uses the format. The first match counts: more specific ones come first.
MARKERS = (
    (("<|channel|>", "<|message|>"), "openai"),
    (("[TOOL_CALLS]",), "mistral"),
    ((dsml.DSML, "function_calls>"), "deepseek_v32"),
    ((dsml.DSML + "tool_calls>",), "deepseek_v4"),
    ((dsml.DSML + " calls>",), "deepseek_v41"),
    ((deepseek.ALL_BEGIN, "```json"), "deepseek_v3"),
    ((deepseek.ALL_BEGIN,), "deepseek_v31"),
    ((deepseek.KIMI_ALL_BEGIN,), "kimi_k2"),
    ((gemma.BEGIN,), "gemma4"),
    ((gemma.FUNCTION_BEGIN,), "functiongemma"),
    ((qwen_coder.SEED_BEGIN,), "seed_oss"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("<function name=", "<param name="), "minicpm5"),
    (("<arg_key>",), "glm45"),
    ((pythonic.OLMO_BEGIN,), "olmo3"),
    ((pythonic.TAGGED_BEGIN, "```python"), "minicpm"),
    ((pythonic.TAGGED_BEGIN,), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),
    (("<TOOLCALL>",), "nemotron_json"),
    (("<tool_call>", "<response>"), "ernie45"),
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
