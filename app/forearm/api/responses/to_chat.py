"""Translation of a /v1/responses request to a chat, with its earlier conversation, truncated if it allows that."""

from __future__ import annotations

import json
from dataclasses import dataclass

from forearm.api.generation.chat_turn import ServingChat
from forearm.api.generation.prompt import PromptRenderer
from forearm.api.generation.translation import BoundedChat, chat_request
from forearm.api.responses.input_items import (
    ItemsConversation,
    items_of,
    refuse,
    response_format,
)
from forearm.api.responses.request_bodies import ResponsesRequest
from forearm.api.responses.store import ResponseStore
from forearm.api.responses.store_schema import RUNNING, StoredResponse
from forearm.api.responses.tools import OfferedTools, chat_tool_choice
from forearm.json_types import Json

# The chat's name and the responses API's name of the same field.
NAMES = {
    "messages": "input",
    "most_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
_MOST_REFERENCES = 100  # each one reads a stored response
_ANSWER_SHARE = 4  # with truncation, up to this fraction (1 / n) of the context is kept free for the answer


@dataclass(frozen=True)
class ResponsesQuestion:
    """A request with its tools, its own items with ids, and the items of the earlier conversation."""

    body: ResponsesRequest
    tools: OfferedTools
    own: list[Json]
    past: list[Json]


async def asked(body: ResponsesRequest, store: ResponseStore | None, owner: str, most_bytes: int) -> ResponsesQuestion:
    """Return the question, with the turns before it that are stored. Raises: InvalidRequest, ResponseNotFound."""
    tools = OfferedTools()
    for number, tool in enumerate(body.tools or ()):
        tools.take(f"tools[{number}]", tool)
    own, foreign = items_of(body.input)
    if foreign:
        tools.warnings.append("input: encrypted_content of reasoning comes from another server; it was left out")
    if store is None:
        return ResponsesQuestion(body, tools, own, [])
    references = [number for number, item in enumerate(own) if item["type"] == "item_reference"]
    if len(references) > _MOST_REFERENCES:
        refuse(
            f"input has {len(references)} item_references; the limit is {_MOST_REFERENCES}: use previous_response_id"
        )
    for number in references:
        own[number] = await store.output_item(str(own[number]["id"]), owner)
    chain: list[StoredResponse] = []
    if body.previous_response_id is not None:
        chain = await store.chain(body.previous_response_id, owner, most_bytes)
    past: list[Json] = []
    for one in chain:
        if one.status in RUNNING:
            refuse(f"previous_response_id: response {one.id!r} is {one.status}; wait for it", "previous_response_id")
        past += json.loads(one.items) + json.loads(one.reply)["output"]
    return ResponsesQuestion(body, tools, own, past)


async def chat_of(request: ResponsesQuestion, serving: ServingChat, prompts: PromptRenderer) -> BoundedChat:
    """Return the request as a chat, truncated to the context if the request allows that.

    Raises: InvalidRequest, EngineUnavailable.
    """
    source = "" if prompts.template is None else prompts.template.source
    fields = _fields(request.body, request.tools.functions, "verbosity" in source)
    places = [(f"previous[{n}]", item) for n, item in enumerate(request.past)]
    places += [(f"input[{n}]", item) for n, item in enumerate(request.own)]
    if request.body.reasoning is not None and request.body.reasoning.context == "current_turn":
        # Reasoning from before the last user message is dropped.
        last = max((n for n, (_, item) in enumerate(places) if item.get("role") == "user"), default=0)
        places = [one for n, one in enumerate(places) if n > last or one[1].get("type") != "reasoning"]

    def chat(first: int) -> BoundedChat:
        """Return the chat of the items from number `first` on, after the instructions."""
        talk = ItemsConversation(request.body.instructions)
        for number, (where, item) in enumerate(places):
            if number >= first or item.get("role") in ("system", "developer"):
                talk.take(where, item)
        return chat_request({**fields, "messages": talk.end()}, NAMES)

    if request.body.truncation != "auto":
        return chat(0)
    # The chat begins with the earliest message of the user from which it fits; with the last one if it never does.
    starts = [0, *(number for number, (_, item) in enumerate(places) if number and item.get("role") == "user")]
    context = prompts.context
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        candidate = chat(starts[middle])
        room = min(candidate.most_tokens or context, max(1, context // _ANSWER_SHARE))
        # A chat with more characters than the context could ever hold need not be rendered.
        contents = [message.content or "" for message in candidate.messages]
        parts = [part for one in contents for part in ([one] if isinstance(one, str) else one)]
        letters = sum(len(part) if isinstance(part, str) else len(part["text"]) for part in parts)
        fits = letters <= context * prompts.tokenizer.longest_token
        if fits and len(await serving.prompt(candidate)) + room <= context:
            high = middle
        else:
            low = middle + 1
    return chat(starts[low])


def _fields(body: ResponsesRequest, tools: list[Json], knows_verbosity: bool) -> Json:
    """Return the chat's fields except its messages. Fields beyond OpenAI's are passed on unchanged.

    Raises: InvalidRequest.
    """
    choice = chat_tool_choice(body.tool_choice)
    text, reasoning = body.text, body.reasoning
    kwargs = (body.model_extra or {}).get("chat_template_kwargs") or {}
    if not isinstance(kwargs, dict):
        refuse("chat_template_kwargs: it must be an object", "chat_template_kwargs")
    if text is not None and text.verbosity not in (None, "medium"):
        if not knows_verbosity:
            refuse(
                f"text.verbosity: this model does not support verbosity {text.verbosity!r}; leave it out",
                "text.verbosity",
            )
        kwargs = {"verbosity": text.verbosity, **kwargs}
    fields: Json = {
        **(body.model_extra or {}),
        "model": body.model,
        "n": 1,  # overrides the server's default
        "most_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "tools": tools or None,
        "tool_choice": None if not tools and choice in ("auto", "none") else choice,
        "parallel_tool_calls": body.parallel_tool_calls if tools else None,
        "response_format": None if text is None else response_format(text.format),
        "reasoning_effort": None if reasoning is None else reasoning.effort,
        "logprobs": True if body.wants_logprobs else None,
        "top_logprobs": body.top_logprobs if body.wants_logprobs else None,
        "chat_template_kwargs": kwargs or None,
    }
    return {name: value for name, value in fields.items() if value is not None}
