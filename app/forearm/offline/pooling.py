"""LLM's calls for models that pool: embed, classify, score, encode. llm.py has the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from forearm import wire
from forearm.engine.loop import EngineLoop
from forearm.engine.pooling import PoolingTerms
from forearm.errors import EngineFailed, InvalidRequest
from forearm.model.pooling.plan import output_array, similarities
from forearm.offline.pooling_outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
)
from forearm.offline.prompts import Prompt, listed, text_or_ids
from forearm.offline.run import Bars, bar
from forearm.offline.shared_loop import SharedLoop
from forearm.text.templates.chat_template import ChatTemplate
from forearm.text.tokenizer.late_chunking import late_chunks
from forearm.text.tokenizer.text_pairs import PairForm
from forearm.text.tokenizer.tokenizer import Tokenizer

Output = TypeVar("Output")

_AT_ONCE = 1024  # texts in one message to the loop
DEFAULT = PoolingParams()


class PoolingCalls:
    """The pooling calls that LLM inherits. LLM.__init__ sets the attributes."""

    _folder: Path
    _shared: SharedLoop
    _tokenizer: Tokenizer
    _template: ChatTemplate | None
    _numbers: itertools.count[int]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bars = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """Return the vector of each text, in their order.

        Raises: InvalidRequest if the model makes none, or a text is too long.
        """
        found = self._pool(prompts, "embed", pooling_params, truncate_prompt_tokens, use_tqdm)
        return [_with(one, EmbeddingOutput(one.outputs.data.tolist())) for one in found]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: Bars = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """Return the probability of each label, text by text.

        Raises: InvalidRequest if the model has no classifier, or a text is too long.
        """
        found = self._pool(prompts, "classify", pooling_params, None, use_tqdm)
        return [_with(one, ClassificationOutput(one.outputs.data.tolist())) for one in found]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: Bars = True,
        pooling_task: str | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return the model's output for each text; `pooling_task` token_embed: a vector for each token; token_classify:
        each token's probabilities of the labels, or bge-m3's weight of each token.

        Raises: InvalidRequest if the model does not do that, or a text is too long.
        """
        task = pooling_task or (pooling_params or DEFAULT).task or self._pooling_terms().plan.tasks[0]
        return self._pool(prompts, task, pooling_params, None, use_tqdm)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bars = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """Score pairs of texts, 1:1, 1:N or N:N: by a cross-encoder, or by the outputs of `pooling_params.task`.

        Raises: InvalidRequest if the numbers of texts do not match, or the model has several labels.
        """
        left, right = ([side] if isinstance(side, str) else list(side) for side in (data_1, data_2))
        if not left or not right or len(left) not in (1, len(right)):
            raise InvalidRequest(f"data_1 has {len(left)} texts, data_2 {len(right)}; write 1:1, 1:N or N:N", "data_1")
        pairs = [(left[0] if len(left) == 1 else left[i], right[i]) for i in range(len(right))]
        plan = self._pooling_terms().plan
        params = pooling_params or DEFAULT
        limit = self._limit(params, truncate_prompt_tokens)
        if plan.kind == "embed":
            texts = list(dict.fromkeys(text for pair in pairs for text in pair))
            task: Any = plan.tasks[0] if params.task in (None, "score") else params.task
            pooled = self._run_texts([self._text(text, limit) for text in texts], task, DEFAULT, use_tqdm)
            by_text = dict(zip(texts, pooled, strict=True))
            ids, outputs = [one.prompt_token_ids for one in pooled], [one.outputs.data for one in pooled]
            compared = plan.comparable(task, ids, outputs, self._tokenizer.special_ids)
            own = dict(zip(texts, compared, strict=True))
            scores = similarities([(own[one], own[two]) for one, two in pairs])
            return [_with(by_text[two], ScoringOutput(one)) for (_, two), one in zip(pairs, scores, strict=True)]
        if plan.kind == "token_classify":
            raise InvalidRequest("the model classifies each token; use encode with pooling_task='token_classify'")
        if len(plan.labels) != 1:
            raise InvalidRequest(f"the model has {len(plan.labels)} labels; a score needs exactly one")
        form = PairForm(plan, self._tokenizer)
        asked = [wire.PoolingPrompt(*form.encode(one, two, limit)) for one, two in pairs]
        found = self._run_texts(asked, "classify", params, use_tqdm)
        return [_with(one, ScoringOutput(float(one.outputs.data[0]))) for one in found]

    # --- the loop

    def _pooling_terms(self) -> PoolingTerms:
        """Return the terms of a pooling model. Raises: InvalidRequest if the model generates text."""
        terms = self._shared.loop.terms.pooling
        if terms is None:
            raise InvalidRequest("this model generates text; load it with runner='pooling' to embed, classify or score")
        return terms

    @property
    def _loop(self) -> EngineLoop:
        """The loop of a generating model. Raises: InvalidRequest if it is a pooling model."""
        loop = self._shared.loop
        if loop.terms.pooling is not None:
            raise InvalidRequest("this model makes vectors of texts and generates none; use embed, classify or score")
        return loop

    def _check_generates(self) -> None:
        """Check that text can be generated. Raises: InvalidRequest for a pooling model; EngineUnavailable if closed."""
        _ = self._loop

    def _limit(self, params: PoolingParams, asked: int | None) -> int | None:
        limit = params.truncate_prompt_tokens if asked is None else asked
        return self._shared.loop.terms.max_model_len if limit == -1 else limit

    def _text(self, prompt: Prompt, limit: int | None) -> wire.PoolingPrompt:
        """Return its tokens."""
        given = text_or_ids(prompt)
        if not isinstance(given, str):
            return wire.PoolingPrompt(given[:limit])
        lower = self._pooling_terms().plan.lower_case
        return wire.PoolingPrompt(self._tokenizer.encode_cut(given.lower() if lower else given, limit=limit)[0])

    def _pool(
        self,
        prompts: Prompt | Sequence[Prompt],
        task: str,
        params: PoolingParams | None,
        truncate: int | None,
        use_tqdm: Bars,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        chosen = params or DEFAULT
        limit, chunking = self._limit(chosen, truncate), chosen.late_chunking_params
        if chunking is None:
            return self._run_texts([self._text(one, limit) for one in listed(prompts)], task, chosen, use_tqdm)
        if limit is not None or self._pooling_terms().plan.lower_case:
            raise InvalidRequest("late chunking is of whole texts as they are: neither truncated nor in lower case")
        cut = [late_chunks(self._tokenizer, text_or_ids(one), chunking.chunk_size) for one in listed(prompts)]
        found = self._run_texts([wire.PoolingPrompt(ids) for ids, _ in cut], task, chosen, use_tqdm)
        return [replace(one, late_chunking=chunks) for one, (_, chunks) in zip(found, cut, strict=True)]

    def _run_texts(
        self, prompts: list[wire.PoolingPrompt], task: str, params: PoolingParams, use_tqdm: Bars
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Submit all texts and step until all are computed. An interruption leaves nothing in the engine.

        Raises: InvalidRequest, EngineFailed.
        """
        kind: Any = {"score": "classify"}.get(task, task)
        plan, size = self._pooling_terms().plan, params.dimensions
        if size is not None and plan.dimensions is not None and size not in plan.dimensions:
            sizes = ", ".join(map(str, plan.dimensions))
            remedy = f"this model's may be {sizes}" if sizes else "leave it out: these vectors can't be truncated"
            raise InvalidRequest(f"dimensions is {size}; {remedy}", "dimensions")
        found: dict[int, npt.NDArray[np.float32]] = {}
        with (
            self._shared.connection() as connection,
            bar(use_tqdm, total=len(prompts), desc="Processed prompts") as progress,
        ):
            for first in range(0, len(prompts), _AT_ONCE):
                embed = wire.Embed(
                    request_id=f"texts-{next(self._numbers)}",
                    prompts=prompts[first : first + _AT_ONCE],
                    task=kind,
                    dimensions=plan.default_dimensions if size is None else size,
                    activate=params.use_activation is not False,
                    chunk_tokens=0 if (chunking := params.late_chunking_params) is None else chunking.chunk_size,
                )
                connection.submit(embed)
                while len(found) < first + len(embed.prompts):
                    for message in connection.messages():
                        if isinstance(message, wire.Refused):
                            if message.error == "EngineFailed":
                                raise EngineFailed(message.message)
                            raise InvalidRequest(message.message, message.param)
                        if isinstance(message, wire.Embedded):
                            found[first + message.index] = output_array(message.vector, message.rows)
                            progress.update()
        return [
            PoolingRequestOutput(str(next(self._numbers)), PoolingOutput(found[index]), prompt.token_ids)
            for index, prompt in enumerate(prompts)
        ]


def _with(one: PoolingRequestOutput[Any], output: Output) -> PoolingRequestOutput[Output]:
    return PoolingRequestOutput(one.request_id, output, one.prompt_token_ids)
