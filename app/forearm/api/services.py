"""The services of one worker, made once at its start from a model's folder and the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.generation.chat_turn import ServingChat
from forearm.api.generation.output_stream import OutputStreams
from forearm.api.generation.prompt import PromptRenderer
from forearm.api.generation.reasoning_constraints import AnswerConstraints
from forearm.api.generation.served_model import ServedModel
from forearm.api.generation.unsupported import ClientWarnings
from forearm.api.http.body_memory import BodyMemory
from forearm.api.http.http_metrics import HttpMeter
from forearm.api.openai.completions import ServingCompletion
from forearm.api.pooling.pooled import ServingPooling
from forearm.api.responses.serving_responses import ServingResponses
from forearm.config.api_config import ApiConfig
from forearm.model.families.keys import Keys
from forearm.model.generation import sampling_defaults
from forearm.model.gguf.gguf import is_gguf, read_gguf_file
from forearm.model.gguf.gguf_pooling import pooling_kind
from forearm.text.templates.chat_template import (
    ChatTemplate,
    check_rendering,
    find_chat_template,
    find_tool_template,
)
from forearm.text.tokenizer.tokenizer import load_tokenizer
from forearm.text.tool_parsers.output_parser import find_dialect

if TYPE_CHECKING:
    from forearm.model.pooling.plan import PoolingPlan


@dataclass(frozen=True)
class Services:
    """Shared by all requests of a worker; handlers name the ones they need (generation/dependencies.py).

    defaults: sampling parameters where a request does not say, by name.
    """

    config: ApiConfig
    model: ServedModel
    defaults: Mapping[str, Any]
    engine: EngineClient
    meter: HttpMeter
    body_memory: BodyMemory
    warnings: ClientWarnings
    prompts: PromptRenderer
    chat: ServingChat
    completion: ServingCompletion
    responses: ServingResponses
    pooling: ServingPooling


def load_services(config: ApiConfig) -> Services:
    """Read from the model's folder all that HTTP needs; the engine's connections are not begun yet.

    Raises: ConfigError.
    """
    folder = Path(config.model_folder)
    tokenizer_folder = Path(config.tokenizer) if config.tokenizer else folder
    tokenizer = load_tokenizer(tokenizer_folder, config.weight_cache, config.weight_cache_bytes)
    template, tool_template = (
        None if source is None else ChatTemplate(source, tokenizer.parts.special_tokens_map)
        for find in (find_chat_template, find_tool_template)
        for source in [find(tokenizer_folder, config.chat_template or None, tokenizer.parts.chat_template)]
    )
    for one in (template, tool_template):
        if one is not None:
            check_rendering(one, bool(config.chat_template), config.default_chat_template_kwargs)
    calls, shown = config.tool_call_parser, tool_template or template
    if shown is not None and not calls and not (shown.shows_tools or shown.shows_tools_of_messages):
        calls = "hermes"  # where the template knows no tools, Hermes' prompt shows them
    source, added = "" if shown is None else shown.source, frozenset(tokenizer.added.values())
    dialect = find_dialect(source, calls, config.reasoning_parser, added)
    plan = _pooling(folder, config)

    defaults = sampling_defaults(folder, config.generation_config, config.override_generation_config)
    texts = ("completions",) if template is None else ("chat", "completions")
    model = ServedModel.of(config, defaults, texts if plan is None else plan.tasks)
    engine = EngineClient(config.engine_sockets, config.execute_model_timeout_s)
    meter = HttpMeter(config.metrics_folder, model.names[0])
    warnings = ClientWarnings(meter)
    prompts = PromptRenderer(config, engine, tokenizer, template, tool_template, pools=plan is not None)
    any_whitespace = not (config.structured_outputs_config or {}).get("disable_any_whitespace")
    constraints = AnswerConstraints(dialect, tokenizer, any_whitespace)
    streams = OutputStreams(engine, tokenizer, config)
    chat = ServingChat(config, model, prompts, constraints, defaults, streams, warnings, meter)
    return Services(
        config,
        model,
        defaults,
        engine,
        meter,
        BodyMemory(config.held_body_bytes),
        warnings,
        prompts,
        chat,
        ServingCompletion(config, model, prompts, constraints, defaults, streams, warnings),
        ServingResponses(config, model, prompts, defaults, chat, warnings),
        ServingPooling(config, plan, model, prompts, engine, warnings),
    )


def _pooling(folder: Path, config: ApiConfig) -> PoolingPlan | None:
    """Return the plan of a model that pools. The start of a .gguf file that generates does not wait for the import."""
    if is_gguf(folder):
        keys = Keys(read_gguf_file(folder, texts=False).metadata, str(folder))
        if pooling_kind(keys, config.runner, config.convert) is None:
            return None
    elif not (folder / "config.json").is_file():
        return None
    from forearm.model.pooling.pooling import asked_of, pooling_plan

    return pooling_plan(folder, asked_of(config))
