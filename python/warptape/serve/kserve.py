"""KServe v2 over HTTP: routes for the app, by models that `Models` lends.

The routes are ASGI applications of their own: what a framework does for a request would cost more than the
request itself.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..version import __version__
from .batching import QueueFullError
from .config import ConfigError
from .disconnect import unless_left
from .errors import TYPES, ApiError
from .kserve_codec import HEADER_LENGTH, InferRequest, decompressed, encode_response, parse_infer
from .kserve_llm import INPUTS, OUTPUTS
from .limits import MOST_JSON, SLICE, loads
from .models import ModelNotFoundError, Models, ModelUnavailableError
from .repository import RepositoryError
from .rollout import RolloutError
from .settings import Settings
from .sites import check_order
from .texts import Texts
from .versions import Version
from .workers import DeadlineError, RequestError, WorkerError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from .metrics import Metrics

EXTENSIONS = ["binary_tensor_data", "model_repository", "statistics", "model_configuration", "parameters"]
# What stands behind a model's name in a path.
ENDINGS = ("infer", "ready", "config", "stats", "versions", "load", "unload", "rollback")
MOST_ORDER = 1 << 16  # bytes of an order's body
MOST_BODY = 1 << 26  # bytes, unless the server says another number
# Error, status, type in the body; the first that fits.
ERRORS: tuple[tuple[type[BaseException], int, str], ...] = (
    (RequestError, 400, "invalid_request_error"),
    (QueueFullError, 429, "queue_full_error"),
    (DeadlineError, 504, "deadline_error"),
    (ModelNotFoundError, 404, "not_found_error"),
    (ModelUnavailableError, 503, "unavailable_error"),
    (RolloutError, 409, "rollout_error"),
    (RepositoryError, 400, "repository_error"),
    (ConfigError, 400, "repository_error"),
    (WorkerError, 500, "model_error"),
    (Exception, 500, "server_error"),
)
log = logging.getLogger("warptape.serve")
JSON = (b"content-type", b"application/json")
Reply = tuple[int, list[tuple[bytes, bytes]], bytes]


def status_of(error: BaseException) -> tuple[int, str]:
    """The HTTP status of an error and its name in the body.

    Args:
        error: of any class.
    """
    if isinstance(error, ApiError):
        return error.status, TYPES.get(error.status, "server_error")
    return next((status, name) for kind, status, name in ERRORS if isinstance(error, kind))


def json_reply(value: object, status: int = 200) -> Reply:
    """A reply with a JSON body.

    Args:
        value: becomes JSON.
        status: of HTTP.
    """
    return status, [JSON], json.dumps(value, separators=(",", ":")).encode()


def error_reply(error: BaseException) -> Reply:
    """The reply that says what went wrong.

    Args:
        error: of any class.
    """
    status, name = status_of(error)
    text = str(error) or repr(error)
    reply = json_reply({"error": text, "type": name}, status)
    if status == 429:
        reply[1].append((b"retry-after", b"1"))
    return reply


class _Exchange:
    """A request as a handler sees it."""

    def __init__(self, scope: Scope, receive: Receive, most: int, most_json: int = MOST_JSON) -> None:
        self.path: dict[str, str] = scope["path_params"]
        # What the app and its log share with handlers; see app.py.
        self.notes: dict[str, Any] = scope.get("warptape", {})
        self._scope, self._receive, self._most, self.most_json = scope, receive, most, most_json

    def header(self, name: bytes) -> str | None:
        for key, value in self._scope["headers"]:
            if key == name:
                return value.decode("latin-1")
        return None

    async def body(self) -> bytes:
        """The body, unpacked. Raises: RequestError; ConnectionError where the client left."""
        message = await self._receive()
        parts: list[bytes] = []
        size = 0
        while True:
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client left")
            part = message.get("body", b"")
            size += len(part)
            if size > self._most:
                raise RequestError(f"the body has more than {self._most} bytes")
            parts.append(part)
            if not message.get("more_body"):
                break
            message = await self._receive()
        joined = parts[0] if len(parts) == 1 else b"".join(parts)
        encoding = self.header(b"content-encoding")
        if not encoding:
            return joined
        return await asyncio.to_thread(decompressed, joined, encoding, self._most)

    async def object(self) -> dict[str, Any]:
        """The body as a JSON object, {} where there is none. Raises: RequestError."""
        body = await self.body()
        try:
            data = loads(body, MOST_ORDER) if body.strip() else {}
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the body is no JSON: {error!s:.200}") from None
        if not isinstance(data, dict) or not isinstance(data.get("parameters", {}), dict):
            raise RequestError("the body must be an object, its parameters too")
        return data

    async def unless_left(self, work: Awaitable[Any]) -> Any:
        """What `work` gives; cancels it when the client leaves.

        Args:
            work: what is waited for.
        """
        return await unless_left(self._receive, work)


class _Endpoint:
    """An ASGI application around a handler."""

    def __init__(
        self, handler: Callable[[_Exchange], Awaitable[Reply]], most: int, most_json: int = MOST_JSON
    ) -> None:
        self._handler, self._most, self._most_json = handler, most, most_json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, headers, body = await self._handler(
                _Exchange(scope, receive, self._most, self._most_json)
            )
        except (ConnectionResetError, ApiError):  # the app's
            raise
        except Exception as error:
            scope.get("warptape", {})["error"] = str(error)
            status, headers, body = error_reply(error)
            if status == 500:
                log.error("%s failed", scope["path"], exc_info=error)
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def endpoint(handler: Callable[[Any], Awaitable[Reply]], most_body: int = MOST_BODY) -> Any:
    """An ASGI application around a handler of calls, for a route.

    Args:
        handler: of one call.
        most_body: bytes.
    """
    return _Endpoint(handler, most_body)


def metadata_of(models: Models, version: Version) -> dict[str, Any]:
    """KServe's metadata of a model.

    Args:
        models: all.
        version: one of them.
    """
    is_llm = version.spec.kind == "llm"
    inputs, outputs = (INPUTS, OUTPUTS) if is_llm else (version.inputs.values(), version.outputs.values())
    numbers = [v.number for v in models.loaded() if v.name == version.name]
    return {
        "name": version.name,
        "versions": [str(n) for n in sorted(numbers)],
        "platform": f"warptape_{version.spec.kind}",
        "inputs": [{k: t[k] for k in ("name", "datatype", "shape")} for t in inputs],
        "outputs": [{k: t[k] for k in ("name", "datatype", "shape")} for t in outputs],
    }


def server_metadata() -> dict[str, Any]:
    """KServe's metadata of the server."""
    return {"name": "warptape", "version": __version__, "extensions": EXTENSIONS}


async def infer(
    models: Models,
    metrics: Metrics,
    name: str,
    number: str | None,
    request: InferRequest,
    deadline: float | None = None,
) -> tuple[Version, Any]:
    """Computes a request, counted; the version that answered, and its outputs.

    Args:
        deadline: a value of time.monotonic(); the request's own timeout can only be earlier.

    Raises: what `Models.lease` and `Version.infer` raise.
    """
    began = time.monotonic()
    timeout = request.timeout
    if timeout is not None:
        deadline = began + timeout if deadline is None else min(deadline, began + timeout)
    async with models.lease(name, number) as version:
        counts = metrics.of(version.name, version.number)
        try:
            outputs = await version.infer(request, deadline)
        except Exception as error:
            counts.failed(time.monotonic() - began, status_of(error)[1])
            raise
        counts.succeeded(time.monotonic() - began, time.time())
    return version, outputs


async def version_of_load(models: Models, name: str, parameters: dict[str, Any]) -> int:
    """Loads what a load request asks for; the number of the version. Raises: as `Models.load`.

    Args:
        models: all.
        name: of the model.
        parameters: of the request.
    """
    unknown = sorted(set(parameters) - {"version"})
    if unknown:
        raise RequestError(
            f"parameters {unknown!r:.200} are not known; a load takes version. Configs lie in the repository"
        )
    version = parameters.get("version")
    if version is not None and not (
        str(version).isascii() and str(version).isdigit() and len(str(version)) < 19
    ):
        raise RequestError(f"parameters.version must be a number, got {version!r:.100}")
    return await models.load(name, None if version is None else int(version))


class _KServe:
    """The handlers."""

    def __init__(self, models: Models, metrics: Metrics, texts: Texts) -> None:
        self.models, self.metrics, self._texts = models, metrics, texts

    async def live(self, call: _Exchange) -> Reply:
        return json_reply({"live": True})

    async def ready(self, call: _Exchange) -> Reply:
        ready = self.models.ready()
        return json_reply({"ready": ready}, 200 if ready else 503)

    async def server(self, call: _Exchange) -> Reply:
        return json_reply(server_metadata())

    def _version(self, call: _Exchange) -> Version:
        return self.models.peek(call.path["model"], call.path.get("version"))

    async def model(self, call: _Exchange) -> Reply:
        return json_reply(metadata_of(self.models, self._version(call)))

    async def model_ready(self, call: _Exchange) -> Reply:
        version = self._version(call)
        return json_reply({"name": version.name, "ready": version.ready}, 200 if version.ready else 503)

    async def config(self, call: _Exchange) -> Reply:
        return json_reply(self._version(call).config.to_triton())

    async def statistics(self, call: _Exchange) -> Reply:
        name, number = call.path.get("model", ""), call.path.get("version", "")
        if name:
            self.models.peek(name, number)
        return json_reply({"model_stats": self.metrics.statistics(name, number)})

    async def infer(self, call: _Exchange) -> Reply:
        name, number = call.path["model"], call.path.get("version")
        self.models.peek(name, number)  # before a large body is read for nothing
        length = call.header(HEADER_LENGTH.lower().encode())
        parse = functools.partial(parse_infer, header_length=length, most=call.most_json)
        request = await self._texts.parsed(await call.body(), parse)
        work = infer(self.models, self.metrics, name, number, request, call.notes.get("deadline"))
        is_llm = self.models.peek(name, number).spec.kind == "llm"
        version, outputs = await (call.unless_left(work) if is_llm else work)
        call.notes.update(model=version.name, version=version.number)
        write = functools.partial(encode_response, request, version.name, version.number, outputs)
        small = sum(each.size for each in outputs.values()) < SLICE
        body, size = write() if small else await asyncio.to_thread(write)
        if size is None:
            return 200, [JSON], body
        header = (HEADER_LENGTH.lower().encode(), str(size).encode())
        return 200, [(b"content-type", b"application/octet-stream"), header], body

    async def index(self, call: _Exchange) -> Reply:
        only_ready = (await call.object()).get("ready", False)
        if type(only_ready) is not bool:
            raise RequestError(f"ready must be true or false, got {only_ready!r:.100}")
        rows = await asyncio.to_thread(self.models.index)
        return json_reply([r for r in rows if r["state"] == "READY" or not only_ready])

    @staticmethod
    async def _order(call: _Exchange) -> dict[str, Any]:
        """The parameters of an order."""
        check_order(call.header(b"content-type"))
        parameters: dict[str, Any] = (await call.object()).get("parameters", {})
        return parameters

    async def load(self, call: _Exchange) -> Reply:
        parameters = await self._order(call)
        version = await version_of_load(self.models, call.path["model"], parameters)
        return json_reply({"name": call.path["model"], "version": str(version)})

    async def unload(self, call: _Exchange) -> Reply:
        await self._order(call)
        await self.models.unload(call.path["model"])
        return json_reply({"name": call.path["model"]})

    async def rollback(self, call: _Exchange) -> Reply:
        await self._order(call)
        version = await self.models.rollback(call.path["model"])
        return json_reply({"name": call.path["model"], "version": str(version)})


def routes(models: Models, metrics: Metrics, texts: Texts, settings: Settings) -> list[Any]:
    """The routes under /v2 for a starlette application.

    Args:
        metrics: a Metrics.
        settings: max_body_bytes hold for a body also when it is unpacked.

    Raises: ImportError without starlette.
    """
    from starlette.convertors import StringConvertor, register_url_convertor
    from starlette.routing import Route

    class ModelName(StringConvertor):  # type: ignore[misc]
        """A name, which may have the owner before it."""

        regex = rf"[^/]+(?:/(?!(?:{'|'.join(ENDINGS)})(?:/|$))[^/]+)?"

    register_url_convertor("model", ModelName())
    k = _KServe(models, metrics, texts)
    most = settings.max_body_bytes, settings.max_json_bytes

    def route(path: str, handler: Callable[..., Any], method: str = "GET") -> Any:
        return Route(path, _Endpoint(handler, *most), methods=[method])

    routes = []
    for at in ("/v2/models/{model:model}", "/v2/models/{model:model}/versions/{version}"):
        routes += [
            route(at + "/infer", k.infer, "POST"),
            route(at, k.model),
            route(at + "/ready", k.model_ready),
            route(at + "/config", k.config),
            route(at + "/stats", k.statistics),
        ]
    at = "/v2/repository/models/{model:model}"
    return [
        routes[0],
        route("/v2/models/stats", k.statistics),
        *routes[1:],
        route("/v2", k.server),
        route("/v2/", k.server),
        route("/v2/health/live", k.live),
        route("/v2/health/ready", k.ready),
        route("/v2/repository/index", k.index, "POST"),
        route(at + "/load", k.load, "POST"),
        route(at + "/unload", k.unload, "POST"),
        route(at + "/rollback", k.rollback, "POST"),
    ]
