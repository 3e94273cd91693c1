"""`forearm generate`: one prompt or conversation, answered in this process."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from forearm.config.configs import Configs
from forearm.offline.arguments import changed_settings
from forearm.offline.llm import LLM
from forearm.text.templates.chat_template import TemplateMessage


def generate(
    configs: Configs, prompt: str | None, messages: list[TemplateMessage] | None, sampling: Mapping[str, Any]
) -> int:
    """Print the answer, and statistics on standard error. Returns: the exit status.

    sampling: given fields of SamplingParams; the others are the model's defaults.
    Raises: ConfigError, InvalidRequest.
    """
    llm = LLM(tokenizer=configs.api.tokenizer or None, **changed_settings(configs.engine))
    params = msgspec.structs.replace(llm.get_default_sampling_params(), **sampling)
    started = time.monotonic()
    if messages is None:
        [output] = llm.generate(prompt or "", params, use_tqdm=False)
    else:
        [output] = llm.chat(messages, params, use_tqdm=False)
    took_s = time.monotonic() - started
    [answer] = output.outputs
    print(answer.text)
    tokens = len(answer.token_ids)
    rate = f"{tokens / took_s:.1f} tokens/s"
    print(f"[{len(output.prompt_token_ids)} prompt tokens, {tokens} tokens in {took_s:.2f} s, {rate}]", file=sys.stderr)
    return 0
