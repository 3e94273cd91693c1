"""The public SamplingParams: values out of range or of a wrong type are errors where they are made, and where used."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from forearm import wire
from forearm.engine.validation import check_ranges
from forearm.errors import InvalidRequest
from forearm.offline.outputs import RequestOutputKind


class SamplingParams(wire.SamplingParams, frozen=False, kw_only=True):  # type: ignore[misc] # msgspec allows it
    """The engine's SamplingParams with checks. `output_kind`: the outputs that streams yield.

    Fields may be set later, as in vLLM; a call checks them again, and goes by what they are then.
    Raises: InvalidRequest naming the field, its value and what it may be. The engine's own class has no such checks, as
    it is decoded for every request of a server, and checked by the engine then.
    """

    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        fields = {name: getattr(self, name) for name in wire.SamplingParams.__struct_fields__}
        given = {name: one.item() if isinstance(one, np.generic) else one for name, one in fields.items()}
        try:
            msgspec.convert(given, wire.SamplingParams, from_attributes=True)
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at ")
            name = re.sub(r".*\$\.(\w+).*", r"\1", where)
            raise InvalidRequest(f"{name} is {given.get(name)!r}: {what}", name) from None
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        if "" in stops:
            raise InvalidRequest("stop has an empty text, which would end every answer before it begins", "stop")
        check_ranges(self)

    def clone(self) -> SamplingParams:
        """Return a copy. Raises: InvalidRequest for a value that was set and is out of range or of a wrong type."""
        return msgspec.structs.replace(self)


def params_of(given: object, count: int) -> list[wire.SamplingParams]:
    """Return the sampling parameters of `count` prompts: one for all, or one for each; copies, as callers may change
    theirs.

    Raises: InvalidRequest that says what to write.
    """
    if isinstance(given, wire.SamplingParams):
        return [_copy(given)] * count
    wrong: Any = given
    if isinstance(given, list | tuple):
        if len(given) != count:
            raise InvalidRequest(f"{len(given)} sampling_params for {count} prompts", "sampling_params")
        wrong = next((one for one in given if not isinstance(one, wire.SamplingParams)), None)
        if wrong is None:
            return [_copy(one) for one in given]
    remedy = "SamplingParams(**it)" if isinstance(wrong, dict) else "SamplingParams(...), or a list of one a prompt"
    raise InvalidRequest(
        f"sampling_params is {wrong!r:.100}, a {type(wrong).__name__}; write {remedy}", "sampling_params"
    )


def _copy(params: wire.SamplingParams) -> wire.SamplingParams:
    return params.clone() if isinstance(params, SamplingParams) else params
