"""What /openapi.json says besides the bodies: an endpoint's errors, and in which form its answers come."""

from __future__ import annotations

from fastapi import FastAPI

from forearm.json_types import Json

_REASONS = {
    "400": "The request is wrong; `message` says where, `param` names the field.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model, response or path.",
    "413": "The body is longer than FOREARM_MAX_BODY_BYTES.",
    "429": "The waiting queue is full, or a key's limit is used up; Retry-After says for how long.",
    "500": "The request broke in the engine.",
    "503": "No engine answers now, or bodies take all memory for them; Retry-After says when to try again.",
}
_OF_WORK = tuple(_REASONS)
# How GET and DELETE fail, by the first of these that the path begins with; others do not.
_OF_READING = {
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
    """An app whose document is whole."""

    def openapi(self) -> Json:
        """Made once, when it is first asked for."""
        if not self.openapi_schema:
            document = super().openapi()
            document.setdefault("components", {})["schemas"] = {"Error": _ERROR, "MessagesError": _MESSAGES_ERROR}
            for path, methods in document["paths"].items():
                for method, operation in methods.items():
                    operation["responses"] = _responses(method, path)
            self.openapi_schema = document
        return self.openapi_schema


def _responses(method: str, path: str) -> Json:
    streams = ("text/event-stream",) if path in _STREAMS and method != "delete" else ()
    forms = _FORMS.get(path, ("application/json", *streams))
    answer: Json = {"description": "The answer."}
    if forms:
        answer["content"] = {
            form: {"schema": {} if form == "application/json" else {"type": "string"}} for form in forms
        }
    return {"200": answer} | {status: _error(status, path) for status in _statuses(method, path)}


def _statuses(method: str, path: str) -> tuple[str, ...]:
    if method == "post":
        return _OF_WORK
    return next((statuses for begin, statuses in _OF_READING.items() if path.startswith(begin)), ())


def _error(status: str, path: str) -> Json:
    schema = "MessagesError" if path.startswith("/v1/messages") else "Error"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": _REASONS[status], "content": content}
