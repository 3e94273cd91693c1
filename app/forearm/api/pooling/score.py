"""POST /score and /rerank: the relevance of texts to each other, by a cross-encoder or by their vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from forearm import wire
from forearm.api.generation.usage import json_response
from forearm.api.http.request_body import BodyDescription, json_body
from forearm.api.pooling.pooled import (
    MAX_INPUTS,
    Pooling,
    PoolingHeading,
    ServingPooling,
    bounded,
    keep_of,
    unsupported,
)
from forearm.api.pooling.request_bodies import PairFields, PairTexts, RerankRequest, ScoreRequest
from forearm.api.pooling.response_bodies import Ranked, RerankReply, RerankText, RerankUsage, Score
from forearm.errors import InvalidRequest
from forearm.text.tokenizer.text_pairs import PairForm

if TYPE_CHECKING:
    from forearm.model.pooling.plan import PoolingPlan

router = APIRouter()

ScoreBody = Annotated[ScoreRequest, Depends(json_body(ScoreRequest))]
RerankBody = Annotated[RerankRequest, Depends(json_body(RerankRequest))]
Pair = tuple[str, str]


@router.post("/score", openapi_extra=BodyDescription(ScoreRequest))
@router.post("/v1/score", openapi_extra=BodyDescription(ScoreRequest))
async def create_score(request: Request, body: ScoreBody, pooling: Pooling) -> Response:
    """Return the score of each pair: one text with each of many, or two lists pair by pair.

    Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503).
    """
    plan = _plan(pooling, body, "Score")
    head, scores = await _scores(request, pooling, body, plan, _pairs(body), "score")
    data = [Score(index=index, score=score) for index, score in enumerate(scores)]
    return json_response(head.reply(data))


@router.post("/rerank", openapi_extra=BodyDescription(RerankRequest))
@router.post("/v1/rerank", openapi_extra=BodyDescription(RerankRequest))
@router.post("/v2/rerank", openapi_extra=BodyDescription(RerankRequest))
async def rerank(request: Request, body: RerankBody, pooling: Pooling) -> Response:
    """Return the documents in order of relevance to the query (Jina's and Cohere's API).

    Raises: as create_score.
    """
    plan = _plan(pooling, body, "Rerank")
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    _check_count(texts, "documents")
    head, scores = await _scores(request, pooling, body, plan, [(body.query, text) for text in texts], "rerank")
    order = sorted(range(len(texts)), key=lambda index: -scores[index])[: body.top_n or None]
    results = [Ranked(index=index, relevance_score=scores[index]) for index in order]
    if body.return_documents:
        for result in results:
            result.document = RerankText(text=texts[result.index])
    usage = RerankUsage(prompt_tokens=head.tokens, total_tokens=head.tokens)
    return json_response(RerankReply(id=head.id, model=head.model, usage=usage, results=results))


def _plan(pooling: ServingPooling, body: PairFields, api: str) -> PoolingPlan:
    """Return the pooling plan of the model that is asked for. Raises: InvalidRequest, ModelNotFound."""
    plan = pooling.plan_of(body, api)
    if plan.kind == "token_classify":
        raise unsupported(plan, api)
    if plan.kind == "classify" and len(plan.labels) != 1:
        raise InvalidRequest(
            f"The model does not support {api} API: it has {len(plan.labels)} labels, and a score needs exactly one",
            "model",
        )
    return plan


def _pairs(body: ScoreRequest) -> list[Pair]:
    """Return the pairs of texts. Raises: InvalidRequest naming fields that are missing or of unequal length."""
    if len(body.sides) != 1:
        raise InvalidRequest(
            "give one pair of fields: queries and documents (or items), data_1 and data_2, or text_1 and text_2",
            "queries",
        )
    ((one, first, two, second),) = body.sides
    left, right = _listed(first), _listed(second)
    _check_count(left, one)
    _check_count(right, two)
    if len(left) == 1:
        return [(left[0], text) for text in right]
    if len(left) != len(right):
        raise InvalidRequest(
            f"Input lengths must be either 1:1, 1:N or N:N: {one} has {len(left)} texts, {two} has {len(right)}", one
        )
    return list(zip(left, right, strict=True))


def _listed(texts: PairTexts) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _check_count(texts: list[str], field: str) -> None:
    if not 0 < len(texts) <= MAX_INPUTS:
        raise InvalidRequest(f"{field} has {len(texts)} texts; it must have 1 to {MAX_INPUTS}", field)


async def _scores(
    request: Request, pooling: ServingPooling, body: PairFields, plan: PoolingPlan, pairs: list[Pair], prefix: str
) -> tuple[PoolingHeading, list[float]]:
    """Return one score per pair: the cross-encoder's, or the similarity of the texts' vectors.

    Raises: as ServingPooling.pooled.
    """
    from forearm.model.pooling.plan import similarities

    given = pooling.prompts.template if pooling.has_own_template else None
    form = PairForm(plan, pooling.prompts.tokenizer, given, body.instruction, body.chat_template_kwargs)
    if body.instruction is not None and not (plan.kind == "classify" and form.takes_instruction):
        raise InvalidRequest("instruction: this model has no place for one in its pairs; leave it out", "instruction")
    if plan.kind == "classify":
        prompts = await asyncio.to_thread(lambda: bounded(_pair_prompts(pooling, body, form, pairs)))
        found = await pooling.pooled(request, body, prompts, prefix=prefix, task=body.task or "classify")
        return found.head, [float(scores[0]) for scores in found.vectors]
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    limits = {two: body.max_tokens_per_doc for _, two in pairs} | {one: body.max_tokens_per_query for one, _ in pairs}
    limited = [(text, limits[text]) for text in texts]
    prompts = await asyncio.to_thread(lambda: bounded(_prompts(pooling, body, plan, limited)))
    task = body.task or plan.tasks[0]
    found = await pooling.pooled(request, body, prompts, prefix=prefix, task=task, activate=True)
    ids, special = [one.token_ids for one in prompts], pooling.prompts.tokenizer.special_ids
    outputs = plan.comparable(task, ids, found.vectors, special)
    vectors = dict(zip(texts, outputs, strict=True))
    return found.head, similarities([(vectors[one], vectors[two]) for one, two in pairs])


def _pair_prompts(
    pooling: ServingPooling, body: PairFields, form: PairForm, pairs: list[Pair]
) -> Iterator[wire.PoolingPrompt]:
    """Return the prompts of pairs of texts. Raises: InvalidRequest for a text that cannot fit."""
    limit = pooling.limit_of(body)
    for one, two in pairs:
        if limit is None:
            pooling.prompts.check_length(one)
            pooling.prompts.check_length(two)
        one = _cut(pooling, one, body.max_tokens_per_query)
        two = _cut(pooling, two, body.max_tokens_per_doc)
        yield wire.PoolingPrompt(*form.encode(one, two, limit, keep_of(body)))


def _cut(pooling: ServingPooling, text: str, tokens: int) -> str:
    """Return the text of the first `tokens` tokens; 0: all of it."""
    if not tokens:
        return text
    ids = pooling.prompts.tokenizer.encode(text, add_special_tokens=False)
    return text if len(ids) <= tokens else pooling.prompts.tokenizer.decode(ids[:tokens])


def _prompts(
    pooling: ServingPooling, body: PairFields, plan: PoolingPlan, texts: list[tuple[str, int]]
) -> Iterator[wire.PoolingPrompt]:
    """Return the prompts of the texts. Raises: InvalidRequest for a text that cannot fit."""
    limit = pooling.limit_of(body)
    for text, tokens in texts:
        if limit is None:
            pooling.prompts.check_length(text)
        text = _cut(pooling, text.lower() if plan.lower_case else text, tokens)
        yield wire.PoolingPrompt(pooling.prompts.tokenizer.encode_cut(text, limit=limit, keep=keep_of(body))[0])
