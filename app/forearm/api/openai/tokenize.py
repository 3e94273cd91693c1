"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from forearm.api.generation.dependencies import DetokenizeBody, Served, TokenizeBody
from forearm.api.generation.request_bodies import DetokenizeRequest, TokenizeRequest
from forearm.api.generation.response_bodies import Detokenized, Tokenized
from forearm.api.generation.serving_context import Served as ServedState
from forearm.api.generation.usage import json_response
from forearm.api.http.request_body import describes
from forearm.errors import InvalidRequest

router = APIRouter()


@router.post("/tokenize", openapi_extra=describes(TokenizeRequest))
async def tokenize(body: TokenizeBody, served: Served) -> Response:
    """The ids a prompt, or a chat, comes to.

    Raises: InvalidRequest, ModelNotFound, EngineUnavailable.
    """
    served.model_name(body.model)
    add_special = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
    tokens = await served.encode(await _text(body, served), add_special)
    names = [served.tokenizer.piece(token_id) for token_id in tokens] if body.return_token_strs else None
    length = served.engine.state.max_model_len
    return json_response(Tokenized(count=len(tokens), max_model_len=length, tokens=tokens, token_strs=names))


@router.post("/detokenize", openapi_extra=describes(DetokenizeRequest))
async def detokenize(body: DetokenizeBody, served: Served) -> Response:
    """The text of these ids, special tokens too.

    Raises: ModelNotFound.
    """
    served.model_name(body.model)
    text = await asyncio.to_thread(served.tokenizer.decode, body.tokens, skip_special_tokens=False)
    return json_response(Detokenized(prompt=text))


async def _text(body: TokenizeRequest, served: ServedState) -> str:
    """Raises: InvalidRequest."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", "prompt")
    if body.messages is None:
        return body.prompt or ""
    return await served.render(
        body.messages,
        chat_template=body.chat_template,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        kwargs=body.chat_template_kwargs,
        tools=body.tools or None,
    )
