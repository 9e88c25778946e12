"""A repository of small programs, and a server of KServe's routes in a thread, for tests and fault runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import warptape as torch
from warptape.export import Dim, export, save
from warptape.serve import Server
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
    """A server on free ports of loopback, in a thread."""

    def __init__(self, repository: Any, **options: Any) -> None:
        self.server = Server(repository, port=0, grpc_port=0, **options)

    def __enter__(self) -> Running:
        self.server.start()
        self.models, self.metrics, self.app = self.server.models, self.server.metrics, self.server.app
        self.port, self.grpc_port = self.server.port, self.server.grpc_port
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def call(self, work: Any) -> Any:
        """Runs a coroutine on the server's loop."""
        return self.server._order(work)
