"""A repository of small programs, and a server of KServe's routes in a thread, for tests and fault runs."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

import warptape as torch
from warptape.export import Dim, export, save
from warptape.serve import kserve, kserve_llm
from warptape.serve.kserve_grpc import start_grpc
from warptape.serve.metrics import Metrics
from warptape.serve.models import Models
from warptape.serve.versions import save_samples

SIZE = 8


class Scale(torch.nn.Module):
    """x [n, SIZE] -> {"y": x * factor}: an answer says which version gave it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.full((SIZE,), factor))

    def forward(self, x: Any) -> Any:
        return {"y": x * self.factor}


class Echo(torch.nn.Module):
    """A tensor of each dtype as it came."""

    def forward(self, **tensors: Any) -> Any:
        return {f"{name}_out": t.clone() for name, t in tensors.items()}


DTYPES = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def add_version(
    repository: Path,
    name: str,
    version: int,
    factor: float,
    config: dict[str, Any] | None = None,
    wrong: bool = False,
) -> Path:
    """A version of Scale with a stored sample; `wrong`: the sample is another's."""
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    program = export(
        Scale(factor), (), {"x": torch.zeros(2, SIZE)}, dynamic_shapes={"x": {0: Dim("n", min=1, max=64)}}
    )
    x = np.arange(2 * SIZE, dtype=np.float32).reshape(2, SIZE)
    save_samples(folder / "samples.safetensors", [({"x": x}, {"y": x * (factor + wrong)})])
    if config is not None:
        (repository / name / "config.json").write_text(json.dumps(config))
    save(program, folder / "model.safetensors")
    return folder


def add_echo(repository: Path) -> None:
    """A model that takes every dtype that programs have."""
    folder = repository / "echo" / "1"
    folder.mkdir(parents=True)
    example = {name: torch.zeros(2, 3).to(dtype) for name, dtype in DTYPES.items()}
    n = Dim("n", min=1, max=64)
    program = export(Echo(), (), example, dynamic_shapes={name: {0: n} for name in example})
    save(program, folder / "model.safetensors")


class Running:
    """A server with HTTP and gRPC in a thread with an event loop of its own."""

    def __init__(self, repository: Any = None, tokens: tuple[str, ...] = (), **options: Any) -> None:
        self.metrics = Metrics()
        self._make: Callable[[], Models] = lambda: Models(
            repository, metrics=self.metrics, infer=kserve_llm.infer, **options
        )
        self._tokens = tokens
        self._ready, self._failed = threading.Event(), None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def call(self, work: Awaitable[Any]) -> Any:
        """Runs a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()  # type: ignore[arg-type]

    async def _main(self) -> None:
        import uvicorn
        from starlette.applications import Starlette

        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            self.models = self._make()
            await self.models.start()
            app = Starlette(routes=kserve.routes(self.models, self.metrics))
            self.app = app
            # With the protocol's number, by which asyncio knows that TCP_NODELAY can be set.
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
            config = uvicorn.Config(app, log_level="warning", access_log=False, http="httptools", ws="none")
            server = uvicorn.Server(config)
            server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
            server.capture_signals = _nothing  # type: ignore[method-assign]
            grpc_server, self.grpc_port = await start_grpc(
                self.models, "127.0.0.1", 0, self._tokens, metrics=self.metrics
            )
            task = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
        except BaseException as error:
            self._failed = error  # type: ignore[assignment]
            self._ready.set()
            return
        self._ready.set()
        await self._stop.wait()
        await grpc_server.stop(1.0)
        server.should_exit = True
        await task
        await self.models.close(5.0)


class _nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass
