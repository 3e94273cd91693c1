"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from forearm.api.generation.dependencies import AppModel, AppPrompts, DetokenizeBody, TokenizeBody
from forearm.api.generation.prompt import PromptRenderer
from forearm.api.generation.request_bodies import DetokenizeRequest, TokenizeRequest
from forearm.api.generation.response_bodies import Detokenized, Tokenized
from forearm.api.generation.usage import json_response
from forearm.api.http.request_body import BodyDescription
from forearm.errors import InvalidRequest

router = APIRouter()


@router.post("/tokenize", openapi_extra=BodyDescription(TokenizeRequest))
async def tokenize(body: TokenizeBody, model: AppModel, prompts: AppPrompts) -> Response:
    """Return the token ids of a text or a chat.

    Raises: InvalidRequest, ModelNotFound, EngineUnavailable.
    """
    model.name(body.model)
    add_special = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
    tokens = await prompts.encode(await _text(body, prompts), add_special)
    names = [prompts.tokenizer.piece(token_id) for token_id in tokens] if body.return_token_strs else None
    return json_response(Tokenized(count=len(tokens), max_model_len=prompts.context, tokens=tokens, token_strs=names))


@router.post("/detokenize", openapi_extra=BodyDescription(DetokenizeRequest))
async def detokenize(body: DetokenizeBody, model: AppModel, prompts: AppPrompts) -> Response:
    """Return the text of token ids, including special tokens.

    Raises: ModelNotFound.
    """
    model.name(body.model)
    text = await asyncio.to_thread(prompts.tokenizer.decode, body.tokens, skip_special_tokens=False)
    return json_response(Detokenized(prompt=text))


async def _text(body: TokenizeRequest, prompts: PromptRenderer) -> str:
    """Return the text to tokenize: the prompt, or the rendered messages. Raises: InvalidRequest."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt, a text, or messages", "prompt")
    if body.messages is None:
        return body.prompt or ""
    return await prompts.render(
        body.messages,
        chat_template=body.chat_template,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        kwargs=body.chat_template_kwargs,
        tools=body.tools or None,
    )
