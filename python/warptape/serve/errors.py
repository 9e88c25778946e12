"""Errors as HTTP answers: OpenAI's form under /v1, KServe's under /v2."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from .workers import DeadlineError, RequestError, WorkerError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    415: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """What a request is refused with.

    Args:
        status: of HTTP.
        param: the field that is to blame.
        code: a short name for programs.
        retry_after: seconds, for 429 and 503.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """OpenAI's form."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def api_error(error: BaseException) -> ApiError:
    """What an exception is for the client. What is nobody's expectation is a 500 without its text, which may
    hold what is none of the client's business."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error))
    if isinstance(error, DeadlineError):
        return ApiError(504, str(error), code="deadline_exceeded")
    if isinstance(error, WorkerError):
        return ApiError(503, str(error), code="worker_failed", retry_after=1)
    name = type(error).__name__
    if name == "ModelNotFoundError":
        return ApiError(404, str(error), param="model", code="model_not_found")
    if name in ("ModelUnavailableError", "QueueFullError"):
        status = 503 if name == "ModelUnavailableError" else 429
        return ApiError(status, str(error), code="unavailable", retry_after=1)
    return ApiError(500, "the server failed; its log says how", code="internal_error")


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """An error as Anthropic's clients have it.

    Args:
        error: what went wrong.
    """
    kind = {429: "rate_limit_error", 503: "overloaded_error", 413: "request_too_large"}.get(error.status)
    kind = kind or TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_response(error: ApiError, path: str = "/v1") -> Response:
    """The answer, in the form of the path's protocol.

    Args:
        error: what went wrong.
        path: of the request.
    """
    body: dict[str, Any] = {"error": error.message} if path.startswith(("/v2", "/api/")) else error.body()
    if path.startswith("/v1/messages"):
        body = anthropic_body(error)
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.status == 401:
        # On the page a browser asks its user, for the token as password.
        headers["www-authenticate"] = 'Basic realm="warptape"' if path == "/status" else "Bearer"
    text = json.dumps(body).encode()
    return Response(text, error.status, headers, media_type="application/json")
