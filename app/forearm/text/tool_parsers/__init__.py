"""Formats in which models call tools, by vLLM's names, and how a chat template tells which one its model uses.

To add one: a function here or in a file beside, a row in FORMATS, its name in api_config.py, texts in tests/unit/text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from forearm.text.tool_parsers import (
    deepseek,
    dsml,
    gemma,
    glm,
    harmony,
    hermes,
    lists,
    llama,
    mistral,
    nested,
    pythonic,
    qwen_coder,
)
from forearm.text.tool_parsers.json_calls import CallReader, long_id, short_id


@dataclass(frozen=True)
class ToolCallFormat:
    """A format of tool calls. marks: special tokens that must be visible in the text. begins: markers of calls, which
    end reasoning. messages: reads reasoning, too, where both come in messages of one format; `read` is None then.
    """

    read: CallReader | None
    marks: tuple[str, ...] = ()
    new_id: Callable[[], str] = long_id
    begins: tuple[str, ...] = ()
    messages: harmony.MessageReader | None = None


def _hy(suffix: str = "") -> ToolCallFormat:
    """Return the format of Hy3 and Hy4. suffix: what a checkpoint's tags have behind their names."""
    tags = glm.hy(suffix)
    return ToolCallFormat(glm.pairs(tags), tags.marks)


_HERMES = ToolCallFormat(hermes.hermes, (hermes.BEGIN, hermes.END), begins=(hermes.BEGIN,))
_CODER_MARKS = (qwen_coder.BEGIN, qwen_coder.END)
_QWEN_CODER = ToolCallFormat(qwen_coder.qwen3_coder, _CODER_MARKS, begins=_CODER_MARKS[:1])
_GLM = ToolCallFormat(glm.pairs(glm.GLM), glm.GLM.marks, begins=(glm.GLM.opening("tool_call"),))
_COHERE = ToolCallFormat(lists.cohere_command, (lists.COHERE, lists.COHERE_END))
_LLAMA = ToolCallFormat(llama.llama3_json, (llama.TAG,))
_PYTHONIC = ToolCallFormat(pythonic.pythonic, (pythonic.BEGIN, pythonic.END))
_LFM = ToolCallFormat(pythonic.lfm2, (pythonic.TAGGED_BEGIN, pythonic.TAGGED_END))
_TOOL_CALLS = ("<tool_calls>", "</tool_calls>")

FORMATS: dict[str, ToolCallFormat] = {
    "apertus": ToolCallFormat(lists.apertus, (lists.APERTUS, lists.APERTUS_END)),
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "deepseek_v3": ToolCallFormat(deepseek.deepseek_v3, deepseek.MARKS),
    "deepseek_v31": ToolCallFormat(deepseek.deepseek_v31, deepseek.MARKS),
    "deepseek_v32": ToolCallFormat(dsml.deepseek_v32, (dsml.DSML,)),
    "deepseek_v4": ToolCallFormat(dsml.deepseek_v4, (dsml.DSML,), begins=dsml.DEEPSEEK_V4.begins),
    "deepseek_v41": ToolCallFormat(dsml.deepseek_v41, (dsml.DSML,), begins=dsml.DEEPSEEK_V41.begins),
    "dots": ToolCallFormat(qwen_coder.dots, qwen_coder.DOTS),
    "ernie45": ToolCallFormat(hermes.ernie45, (hermes.BEGIN, hermes.END, "<response>", "</response>")),
    "functiongemma": ToolCallFormat(
        gemma.functiongemma, (gemma.FUNCTION_BEGIN, gemma.FUNCTION_END, gemma.FUNCTION_QUOTE)
    ),
    "gemma4": ToolCallFormat(gemma.gemma4, (gemma.BEGIN, gemma.END, gemma.QUOTE)),
    "gigachat3": ToolCallFormat(lists.gigachat3, lists.GIGACHAT),
    "glm45": _GLM,
    "glm47": _GLM,
    "granite": ToolCallFormat(lists.granite, ("<|tool_call|>", "<tool_call>")),
    "granite-20b-fc": ToolCallFormat(lists.granite_20b_fc, ("<function_call>",)),
    "granite4": _HERMES,
    "hermes": _HERMES,
    "hunyuan_a13b": ToolCallFormat(lists.hunyuan_a13b, (*_TOOL_CALLS, "<answer>", "</answer>")),
    "hy_v3": _hy(),
    "hy_v4": _hy(),
    "inkling": ToolCallFormat(None, harmony.INKLING_MARKS, messages=harmony.inkling),
    "internlm": ToolCallFormat(hermes.internlm, (hermes.ACTION, hermes.PLUGIN, hermes.ACTION_END)),
    "jamba": ToolCallFormat(lists.jamba, _TOOL_CALLS),
    "k2_horizon": ToolCallFormat(
        glm.pairs(glm.HORIZON), glm.HORIZON.marks, begins=(glm.HORIZON.opening("tool_calls"),)
    ),
    "kimi_k2": ToolCallFormat(deepseek.kimi_k2, deepseek.KIMI_MARKS, begins=deepseek.KIMI_MARKS[:1]),
    "kimi_k3": ToolCallFormat(dsml.kimi_k3, dsml.XTML),
    "lfm2": _LFM,
    "ling3": _GLM,
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "llama4_pythonic": _PYTHONIC,
    "longcat": ToolCallFormat(hermes.longcat, hermes.LONGCAT),
    "mimo": ToolCallFormat(qwen_coder.mimo, _CODER_MARKS, begins=_CODER_MARKS[:1]),
    "minicpm": _LFM,
    "minicpm5": ToolCallFormat(qwen_coder.minicpm5),
    "minimax_m2": ToolCallFormat(qwen_coder.minimax_m2, qwen_coder.MINIMAX, begins=qwen_coder.MINIMAX[:1]),
    "minimax_m3": ToolCallFormat(nested.minimax_m3, (nested.NAMESPACE,)),
    "mistral": ToolCallFormat(mistral.mistral, (mistral.BEGIN, mistral.CALL_ID, mistral.ARGS), short_id),
    "nemotron_json": ToolCallFormat(lists.nemotron_json, ("<TOOLCALL>", "</TOOLCALL>")),
    "olmo3": ToolCallFormat(pythonic.olmo3, (pythonic.OLMO_BEGIN, pythonic.OLMO_END)),
    "openai": ToolCallFormat(None, harmony.MARKS, messages=harmony.harmony),
    "phi4_mini_json": ToolCallFormat(lists.phi4_mini_json, ("<|tool_call|>", "<|/tool_call|>")),
    "plamo3": ToolCallFormat(deepseek.plamo3, deepseek.PLAMO_PIECES, begins=deepseek.PLAMO_MARKS[:1]),
    "poolside_v1": _GLM,
    "pythonic": _PYTHONIC,
    "qwen3_coder": _QWEN_CODER,
    "qwen3_json": _HERMES,
    "qwen3_xml": _QWEN_CODER,
    "seed_oss": ToolCallFormat(
        qwen_coder.seed_oss, (qwen_coder.SEED_BEGIN, qwen_coder.SEED_END), begins=(qwen_coder.SEED_BEGIN,)
    ),
    "step3": ToolCallFormat(qwen_coder.step3, qwen_coder.STEP),
    "step3p5": _QWEN_CODER,
    "step5": _QWEN_CODER,
    "xlam": ToolCallFormat(lists.xlam, ("<tool_call>", "</tool_call>")),
    "zaya_xml": ToolCallFormat(
        qwen_coder.zaya, (qwen_coder.ZAYA_BEGIN, qwen_coder.ZAYA_END), begins=(qwen_coder.ZAYA_BEGIN,)
    ),
}


def format_of(name: str, tokens: Collection[str] = ()) -> ToolCallFormat | None:
    """Return the format of this name; None where there is none. tokens: the tokenizer's added tokens."""
    suffix = glm.suffix_of(name, tokens)
    return _hy(suffix) if suffix else FORMATS.get(name)


# Formats of messages, which are reasoning and calls together: their names, and those of their reasoning.
MESSAGE_FORMATS = {"inkling": "inkling", "openai": "openai_gptoss"}
# Markers that a template contains if its model uses the format. The first match counts: more specific ones come first.
MARKERS = (
    (("<|channel|>", "<|message|>"), "openai"),
    ((harmony.MODEL, harmony.TEXT), "inkling"),
    (("[TOOL_CALLS]",), "mistral"),
    ((dsml.DSML, "function_calls>"), "deepseek_v32"),
    ((dsml.DSML + "tool_calls>",), "deepseek_v4"),
    ((dsml.DSML + " calls>",), "deepseek_v41"),
    ((deepseek.ALL_BEGIN, "```json"), "deepseek_v3"),
    ((deepseek.ALL_BEGIN,), "deepseek_v31"),
    ((deepseek.KIMI_ALL_BEGIN,), "kimi_k2"),
    (("<|open|>", "<|sep|>"), "kimi_k3"),
    (("<|plamo:begin_tool_",), "plamo3"),
    ((gemma.BEGIN,), "gemma4"),
    ((gemma.FUNCTION_BEGIN,), "functiongemma"),
    ((qwen_coder.SEED_BEGIN,), "seed_oss"),
    ((qwen_coder.ZAYA_BEGIN,), "zaya_xml"),
    ((qwen_coder.MINIMAX[0],), "minimax_m2"),
    ((nested.NAMESPACE,), "minimax_m3"),
    ((qwen_coder.DOTS[0],), "dots"),
    (("<steptml:invoke",), "step3"),
    ((glm.HORIZON.opening("tool_call"),), "k2_horizon"),
    (("<tool_sep", "<arg_key"), "hy_v3"),
    ((hermes.LONGCAT[0],), "longcat"),
    ((hermes.ACTION, hermes.PLUGIN), "internlm"),
    ((lists.APERTUS,), "apertus"),
    ((lists.COHERE, lists.COHERE_ANSWER[2]), "cohere_command4"),
    ((lists.COHERE,), "cohere_command3"),
    (("function call", "<|role_sep|>"), "gigachat3"),
    ((*_TOOL_CALLS, "<answer>"), "hunyuan_a13b"),
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
