"""The errors that the package raises on purpose. `status` is the HTTP status that api/app.py answers with.

ForearmError
├── InvalidRequest      400  the client can fix it: a bad field, a prompt longer than the context
│   ├── BodyTooLarge    413  the request's body is longer than the limit
│   └── ConstraintFailed 400 the answer has begun, and the request's constraints allow no next token
├── Unauthorized        401  the API key is missing or wrong
├── ModelNotFound       404  the request names a model that is not the one served
├── ResponseNotFound    404  no such response is stored (any more), or it is another key's
├── Overloaded          429  the waiting queue is full; retry after `retry_after_s`
│   └── RateLimited     429  a key's limit of requests or tokens is used up for now
├── EngineFailed        500  this request failed in the engine (a NaN, say); the message names it
├── EngineUnavailable   503  no engine answers on the socket; retry after `retry_after_s`
├── BodyMemoryFull      503  the bodies of other requests take all the memory for bodies; retry after `retry_after_s`
├── StoreFull           503  responses cannot be stored now; retry after `retry_after_s`
└── ConfigError           -  at start-up only: a flag, an environment variable, a model folder
    └── DoesNotFit        -  the machine's memory is too small for the model as it is configured
"""

from __future__ import annotations


class ForearmError(Exception):
    """An error that the package raises on purpose; its text is written for the user. `param` names the request's field
    that is to blame, where there is one.
    """

    status = 500
    kind = "InternalServerError"
    param: str | None = None


class InvalidRequest(ForearmError):
    """A mistake that the client can fix."""

    status = 400
    kind = "BadRequestError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BodyTooLarge(InvalidRequest):
    """The request's body is longer than the limit."""

    status = 413


class ConstraintFailed(InvalidRequest):
    """The answer has begun, and the request's constraints allow no next token."""


class Unauthorized(ForearmError):
    """The API key is missing or wrong."""

    status = 401
    kind = "AuthenticationError"


class ModelNotFound(ForearmError):
    """The request names a model that is not the one served."""

    status = 404
    kind = "NotFoundError"
    param = "model"


class ResponseNotFound(ForearmError):
    """No such response is stored (any more), or it is another key's."""

    status = 404
    kind = "NotFoundError"


class Overloaded(ForearmError):
    """The waiting queue is full."""

    status = 429
    kind = "RateLimitError"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    """A key's limit of requests or tokens is used up for now; `headers` tell which, and when it is reset."""

    def __init__(self, message: str, retry_after_s: int, headers: dict[str, str]) -> None:
        super().__init__(message, retry_after_s)
        self.headers = headers


class EngineFailed(ForearmError):
    """This one request failed in the engine."""


class EngineUnavailable(ForearmError):
    """No engine answers on the socket."""

    status = 503
    kind = "ServiceUnavailableError"

    def __init__(self, message: str, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BodyMemoryFull(ForearmError):
    """The bodies of other requests take all the memory that a worker has for bodies."""

    status = 503
    kind = "ServiceUnavailableError"
    retry_after_s = 2  # bodies are held while they arrive and are processed: mostly well below a second


class StoreFull(ForearmError):
    """Responses cannot be stored or read now: running ones fill the store, or the disk or memory is full."""

    status = 503
    kind = "ServiceUnavailableError"
    retry_after_s = 5


class ConfigError(ForearmError):
    """A flag, an environment variable or a model folder is wrong; the message names the value and the remedy.

    A process that ends because of it prints the message and exits with `exit_status`: starting it again won't help.
    """

    exit_status = 78  # EX_CONFIG of sysexits.h


class DoesNotFit(ConfigError):
    """The machine's memory is too small for the model as it is configured; the message has the arithmetic."""
