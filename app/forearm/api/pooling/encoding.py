"""Encoding of vectors: lists of floats, base64 or raw bytes, in three dtypes and both byte orders."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from forearm.api.pooling.pooled import PooledOutputs
from forearm.api.pooling.request_bodies import VectorFields
from forearm.api.pooling.response_bodies import Vector

if TYPE_CHECKING:
    from forearm.array_types import Float32Array


def written(vector: Float32Array, body: VectorFields) -> Vector:
    """Return one vector for JSON: floats, or the base64 of its bytes."""
    if body.encoding_format == "float":
        floats: Vector = vector.tolist()
        return floats
    return base64.b64encode(raw(vector, body)).decode()


def raw(vector: Float32Array, body: VectorFields) -> bytes:
    """Return the numbers as bytes. bfloat16 is the upper half of a float32, rounded to nearest, ties to even."""
    order = "<" if body.endianness == "little" or (body.endianness == "native" and sys.byteorder == "little") else ">"
    if body.embed_dtype == "float32":
        return vector.astype(f"{order}f4").tobytes()
    if body.embed_dtype == "float16":
        return vector.astype(f"{order}f2").tobytes()
    import numpy as np

    bits = np.ascontiguousarray(vector, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(f"{order}u2").tobytes()


def bytes_response(found: PooledOutputs, body: VectorFields) -> Response:
    """Return all vectors as one binary body; vLLM's header `metadata` has their offsets (bytes_only: no header)."""
    parts = [raw(vector, body) for vector in found.vectors]
    if body.encoding_format == "bytes_only":
        return Response(b"".join(parts), media_type="application/octet-stream")
    items, start = [], 0
    for index, (vector, part) in enumerate(zip(found.vectors, parts, strict=True)):
        items.append(
            {
                "index": index,
                "embed_dtype": body.embed_dtype,
                "endianness": body.endianness,
                "start": start,
                "end": start + len(part),
                "shape": list(vector.shape),
            }
        )
        start += len(part)
    head, usage = found.head, msgspec.to_builtins(found.head.usage)
    metadata = {"id": head.id, "created": head.created, "model": head.model, "data": items, "usage": usage}
    return Response(b"".join(parts), headers={"metadata": json.dumps(metadata)}, media_type="application/octet-stream")
