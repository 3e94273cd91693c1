"""POST /v1/embeddings and /pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from forearm.api.generation.usage import json_response
from forearm.api.http.request_body import BodyDescription, json_body
from forearm.api.pooling.encoding import bytes_response, written
from forearm.api.pooling.pooled import Pooling, unsupported
from forearm.api.pooling.request_bodies import EmbeddingRequest, PoolingRequest
from forearm.api.pooling.response_bodies import Embedding, PooledText
from forearm.errors import InvalidRequest

if TYPE_CHECKING:
    from forearm.model.pooling.plan import PoolingPlan, Task

router = APIRouter()

EmbeddingBody = Annotated[EmbeddingRequest, Depends(json_body(EmbeddingRequest))]
PoolingBody = Annotated[PoolingRequest, Depends(json_body(PoolingRequest))]


@router.post("/v1/embeddings", openapi_extra=BodyDescription(EmbeddingRequest))
async def create_embedding(request: Request, body: EmbeddingBody, pooling: Pooling) -> Response:
    """Return the vector of each text, of unit length if the model normalizes; of late chunking one for each chunk.

    Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503).
    """
    plan, chunking = pooling.plan_of(body, "Embeddings"), body.late_chunking_params
    if chunking is not None and "token_embed" in plan.tasks:
        cut = await pooling.chunks_of(body, plan, chunking.chunk_size)
        found = await pooling.pooled(
            request, body, [prompt for prompt, _ in cut], prefix="embd", task="token_embed",
            chunk_tokens=chunking.chunk_size,
        )  # fmt: skip
        parts = zip(found.vectors, (chunks for _, chunks in cut), strict=True)
        chunked = [
            Embedding(index=i, embedding=written(vector, body), late_chunking=chunks)
            for i, (vector, chunks) in enumerate(parts)
        ]
        return json_response(found.head.reply(chunked))
    if "embed" not in plan.tasks:
        raise unsupported(plan, "Embeddings")
    dimensions = dimensions_of(body.dimensions, plan)
    prompts = await pooling.prompts_of(body, plan)
    found = await pooling.pooled(request, body, prompts, prefix="embd", task="embed", dimensions=dimensions)
    if body.encoding_format in ("bytes", "bytes_only"):
        return bytes_response(found, body)
    data = [Embedding(index=i, embedding=written(vector, body)) for i, vector in enumerate(found.vectors)]
    return json_response(found.head.reply(data))


@router.post("/pooling", openapi_extra=BodyDescription(PoolingRequest))
async def create_pooling(request: Request, body: PoolingBody, pooling: Pooling) -> Response:
    """Return the pooled output of each text: its vector, its scores, or a vector or scores of each of its tokens.

    Raises: as create_embedding.
    """
    plan = pooling.plan_of(body, "Pooling")
    task = _task(body, plan)
    dimensions = dimensions_of(body.dimensions, plan)
    prompts = await pooling.prompts_of(body, plan)
    found = await pooling.pooled(request, body, prompts, prefix="pool", task=task, dimensions=dimensions)
    if body.encoding_format in ("bytes", "bytes_only"):
        return bytes_response(found, body)
    data = [PooledText(index=i, data=written(vector, body)) for i, vector in enumerate(found.vectors)]
    return json_response(found.head.reply(data))


def dimensions_of(asked: int | None, plan: PoolingPlan) -> int | None:
    """Return the length to truncate vectors to; None: their full length.

    Raises: InvalidRequest if the model does not support truncation, or not to this length.
    """
    if asked is None:
        return plan.default_dimensions
    if plan.dimensions == ():
        raise InvalidRequest(
            f"dimensions is {asked}: this model does not support matryoshka representation, its vectors can't be "
            "truncated; leave it out",
            "dimensions",
        )
    if plan.dimensions is not None and asked not in plan.dimensions:
        listed = ", ".join(str(size) for size in plan.dimensions)
        raise InvalidRequest(f"dimensions is {asked}; this model's vectors may have {listed} values", "dimensions")
    return asked


def _task(body: PoolingRequest, plan: PoolingPlan) -> Task:
    """Return the task, by default the model's own. Raises: InvalidRequest if this model does not support it."""
    own = plan.tasks[0]
    done: dict[str, Task] = {task: task for task in plan.tasks} | {"encode": own}
    if plan.kind == "classify":
        done["score"] = own
    if body.task is not None and body.task not in done:
        raise InvalidRequest(f"task is {body.task!r}; this model supports {', '.join(done)}", "task")
    return own if body.task is None else done[body.task]
