"""Switches of versions under load, and mutated KServe requests, with counts of what went wrong.

    python tests/serve_faults_kserve.py switches 50
    python tests/serve_faults_kserve.py mutated 100000

The second also sends a part over sockets, HTTP and gRPC.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import kserve_server
import numpy as np
from kserve_server import SIZE, Running, add_version
from warptape.serve import kserve_proto


def request_bytes(rows: int = 2, binary: bool = True) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of an infer."""
    x = np.arange(rows * SIZE, dtype=np.float32)
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [rows, SIZE]}
    tensor |= {"parameters": {"binary_data_size": x.nbytes}} if binary else {"data": x.tolist()}
    body = {"id": "7", "inputs": [tensor], "outputs": [{"name": "y", "parameters": {"binary_data": binary}}]}
    head = json.dumps(body).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))} if binary else {}
    return head + (x.tobytes() if binary else b""), headers


def ask(connection: http.client.HTTPConnection, name: str) -> tuple[int, int, float]:
    """Status, the version that the answer names, and the factor that it was computed by."""
    body, headers = request_bytes(binary=False)
    connection.request("POST", f"/v2/models/{name}/infer", body, headers)
    answer = connection.getresponse()
    data = json.loads(answer.read())
    if answer.status != 200:
        return answer.status, 0, 0.0
    return 200, int(data["model_version"]), data["outputs"][0]["data"][1]


def good(port: int, name: str, factor: float) -> bool:
    """Whether the server answers as it should."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        return ask(connection, name)[::2] == (200, factor)
    finally:
        connection.close()


def memory_of(pid: str = "self") -> int:
    """Resident bytes."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def memory(running: Running) -> int:
    """Resident bytes of the front and its workers."""
    pids = [str(w.pid) for v in running.models.loaded() for w in v.workers]
    return memory_of() + sum(memory_of(p) for p in pids)


def switches(folder: Path, count: int, clients: int = 4) -> dict[str, Any]:
    """Loads a new version and rolls it back or lets it take over, `count` times, while clients ask.

    Version n multiplies by n, so that each answer shows which version gave it.
    """
    rollout = {"steps": [30, 100], "hold_seconds": 0.1, "watch_seconds": 60}
    batching = {"max_batch_size": 8, "dynamic_batching": {}, "rollout": rollout}
    add_version(folder, "m", 1, 1.0, {**batching, "parameters": {"threads": 1}})
    counts = {"answered": 0, "failed": 0, "wrong": 0, "switches": 0, "rollbacks": 0}
    versions: set[int] = set()
    stop = threading.Event()
    # Explicit control: a rolled back version is to be replaced by the next one, not looked for again.
    with Running(folder, control="explicit", load=["*"]) as running:

        def client() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
            while not stop.is_set():
                status, version, factor = ask(connection, "m")
                counts["answered"] += 1
                counts["failed"] += status != 200
                counts["wrong"] += status == 200 and factor != version
                versions.add(version)

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        before = 0
        for i in range(count):
            number = i + 2
            add_version(folder, "m", number, float(number))
            running.call(running.models.load("m", number))
            model = running.models._models["m"]
            if i % 2:  # back from the middle of the rollout, or after it
                if i % 4 == 1:
                    _until(lambda m=model, n=number: m.switch.current == n)
                running.call(running.models.rollback("m"))
                counts["rollbacks"] += 1
            else:
                _until(lambda m=model, n=number: m.switch.current == n)
            counts["switches"] += 1
            if i == min(9, count - 1) // 2 * 2:  # two versions are loaded, as at the end
                before = memory(running)
        stop.set()
        for thread in threads:
            thread.join()
        number = count + 2  # the same state as where memory was measured first: one current, one previous
        add_version(folder, "m", number, float(number))
        running.call(running.models.load("m", number))
        _until(lambda: model.switch.current == number)
        _until(lambda: not running.models._closing)
        after = memory(running)
    return {
        **counts,
        "versions that answered": len(versions),
        "memory before": before,
        "memory after": after,
        "growth": after / before - 1,
    }


def _until(condition: Any) -> None:
    limit = time.monotonic() + 300
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError("it did not come")
        time.sleep(0.01)


# ---- mutated requests ----

Seen = Counter[str]

WORDS = [
    b"-1",
    b"1e999",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"NaN",
    b"99999999999999999999",
    b"true",
    b'"\\ud800"',
]


def mutated_bytes(draw: random.Random, data: bytes) -> bytes:
    """Some bytes flipped, cut, doubled or replaced by a word of JSON."""
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        at, how = draw.randrange(len(made) + 1), draw.randrange(6)
        if how == 0 and at < len(made):
            made[at] = draw.randrange(256)
        elif how == 1 and at < len(made):
            made[at] ^= 1 << draw.randrange(8)
        elif how == 2:
            del made[at : at + draw.randrange(1, 20)]
        elif how == 3:
            made[at:at] = made[at : at + draw.randrange(1, 40)]
        elif how == 4:
            made[at : at + draw.randrange(8)] = draw.choice(WORDS)
        else:
            made = made[: max(1, at)]
    return bytes(made)


def mutated_http(draw: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    """Method, path, body and headers."""
    binary = draw.random() < 0.5
    body, headers = request_bytes(draw.choice((1, 2, 5)), binary)
    path, method = "/v2/models/scale/infer", "POST"
    choice = draw.random()
    if choice < 0.75:
        body = mutated_bytes(draw, body)
    elif choice < 0.85:
        path = draw.choice(
            [
                "/v2/models/..%2f..%2fetc/infer",
                "/v2/models/scale/versions/%00/infer",
                "/v2/models/scale/versions/" + "9" * 400,
                "/v2/models//infer",
                "/v2/repository/models/..%2f../load",
                "/v2/repository/models/scale/rollback",
                "/v2/models/" + mutated_bytes(draw, b"scale").hex() + "/ready",
            ]
        )
    else:
        headers["Inference-Header-Content-Length"] = draw.choice(
            ["-1", "1e3", "999999999", "0", "x", "5", ""]
        )
    if draw.random() < 0.05:
        headers["Content-Encoding"] = draw.choice(["gzip", "deflate", "br", "x"])
    if draw.random() < 0.05:
        method = draw.choice(["GET", "PUT", "DELETE", "HEAD"])
    return method, path, body, headers


def mutated_grpc(draw: random.Random) -> bytes:
    """A ModelInferRequest."""
    m = kserve_proto.messages()
    message = m.ModelInferRequest(model_name="scale", model_version=draw.choice(["", "1", "7", "x", "\x00"]))
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[2, SIZE])
    if draw.random() < 0.5:
        message.raw_input_contents.append(np.ones((2, SIZE), np.float32).tobytes())
    else:
        tensor.contents.fp32_contents.extend([1.0] * 16)
    choice = draw.randrange(8)
    if choice == 0:
        tensor.datatype = draw.choice(["INT8", "BYTES", "", "FP16", "fp32", "BF16", "BOOL"])
    elif choice == 1:
        tensor.shape[draw.randrange(2)] = draw.choice([-1, 0, 2**62, 2**40, 17])
    elif choice == 2:
        tensor.contents.int64_contents.append(draw.getrandbits(40))
    elif choice == 3:
        message.inputs.add(name=draw.choice(["x", "z", ""]), datatype="FP32", shape=[1])
    elif choice == 4:
        message.parameters[draw.choice(["priority", "timeout", "q"])].int64_param = draw.choice(
            [-1, 0, 1, 2**60]
        )
    elif choice == 5:
        message.outputs.add(name=draw.choice(["y", "q", ""]))
    data = message.SerializeToString()
    return mutated_bytes(draw, data) if choice > 4 else data


async def _call_app(app: Any, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    """A request without a socket; the status."""
    from urllib.parse import unquote

    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        "scheme": "http",
        "http_version": "1.1",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"]


async def _fuzz_app(app: Any, draw: random.Random, count: int, seen: Seen) -> list[Any]:
    bad = []
    for _ in range(count):
        method, path, body, headers = mutated_http(draw)
        try:
            status = await asyncio.wait_for(_call_app(app, method, path, body, headers), 60)
        except Exception as error:
            bad.append((repr(error), path, body, headers))
            continue
        seen[f"app {status}"] += 1
        if status >= 500:
            bad.append((status, path, body, headers))
    return bad


def _fuzz_http(port: int, draw: random.Random, count: int, seen: Seen) -> list[Any]:
    bad = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(count):
        method, path, body, headers = mutated_http(draw)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            seen[f"HTTP {answer.status}"] += 1
            if answer.status >= 500:
                bad.append((answer.status, path, body, headers))
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            seen["HTTP closed"] += 1
            if not good(port, "scale", 2.0):
                bad.append((repr(error), path, body, headers))
    connection.close()
    return bad


def _fuzz_grpc(port: int, draw: random.Random, count: int, seen: Seen) -> list[Any]:
    import grpc

    bad = []
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(count):
            data = mutated_grpc(draw)
            try:
                infer(data, timeout=60)
                seen["gRPC OK"] += 1
            except grpc.RpcError as error:
                seen[f"gRPC {error.code().name}"] += 1
                if error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
                    bad.append((error.code(), error.details(), data))
    return bad


def mutated(running: Running, count: int, seed: int = 0) -> dict[str, Any]:
    """Sends mutated requests: of ten, six to the app itself, two each over the sockets of HTTP and gRPC."""
    draw = random.Random(seed)
    sockets = count // 5
    memories, bad, seen = [], [], Seen()
    parts = 5
    for part in range(parts):  # memory is looked at between parts
        share = sockets * (part + 1) // parts - sockets * part // parts
        rest = count - 2 * sockets
        inside = rest * (part + 1) // parts - rest * part // parts
        bad += running.call(_fuzz_app(running.app, draw, inside, seen))
        bad += _fuzz_http(running.port, draw, share, seen)
        bad += _fuzz_grpc(running.grpc_port, draw, share, seen)
        memories.append(memory(running))
    return {
        "answered": sum(seen.values()),
        "by status": dict(sorted(seen.items())),
        "server errors": bad[:5],
        "server errors, number": len(bad),
        "memory after each fifth": memories,
        "growth after the first fifth": memories[-1] / memories[0] - 1,
        "good after": good(running.port, "scale", 2.0) if not bad else False,
    }


def main() -> int:
    """Runs what the command line names; 1 where something went wrong."""
    what, count = sys.argv[1], int(sys.argv[2])
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if what == "switches":
            report = switches(folder, count)
            fine = not report["failed"] and not report["wrong"] and report["growth"] < 0.02
        else:
            add_version(folder, "scale", 1, 2.0, {"max_batch_size": 16, "dynamic_batching": {}})
            kserve_server.add_echo(folder)
            with Running(folder) as running:
                report = mutated(running, count)
            fine = not report["server errors"] and report["good after"] and report["answered"] == count
            fine = fine and report["growth after the first fifth"] < 0.02
    report["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(report, indent=1, default=repr))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
