"""`forearm generate`: one prompt or conversation, answered in this process as it is computed."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from forearm.config.configs import Configs
from forearm.engine.validation import check_ranges
from forearm.errors import InvalidRequest
from forearm.offline.arguments import changed_settings
from forearm.offline.llm import LLM
from forearm.offline.prompts import Prompt, conversations
from forearm.text.templates.chat_template import TemplateMessage
from forearm.text.templates.messages import render_chat
from forearm.wire import SamplingParams


def generate(
    configs: Configs, asked: str | list[TemplateMessage], sampling: Mapping[str, Any], *, raw: bool, stats: bool
) -> int:
    """Print the answer as it grows; with `stats`, figures on standard error. Returns: the exit status.

    asked: a prompt, which is a user's message where the model has a chat template, unless `raw`; or messages.
    sampling: given fields of SamplingParams; the others are the model's defaults.
    Raises: ConfigError, InvalidRequest.
    """
    check_ranges(SamplingParams(**sampling))  # before a model is loaded, which may take minutes
    llm = LLM(**changed_settings(configs.engine))
    params = msgspec.structs.replace(llm.get_default_sampling_params(), **sampling)
    prompt: Prompt = "" if isinstance(asked, list) else asked
    if llm.template is None and isinstance(asked, list):
        raise InvalidRequest("--messages: this model has no chat template; give --prompt")
    if llm.template is not None and not raw:
        messages = conversations(asked if isinstance(asked, list) else [{"role": "user", "content": asked}])[0]
        text = render_chat(llm.template, messages, None, add_generation_prompt=True, continue_final_message=False)
        prompt = llm.tokenizer.encode(text, add_special_tokens=False)  # the template has written them already
    started, shown = time.monotonic(), 0
    for output in llm.generate(prompt, params, stream=True):
        [answer] = output.outputs
        print(answer.text[shown:], end="", flush=True)
        shown = len(answer.text)
    print()
    if stats:
        took_s, tokens = time.monotonic() - started, len(answer.token_ids)
        rate = f"{tokens / took_s:.1f} tokens/s"
        told = f"[{len(output.prompt_token_ids)} prompt tokens, {tokens} tokens in {took_s:.2f} s, {rate}]"
        print(told, file=sys.stderr)
    return 0
