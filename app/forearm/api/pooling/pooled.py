"""The part that all pooling endpoints share: checks, tokenization of texts, and the engine's output as arrays."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Request

from forearm import wire
from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.generation.dependencies import service
from forearm.api.generation.prompt import PromptRenderer, check_total
from forearm.api.generation.response_bodies import Usage
from forearm.api.generation.served_model import POOLING_INSTEAD, ServedModel
from forearm.api.generation.sse import unless_gone
from forearm.api.generation.unsupported import ClientWarnings
from forearm.api.http.caller import caller_of
from forearm.api.pooling.request_bodies import EmbeddingRequest, InputFields, PoolingFields
from forearm.api.pooling.response_bodies import PoolingData, PoolingReply
from forearm.api.pooling.vectors import embed
from forearm.config.api_config import ApiConfig
from forearm.errors import InvalidRequest
from forearm.text.tokenizer.late_chunking import LateChunkingMetadata, late_chunks
from forearm.text.tokenizer.text_pairs import KeptEnd

if TYPE_CHECKING:
    from forearm.array_types import Float32Array
    from forearm.model.pooling.plan import PoolingPlan, Task

MAX_INPUTS = 2048  # OpenAI's limit
_AT_ONCE = 20_000  # characters that are tokenized on the event loop's thread: some ms
_LONGEST_CUT = 8  # a text to be cut is tokenized up to this multiple of its limit first, its rest only if needed


@dataclass(frozen=True)
class PoolingHeading:
    """The first members of an answer, and its usage."""

    id: str
    created: int
    model: str
    tokens: int

    @property
    def usage(self) -> Usage:
        """Return the usage in OpenAI's form."""
        return Usage(prompt_tokens=self.tokens, total_tokens=self.tokens, completion_tokens=0)

    def reply(self, data: PoolingData) -> PoolingReply:
        """Return the whole answer."""
        return PoolingReply(id=self.id, created=self.created, model=self.model, data=data, usage=self.usage)


@dataclass(frozen=True)
class PooledOutputs:
    """The pooled outputs of a request's texts: float32 [columns] each, [tokens, columns] or [tokens]."""

    head: PoolingHeading
    vectors: list[Float32Array]


def keep_of(body: PoolingFields) -> KeptEnd:
    """Return the end of a text that is kept when it is cut."""
    return "end" if body.truncation_side == "left" else "start"


def bounded(prompts: Iterable[wire.PoolingPrompt]) -> list[wire.PoolingPrompt]:
    """Return the prompts of one request. Raises: InvalidRequest once they have too many tokens together."""
    found, tokens = list[wire.PoolingPrompt](), 0
    for prompt in prompts:
        tokens += len(prompt.token_ids)
        check_total(tokens)
        found.append(prompt)
    return found


def unsupported(plan: PoolingPlan, api: str) -> InvalidRequest:
    """Return the error for an endpoint that does not serve this kind of model, with the one that does."""
    does, there = POOLING_INSTEAD[plan.tasks[0]]
    return InvalidRequest(f"The model does not support {api} API: it {does}; use {there}", "model")


class ServingPooling:
    """Submits texts to the pooling engine. `plan`: the pooling of the model; None: the model generates text."""

    def __init__(
        self,
        config: ApiConfig,
        plan: PoolingPlan | None,
        model: ServedModel,
        prompts: PromptRenderer,
        engine: EngineClient,
        warnings: ClientWarnings,
    ) -> None:
        self.plan = plan
        self.prompts = prompts
        self.has_own_template = bool(config.chat_template)
        self._model = model
        self._engine = engine
        self._warnings = warnings

    def plan_of(self, body: PoolingFields, api: str) -> PoolingPlan:
        """Check the fields that all pooling requests share, and return the model's pooling plan.

        Raises: InvalidRequest (a model that generates, a field that is not supported), ModelNotFound.
        """
        self._model.name(body.model)
        self._warnings.unknown_fields(body.model_extra)
        plan = self.plan
        if plan is None:
            raise InvalidRequest(
                f"The model does not support {api} API: it generates text. Serve a pooling model (--runner pooling)",
                "model",
            )
        if body.padding == "max_length":
            raise InvalidRequest("padding: this server never pads texts; leave it out or set do_not_pad", "padding")
        if body.truncate_prompt_tokens is not None and body.truncate_prompt_tokens > self.prompts.context:
            raise InvalidRequest(
                f"truncate_prompt_tokens is {body.truncate_prompt_tokens}; this model's maximum context length is "
                f"{self.prompts.context} tokens",
                "truncate_prompt_tokens",
            )
        if (body.model_extra or {}).get("mm_processor_kwargs"):
            raise InvalidRequest("mm_processor_kwargs: this server takes text only", "mm_processor_kwargs")
        task = (body.model_extra or {}).get("task")
        if task is not None and plan.model_type == "jina_embeddings_v3":
            raise InvalidRequest(
                f"task is {task!r:.100}: jina-embeddings-v3 is served without the adapters of its tasks; leave it out",
                "task",
            )
        if task is not None and plan.adapter is not None and task != plan.adapter.task:
            raise InvalidRequest(
                f"task is {task!r:.100}: this server has the adapter of {plan.adapter.task}; another one is chosen at "
                "its start (--hf-overrides '{\"default_task\": …}')",
                "task",
            )
        return plan

    def limit_of(self, body: PoolingFields) -> int | None:
        """Return the number of tokens to cut a text to; None: a text that is too long is refused.

        Raises: EngineUnavailable.
        """
        limit = body.truncate_prompt_tokens
        return self.prompts.context if limit == -1 else limit

    async def prompts_of(self, body: InputFields, plan: PoolingPlan) -> list[wire.PoolingPrompt]:
        """Return the tokens of each text.

        Raises: InvalidRequest naming the field that is missing or too long.
        """
        texts = await self._inputs(body)
        special = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
        limit, keep = self.limit_of(body), keep_of(body)

        def encode() -> list[wire.PoolingPrompt]:
            return bounded(wire.PoolingPrompt(self._ids(text, plan, special, limit, keep)) for text in texts)

        if sum(len(text) for text in texts) < _AT_ONCE:
            return encode()
        return await asyncio.to_thread(encode)

    async def chunks_of(
        self, body: EmbeddingRequest, plan: PoolingPlan, chunk_size: int
    ) -> list[tuple[wire.PoolingPrompt, LateChunkingMetadata]]:
        """Return the tokens of each text, and the chunks that they are cut into after they are computed.

        Raises: InvalidRequest naming the field that does not go with late chunking.
        """
        for name, given in (
            ("dimensions", body.dimensions),
            ("truncate_prompt_tokens", body.truncate_prompt_tokens),
            ("messages", body.messages),
            ("encoding_format", body.encoding_format != "float"),
        ):
            if given not in (None, False):
                raise InvalidRequest(f"{name} can't be combined with late_chunking_params; leave it out", name)
        if plan.lower_case:
            raise InvalidRequest("this model reads texts in lower case, so they can't be cut", "late_chunking_params")
        texts, special = await self._inputs(body), body.add_special_tokens is not False

        def cut() -> list[tuple[wire.PoolingPrompt, LateChunkingMetadata]]:
            found, tokens = [], 0
            for text in texts:
                if isinstance(text, str):
                    self.prompts.check_length(text, "input")
                ids, chunks = late_chunks(self.prompts.tokenizer, text, chunk_size, special)
                tokens += len(ids)
                check_total(tokens)
                found.append((wire.PoolingPrompt(ids), chunks))
            return found

        return await asyncio.to_thread(cut)

    async def _inputs(self, body: InputFields) -> list[str] | list[list[int]]:
        """Return the inputs, texts or token ids; messages are rendered to one text. Raises: InvalidRequest."""
        if (body.input is None) == (body.messages is None):
            raise InvalidRequest("give either input or messages", "input")
        if body.messages is not None:
            text = await self.prompts.render(
                body.messages,
                chat_template=body.chat_template,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                kwargs=body.chat_template_kwargs,
            )
            return [text]
        given = body.input
        if isinstance(given, str):
            return [given]
        if not given:
            raise InvalidRequest("input is empty; give at least one text", "input")
        if isinstance(given[0], int):
            return [given]
        if len(given) > MAX_INPUTS:
            raise InvalidRequest(f"input has {len(given)} texts; at most {MAX_INPUTS} may come at once", "input")
        return given

    def _ids(
        self, text: str | list[int], plan: PoolingPlan, special: bool, limit: int | None, keep: KeptEnd
    ) -> list[int]:
        """Return the token ids of an input; a text that cannot fit is refused before it is tokenized.

        Raises: InvalidRequest.
        """
        if not isinstance(text, str):
            if limit is None or len(text) <= limit:
                return text
            return text[:limit] if keep == "start" else text[len(text) - limit :]
        if plan.lower_case:
            text = text.lower()
        tokenizer, longest = self.prompts.tokenizer, self.prompts.tokenizer.longest_token
        if limit is None:
            self.prompts.check_length(text, "input")
        elif keep == "start" and len(text) > (enough := max(_AT_ONCE, _LONGEST_CUT * limit * longest)):
            ids, _ = tokenizer.encode_cut(text[:enough], add_special_tokens=special, limit=limit)
            if len(ids) == limit:
                return ids
        ids, _ = tokenizer.encode_cut(text, add_special_tokens=special, limit=limit, keep=keep)
        return ids

    async def pooled(
        self,
        request: Request,
        body: PoolingFields,
        prompts: list[wire.PoolingPrompt],
        *,
        prefix: str,
        task: Task,
        dimensions: int | None = None,
        chunk_tokens: int = 0,
        activate: bool | None = None,
    ) -> PooledOutputs:
        """Submit the texts to the engine and wait for their outputs; a client that disconnects aborts them.

        Raises: InvalidRequest, Overloaded, EngineUnavailable, EngineFailed.
        """
        from forearm.model.pooling.plan import output_array  # here: an API that pools nothing does without it

        caller = caller_of(request.scope)
        message = wire.Embed(
            request_id=uuid.uuid4().hex,
            prompts=prompts,
            task=task,
            chunk_tokens=chunk_tokens,
            dimensions=dimensions,
            activate=body.use_activation is not False if activate is None else activate,
            priority=caller.priority_of(body.priority),
            client=caller.client,
        )
        vectors = await embed(self._engine, message, caller.observers)
        try:
            found = await unless_gone(request, vectors.found)
        finally:
            vectors.close()
        tokens = sum(len(prompt.token_ids) for prompt in prompts)
        own = body.request_id or caller.request_id
        head = PoolingHeading(f"{prefix}-{own}", int(time.time()), self._model.name(body.model), tokens)
        return PooledOutputs(head, [output_array(one.vector, one.rows) for one in found])


Pooling = Annotated[ServingPooling, service("pooling")]
