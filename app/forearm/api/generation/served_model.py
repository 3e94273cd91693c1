"""The served model with the names that clients use for it, and the heading of an answer."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from typing import Any

from msgspec import UNSET, UnsetType

from forearm import __version__
from forearm.api.generation.request_bodies import GenerationBody
from forearm.api.generation.response_bodies import ChunkHead
from forearm.api.http.caller import Caller
from forearm.config.api_config import ApiConfig
from forearm.errors import InvalidRequest, ModelNotFound
from forearm.text.grammars.lark import warnings_of


@dataclass(frozen=True)
class Heading:
    """The first members of an answer. The id is the client's own, if the body or a header has one.

    warnings: requested constraints that are enforced only in part, or not at all.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str | None
    warnings: list[str] | UnsetType = UNSET

    def under(self, grammar: str | None) -> Heading:
        """Return the heading of an answer that follows this grammar: with warnings on what the grammar leaves out."""
        return replace(self, warnings=warnings_of(grammar) or UNSET)

    def of_chunks(self, kind: str) -> ChunkHead:
        """Return the heading as the head of every chunk of a stream."""
        return ChunkHead(
            id=self.id,
            object=kind,
            created=self.created,
            model=self.model,
            system_fingerprint=self.system_fingerprint,
            warnings=self.warnings,
        )


# By the first task of a pooling model: what it does with texts, and where.
POOLING_INSTEAD = {
    "classify": ("classifies texts", "/classify or /score"),
    "embed": ("makes vectors of texts", "/v1/embeddings"),
    "token_embed": ("makes a vector for each token", "/pooling or /score"),
    "token_classify": ("classifies each token", "/pooling"),
}


@dataclass(frozen=True)
class ServedModel:
    """The one model of this server. `names`: the names that clients may use; answers have the first one.

    path: accepted, too, where the operator has named nothing, since vLLM's id is the path. tasks: chat, completions, or
    those of a pooling model.

    fingerprint: changes with all that may change answers (software, model, settings), unless the operator sets it.
    """

    names: tuple[str, ...]
    root: str
    fingerprint: str | None
    created: int
    path: str | None
    tasks: tuple[str, ...]

    @classmethod
    def of(cls, config: ApiConfig, defaults: dict[str, Any], tasks: tuple[str, ...]) -> ServedModel:
        """Return the model of this config; `defaults` are its sampling parameters."""
        names = config.served_model_name or (config.short_name(config.model_folder),)
        about = f"{__version__} {config.model_folder} {config.computed_as} {defaults}"
        fingerprint: str | None = f"forearm-{__version__}-{hashlib.sha256(about.encode()).hexdigest()[:8]}"
        if config.fingerprint_mode in ("custom", "none"):
            fingerprint = config.fingerprint_value if config.fingerprint_mode == "custom" else None
        path = None if config.served_model_name else config.model or None
        return cls(names, config.model or names[0], fingerprint, int(time.time()), path, tasks)

    def name(self, asked: str | None) -> str:
        """Return the model name for the answer.

        Raises: ModelNotFound.
        """
        if asked and asked not in (*self.names, self.path):  # "" counts as absent, as in vLLM
            raise ModelNotFound(f"The model `{asked}` does not exist. This server has `{'`, `'.join(self.names)}`.")
        return asked or self.names[0]

    def heading(self, prefix: str, body: GenerationBody, caller: Caller) -> Heading:
        """Return what all generated answers to this request have in common.

        Raises: ModelNotFound; InvalidRequest if the model makes vectors or scores.
        """
        name = self.name(body.model)
        if "completions" not in self.tasks:
            does, there = POOLING_INSTEAD[self.tasks[0]]
            raise InvalidRequest(f"The model does not generate text: it {does}; use {there}", "model")
        return Heading(f"{prefix}-{body.request_id or caller.request_id}", int(time.time()), name, self.fingerprint)
