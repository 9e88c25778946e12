"""Rows of benchmarks/serve.py for KServe and dynamic batching: small requests, and a ResNet-18.

Server, worker and load share the machine. Each row is a dict of what was measured, with the goal.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import warptape as torch
from _images import resnet
from warptape import nn
from warptape.export import Dim, export, save
from warptape.serve.kserve_proto import messages

Row = dict[str, Any]
WORDS = 256  # float32: 1 KB


class Scale(nn.Module):
    """The least that a model can do."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((WORDS,), 2.0))

    def forward(self, x: Any) -> Any:
        return {"y": x * self.factor}


@contextmanager
def served(name: str, program: Any, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The command line's server in a process of its own; its ports."""
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / name / "1"
        version.mkdir(parents=True)
        save(program, version / "model.safetensors")
        (version.parent / "config.json").write_text(json.dumps(config))
        code = (
            "import sys; from warptape.serve import Server\n"
            f"with Server({folder!r}, port=0, grpc_port=0, max_requests=1024) as s:\n"
            "    print(s.port, s.grpc_port, flush=True); sys.stdin.read()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None and process.stdin is not None
            http, grpc = map(int, process.stdout.readline().split())
            yield {"http": http, "grpc": grpc}
            process.stdin.close()
            process.wait(60)
        finally:
            process.kill()


def infer_body(tensor: np.ndarray) -> tuple[bytes, int]:
    """A binary infer request for `x`, and how much of it is JSON."""
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": list(tensor.shape),
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": tensor.nbytes},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return head + tensor.tobytes(), len(head)


def _in_ms(text: str) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)(us|ms|s|m)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}[unit]


def wrk(port: int, name: str, body: bytes, head: int, clients: int, seconds: int) -> Row:
    """Requests a second and latencies by wrk. Raises RuntimeError for answers that are none."""
    with tempfile.TemporaryDirectory() as folder:
        data, script = Path(folder) / "body", Path(folder) / "post.lua"
        data.write_bytes(body)
        script.write_text(
            f'local f = io.open("{data}", "rb"); wrk.body = f:read("*all"); f:close()\n'
            f'wrk.method = "POST"; wrk.headers["Inference-Header-Content-Length"] = "{head}"\n'
        )
        url = f"http://127.0.0.1:{port}/v2/models/{name}/infer"
        command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "20s", "--latency"]
        out = subprocess.run([*command, "-s", str(script), url], capture_output=True, text=True, check=True)
    if "Non-2xx" in out.stdout or "Socket errors" in out.stdout:
        raise RuntimeError(out.stdout)
    latency = {p: _in_ms(re.search(rf"^\s+{p}%\s+(\S+)", out.stdout, re.M)[1]) for p in (50, 99)}  # type: ignore[index]
    rate = float(re.search(r"Requests/sec:\s+(\S+)", out.stdout)[1])  # type: ignore[index]
    return {"requests/s": round(rate), "p50 ms": latency[50], "p99 ms": latency[99], "clients": clients}


def over_http(seconds: int = 8, clients: int = 8) -> Row:
    """1 KB in, 1 KB out over HTTP."""
    if shutil.which("wrk") is None:
        return {"row": "KServe 1 KB, HTTP", "skipped": "wrk is not installed"}
    n = Dim("n", min=1, max=64)
    program = export(Scale(), (), {"x": torch.zeros(2, WORDS)}, dynamic_shapes={"x": {0: n}})
    config = {"max_batch_size": 64, "dynamic_batching": {}, "parameters": {"threads": 1}}
    body, head = infer_body(np.ones((1, WORDS), np.float32))
    with served("scale", program, config) as ports:
        wrk(ports["http"], "scale", body, head, clients, 2)
        row = wrk(ports["http"], "scale", body, head, clients, seconds)
    return {"row": "KServe 1 KB, HTTP", **row, "goal": "2500/s, p99 5 ms"}


async def _grpc_load(port: int, data: bytes, clients: int, seconds: float) -> tuple[list[float], float]:
    import grpc

    latencies: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        end = time.perf_counter() + seconds

        async def client() -> None:
            while (began := time.perf_counter()) < end:
                await infer(data)
                latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return latencies, time.perf_counter() - began


def over_grpc(seconds: int = 8, clients: int = 8) -> Row:
    """1 KB in, 1 KB out over gRPC; the client is Python on grpc's core, and takes its part of the machine."""
    n = Dim("n", min=1, max=64)
    program = export(Scale(), (), {"x": torch.zeros(2, WORDS)}, dynamic_shapes={"x": {0: n}})
    config = {"max_batch_size": 64, "dynamic_batching": {}, "parameters": {"threads": 1}}
    message = messages().ModelInferRequest(model_name="scale")
    message.inputs.add(name="x", datatype="FP32", shape=[1, WORDS])
    message.raw_input_contents.append(np.ones(WORDS, np.float32).tobytes())
    data = message.SerializeToString()
    with served("scale", program, config) as ports:
        asyncio.run(_grpc_load(ports["grpc"], data, clients, 2))
        latencies, whole = asyncio.run(_grpc_load(ports["grpc"], data, clients, seconds))
    return {
        "row": "KServe 1 KB, gRPC",
        "requests/s": round(len(latencies) / whole),
        "p50 ms": round(1e3 * float(np.percentile(latencies, 50)), 2),
        "p99 ms": round(1e3 * float(np.percentile(latencies, 99)), 2),
        "clients": clients,
        "goal": "2500/s, p99 5 ms",
    }


def resnet_batching(seconds: int = 15, size: int = 64, clients: int = 16) -> list[Row]:
    """A ResNet-18 of random weights: one by one, and batched, under as many clients as keep it busy."""
    torch.manual_seed(0)
    model = resnet(torch, 18).eval()
    n = Dim("n", min=1, max=32)
    program = export(model, (torch.zeros(2, 3, size, size),), dynamic_shapes=({0: n},))
    rows = []
    body, head = infer_body(np.random.default_rng(0).random((1, 3, size, size), np.float32))
    for most in (1, 16):
        config = {
            "max_batch_size": most,
            "dynamic_batching": {},
            "parameters": {"threads": 2},
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3, size, size]}],
        }
        with served("resnet", program, config) as ports:
            alone = wrk(ports["http"], "resnet", body, head, 1, 4)
            row = wrk(ports["http"], "resnet", body, head, clients, seconds)
        rows.append({"row": f"ResNet-18, {size} x {size}, batches up to {most}", **row})
        rows[-1]["p50 ms of a lone client"] = alone["p50 ms"]
    one, many = rows
    many["throughput over batch 1"] = round(many["requests/s"] / one["requests/s"], 2)
    many["p99 over batch 1"] = round(many["p99 ms"] / one["p99 ms"], 2)
    many["goal"] = "1.5 x throughput at a p99 under 2 x"
    return rows


def rows() -> list[Row]:
    """All of them."""
    return [over_http(), over_grpc(), *resnet_batching()]


if __name__ == "__main__":
    for each in rows():
        print(json.dumps(each))
