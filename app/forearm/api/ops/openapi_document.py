"""Complete /openapi.json with each endpoint's parameters, error statuses and the media types of its answers."""

from __future__ import annotations

import re

from fastapi import FastAPI

from forearm.json_types import Json

_REASONS = {
    "400": "The request is invalid; `message` says where, `param` names the field.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model, response or path.",
    "413": "The body is longer than FOREARM_MAX_BODY_BYTES.",
    "429": "The waiting queue is full, or a key's limit is exceeded; Retry-After says for how long.",
    "500": "The request failed in the engine.",
    "503": "No engine answers now, or request bodies use all memory for them; Retry-After says when to try again.",
}
# The statuses of GET and DELETE, by the first of these prefixes that the path begins with; others do not fail.
_READING_STATUSES = {
    "/v1/responses": ("400", "401", "404"),
    "/v1/models/": ("401", "404"),
    "/v1/models": ("401",),
    "/tokenizer_info": ("401", "404"),
    "/server_info": ("401",),
    "/readyz": ("503",),
    "/startupz": ("503",),
    "/health": ("503",),
    "/ping": ("503",),
}
_FORMS = {"/metrics": ("text/plain",), "/livez": (), "/startupz": (), "/health": (), "/ping": ()}
_STREAMS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/{response_id}", "/v1/messages")
_ERROR: Json = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_MESSAGES_ERROR: Json = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            "required": ["type", "message"],
        },
    },
    "required": ["type", "error"],
}


class DescribedApp(FastAPI):
    """An app whose OpenAPI document is complete."""

    def openapi(self) -> Json:
        """Return the document, which is made at the first call."""
        if not self.openapi_schema:
            document = super().openapi()
            document.setdefault("components", {})["schemas"] = {"Error": _ERROR, "MessagesError": _MESSAGES_ERROR}
            for path, methods in document["paths"].items():
                schema = "MessagesError" if path.startswith("/v1/messages") else "Error"
                error_content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
                reading = next((found for begin, found in _READING_STATUSES.items() if path.startswith(begin)), ())
                parts = [
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                    for name in re.findall(r"{(\w+)}", path)
                ]
                for method, operation in methods.items():
                    operation.update({"parameters": parts} if parts else {})
                    streams = ("text/event-stream",) if path in _STREAMS and method != "delete" else ()
                    answer: Json = {"description": "The answer."}
                    if forms := _FORMS.get(path, ("application/json", *streams)):
                        schemas = ({} if form == "application/json" else {"type": "string"} for form in forms)
                        answer["content"] = {form: {"schema": one} for form, one in zip(forms, schemas, strict=True)}
                    operation["responses"] = {"200": answer} | {
                        status: {"description": _REASONS[status], "content": error_content}
                        for status in (_REASONS if method == "post" else reading)
                    }
            self.openapi_schema = document
        return self.openapi_schema
