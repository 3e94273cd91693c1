"""The offline API: LLM.generate and LLM.chat, with vLLM's names (LLM.embed, .score, …: pooling.py). The same engine
loop as the server's, without sockets.

Arguments of vLLM's LLM that mean nothing here (enforce_eager, swap_space, …) are accepted with a log
line; forearm/config/vllm_compat.py lists them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

from forearm import wire
from forearm.beam_search import BeamSearchParams
from forearm.config.configs import engine_config
from forearm.engine.inbox import Received
from forearm.engine.start import start
from forearm.errors import InvalidRequest
from forearm.model.checkpoint.hub import find_model, find_tokenizer
from forearm.model.generation import sampling_defaults
from forearm.offline.arguments import EngineArgs, any_whitespace, for_throughput, settings_of
from forearm.offline.beams import BeamSearchOutput, search
from forearm.offline.metric_values import MetricValue, metric_values
from forearm.offline.outputs import RequestOutput
from forearm.offline.pooling import PoolingCalls
from forearm.offline.prompts import Prompt, as_parts, chat_prompt, conversations, listed, text_or_ids
from forearm.offline.run import Bars, OfflineRequest, Run
from forearm.offline.sampling_params import SamplingParams, params_of
from forearm.offline.shared_loop import LoopConnection, SharedLoop
from forearm.text.grammars.constraints import constraint_request
from forearm.text.grammars.grammar_check import GrammarCheck
from forearm.text.templates.chat_template import ChatTemplate, TemplateMessage, find_chat_template
from forearm.text.tokenizer.bad_words import bad_words_token_ids
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from forearm.wire import SamplingParams as EngineParams

if TYPE_CHECKING:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

Params = EngineParams | Sequence[EngineParams] | None


class LLM(PoolingCalls):
    """A model in this process. Threads may share it: their requests are computed together.

    >>> with LLM() as llm:  # the demo model; LLM("path/to/model", dtype="bfloat16", max_model_len=4096)
    ...     [output] = llm.generate("A glacier is", SamplingParams(max_tokens=32))
    >>> output.outputs[0].text
    """

    def __init__(
        self,
        model: str | Path = "",
        *,
        tokenizer: str | None = None,
        dtype: str = "auto",
        max_model_len: int | None = None,
        seed: int = 0,
        chat_template: str | None = None,
        structured_outputs_config: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """`others`: every field of EngineConfig under vLLM's name (max_num_seqs, kv_cache_memory_bytes, …).

        Raises: ConfigError naming the value and the remedy; TypeError for a name that vLLM does not have either.
        """
        given = {"model": str(model), "max_model_len": max_model_len, "seed": seed, "tokenizer": str(tokenizer or "")}
        given["dtype"] = str(dtype).removeprefix("torch.")  # vLLM takes torch.bfloat16 as well
        config = for_throughput(engine_config(**given, **settings_of(others)))
        self._any_whitespace = any_whitespace(structured_outputs_config)
        self._folder = find_model(config.model, revision=config.revision, **config.hub)
        source = self._folder
        if config.tokenizer:
            source = find_tokenizer(config.tokenizer, revision=config.tokenizer_revision, **config.hub)
        self._sampling = sampling_defaults(self._folder, config.generation_config, config.override_generation_config)
        config = replace(config, model=str(self._folder), tokenizer=str(source), name=config.name or config.model)
        texts: list[Future[tuple[Tokenizer, ChatTemplate | None]]] = []

        def load_text() -> tuple[Tokenizer, ChatTemplate | None]:
            tokenizer = load_tokenizer(source, config.weight_cache, config.weight_cache_bytes)
            template = find_chat_template(source, chat_template, tokenizer.parts.chat_template)
            special = tokenizer.parts.special_tokens_map
            return tokenizer, None if template is None else ChatTemplate(template, special)

        # Beside reading weights, but not before: a kept tokenizer is parsed with the GIL held (0.5B: 0.9 s -> 0.6).
        with ThreadPoolExecutor(1) as beside:
            loading, bar = lambda: texts.append(beside.submit(load_text)), sys.stderr.isatty()
            self._shared = SharedLoop(start(config, queued=sys.maxsize, progress=bar, loading=loading))
            while self._shared.loop.merge_page():
                pass
            self._tokenizer, self._template = texts[0].result()
        self._grammars = GrammarCheck(self._tokenizer)
        self._numbers = itertools.count()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Load the model. Raises: ConfigError, TypeError."""
        return cls(**vars(engine_args))

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the weights and the KV cache; calls raise EngineUnavailable from now on."""
        self._shared.close()

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: Bars = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        stream: Literal[False] = False,
    ) -> list[RequestOutput]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: Bars = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        stream: Literal[True],
    ) -> Iterator[RequestOutput]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: Bars = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        stream: bool = False,
    ) -> list[RequestOutput] | Iterator[RequestOutput]:
        """Go on from each prompt; the answers come in the order of the prompts.

        sampling_params: for all, or one for each; None: get_default_sampling_params().
        stream: yield the output of a prompt whenever it has grown, as its `output_kind` says (by default all so far),
        from the first `next` on; leaving the loop ends what is left.
        Raises: InvalidRequest for a prompt or parameter that cannot be served; then nothing was generated.
        """
        self.refuse_lora(lora_request)
        asked = self.asked(listed(prompts), sampling_params, priority)
        run = self._run(asked)
        return run.stream() if stream else run.finish(use_tqdm)

    def chat(
        self,
        messages: Sequence[TemplateMessage] | Sequence[Sequence[TemplateMessage]],
        sampling_params: Params = None,
        use_tqdm: Bars = True,
        lora_request: None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Raises: InvalidRequest, also when the model has no chat template.
        """
        self.refuse_lora(lora_request)
        given = conversations(messages)
        params = self._params(sampling_params, len(given))
        special = self._tokenizer.parts.special_tokens_map
        template = self._template if chat_template is None else ChatTemplate(chat_template, special)
        if template is None:
            raise InvalidRequest("this model has no chat template; give one with chat_template", "chat_template")
        asked = []
        for conversation, chosen in zip(given, params, strict=True):
            text, ids, system_tokens = chat_prompt(
                template,
                self._tokenizer,
                conversation,
                tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                as_parts=as_parts(chat_template_content_format),
                kwargs=chat_template_kwargs,
                keeps_states=self._loop.scheduler.blocks.keeps_states,
            )
            asked.append(OfflineRequest(text, ids, chosen, system_tokens=system_tokens))
        return self._run(asked).finish(use_tqdm)

    def beam_search(
        self, prompts: Sequence[Prompt], params: BeamSearchParams, lora_request: None = None
    ) -> list[BeamSearchOutput]:
        """Return the most likely continuations of each prompt, `params.beam_width` of them, best first.

        Raises: InvalidRequest.
        """
        self.refuse_lora(lora_request)
        if not isinstance(params, BeamSearchParams):
            raise InvalidRequest(
                f"params is {params!r:.100}; write BeamSearchParams(beam_width=…, max_tokens=…)", "params"
            )
        ids = [one.token_ids for one in self.asked(listed(prompts), None, None)]
        with self.connection() as connection:
            return search(connection, ids, params, self._loop.terms.eos_token_ids, self._numbers, self._tokenizer)

    def get_tokenizer(self) -> TokenizersBackend:
        """The tokenizer, as transformers has it."""
        return self._tokenizer.as_transformers

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the model's own defaults, as `generation_config` says, and vLLM's for the rest."""
        known = SamplingParams.__struct_fields__
        return SamplingParams(**{name: value for name, value in self._sampling.items() if name in known})

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache. Running requests keep their blocks, also with `reset_running_requests`: what vLLM
        computes again has the same values.
        """
        with self.connection() as connection:
            self._shared.put(Received(connection.number, wire.ForgetPrefixes()))
        return True

    def start_profile(self) -> None:
        """Record what steps take from now on, as `profiler_config` says. Raises: EngineFailed."""
        self._shared.profile(start=True)

    def stop_profile(self) -> None:
        """End the file. Raises: EngineFailed if it could not be written."""
        self._shared.profile(start=False)

    def get_metrics(self) -> list[MetricValue]:
        """Return the engine's metrics so far, by the names of `/metrics` without `_total`."""
        return metric_values(self._loop.meter.collect())

    # --- also used by LLMEngine, AsyncLLMEngine and `forearm generate`

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one."""
        return self._template

    def connection(self) -> AbstractContextManager[LoopConnection]:
        """Connect to the engine. Raises: EngineUnavailable; InvalidRequest if the model is a pooling model."""
        self._check_generates()
        return self._shared.connection()

    def new_id(self) -> str:
        """Return an unused request_id."""
        return str(next(self._numbers))

    def asked(
        self, prompts: Sequence[Prompt], sampling_params: Params, priority: int | Sequence[int] | None
    ) -> list[OfflineRequest]:
        """Return the prompts as token ids, each with its sampling parameters.

        Raises: InvalidRequest.
        """
        params = self._params(sampling_params, len(prompts))
        priorities = [priority or 0] * len(prompts) if isinstance(priority, int | None) else list(priority)
        if len(priorities) != len(prompts):
            raise InvalidRequest(f"priority has {len(priorities)} values for {len(prompts)} prompts", "priority")
        asked = []
        for prompt, chosen, rank in zip(prompts, params, priorities, strict=True):
            given = text_or_ids(prompt)
            text = given if isinstance(given, str) else None
            ids = self._tokenizer.encode(given) if isinstance(given, str) else given
            asked.append(OfflineRequest(text, ids, chosen, rank))
        return asked

    @staticmethod
    def refuse_lora(request: object) -> None:
        """Refuse a LoRA adapter. Raises: InvalidRequest if one is given."""
        if request is not None:
            raise InvalidRequest("lora_request: LoRA adapters are not built yet; merge the adapter into the model")

    def _params(self, given: Params, count: int) -> list[EngineParams]:
        """Return sampling parameters for each prompt, with bad_words as token ids and structured_outputs as a grammar.

        Raises: InvalidRequest.
        """
        self._check_generates()
        found = params_of(self.get_default_sampling_params() if given is None else given, count)
        for at, params in enumerate(found):
            changes: dict[str, Any] = {}
            if params.bad_words:
                changes["bad_words_token_ids"] = bad_words_token_ids(self._tokenizer, params.bad_words)
            if params.structured_outputs is not None:
                asked = constraint_request(msgspec.structs.asdict(params.structured_outputs), "structured_outputs")
                asked = replace(asked, any_whitespace=asked.any_whitespace and self._any_whitespace)
                changes |= {"grammar": self._grammars.start(asked).result(), "structured_outputs": None}
            if changes:
                found[at] = msgspec.structs.replace(params, **changes)
        return found

    def _run(self, asked: Sequence[OfflineRequest]) -> Run:
        return Run(self._shared, asked, self._tokenizer, self._numbers)
