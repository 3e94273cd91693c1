"""POST /classify."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from forearm.api.generation.usage import json_response
from forearm.api.http.request_body import BodyDescription, json_body
from forearm.api.pooling.pooled import Pooling, unsupported
from forearm.api.pooling.request_bodies import ClassifyRequest
from forearm.api.pooling.response_bodies import Classified

router = APIRouter()

ClassifyBody = Annotated[ClassifyRequest, Depends(json_body(ClassifyRequest))]


@router.post("/classify", openapi_extra=BodyDescription(ClassifyRequest))
async def create_classification(request: Request, body: ClassifyBody, pooling: Pooling) -> Response:
    """Return the probability of each label for each text, and the likeliest label.

    Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503).
    """
    plan = pooling.plan_of(body, "Classification")
    if plan.kind != "classify":
        raise unsupported(plan, "Classification")
    prompts = await pooling.prompts_of(body, plan)
    found = await pooling.pooled(request, body, prompts, prefix="classify", task="classify")
    data = []
    for index, scores in enumerate(found.vectors):
        label = plan.labels[int(scores.argmax())]
        data.append(Classified(index=index, label=label, probs=scores.tolist(), num_classes=len(scores)))
    return json_response(found.head.reply(data))
