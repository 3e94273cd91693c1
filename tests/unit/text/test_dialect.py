from __future__ import annotations

import pytest

from forearm.text import tool_parsers
from forearm.text.templates.chat_template import ChatTemplate
from forearm.text.tokenizer.tokenizer import Tokenizer
from forearm.text.tool_parsers import reasoning
from forearm.text.tool_parsers.output_parser import OutputParser, ParserOptions, find_dialect
from forearm.text.tool_parsers.parts import CallArguments, CallBegin, ReasoningPart, joined

# The parts of published chat templates by which formats are recognized, shortened.
EXCERPTS = {
    "Qwen2.5": (
        "{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n<tools>' }}{%- for tool in tools %}{{- tool | tojson }}"
        "{%- endfor %}{{- '</tools>\\n<tool_call>\\n{\"name\": <function-name>}\\n</tool_call>' }}{%- endif %}"
    ),
    "Qwen3": (
        "{%- if tools %}{{- '<tools>' }}{{- '<tool_call>\\n</tool_call>' }}{%- endif %}{%- set content = "
        "message.content.split('</think>')[-1] %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
        "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
        "{%- endif %}{%- endif %}"
    ),
    "Qwen3-Coder": (
        "{%- if tools %}{{- '<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>\\n' }}"
        "{%- endif %}"
    ),
    "Llama-3.1": (
        "{%- if builtin_tools is defined or tools is not none %}{{- 'Environment: ipython\\n' }}{%- endif %}"
        '{{- \'in the format {"name": function name, "parameters": dictionary of argument name and its value}\' }}'
        "{{- '<|python_tag|>' + tool_call.name + '.call(' }}"
    ),
    "Mistral-7B-v0.3": "{%- if tools is not none %}{{ '[AVAILABLE_TOOLS] ' }}{% endif %}{{ '[TOOL_CALLS] [' }}",
    "Magistral": "{{- '[TOOL_CALLS]' + name + '[ARGS]' }}{{- '[THINK]' + thinking + '[/THINK]' }}",
    "DeepSeek-V3": (
        "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name + '\\n'}}"
        "{{'```json' + '\\n'}}"
    ),
    "DeepSeek-V3.2": "{{ '<｜DSML｜function_calls>\\n' }}{{ '<think>' if thinking else '</think>' }}",
    "DeepSeek-V4": "{{ '\\n\\n<｜DSML｜tool_calls>\\n' }}{{ '<think>' if thinks else '</think>' }}",
    "DeepSeek-V4.1": "{{ '\\n\\n<｜DSML｜ calls>\\n' }}{{ '<think>' if thinks else '</think>' }}",
    "DeepSeek-V3.1": (
        "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'}}"
        "{%- if not thinking %}{{'</think>'}}{%- else %}{{'<think>'}}{%- endif %}"
    ),
    "DeepSeek-R1": (
        "{{'<｜tool▁calls▁begin｜>' + '```json'}}{% if '</think>' in content %}{% set content = "
        "content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜><think>\\n'}}"
    ),
    "Granite-3.1": "{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' }}{%- endif %}{{- '<|tool_call|>' }}",
    "Granite-3.2": (
        "{{- '<|tool_call|>' }}{%- if thinking %}{%- set system = \"Write 'Here is my thought process:' before it, and "
        "'Here is my response:' after.\" %}{%- endif %}"
    ),
    "Granite-4.0": "{{- '<|start_of_role|>assistant<|end_of_role|>' }}{{- '\\n<tool_call>\\n{\"name\": \"' }}",
    "Phi-4-mini": "{{ '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}",
    "gpt-oss": "{{- '<|start|>assistant<|channel|>commentary to=functions.' + name + 'json<|message|>' }}",
    "ToolACE": "{{- 'put it in the format of [func_name1(params_name1=params_value1, ...), func_name2(...)]' }}",
    "Qwen3.5": (
        "{{- '<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>\\n' }}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}</think>"
    ),
    "GLM-4.5": "{{ '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>{{ '</think>' }}",
    "Gemma-4": "{{- '<|tool_call>call:' + function['name'] + '{' }}{{- '<|channel>thought\\n' }}",
    "Seed-OSS": "{{ '<seed:tool_call>\\n<function=' }}<parameter={{ name }}>{{ '<seed:think>' }}",
    "OLMo-3": "{{ '<function_calls>' }}{{ '<think>' }}",
    "Kimi-Linear": "{{ '<|tool_calls_section_begin|>' }}{{ tc['id'] }}<|tool_call_argument_begin|>",
    "LFM2": "{%- set prompt = 'List of tools: <|tool_list_start|>[' %}",
    "MiniCPM3": "{{ '<|tool_call_start|>\\n```python\\n' }}",
    "MiniCPM5": '<function name="{{ name }}"><param name="{{ key }}">',
    "ERNIE-4.5-Thinking": "{{ '\\n<tool_call>\\n' }}{{ '</think>\\n\\n<response>\\n' }}",
    "Nemotron-Nano-2": "{{ '<TOOLCALL>[' }}{{ '</think>' }}",
    "MiniMax-M2": "{{ '<minimax:tool_call>' }}<invoke name=\"{{ name }}\"><parameter name=\"{{ k }}\">{{ '</think>' }}",
    "Hy3": (
        "{% set hytk = ':opensource' %}{{ '<tool_call' + hytk + '>' + name + '<tool_sep' + hytk + '>' }}"
        "{{ '<arg_key' + hytk + '>' + key }}{{ '<think' + hytk + '>' }}"
    ),
    "Hunyuan-A13B": "{{ '<tool_calls>[' }}{{ ']</tool_calls>' }}{{ '<think>\\n\\n</think>\\n<answer>\\n' }}",
    "Jamba-1.5": "{{ '<tool_calls>[' }}{{ ']</tool_calls>' }}",
    "InternLM2.5": "{{ '<|action_start|><|plugin|>\\n' }}{{ '<|action_end|>' }}",
    "Apertus": "{{ '<|tools_prefix|>[' }}{{ ']<|tools_suffix|>' }}{{ '<|inner_prefix|>' }}",
    "Command-R7B": "{{ '<|START_ACTION|>[' }}{{ '<|START_THINKING|>' }}{{ '<|START_RESPONSE|>' }}",
    "Command-A-Plus": "{{ '<|START_ACTION|>[' }}{{ '<|START_THINKING|>' }}{{ '<|START_TEXT|>' }}",
    "LongCat": "{{ '<longcat_tool_call>\\n{\"name\": ' }}",
    "dots": "{{ '<dots_function_call>\\n<invoke name=\"' }}",
    "Step3": "{{ '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"' }}",
    "GigaChat3": "{{ 'function call<|role_sep|>\\n' + (call | tojson) + '<|message_sep|>' }}",
    "K2-Horizon": "{{ '<ifm|tool_calls>' }}<ifm|tool_call>{{ name }}<ifm|arg_key>{{ key }}{{ '<ifm|think>' }}",
    "MiniMax-M3": "{%- set ns_token = ']<]minimax[>[' %}{{ ns_token + '<tool_call>' }}{{ '<mm:think>' }}",
    "PLaMo-3": "{{ '<|plamo:begin_tool_requests:plamo|>' }}{{ '<|plamo:begin_think:plamo|>' }}",
    "Kimi-K3": "{{ '<|open|>call tool=' + name + '<|sep|>' }}",
    "Inkling": (
        "{{ '<|message_model|>' + name + '<|content_invoke_tool_json|>' }}{{ '<|content_thinking|>' }}"
        "{{ '<|content_text|>' + content + '<|end_message|>' }}"
    ),
    "ChatML": "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}",
}
TOLD = {
    "Qwen2.5": ("hermes", ""),
    "Qwen3": ("hermes", "qwen3"),
    "Qwen3-Coder": ("qwen3_coder", ""),
    "Llama-3.1": ("llama3_json", ""),
    "Mistral-7B-v0.3": ("mistral", ""),
    "Magistral": ("mistral", "mistral"),
    "DeepSeek-V3": ("deepseek_v3", ""),
    "DeepSeek-V3.1": ("deepseek_v31", "qwen3"),
    "DeepSeek-V3.2": ("deepseek_v32", "qwen3"),
    "DeepSeek-V4": ("deepseek_v4", "qwen3"),
    "DeepSeek-V4.1": ("deepseek_v41", "qwen3"),
    "DeepSeek-R1": ("deepseek_v3", "qwen3"),
    "Granite-3.1": ("granite", ""),
    "Granite-3.2": ("granite", "granite"),
    "Granite-4.0": ("hermes", ""),
    "Phi-4-mini": ("phi4_mini_json", ""),
    "gpt-oss": ("openai", "openai_gptoss"),
    "ToolACE": ("pythonic", ""),
    "Qwen3.5": ("qwen3_coder", "qwen3"),
    "GLM-4.5": ("glm45", "qwen3"),
    "Gemma-4": ("gemma4", "gemma4"),
    "Seed-OSS": ("seed_oss", "seed_oss"),
    "OLMo-3": ("olmo3", "qwen3"),
    "Kimi-Linear": ("kimi_k2", ""),
    "LFM2": ("lfm2", ""),
    "MiniCPM3": ("minicpm", ""),
    "MiniCPM5": ("minicpm5", ""),
    "ERNIE-4.5-Thinking": ("ernie45", "ernie45"),
    "Nemotron-Nano-2": ("nemotron_json", "qwen3"),
    "MiniMax-M2": ("minimax_m2", "qwen3"),
    "Hy3": ("hy_v3", "hy_v3"),
    "Hunyuan-A13B": ("hunyuan_a13b", "hunyuan_a13b"),
    "Jamba-1.5": ("jamba", ""),
    "InternLM2.5": ("internlm", ""),
    "Apertus": ("apertus", ""),
    "Command-R7B": ("cohere_command3", "cohere_command3"),
    "Command-A-Plus": ("cohere_command4", "cohere_command3"),
    "LongCat": ("longcat", ""),
    "dots": ("dots", ""),
    "Step3": ("step3", ""),
    "GigaChat3": ("gigachat3", ""),
    "K2-Horizon": ("k2_horizon", "k2_horizon"),
    "MiniMax-M3": ("minimax_m3", "minimax_m3"),
    "PLaMo-3": ("plamo3", "plamo3"),
    "Kimi-K3": ("kimi_k3", "kimi_k3"),
    "Inkling": ("inkling", "inkling"),
    "ChatML": ("", ""),
}


@pytest.mark.parametrize("family", EXCERPTS)
def test_a_chat_template_tells_its_models_formats(family: str) -> None:
    dialect = find_dialect(EXCERPTS[family], reasoning_name="auto")

    calls_name, reasoning_name = TOLD[family]
    assert dialect.calls == tool_parsers.FORMATS.get(calls_name)
    assert dialect.reasoning == reasoning.FORMATS.get(reasoning_name)


def test_names_go_before_what_the_template_tells() -> None:
    named = find_dialect(EXCERPTS["Qwen3"], "mistral", "deepseek_r1")
    none = find_dialect(EXCERPTS["Qwen3"], "none", "none")

    assert (named.calls, named.reasoning) == (tool_parsers.FORMATS["mistral"], reasoning.FORMATS["deepseek_r1"])
    assert (none.calls, none.reasoning) == (None, None)


@pytest.mark.parametrize("family", EXCERPTS)
def test_reasoning_stays_text_without_a_parser_flag(family: str) -> None:
    dialect = find_dialect(EXCERPTS[family])

    assert dialect.calls == tool_parsers.FORMATS.get(TOLD[family][0])
    messages = {"gpt-oss": "openai_gptoss", "Inkling": "inkling"}  # their reasoning has no end but a message's
    assert dialect.reasoning == reasoning.FORMATS.get(messages.get(family, ""))


@pytest.mark.parametrize("name", ["hy_v3", "hy_v4"])
def test_the_tokenizer_tells_what_stands_behind_the_names_of_hys_tags(name: str) -> None:
    text = (
        "<think:opensource>Hm.</think:opensource><tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>"
        "<arg_key:opensource>a</arg_key:opensource><arg_value:opensource>1</arg_value:opensource>"
        "</tool_call:opensource>\n</tool_calls:opensource>"
    )
    tokens = {"<|hy_eos|>", "<think:opensource>", "</think:opensource>", "<tool_calls:opensource>"}
    dialect = find_dialect("", name, name, tokens)
    parser = OutputParser(dialect, ParserOptions("auto", {"f": {"properties": {"a": {"type": "integer"}}}}))

    parts = joined([*parser.add(text, [0]), *parser.finish()])

    assert parts[0] == ReasoningPart("Hm.")
    assert [part.name for part in parts if isinstance(part, CallBegin)] == ["f"]
    assert parts[2:] == [CallArguments(0, '{"a": 1}')]
    assert {"<tool_sep:opensource>", "<think:opensource>"} <= dialect.marks("auto")
    assert find_dialect("", name, name, {"<think>"}).reasoning == reasoning.FORMATS[name]
    assert find_dialect("", "glm45", "glm45", tokens).calls == tool_parsers.FORMATS["glm45"]


@pytest.mark.parametrize(("calls", "thoughts"), [("openai", "openai_gptoss"), ("inkling", "inkling")])
def test_messages_are_one_format_for_both(calls: str, thoughts: str) -> None:
    for one in (find_dialect("", calls, ""), find_dialect("", "", thoughts), find_dialect("", calls, "qwen3")):
        assert one.has_messages
        assert (one.calls, one.reasoning) == (tool_parsers.FORMATS[calls], reasoning.FORMATS[thoughts])
        assert one.marks("none") == one.marks("auto") == {*tool_parsers.FORMATS[calls].marks}
    assert not find_dialect("", "hermes", "qwen3").has_messages


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", None),
        ("What does <think> mean?<|im_end|>\n<|im_start|>assistant\n", None),
    ],
)
def test_a_prompt_tells_whether_reasoning_is_open(prompt: str, opened: bool | None) -> None:
    assert reasoning.FORMATS["qwen3"].opened(prompt) is opened


@pytest.mark.parametrize(
    ("name", "prompt", "opened"),
    [
        ("inkling", "<|message_user|><|content_text|>Hi<|end_message|><|message_model|>", None),
        ("inkling", "<|message_model|><|content_thinking|>", True),
        ("inkling", "<|message_model|><|content_text|>", False),
        ("inkling", "<|message_user|><|content_text|>Hi<|end_message|>", None),
        ("openai_gptoss", "<|end|><|start|>assistant", None),
        ("openai_gptoss", "<|start|>assistant<|channel|>analysis<|message|>", True),
        ("openai_gptoss", "<|start|>assistant<|channel|>final<|message|>", False),
    ],
)
def test_a_prompt_tells_which_message_it_opened(name: str, prompt: str, opened: bool | None) -> None:
    assert reasoning.FORMATS[name].opened(prompt) is opened


def test_an_answer_that_goes_on_tells_it_too() -> None:
    assert reasoning.FORMATS["qwen3"].left_open("<think>a</think>b<think>c") is True
    assert reasoning.FORMATS["qwen3"].left_open("<think>a</think>b") is False
    assert reasoning.FORMATS["qwen3"].left_open("b") is None


@pytest.mark.parametrize(
    ("source", "shows"),
    [
        ("{% if tools %}{% endif %}", (True, False, False)),
        ("{{ message['tools'] }}", (False, True, False)),
        ("{{ message. tools }}", (False, True, False)),
        ("{% if tools %}{{ message['tools'] }}{% endif %}", (True, False, False)),
        ("{% for call in message.tool_calls %}{% endfor %}", (False, False, True)),
        ("tools {{ 'no tools here' }} {# tools #}{{ messages }}", (False, False, False)),
        ("{{ 'tools", (False, False, False)),
    ],
)
def test_a_templates_code_tells_what_it_shows_of_tools(source: str, shows: tuple[bool, bool, bool]) -> None:
    template = ChatTemplate(source, {})

    assert (template.shows_tools, template.shows_tools_of_messages, template.knows_calls) == shows


def test_the_end_of_reasoning_is_known_in_tokens(tokenizer: Tokenizer) -> None:
    ids = reasoning.FORMATS["qwen3"].end_ids(tokenizer)

    assert "".join(tokenizer.token_text(one) for one in ids).strip() == "</think>"
