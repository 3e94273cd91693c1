"""The response format of a request, under any of its names, as a grammar that is known to compile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from forearm.api.generation.request_bodies import GenerationBody
from forearm.errors import InvalidRequest
from forearm.text.grammars.constraints import ConstraintRequest, constraint_request
from forearm.text.grammars.grammar_check import GrammarCheck

# Other names of the constraints in structured_outputs: those of older vLLM, and of llama.cpp.
_ALIASES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "grammar": "grammar",
    "json_schema": "json",
}


async def answer_grammar(body: GenerationBody, grammars: GrammarCheck, any_whitespace: bool) -> str | None:
    """Return the grammar of the answer; None where the request asks for none.

    any_whitespace: allow JSON any white space, unless the request says otherwise.

    Raises: InvalidRequest naming the field if it is invalid, cannot be enforced, or is one of several; Overloaded if
    too many grammars are being compiled.
    """
    listed = list(_asked(body))
    if not listed:
        return None
    if len(listed) > 1:
        names = ", ".join(one.field for one in listed)
        raise InvalidRequest(f"the answer can have one format; {names} each ask for one", listed[1].field)
    asked = listed[0] if any_whitespace else replace(listed[0], any_whitespace=False)
    return await asyncio.wrap_future(grammars.start(asked))


def _asked(body: GenerationBody) -> Iterator[ConstraintRequest]:
    """Yield every constraint that the request asks for. Raises: InvalidRequest."""
    white_space, given = body.guided_whitespace_pattern, body.response_format
    if given is not None:
        others = given.model_extra or {}
        schema = given.json_schema.schema_ if given.json_schema is not None else others.get("schema")
        if given.type == "structural_tag":
            yield ConstraintRequest("structural_tag", others, "response_format")
        elif given.type == "json_schema" or (given.type == "json_object" and schema is not None):
            if schema is None:
                raise InvalidRequest("response_format: json_schema.schema is missing", "response_format")
            yield ConstraintRequest("json", schema, "response_format", white_space=white_space)
        elif given.type == "json_object":
            yield ConstraintRequest("json_object", True, "response_format", white_space=white_space)
    if body.structured_outputs is not None:
        yield constraint_request(body.structured_outputs.model_dump(by_alias=True), "structured_outputs")
    for field, kind in _ALIASES.items():
        value = getattr(body, field)
        if value is not None and (kind, value) != ("json_object", False):
            yield ConstraintRequest(kind, value, field, white_space=white_space)
