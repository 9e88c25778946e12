"""Faults of a server under load, with figures: kills, leaving clients, mutated requests, overload, drains.

python tests/serve_faults.py --kills 50 --disconnects 1000 --mutated 100000 --overload 10 --drains 10
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from http_client import Connection
from serving_models import Process, get, write_adapter, write_repository
from time_limits import seconds
from warptape.inference import LLM, LoRARequest, SamplingParams

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"presence_penalty": 0.5, "repetition_penalty": 1.2},
    {"top_k": 20, "stop": ["zzq"]},
    {"n": 2, "min_p": 0.01},
]
PATH = "/v1/completions"


def requests_of(count: int, tokens: int, adapter: bool = False) -> list[dict[str, Any]]:
    """Requests of every kind, each with a seed; `adapter`: one in three names "tuned"."""
    return [
        {"prompt": "abc" * (i % 7 + 1), "seed": i, "max_tokens": tokens, "ignore_eos": True, **KINDS[i % 5]}
        | ({"model": "tuned"} if adapter and i % 3 == 1 else {})
        for i in range(count)
    ]


def expected_of(
    folder: Path, requests: list[dict[str, Any]], adapter: Path | None = None
) -> list[list[tuple[list[int], str]]]:
    """The bare engine's answers: tokens and text; with the adapter where a request names it."""
    llm = LLM(folder)
    params = [
        SamplingParams(**{k: v for k, v in r.items() if k not in ("prompt", "model")}) for r in requests
    ]
    lora = None if adapter is None else LoRARequest("tuned", 1, str(adapter))
    each = [lora if "model" in request else None for request in requests]
    outs = llm.generate([r["prompt"] for r in requests], params, lora_request=each)
    return [[(o.token_ids, o.text) for o in out.outputs] for out in outs]


def memory(pid: int) -> int:
    """Resident bytes of a process; 0 where it ended."""
    if not os.path.exists(f"/proc/{pid}"):
        return 0
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def one_stream(
    server: Process, request: dict[str, Any], pauses: list[float], came: asyncio.Event | None = None
) -> list[tuple[list[int], str]]:
    """A stream's answers; notes the longest time between two of its events, and sets `came` at each."""
    connection = Connection(server.url, server.token)
    tokens: dict[int, list[int]] = {}
    texts: dict[int, str] = {}
    last, longest = time.monotonic(), 0.0
    try:
        async for event in connection.stream(PATH, {"model": "llm", "return_token_ids": True, **request}):
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            if came is not None:
                came.set()
            assert "error" not in event, event
            for choice in event["choices"]:
                i = choice["index"]
                tokens[i] = tokens.get(i, []) + choice["token_ids"]
                texts[i] = texts.get(i, "") + choice["text"]
    finally:
        connection.close()
    pauses.append(longest)
    return [(tokens[i], texts[i]) for i in sorted(tokens)]


# What an encoder is asked beside the streams.
READ: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"model": "bert", "input": [f"text {i}" for i in range(40)]}),
    (
        "/v1/rerank",
        {"model": "bert", "query": "a", "documents": [f"{'text ' * (i % 5)}{i}" for i in range(30)]},
    ),
]


async def kills(
    server: Process,
    folder: Path,
    count: int,
    clients: int = 6,
    every: float = 1.0,
    expected: Any = None,
    adapter: Path | None = None,
) -> dict[str, Any]:
    """kill -9 of workers while clients stream and others have texts read; `expected`: of requests_of(20,
    300). With an adapter, which is loaded at run time, a third of the streams is its. Every other kill waits
    for tokens and a text, so that it meets answers under way and not only workers that load, however slow the
    machine; and each client and reader has one more answer after the last."""
    requests = requests_of(20, 300, adapter is not None)
    expected = expected or expected_of(folder, requests, adapter)
    if adapter is not None:
        order = {"lora_name": "tuned", "lora_path": str(adapter), "model": "llm"}
        status, answer = await asyncio.to_thread(server.post, "/v1/load_lora_adapter", order)
        assert status == 200, answer
    done, wrong, killed, turn, read, other = 0, 0, 0, iter(range(1 << 30)), 0, 0
    pauses: list[float] = []
    tokens, texts = asyncio.Event(), asyncio.Event()

    async def client() -> None:
        nonlocal done, wrong
        last = False
        while not last:
            last, i = killed >= count, next(turn) % len(requests)
            got = await one_stream(server, requests[i], pauses, tokens)
            done, wrong = done + 1, wrong + (got != expected[i])

    async def asked(connection: Connection, path: str, body: Any) -> Any:
        status, answer = await connection.post(path, body)
        said = json.loads(answer) if status == 200 else {}
        return said.get("data") or said.get("results") or (status, answer)

    async def reader(path: str, body: Any, first: Any) -> None:
        nonlocal read, other
        connection, last = Connection(server.url, server.token), False
        while not last:
            last = killed >= count
            read, other = read + 1, other + (await asked(connection, path, body) != first)
            texts.set()
            await asyncio.sleep(0.05)
        connection.close()

    async def killer() -> None:
        nonlocal killed
        while killed < count:
            await asyncio.sleep(every * random.uniform(0.3, 1.0))
            pids = await asyncio.to_thread(server.worker_pids)
            tokens.clear()
            texts.clear()
            if killed % 2 == 0:
                await asyncio.gather(tokens.wait(), texts.wait())
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it ended, and another is to come
                    os.kill(pid, signal.SIGKILL)
            killed += 1

    alone = [
        (path, body, await asked(Connection(server.url, server.token), path, body)) for path, body in READ
    ]
    assert all(isinstance(answer, list) for *_, answer in alone), alone
    await asyncio.gather(killer(), *(client() for _ in range(clients)), *(reader(*each) for each in alone))
    streams = {"streams": done, "different": wrong, "texts read": read, "read differently": other}
    return {"kills": killed, **streams, "longest pause s": round(max(pauses), 2)}


def gauges(server: Process) -> dict[str, float]:
    """What /metrics says of the model llm."""
    text = get(server.url + "/metrics", server.token)[1].decode()
    return {
        line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines() if 'model="llm"' in line
    }


async def disconnects(server: Process, count: int) -> dict[str, Any]:
    """Clients that leave at random moments; then all pages must be free."""
    gate = asyncio.Semaphore(32)

    async def one(i: int) -> None:
        async with gate:
            body = {
                "model": "llm",
                "prompt": "abc" * 9,
                "max_tokens": 400,
                "ignore_eos": True,
                "n": 1 + i % 3,
            }
            data = json.dumps({**body, "stream": i % 2 == 0}).encode()
            connection = Connection(server.url, server.token)
            whole = connection.head("POST", PATH, len(data)) + data
            await connection.send(whole[: random.randrange(1, len(whole))] if i % 10 == 9 else whole)
            await asyncio.sleep(random.random() ** 2 * 0.2)
            connection.close()

    await asyncio.gather(*(one(i) for i in range(count)))
    start = time.monotonic()
    while True:
        now = gauges(server)
        if now["warptape_engine_running"] == now["warptape_engine_waiting"] == 0:
            break
        if time.monotonic() - start > 30:
            break
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.6)
    return {
        "disconnects": count,
        "s until idle": round(time.monotonic() - start - 0.6, 2),
        "page use": gauges(server)["warptape_page_use_ratio"],
        "requests left": gauges(server)["warptape_requests_running"],
    }


BASES: list[tuple[str, Any]] = [
    (PATH, {"model": "llm", "prompt": "abc", "max_tokens": 2, "seed": 1, "logprobs": 1, "stop": ["x"]}),
    (PATH, {"model": "llm", "prompt": [1, 2, 3], "max_tokens": 2, "stream": True, "n": 2,
            "logit_bias": {"5": 1}}),
    ("/v1/chat/completions", {
        "model": "llm", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": 2, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "response_format": {"type": "text"}, "stream_options": None, "top_p": 0.9}),
    ("/v1/embeddings", {"model": "bert", "input": ["a", [1, 2]], "dimensions": 4}),
    ("/v1/rerank", {"model": "bert", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1,
                    "return_documents": True, "max_tokens_per_doc": 9, "truncate_prompt_tokens": -1}),
    ("/v1/score", {"model": "bert", "text_1": ["a", "b"], "text_2": ["c", "d"], "truncate_prompt_tokens": 9}),
    ("/v1/classify", {"model": "bert", "input": ["a", [1, 2]], "user": "u"}),
    ("/v1/messages", {
        "model": "llm", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "stop_sequences": ["x"],
        "stream": True}),
    ("/v1/messages/count_tokens", {"model": "llm", "messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/responses", {
        "model": "llm", "max_output_tokens": 2, "input": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "text": {"format": {"type": "text"}}}),
    ("/api/chat", {"model": "llm", "messages": [{"role": "user", "content": "hi"}], "stream": False,
                   "options": {"num_predict": 2, "stop": ["x"]}}),
    ("/api/generate", {"model": "llm", "prompt": "hi", "options": {"num_predict": 2}, "think": False}),
    ("/api/embed", {"model": "bert", "input": ["a", "b"]}),
    ("/api/show", {"model": "llm"}),
    ("/tokenize", {"model": "llm", "prompt": "hi", "return_token_strs": True}),
    ("/detokenize", {"model": "llm", "tokens": [1, 2]}),
    ("/v2/models/llm/infer", {
        "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hi"]}],
        "parameters": {"max_tokens": 2, "temperature": 0.5}, "id": "7"}),
]  # fmt: skip


def orders_of(llm: Path, adapter: Path) -> list[tuple[str, Any]]:
    """Orders of admins, right before they are mutated.

    Args:
        llm: the model's folder.
        adapter: of it.
    """
    return [
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": str(adapter), "model": "llm"}),
        ("/v1/unload_lora_adapter", {"lora_name": "a"}),
        ("/v1/update_weights", {"path": str(llm), "model": "llm", "in_flight": "finish"}),
    ]


# In the body of an answer whose status was sent before it failed.
FAILED = (b"the server failed", b"server_error", b"api_error", b"worker_failed")
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    1 << 70,
    "",
    "x" * 300,
    [],
    {},
    [[]],
    "\ud83d",
    "\x00",
    [None],
    0.5,
]


def mutated_json(rng: random.Random, value: Any) -> Any:
    """The value with something odd somewhere."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.15:
            return {**value, rng.choice(["", "x", "__class__", "model"]): rng.choice(ODD)}
        return {**value, key: mutated_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        i = rng.randrange(len(value))
        return [*value[:i], mutated_json(rng, value[i]), *value[i + 1 :]]
    return rng.choice(ODD)


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """With bytes changed, cut or doubled."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(out)) if out else 0
        kind = rng.randrange(4)
        if kind == 0 and out:
            out[at] = rng.randrange(256)
        elif kind == 1:
            del out[at : at + rng.randrange(1, 20)]
        elif kind == 2:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        else:
            out[at:at] = out[at : at + 30]
    return bytes(out)


async def mutated(server: Process, count: int, bases: Any = BASES, clients: int = 8) -> dict[str, Any]:
    """Odd requests: no crash, no 500, no stream that ends with one, and memory that stays."""
    statuses: dict[int, int] = {}
    bad: list[Any] = []
    turn = iter(range(count))
    routes: dict[str, dict[int, int]] = {path: {} for path, _ in bases}
    marks: list[list[int]] = []  # MB of each process, after each fifth
    pids = [server.process.pid, *server.worker_pids()]

    async def client(number: int) -> None:
        rng, connection = random.Random(number), Connection(server.url, server.token)
        for i in turn:
            if i % max(1, count // 5) == 0 or i == count - 1:
                marks.append([memory(pid) >> 20 for pid in pids])
            path, base = bases[i % len(bases)]
            kind, more = rng.random(), ""
            if kind < 0.6:
                data = json.dumps(mutated_json(rng, base)).encode("utf-8", "surrogatepass")
            elif kind < 0.9:
                data = mutated_bytes(rng, json.dumps(base).encode())
            else:
                data = json.dumps(base).encode()
                more = rng.choice(["X-Request-Timeout: nan\r\n", "Inference-Header-Content-Length: 7\r\n",
                                   "Content-Encoding: gzip\r\n", "X-Request-Id: \x01\r\n"])  # fmt: skip
            head = connection.head("POST", path, len(data), more)
            raw = kind > 0.99
            sent, body = mutated_bytes(rng, head + data) if raw else head + data, b""
            try:
                await connection.send(sent)
                status, headers = await asyncio.wait_for(connection.answer(), seconds(60))
                if status:
                    async for part in connection.body(headers):
                        body += part
            except (ConnectionError, asyncio.IncompleteReadError, ValueError):
                status = -1
            if raw or status <= 0:
                connection.close()
            for each in (statuses, routes[path]):
                each[status] = each.get(status, 0) + 1
            if (status >= 500 and status != 504) or any(text in body for text in FAILED):
                bad.append((status, path, data[:300], body[-300:]))

    await asyncio.gather(*(client(i) for i in range(clients)))
    alive = get(server.url + "/readyz", server.token)[0] == 200 and pids[1:] == server.worker_pids()
    return {
        "mutated": count,
        "statuses": dict(sorted(statuses.items())),
        "routes": routes,
        "500s": len(bad),
        "first": bad[:3],
        "alive": alive,
        "MB of front and workers": marks,
    }


async def _load(
    server: Process, rate: float | None, clients: int, seconds: float, body: Any
) -> dict[int, int]:
    """Answers by status: closed loop of so many clients, or open loop of so many requests a second."""
    statuses: dict[int, int] = {}
    end = time.monotonic() + seconds
    free: list[Connection] = []

    async def one(i: int) -> None:
        connection = free.pop() if free else Connection(server.url, server.token)
        status, _ = await connection.post(PATH, {**body, "seed": i})
        statuses[status] = statuses.get(status, 0) + 1
        free.append(connection)

    async def loop(number: int) -> None:
        while time.monotonic() < end:
            await one(number)

    if rate is None:
        await asyncio.gather(*(loop(i) for i in range(clients)))
    else:
        tasks, begun = [], time.monotonic()
        while (now := time.monotonic()) < end:
            while len(tasks) < (now - begun) * rate:
                tasks.append(asyncio.ensure_future(one(len(tasks))))
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)
    for each in free:
        each.close()
    return statuses


async def overload(folder: Path, times: float, seconds: float = 5.0) -> dict[str, Any]:
    """Goodput under so many times the load that the server can take."""
    body = {"model": "llm", "prompt": "abc", "max_tokens": 400, "ignore_eos": True}
    with Process(folder, "--max-requests", 16) as server:
        await _load(server, None, 16, 1.0, body)
        start = time.monotonic()
        peak = (await _load(server, None, 16, seconds, body)).get(200, 0) / (time.monotonic() - start)
        start = time.monotonic()
        under = await _load(server, times * peak, 0, seconds, body)
        good = under.get(200, 0) / (time.monotonic() - start)
    return {
        "overload": times,
        "peak 1/s": round(peak, 1),
        "goodput 1/s": round(good, 1),
        "part": round(good / peak, 2),
        "statuses": under,
    }


async def drains(folder: Path, count: int) -> dict[str, Any]:
    """SIGTERM while clients ask: what was begun is answered."""
    begun = lost = refused = 0
    codes = []
    for _ in range(count):
        with Process(folder, "--drain-delay", 0.3) as server:
            gone = asyncio.Event()

            async def client(number: int, server: Process = server, gone: asyncio.Event = gone) -> None:
                nonlocal begun, lost, refused
                connection = Connection(server.url, server.token)
                while not gone.is_set():
                    body = {
                        "model": "llm",
                        "prompt": "abc",
                        "max_tokens": 60,
                        "seed": number,
                        "ignore_eos": True,
                    }
                    try:
                        status, _ = await connection.post(PATH, body)
                    except ConnectionRefusedError:
                        refused += 1  # it does not listen any more: nothing was taken
                        return
                    except (OSError, asyncio.IncompleteReadError):
                        status = 0
                    begun, lost = begun + 1, lost + (status != 200)

            tasks = [asyncio.ensure_future(client(i)) for i in range(12)]
            await asyncio.sleep(0.5)
            server.process.send_signal(signal.SIGTERM)
            codes.append(await asyncio.to_thread(server.process.wait, 60))
            gone.set()
            await asyncio.gather(*tasks)
    return {"drains": count, "requests": begun, "lost": lost, "exit codes": sorted(set(codes))}


def main() -> None:
    """Prints the figures; the exit status is 1 where one is not what it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("kills", "disconnects", "mutated", "drains"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--overload", type=float, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = write_repository(Path(name) / "models")
        llm = folder / "llm" / "1"
        adapter = write_adapter(Path(name) / "adapter", llm)
        rows = []
        short = ("--header-seconds", 0.3, "--body-seconds", 0.3, "--deadline-seconds", 30)
        if options.kills or options.disconnects:
            with Process(folder, "--access-log", "off", "--admin-token", "boss", token=None) as server:
                server.token = "boss"
                if options.kills:
                    row = asyncio.run(kills(server, llm, options.kills, adapter=adapter))
                    same = row["different"] == row["read differently"] == 0
                    rows.append((row, same and row["longest pause s"] <= 2))
                if options.disconnects:
                    row = asyncio.run(disconnects(server, options.disconnects))
                    rows.append((row, row["page use"] == row["requests left"] == 0))
        if options.mutated:
            with Process(folder, *short, "--access-log", "off", "--admin-token", "secret") as server:
                row = asyncio.run(mutated(server, options.mutated, [*BASES, *orders_of(llm, adapter)]))
                rows.append((row, row["500s"] == 0 and row["alive"]))
        if options.overload:
            row = asyncio.run(overload(folder, options.overload))
            rows.append((row, row["part"] >= 0.8 and set(row["statuses"]) <= {200, 429}))
        if options.drains:
            row = asyncio.run(drains(folder, options.drains))
            rows.append((row, row["lost"] == 0 and row["exit codes"] == [0]))
    for row, right in rows:
        print("ok  " if right else "BAD ", row)
    raise SystemExit(not all(right for _, right in rows))


if __name__ == "__main__":
    main()
