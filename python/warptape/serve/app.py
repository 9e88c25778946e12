"""The ASGI app: who may ask, how much at once and for how long; the routes; the access log.

scope["warptape"] has what handlers and the log share: "deadline" (a value of time.monotonic()), "key", and
what handlers record: "model", "version", "prompt_tokens", "completion_tokens", "error".
"""

from __future__ import annotations

import json
import logging
import sys
import time
import uuid
from collections.abc import Mapping, MutableMapping
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Router

from .errors import ApiError, api_error, error_response
from .settings import Settings
from .sites import Sites
from .tokens import Tokens, is_order

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

log = logging.getLogger("warptape.serve")
LIVE = ("/livez", "/v2/health/live")
READY = ("/readyz", "/v2/health/ready")
# What a page of an allowed origin may send.
ASKED = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "*, Authorization",
    "access-control-max-age": "600",
}
LEFT = 499  # of a client that did not wait, in the log


class _Key:
    """What one token uses."""

    __slots__ = ("at", "left", "running")

    def __init__(self, left: float, at: float) -> None:
        self.running, self.left, self.at = 0, left, at


class Gate:
    """How many requests are worked on: in all, and of each token.

    Args:
        settings: the limits.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.running = 0
        self._keys: dict[str, _Key] = {}

    def enter(self, key: str) -> _Key:
        """Lets a request in. ApiError 429 where it must come again later.

        Args:
            key: the client's token.
        """
        s, now = self._settings, time.monotonic()
        if self.running >= s.max_requests:
            raise ApiError(429, f"{s.max_requests} requests wait already", code="overloaded", retry_after=1)
        burst = max(1.0, s.key_rate or 1.0)
        state = self._keys.setdefault(key, _Key(burst, now))
        if s.key_concurrency is not None and state.running >= s.key_concurrency:
            text = f"{s.key_concurrency} requests of this token run already"
            raise ApiError(429, text, code="key_concurrency", retry_after=1)
        if s.key_rate is not None:
            state.left = min(burst, state.left + (now - state.at) * s.key_rate)
            state.at = now
            if state.left < 1:
                text = f"a token may send {s.key_rate:g} requests a second"
                raise ApiError(429, text, code="key_rate", retry_after=(1 - state.left) / s.key_rate)
            state.left -= 1
        state.running += 1
        self.running += 1
        return state

    def leave(self, state: _Key) -> None:
        """A request ended.

        Args:
            state: what `enter` gave.
        """
        state.running -= 1
        self.running -= 1


class App:
    """Args:
    routes: starlette's.
    models: asked whether they are ready.
    access_log: where lines of JSON go; None: nowhere.
    responses: counts answers by their status (a Prometheus counter).
    """

    def __init__(
        self,
        routes: list[Any],
        models: Any,
        settings: Settings,
        tokens: Tokens,
        access_log: IO[str] | None,
        responses: Any = None,
    ) -> None:
        self._router, self._models = Router(routes), models
        self._settings, self._tokens, self._log = settings, tokens, access_log
        self._responses = responses
        self.gate = Gate(settings)
        self._sites = Sites(settings, bool(tokens))
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        start, headers = time.monotonic(), dict(scope["headers"])
        shared = self._sites.shared(headers)
        request_id = headers.get(b"x-request-id", b"")
        name = (
            request_id.decode("latin-1")
            if 0 < len(request_id) <= 64 and request_id.isalnum()
            else uuid.uuid4().hex
        )
        notes = scope["warptape"] = {
            "id": name,
            "key": "",
            "deadline": start + self._settings.deadline_seconds,
        }
        scope["app"] = self  # starlette raises HTTPException then, in place of plain text
        status = 0

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", name.encode()), *shared]
                if self.draining or status in (408, 413):
                    extra.append((b"connection", b"close"))
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        state = None
        try:
            path, method = scope["path"], scope["method"]
            if method == "OPTIONS" and shared and b"access-control-request-method" in headers:
                await Response(status_code=204, headers=ASKED)(scope, receive, answer)
                return
            if path in LIVE and method == "GET":
                await JSONResponse({"live": True})(scope, receive, answer)
                return
            state = self._admit(scope, headers, notes, path, method)
            if path in READY and method == "GET":
                ready = not self.draining and self._models.ready()
                await JSONResponse({"ready": ready}, 200 if ready else 503)(scope, receive, answer)
                return
            await self._router(scope, self._counted(receive, headers), answer)
        except (ConnectionResetError, ClientDisconnect):
            status = LEFT
        except HTTPException as error:
            text = f"{scope['method']} {scope['path']:.200}: {error.detail}"
            await self._refuse(ApiError(error.status_code, text), scope, receive, answer, status)
        except ApiError as error:
            await self._refuse(error, scope, receive, answer, status)
        except Exception as error:
            failure = api_error(error)
            notes["error"] = f"{type(error).__name__}: {error}"
            if failure.status == 500:
                log.error("request %s failed", name, exc_info=error)
            if status:  # it has begun: the connection breaks, so that nobody takes this for the whole
                raise
            await self._refuse(failure, scope, receive, answer, status)
        finally:
            if state is not None:
                self.gate.leave(state)
            if self._responses is not None:
                self._responses.labels(status or LEFT).inc()
            if self._log is not None:
                self._write(scope, notes, status or LEFT, time.monotonic() - start)

    def _admit(
        self, scope: Scope, headers: Mapping[bytes, bytes], notes: dict[str, Any], path: str, method: str
    ) -> _Key | None:
        """Checks who asks, from where, for how much. ApiError where not."""
        self._sites.check(headers, method)
        header = headers.get(b"authorization")
        if header is None and b"x-api-key" in headers:  # Anthropic's clients
            header = b"Bearer " + headers[b"x-api-key"]
        key = self._tokens.key(header)
        if key is None:
            what = "is wrong" if header is not None else "is missing"
            raise ApiError(401, f"the bearer token {what}", code="invalid_api_key")
        if is_order(path) and not self._tokens.may_order(header, path):
            text = "this order needs the token of an admin, see --admin-token"
            raise ApiError(403, text, code="not_an_admin")
        notes["key"] = key
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._settings.max_body_bytes:
            raise _too_large(self._settings)
        if method != "POST":
            return None
        wanted = headers.get(b"x-request-timeout")
        if wanted is not None:
            try:
                seconds = float(wanted)
            except ValueError:
                seconds = -1.0
            if not 0 < seconds < float("inf"):
                raise ApiError(400, "X-Request-Timeout must be a number of seconds above 0")
            notes["deadline"] = min(notes["deadline"], time.monotonic() + seconds)
        state = self.gate.enter(key)
        if self._tokens.several:  # of two clients that wait the one with less on its way comes first
            notes["turn"] = state.running
        return state

    def _counted(self, receive: Receive, headers: Mapping[bytes, bytes]) -> Any:
        """The body of a request without a Content-Length is counted as it comes."""
        if b"transfer-encoding" not in headers:
            return receive
        size = 0

        async def counted() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._settings.max_body_bytes:
                raise _too_large(self._settings)
            return message

        return counted

    async def _refuse(
        self, error: ApiError, scope: Scope, receive: Receive, answer: Send, status: int
    ) -> None:
        scope["warptape"].setdefault("error", error.message)
        if not status:
            await error_response(error, scope["path"])(scope, receive, answer)

    def _write(self, scope: Scope, notes: dict[str, Any], status: int, seconds: float) -> None:
        client = scope.get("client")
        line = {
            "time": now(),
            "id": notes["id"],
            "client": client[0] if client else None,
            "method": scope["method"],
            "path": scope["path"][:1000],
            "status": status,
            "ms": round(1e3 * seconds, 2),
        }
        notes.setdefault("model", scope.get("path_params", {}).get("model"))
        for name in ("key", "model", "version", "prompt_tokens", "completion_tokens", "error"):
            if notes.get(name) not in (None, ""):
                line[name] = notes[name][:1000] if isinstance(notes[name], str) else notes[name]
        self.note(line)

    def note(self, line: dict[str, Any]) -> None:
        """Writes a line of the access log.

        Args:
            line: becomes JSON.
        """
        if self._log is None:
            return
        try:
            print(json.dumps(line), file=self._log, flush=True)
        except (OSError, ValueError) as error:  # a full disk: requests go on
            print(f"warptape serve: the access log fails: {error}", file=sys.stderr)
            self._log = None


def now() -> str:
    """For the log."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _too_large(settings: Settings) -> ApiError:
    return ApiError(413, f"the body may have at most {settings.max_body_bytes} bytes")
