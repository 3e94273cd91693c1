"""Hostile request bodies by name, for every endpoint: each takes one thing to a size that no honest client sends."""

from __future__ import annotations

import json
from collections.abc import Callable

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
EMBEDDINGS, RERANK, SCORE = "/v1/embeddings", "/rerank", "/score"
USER = '{"role":"user","content":"hi"}'
TOOL = '{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}'
ANTHROPIC_TOOL = '{"name":"f","input_schema":{"type":"object","properties":{"a":{"type":"string"}}}}'
TURN = '{"role":"user","content":"' + "what is ice? " * 6 + '"}'
PART = '{"type":"text","text":"x"}'
PROSE = "What is a glacier, and why? It is ice; it flows. "


def several(one: str, size: int) -> str:
    """Return a JSON list of this value, of about so many bytes."""
    return f"[{','.join([one] * max(1, size // (len(one) + 1)))}]"


def numbered(form: str, size: int) -> str:
    """Return comma-separated members, `form` with numbers in it, of about so many bytes."""
    count = max(1, size // (len(form) + 6))
    return ",".join(form % number for number in range(count))


def filled(text: str, size: int) -> str:
    """Return a JSON string that repeats this, of about so many bytes."""
    return '"' + text * max(1, size // len(text)) + '"'


def nested(size: int) -> str:
    """Return lists in lists."""
    return "[" * (size // 2) + "]" * (size // 2)


# What is asked: by name, the endpoint and the members of its body that have the size.
Form = tuple[str, Callable[[int], str]]
_CHAT = f'"max_tokens":1,"messages":[{USER}],'
GENERATING: dict[str, Form] = {
    "token ids": (COMPLETIONS, lambda size: f'"max_tokens":1,"prompt":{several("1234", size)}'),
    "lists of token ids": (COMPLETIONS, lambda size: f'"max_tokens":1,"prompt":{several("[1,2,3,4,5,6]", size)}'),
    "prompts": (COMPLETIONS, lambda size: f'"max_tokens":1,"prompt":{several(filled("ice ", 5), size)}'),
    "long prompts": (COMPLETIONS, lambda size: f'"max_tokens":1,"prompt":{several(filled(PROSE, size // 1000), size)}'),
    "nulls for prompts": (COMPLETIONS, lambda size: f'"max_tokens":1,"prompt":{several("null", size)}'),
    "one prompt": (COMPLETIONS, lambda size: f'"max_tokens":1,"prompt":{filled(PROSE, size)}'),
    "suffix": (COMPLETIONS, lambda size: f'"max_tokens":1,"prompt":"a","suffix":{filled(PROSE, size)}'),
    "messages": (CHAT, lambda size: f'"max_tokens":1,"messages":{several(TURN, size)}'),
    "10,000 messages": (CHAT, lambda size: f'"max_tokens":1,"messages":{several(TURN, 10_000 * len(TURN))}'),
    "one message": (
        CHAT,
        lambda size: f'"max_tokens":1,"messages":[{{"role":"user","content":{filled(PROSE, size)}}}]',
    ),
    "content parts": (CHAT, lambda size: f'"messages":[{{"role":"user","content":{several(PART, size)}}}]'),
    "one part": (
        CHAT,
        lambda size: f'"messages":[{{"role":"user","content":[{{"type":"text","text":{filled(PROSE, size)}}}]}}]',
    ),
    "reasoning": (
        CHAT,
        lambda size: f'"messages":[{{"role":"assistant","reasoning":{filled(PROSE, size)},"content":"a"}},{USER}]',
    ),
    "call arguments": (
        CHAT,
        lambda size: (
            '"messages":[{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f",'
            f'"arguments":{json.dumps(several("{}", size))}}}}}]}},{USER}]'
        ),
    ),
    "unknown members of a message": (
        CHAT,
        lambda size: f'"messages":[{{"role":"user","content":"a",{numbered(chr(34) + "k%d" + chr(34) + ":1", size)}}}]',
    ),
    "unicode escapes": (
        CHAT,
        lambda size: f'"messages":[{{"role":"user","content":{filled(chr(92) + "u00e9", size)}}}]',
    ),
    "surrogate pairs": (
        CHAT,
        lambda size: f'"messages":[{{"role":"user","content":{filled(chr(92) + "ud83d" + chr(92) + "ude42", size)}}}]',
    ),
    "bad_words": (CHAT, lambda size: _CHAT + f'"bad_words":{several(filled("ice", 3), size)}'),
    "one bad word": (CHAT, lambda size: _CHAT + f'"bad_words":[{filled("ice ", size)}]'),
    "128 bad words": (
        CHAT,
        lambda size: _CHAT + f'"bad_words":{several(filled("ice ", size // 130), size - size // 50)}',
    ),
    "stop strings": (CHAT, lambda size: _CHAT + f'"stop":{several(filled("ice", 3), size)}'),
    "one stop string": (CHAT, lambda size: _CHAT + f'"stop":{filled("ice", size)}'),
    "stop_token_ids": (CHAT, lambda size: _CHAT + f'"stop_token_ids":{several("7", size)}'),
    "logit_bias": (CHAT, lambda size: _CHAT + f'"logit_bias":{{{numbered(chr(34) + "%d" + chr(34) + ":1", size)}}}'),
    "wrong logit_bias": (
        CHAT,
        lambda size: _CHAT + f'"logit_bias":{{{numbered(chr(34) + "x%d" + chr(34) + ":1", size)}}}',
    ),
    "tools": (CHAT, lambda size: _CHAT + f'"tools":{several(TOOL, size)}'),
    "one tool": (
        CHAT,
        lambda size: (
            _CHAT + f'"tools":[{{"type":"function","function":{{"name":"f","description":{filled(PROSE, size)}}}}}]'
        ),
    ),
    "empty tools": (CHAT, lambda size: _CHAT + f'"tools":{several("{}", size)}'),
    "a schema": (
        CHAT,
        lambda size: (
            _CHAT + '"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object",'
            f'"properties":{{{numbered(chr(34) + "p%d" + chr(34) + ":{}", size)}}}}}}}}}'
        ),
    ),
    "choices": (CHAT, lambda size: _CHAT + f'"structured_outputs":{{"choice":{several(filled("ice", 3), size)}}}'),
    "a regex": (CHAT, lambda size: _CHAT + f'"structured_outputs":{{"regex":{filled("[a-z]", size)}}}'),
    "chat_template_kwargs": (CHAT, lambda size: _CHAT + f'"chat_template_kwargs":{{"a":{several("{}", size)}}}'),
    "documents": (CHAT, lambda size: _CHAT + f'"documents":{several("{}", size)}'),
    "nesting": (CHAT, lambda size: _CHAT + f'"metadata":{nested(size)}'),
    "unknown fields": (CHAT, lambda size: _CHAT + numbered('"k%d":1', size)),
    "an unknown list": (CHAT, lambda size: _CHAT + f'"zzz":{several("1", size)}'),
    "long numbers": (CHAT, lambda size: _CHAT + f'"zzz":{several("1" * 4000, size)}'),
    "spaces": (CHAT, lambda size: _CHAT + '"user":"a"' + " " * size),
    "a name of the model": (CHAT, lambda size: _CHAT + f'"model":{filled("m", size)}'),
    "a batch": (CHAT + "/batch", lambda size: f'"max_tokens":1,"messages":{several("[" + USER + "]", size)}'),
    "input items": (RESPONSES, lambda size: f'"max_output_tokens":1,"input":{several(TURN, size)}'),
    "one input": (RESPONSES, lambda size: f'"max_output_tokens":1,"input":{filled(PROSE, size)}'),
    "instructions": (RESPONSES, lambda size: f'"input":"a","instructions":{filled(PROSE, size)}'),
    "include": (RESPONSES, lambda size: f'"input":"a","include":{several(filled("x", 1), size)}'),
    "anthropic messages": (MESSAGES, lambda size: f'"max_tokens":1,"messages":{several(TURN, size)}'),
    "anthropic system": (MESSAGES, lambda size: f'"max_tokens":1,"messages":[{USER}],"system":{several(PART, size)}'),
    "anthropic tools": (
        MESSAGES,
        lambda size: f'"max_tokens":1,"messages":[{USER}],"tools":{several(ANTHROPIC_TOOL, size)}',
    ),
    "stop_sequences": (
        MESSAGES,
        lambda size: f'"max_tokens":1,"messages":[{USER}],"stop_sequences":{several(filled("ice", 3), size)}',
    ),
    "tokenize": ("/tokenize", lambda size: f'"prompt":{filled(PROSE, size)}'),
    "tokenize messages": ("/tokenize", lambda size: f'"messages":{several(TURN, size)}'),
    "detokenize": ("/detokenize", lambda size: f'"tokens":{several("1234", size)}'),
    "invocations": ("/invocations", lambda size: f'"max_tokens":1,"prompt":{several("1234", size)}'),
}
POOLING: dict[str, Form] = {
    "token ids": (EMBEDDINGS, lambda size: f'"input":{several("7", size)}'),
    "lists of token ids": (EMBEDDINGS, lambda size: f'"input":{several("[1,2,3,4,5,6]", size)}'),
    "texts": (EMBEDDINGS, lambda size: f'"input":{several(filled("ice", 3), size)}'),
    "2048 texts": (EMBEDDINGS, lambda size: f'"input":{several(filled("ice ", size // 2050), size - size // 20)}'),
    "one text": (EMBEDDINGS, lambda size: f'"input":{filled(PROSE, size)}'),
    "one text, cut": (EMBEDDINGS, lambda size: f'"truncate_prompt_tokens":-1,"input":{filled(PROSE, size)}'),
    "documents": (RERANK, lambda size: f'"query":"a","documents":{several(filled("ice", 3), size)}'),
    "2048 documents": (
        RERANK,
        lambda size: f'"query":"a","documents":{several(filled("ice ", size // 2050), size - size // 20)}',
    ),
    "a query": (RERANK, lambda size: f'"documents":["a"],"query":{filled(PROSE, size)}'),
    "pairs": (SCORE, lambda size: f'"text_1":"a","text_2":{several(filled("ice", 3), size)}'),
    "one pair": (SCORE, lambda size: f'"text_1":{filled(PROSE, size // 2)},"text_2":{filled(PROSE, size // 2)}'),
    "messages": (EMBEDDINGS, lambda size: f'"messages":{several(TURN, size)}'),
}


def body(form: Form, size: int) -> bytes:
    """Return the JSON of about so many bytes."""
    return f"{{{form[1](size)}}}".encode()
