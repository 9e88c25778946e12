"""The front: one event loop with HTTP, gRPC, tokenizers and metrics, and the workers behind it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import IO, Any

import uvicorn

from . import kserve, kserve_llm, status
from .app import App, now
from .batching import QueueFullError
from .errors import ApiError
from .labels import Labels
from .metrics import Metrics
from .models import Models
from .openai import OpenAI
from .other_routes import Others
from .protocol import protocol_of, sweep
from .settings import Settings
from .template import Template
from .texts import Texts
from .tokens import Tokens
from .workers import Worker, WorkerSpec

log = logging.getLogger("warptape.serve")
SWEEP = 0.25  # seconds between two looks at slow clients
BACKLOG = 2048
# What says nothing of a version's health: requests that are refused, and clients that leave.
NEUTRAL = (ApiError, ConnectionResetError)


class _Uvicorn(uvicorn.Server):  # type: ignore[misc]
    """Signals are the front's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def _check_tls(files: tuple[str, str] | None) -> None:
    """OSError names the files where they cannot be read, or are no certificate with its key."""
    if files is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*files)
        except OSError as error:  # SSLError is one
            raise OSError(f"TLS by {' and '.join(dict.fromkeys(files))}: {error}") from error


class Server:
    """Models behind HTTP and gRPC.

        with Server("repository", port=0, token="secret") as server:
            print(server.url)

    Args:
        models: a repository or its folder, or modules by name, which answer from processes of their own
            that have them as they are now.
        token: what clients must send as bearer token, or several of these.
        admin_token: what orders need, or several of these; None: any token.
        configs: of modules, by name, what config.json says of a model in a repository.
        access_log: a text file for lines of JSON; None: no log.
        control: "poll" looks for new models and versions; "explicit" loads what clients ask for.
        load: under "explicit", models to be loaded first; "*" is all.
        limits: see Settings.

    Raises: ValueError for limits without a meaning, and for a host other than loopback without a token;
    RepositoryError for what is no repository; OSError where the port is in use, or a file of TLS is not there
    or is none.
    """

    def __init__(
        self,
        models: Any,
        *,
        token: str | Iterable[str] | None = None,
        admin_token: str | Iterable[str] | None = None,
        configs: Mapping[str, Any] | None = None,
        access_log: IO[str] | None = None,
        control: str = "poll",
        load: Iterable[str] = (),
        **limits: Any,
    ) -> None:
        self.settings = settings = Settings(**limits)
        self._tokens = Tokens(
            *([each] if isinstance(each, str) else each or () for each in (token, admin_token))
        )
        if not settings.loopback() and not self._tokens:
            raise ValueError(f"host {settings.host} can be reached from elsewhere: give a token")
        _check_tls(settings.tls_files())
        modules: Mapping[str, Any] = {}
        if isinstance(models, Mapping):
            modules, models = models, None
            for module in modules.values():
                module.eval()
        # Before sockets, threads and loops, of which a fork would have a copy.
        self._templates = [Template(modules)] if modules else []
        self.grpc_port = 0  # once it serves
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        try:
            self._build(models, modules, configs, access_log, control=control, load=load)
            self._socket = self._bound()
            self._templates.append(Template())
        except BaseException:
            self._close_templates()
            raise
        self.port: int = self._socket.getsockname()[1]

    def _build(
        self,
        repository: Any,
        modules: Mapping[str, Any],
        configs: Mapping[str, Any] | None,
        access_log: IO[str] | None,
        **loading: Any,
    ) -> None:
        """Models, metrics and the app."""
        settings, self.metrics = self.settings, Metrics()
        self._texts = Texts(settings.template_seconds)
        self.models = Models(
            repository,
            modules=tuple(modules),
            configs=configs,
            **loading,
            poll_seconds=settings.poll_seconds,
            start=self._start_worker,
            infer=functools.partial(kserve_llm.infer, self._texts),
            metrics=self.metrics,
            ready_timeout=settings.ready_timeout,
            neutral=NEUTRAL,
        )
        openai = OpenAI(self.models, self.metrics, self._texts, settings)
        routes = [
            *openai.routes(),
            *Others(openai, self.models).routes(),
            *Labels(openai, self._texts).routes(),
            *kserve.routes(self.models, self.metrics, self._texts, settings),
            *status.routes(self.models, self.metrics),
        ]
        from prometheus_client import Counter

        what = "answers over HTTP, by status; 499: the client left"
        responses = Counter("warptape_http_responses", what, ["status"], registry=self.metrics.registry)
        self.app = App(routes, self.models, settings, self._tokens, access_log, responses)

    def _close_templates(self) -> None:
        for template in self._templates:
            template.close()

    @property
    def url(self) -> str:
        """Where HTTP is served: `http://host:port`, or with TLS `https://`."""
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http{'s' if self.settings.tls_files() else ''}://{host}:{self.port}"

    def _bound(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET
        # With its protocol's number, by which asyncio knows that TCP_NODELAY can be set.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((self.settings.host, self.settings.port))
            bound.listen(BACKLOG)  # who comes before the loop runs waits
        except OSError as error:
            bound.close()
            raise OSError(
                f"{self.settings.host} port {self.settings.port}: {error.strerror or error}"
            ) from error
        return bound

    async def _start_worker(self, spec: WorkerSpec, timeout: float) -> Worker:
        template = self._templates[0 if spec.kind == "module" else -1]
        return await Worker.start(spec, timeout, spawn=template.spawn, on_death=_log_death)

    # ---- life ----

    async def serve(self) -> None:
        """Loads the models and answers requests until `stop`.

        Then it drains: it is no longer ready, stops listening, and gives the last answers.
        """
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        certificate, key = self.settings.tls_files() or (None, None)
        config = uvicorn.Config(
            self.app,
            http=protocol_of(self.settings),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            backlog=BACKLOG,
            timeout_keep_alive=max(1, round(self.settings.keep_alive_seconds)),
            timeout_graceful_shutdown=max(1, round(self.settings.drain_seconds)),
            server_header=False,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        front = _Uvicorn(config)
        task = asyncio.create_task(front.serve(sockets=[self._socket]))
        task.add_done_callback(lambda _: self.stop())
        sweeper = asyncio.create_task(_sweep(front))
        models_closed = False
        grpc = None
        try:
            if self.settings.grpc_port is not None:
                grpc = await self._start_grpc(self.settings.grpc_port)
            await self.models.start()
            self._ready.set()
            await self._stop.wait()
            self.app.draining = True
            await asyncio.sleep(self.settings.drain_delay)
            front.should_exit = True
            stopping = [task, *([grpc.stop(self.settings.drain_seconds)] if grpc is not None else [])]
            await asyncio.gather(*stopping)
            await self.models.close(1.0)
            models_closed = True
        finally:
            sweeper.cancel()
            self._texts.close()
            if not models_closed:
                front.should_exit = True
                if grpc is not None:
                    await grpc.stop(0)
                await self.models.close(0.0)
            self._close_templates()

    async def _start_grpc(self, port: int) -> Any:
        from .kserve_grpc import start_grpc

        @contextlib.asynccontextmanager
        async def admit(context: Any) -> AsyncIterator[None]:
            start = time.monotonic()
            key = self._tokens.key(_authorization(context)) or ""
            line = {
                "time": now(),
                "client": context.peer(),
                "method": "gRPC",
                "path": "ModelInfer",
                "key": key,
            }
            state, status = None, "OK"
            try:
                try:
                    state = self.app.gate.enter(key)
                except ApiError as error:
                    raise QueueFullError(error.message) from error
                yield
            except BaseException as error:
                status = type(error).__name__
                raise
            finally:
                if state is not None:
                    self.app.gate.leave(state)
                self.app.note({**line, "status": status, "ms": round(1e3 * (time.monotonic() - start), 2)})

        server, self.grpc_port = await start_grpc(
            self.models,
            self.settings.host,
            port,
            self._tokens,
            metrics=self.metrics,
            most_body=self.settings.max_body_bytes,
            tls=self.settings.tls_files(),
            admit=admit,
        )
        return server

    def _order(self, work: Any) -> Any:
        """Runs a coroutine on the server's loop, from another thread."""
        if self._loop is None:
            work.close()
            raise RuntimeError("the server does not run: use it in a with statement, or start() it")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def load(self, name: str, version: int | None = None) -> int:
        """Loads a version of a model in the repository, by default the one that its policy wants, and begins
        its rollout. Raises: what `Models.load` raises."""
        return self._order(self.models.load(name, version))

    def unload(self, name: str) -> None:
        """Takes a model away. Raises: what `Models.unload` raises.

        Args:
            name: of the model.
        """
        self._order(self.models.unload(name))

    def rollback(self, name: str) -> int:
        """Goes back to the version before, at once; returns it. Raises: what `Models.rollback` raises.

        Args:
            name: of the model.
        """
        return self._order(self.models.rollback(name))

    def stop(self) -> None:
        """Begins to drain.

        Any thread may call it; before the start it does nothing.
        """
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stop.set)

    def run(self) -> None:
        """Serves in the main thread until SIGTERM or SIGINT.

        A second signal ends at once.
        """

        async def main() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._signalled)
            await self.serve()

        asyncio.run(main())

    def _signalled(self) -> None:
        if self.app.draining or self._stop is None:
            print("warptape serve: ended before all answers were sent", file=sys.stderr)
            raise SystemExit(130)
        self._stop.set()

    def start(self) -> Server:
        """Serves in a thread, and returns when the models are loaded.

        It raises what `serve` raises.

        Returns:
            The server.
        """

        def run() -> None:
            try:
                asyncio.run(self.serve())
            except BaseException as error:
                self._error = error
            finally:
                self._ready.set()

        self._thread = threading.Thread(target=run, name="warptape-serve", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def close(self) -> None:
        """Drains and ends the thread."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        elif self._loop is None:
            self._socket.close()
            self._close_templates()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *error: Any) -> None:
        self.close()


def _authorization(context: Any) -> bytes | None:
    """Of a call over gRPC."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
    return None


def _log_death(worker: Worker, how: str) -> None:
    log.error("the worker of %s version %s ended: %s", worker.spec.model, worker.spec.version, how)


async def _sweep(front: Any) -> None:
    while True:
        await asyncio.sleep(SWEEP)
        sweep(front.server_state.connections)
