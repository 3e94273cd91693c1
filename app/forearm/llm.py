"""The offline API: LLM.generate and LLM.chat, with vLLM's names (LLM.embed, .score, …: llm_pooling.py). The same engine
loop as the server's, without sockets.

Arguments of vLLM's LLM that mean nothing here (enforce_eager, swap_space, trust_remote_code, …) are accepted with a log
line; forearm/foreign.py lists them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tqdm import tqdm

from forearm import foreign, wire
from forearm.config import EngineConfig, engine_config
from forearm.engine.messages import From, Gone
from forearm.engine.start_pooling import start_any
from forearm.errors import ConfigError, InvalidRequest
from forearm.llm_pooling import PoolingCalls, Prompt, listed
from forearm.model.generation import sampling_defaults
from forearm.model.hub import find_model, find_tokenizer
from forearm.outputs import Answers, CompletionOutput, RequestMetrics, RequestOutput
from forearm.text.bad_words import bad_words_token_ids
from forearm.text.chat_template import ChatTemplate, Message, find_chat_template
from forearm.text.constraints import asked_of
from forearm.text.grammar_check import GrammarCheck
from forearm.text.tokenizer import Tokenizer, load_tokenizer
from forearm.wire import SamplingParams

if TYPE_CHECKING:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

Params = SamplingParams | Sequence[SamplingParams] | None

_CONNECTION = 0
_RENAMED = {"gpu_memory_utilization": "memory_utilization", "task": "runner", "override_pooler_config": "pooler_config"}
# Arguments of vLLM's LLM that are no flags: right as long as they ask for nothing.
_NOT_BUILT = ("logits_processors", "skip_tokenizer_init")

log = logging.getLogger(__name__)


class LLM(PoolingCalls):
    """A model in this process.

    >>> llm = LLM()  # the demo model; LLM("path/to/model", dtype="bfloat16", max_model_len=4096)
    >>> [output] = llm.generate("A glacier is", SamplingParams(max_tokens=32))
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
        **others: Any,
    ) -> None:
        """`others`: every field of EngineConfig under vLLM's name (max_num_seqs, kv_cache_memory_bytes, …).

        Raises: ConfigError naming the value and the remedy; TypeError for a name that vLLM does not have either.
        """
        given = {"model": str(model), "max_model_len": max_model_len, "seed": seed, "tokenizer": str(tokenizer or "")}
        given["dtype"] = str(dtype).removeprefix("torch.")  # vLLM takes torch.bfloat16 as well
        config = engine_config(**given, **_settings(others))
        self._folder = find_model(config.model, revision=config.revision, **config.hub)
        source = self._folder
        if config.tokenizer:
            source = find_tokenizer(config.tokenizer, revision=config.tokenizer_revision, **config.hub)
        self._sampling = sampling_defaults(self._folder, config.generation_config, config.override_generation_config)
        config = replace(config, model=str(self._folder), tokenizer=str(source), name=config.name or config.model)
        texts: list[Future[tuple[Tokenizer, ChatTemplate | None]]] = []
        # Beside reading weights, but not before: a kept tokenizer is parsed with the GIL held (0.5B: 0.9 s -> 0.6).
        with ThreadPoolExecutor(1) as beside:

            def load_text() -> None:
                texts.append(beside.submit(_load_text, source, chat_template, config.weight_cache))

            self._any_loop = start_any(config, queued=sys.maxsize, loading=load_text)
            self._tokenizer, self._template = texts[0].result()
        self._grammars = GrammarCheck(self._tokenizer)
        self._requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Go on from each prompt; the answers come in the order of the prompts.

        sampling_params: for all, or one for each; None: get_default_sampling_params().
        Raises: InvalidRequest for a prompt or parameter that cannot be served; then nothing was generated.
        """
        texts = [self._prompt(prompt) for prompt in listed(prompts)]
        params = self._params(sampling_params, len(texts))
        if priority is not None and len(priority) != len(texts):
            raise InvalidRequest(f"priority has {len(priority)} values for {len(texts)} prompts", "priority")
        return self._run(texts, params, list(priority or [0] * len(texts)), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Raises: InvalidRequest, also when the model has no chat template.
        """
        special = self._tokenizer.backend.special_tokens_map
        template = self._template if chat_template is None else ChatTemplate(chat_template, special)
        if template is None:
            raise InvalidRequest("this model has no chat template; give one with chat_template", "chat_template")
        rendered = [
            template.render(
                conversation,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
                tools=tools,
                kwargs=chat_template_kwargs,
            )
            for conversation in _conversations(messages)
        ]
        # The template has written the special tokens already.
        texts = [(text, self._tokenizer.encode(text, add_special_tokens=False)) for text in rendered]
        return self._run(texts, self._params(sampling_params, len(texts)), [0] * len(texts), use_tqdm)

    def get_tokenizer(self) -> TokenizersBackend:
        """The tokenizer, as transformers has it."""
        return self._tokenizer.as_transformers

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the model's own defaults, as `generation_config` says, and vLLM's for the rest."""
        known = SamplingParams.__struct_fields__
        return SamplingParams(**{name: value for name, value in self._sampling.items() if name in known})

    def _params(self, given: Params, count: int) -> list[SamplingParams]:
        """One for each prompt, with bad_words as token ids and structured_outputs as a grammar.

        Raises: InvalidRequest.
        """
        chosen = self.get_default_sampling_params() if given is None else given
        listed = [chosen] * count if isinstance(chosen, SamplingParams) else list(chosen)
        if len(listed) != count:
            raise InvalidRequest(f"{len(listed)} sampling_params for {count} prompts", "sampling_params")
        return [self._in_ids(params) for params in listed]

    def _in_ids(self, params: SamplingParams) -> SamplingParams:
        changes: dict[str, Any] = {}
        if params.bad_words:
            changes["bad_words_token_ids"] = bad_words_token_ids(self._tokenizer, params.bad_words)
        if params.structured_outputs is not None:
            asked = asked_of(msgspec.structs.asdict(params.structured_outputs), "structured_outputs")
            changes |= {"grammar": self._grammars.start(asked).result(), "structured_outputs": None}
        return msgspec.structs.replace(params, **changes) if changes else params

    def _prompt(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Text, where there is one, and token ids."""
        if isinstance(prompt, Mapping):
            prompt = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
        if isinstance(prompt, str):
            return prompt, self._tokenizer.encode(prompt)
        ids: list[int] = list(prompt)  # type: ignore[arg-type]  # a Mapping has become one of the others
        return None, ids

    def _run(
        self,
        prompts: Sequence[tuple[str | None, list[int]]],
        params: list[SamplingParams],
        priorities: list[int],
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        """Submit all and step until all have ended. Whatever interrupts this leaves the engine empty."""
        answers: dict[str, Answers] = {}
        try:
            numbered = zip(prompts, params, priorities, strict=True)
            for prompt, chosen, priority in tqdm(
                numbered, total=len(prompts), desc="Adding requests", disable=not use_tqdm
            ):
                answer = self._submit(prompt, chosen, priority)
                answers[answer.output.request_id] = answer
            with _Progress(len(prompts), use_tqdm) as progress:
                while self._loop.busy:
                    self._loop.step()
                    self._gather(answers, progress)
        finally:
            self._loop.take(Gone(_CONNECTION))
            self._loop.outbox = []
        return [answer.output for answer in answers.values()]

    def _submit(self, prompt: tuple[str | None, list[int]], params: SamplingParams, priority: int) -> Answers:
        """Raises: why the engine does not take it."""
        text, ids = prompt
        request_id = str(self._requests)
        self._requests += 1
        submit = wire.Submit(request_id=request_id, prompt_token_ids=ids, params=params, priority=priority)
        self._loop.take(From(_CONNECTION, submit))
        for _, message in self._loop.outbox:
            if isinstance(message, wire.Refused):
                raise InvalidRequest(message.message, message.param)
        self._loop.outbox = []
        outputs = [CompletionOutput(index) for index in range(params.n)]
        output = RequestOutput(request_id, text, ids, outputs, RequestMetrics(time.monotonic()))
        return Answers(output, params, self._tokenizer)

    def _gather(self, answers: dict[str, Answers], progress: _Progress) -> None:
        """Hand the tokens of one step to their answers."""
        now_s = time.monotonic()
        messages, self._loop.outbox = self._loop.outbox, []
        for _, message in messages:
            if isinstance(message, wire.Refused):
                if message.error == "InvalidRequest":  # a grammar that does not compile
                    raise InvalidRequest(message.message, message.param)
                answers[message.request_id].fail(message.message, now_s)
                log.error("%s", message.message)
            elif isinstance(message, wire.Tokens):
                if answers[message.request_id].add(message, now_s):
                    abort = wire.Abort(request_id=message.request_id, index=message.index)
                    self._loop.take(From(_CONNECTION, abort))
                progress.tokens(len(message.token_ids))
            else:
                continue
            progress.ended(answers[message.request_id].output)


class _Progress:
    """The bar "Processed prompts", with tokens per second of input and output."""

    def __init__(self, prompts: int, shown: bool) -> None:
        look: dict[str, Any] = {"dynamic_ncols": True, "postfix": _speed(0, 0)}
        self._bar = tqdm(total=prompts, desc="Processed prompts", disable=not shown, **look)
        self._start_s = time.monotonic()
        self._input = self._output = 0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def tokens(self, count: int) -> None:
        """So many were generated."""
        self._output += count

    def ended(self, output: RequestOutput) -> None:
        """Moves on if this prompt's answers have all ended."""
        if not output.finished:
            return
        self._input += len(output.prompt_token_ids) * len(output.outputs)
        took_s = max(time.monotonic() - self._start_s, 1e-9)
        self._bar.postfix = _speed(self._input / took_s, self._output / took_s)
        self._bar.update()


def _load_text(folder: Path, chat_template: str | None, cache: str) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer of a model folder, and the template that is given or that comes with it.

    Raises: ConfigError if either cannot be read.
    """
    tokenizer = load_tokenizer(folder, cache)
    source = find_chat_template(folder, chat_template, tokenizer.backend.chat_template)
    return tokenizer, None if source is None else ChatTemplate(source, tokenizer.backend.special_tokens_map)


def _speed(prompt: float, generated: float) -> str:
    return f"est. speed input: {prompt:.2f} toks/s, output: {generated:.2f} toks/s"


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    if messages and isinstance(messages[0], Mapping):
        return [messages]  # type: ignore[list-item]
    return list(messages)  # type: ignore[arg-type]


def _settings(others: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by EngineConfig's names; those without a meaning here are logged and left out.

    Raises: ConfigError for what would be needed but is not there; TypeError for unknown names.
    """
    known = {field.name for field in fields(EngineConfig)}
    settings: dict[str, Any] = {}
    for name, value in others.items():
        flag = "--" + name.replace("_", "-")
        if name == "disable_log_stats":
            settings["log_stats"] = not value
        elif (field := _RENAMED.get(name, name)) in known:
            settings[field] = value
        elif flag in foreign.FLAGS:
            if value is not None:
                for line in foreign.check_flag(flag, str(value)):
                    log.info("%s", line)
        elif flag in foreign.REFUSED or name in _NOT_BUILT:
            if value:
                raise ConfigError(f"{name}={value!r}: {foreign.REFUSED.get(flag, 'it is not built yet')}")
        else:
            raise TypeError(f"LLM() got an unexpected keyword argument {name!r}")
    return settings
