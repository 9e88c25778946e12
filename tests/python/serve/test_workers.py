"""Worker processes: what they answer, and that their death changes no answer."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from serving_models import write_llm
from time_limits import seconds
from warptape.serve import worker as worker_process
from warptape.serve.workers import RequestError, Worker, WorkerError, WorkerSpec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
          "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
# Every kind of state that must come back: noise, penalties, texts held back, grammars, several answers.
KINDS = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.9, "top_p": 0.9, "top_k": 40},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "stops": {"stop": ["\0\1 never", "zq"], "temperature": 1.2},
    "logprobs": {"logprobs": 3, "prompt_logprobs": 1},
    "several": {"n": 3},
    "schema": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 60},
    "bias": {"logit_bias": {"65": 4.0, "66": 3.5}, "min_tokens": 20},
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return WorkerSpec("llm", "m", 1, str(write_llm(tmp_path_factory.mktemp("llm"))))


def request(kind, seed=5):
    params = {"max_tokens": 50, "seed": seed, "ignore_eos": kind != "schema", **KINDS[kind]}
    return {"prompt_token_ids": list(range(30, 70)), "params": params}


def joined(events):
    """The answers by index: tokens, text, logprobs, ends; and the prompt's logprobs."""
    out, of_prompt = {}, []
    for event in events:
        if event.get("prompt_logprobs") is not None:
            of_prompt.append(event["prompt_logprobs"])
        for o in event["outputs"]:
            tokens, text, logprobs, end = out.setdefault(o["index"], ([], [], [], []))
            tokens += o["tokens"]
            text.append(o["text"])
            logprobs += o.get("logprobs") or []
            if o.get("finish_reason"):
                end.append((o["finish_reason"], o["stop_reason"]))
    return {i: (t, "".join(x), p, e) for i, (t, x, p, e) in out.items()}, of_prompt


async def ask(worker, what, at=(), hit=None):
    """The events of a request; `hit` is called when so many have come."""
    events = []
    async for event in worker.generate(what):
        events.append(event)
        if len(events) in at:
            await hit()
            await asyncio.sleep(0.01)
    return joined(events)


def test_streams_survive_kills_unchanged(spec):
    async def main():
        worker = await Worker.start(spec)
        deaths = []
        worker._on_death = lambda w, how: deaths.append(how)
        expected = {kind: await ask(worker, request(kind)) for kind in KINDS}
        assert len(expected["several"][0]) == 3 and expected["stops"][0][0][1]
        assert {k: len(v[0][0][3]) for k, v in expected.items()} == dict.fromkeys(KINDS, 1)

        async def kill():
            while not worker.ready:  # what came before a death is still read while the next process starts
                await asyncio.sleep(0.01)
            os.kill(worker.pid, signal.SIGKILL)

        first = asyncio.gather(*(ask(worker, request(kind)) for kind in KINDS if kind != "greedy"))
        greedy = await ask(worker, request("greedy"), (3, 20, 33), kill)
        got = await first
        assert greedy == expected["greedy"]
        for kind, answer in zip([k for k in KINDS if k != "greedy"], got):
            assert answer == expected[kind], kind
        assert worker.restarts == 3 and deaths == ["signal SIGKILL"] * 3
        stats = await worker.stats()
        assert stats["idle_pages"] == stats["num_pages"] and stats["rss"] > 0
        await worker.close()
        with pytest.raises(ProcessLookupError):
            os.kill(stats["pid"], 0)

    asyncio.run(asyncio.wait_for(main(), seconds(100)))


def test_a_hang_is_a_death(spec):
    async def main():
        worker = await Worker.start(WorkerSpec("llm", "m", 1, spec.path, {"heartbeat_s": seconds(0.5)}))
        expected = await ask(worker, request("drawn"))
        hung = worker.pid

        async def hang():
            os.kill(hung, signal.SIGSTOP)

        assert await ask(worker, request("drawn"), (5,), hang) == expected
        assert worker.restarts == 1 and "no sign of life" in worker._last_fault
        await worker.close()

    asyncio.run(main())


def test_a_long_step_gives_signs_of_life_while_it_computes(monkeypatch):
    monkeypatch.setattr(worker_process, "MOST_STEP", 8)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    frames, beat = worker_process.FrameSocket(theirs), 0.4
    life = worker_process._Life(frames, beat)

    def heard(work):
        life.began = time.monotonic()
        work()
        life.began = 0.0
        try:
            return len(ours.recv(1 << 16)) > 0
        except BlockingIOError:
            return False

    def compute(limit):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            pass

    assert heard(lambda: compute(1.0))
    assert not heard(lambda: time.sleep(1.0))  # it waits for something, perhaps for ever
    life.began = time.monotonic() - 10.0  # far too long
    compute(0.5)
    life.began = 0.0
    with pytest.raises(BlockingIOError):
        ours.recv(1)
    for each in (ours, theirs):
        each.close()


def test_a_stream_that_is_left_gives_its_pages_back(spec):
    async def main():
        worker = await Worker.start(spec)
        async for _ in worker.generate(
            {"prompt_token_ids": [1] * 40, "params": {"seed": 1, "max_tokens": 200}}
        ):
            break
        end = time.monotonic() + seconds(5)
        while True:
            stats = await worker.stats()
            if stats["requests"] == 0 and stats["idle_pages"] == stats["num_pages"]:
                break
            assert time.monotonic() < end, stats
        assert stats["generated_tokens"] < 100
        await worker.close()

    asyncio.run(main())


def test_errors(spec, tmp_path):
    async def main():
        with pytest.raises(WorkerError, match=r"m version 2: FileNotFoundError: .*config.json"):
            await Worker.start(WorkerSpec("llm", "m", 2, str(tmp_path)))
        with pytest.raises(WorkerError, match="unknown options max_len"):
            await Worker.start(WorkerSpec("llm", "m", 1, spec.path, {"max_len": 3}))
        with pytest.raises(WorkerError, match="must be one of"):
            await Worker.start(WorkerSpec("code", "m", 1, spec.path))
        worker = await Worker.start(spec)
        with pytest.raises(RequestError, match="maximum model length"):
            await ask(worker, {"prompt_token_ids": [1] * 600, "params": {"seed": 1}})
        with pytest.raises(RequestError, match="no operation 'infer'"):
            await worker.infer({})
        with pytest.raises(RequestError, match="unexpected keyword"):
            await ask(worker, {"prompt_token_ids": [1], "params": {"seed": 1, "beams": 2}})
        with pytest.raises(ValueError, match="need a seed"):
            await ask(worker, {"prompt_token_ids": [1], "params": {}})
        vectors = await asyncio.gather(*(worker.read("embed", tokens) for tokens in ([1, 2, 3], [1, 2, 4])))
        assert len(vectors) == 2 and sum(x * x for x in vectors[0]) == pytest.approx(1, abs=1e-5)
        stream = worker.generate({"prompt_token_ids": [1], "params": {"seed": 1, "max_tokens": 200}})
        await anext(stream)
        await worker.close()
        with pytest.raises(WorkerError, match="closed"):
            async for _ in stream:
                pass
        with pytest.raises(WorkerError, match="closed"):
            await worker.stats()

    asyncio.run(main())


POISONED = """
import os, socket, sys
from warptape.serve.frames import FrameSocket
frames = FrameSocket(socket.socket(fileno=int(sys.argv[1])))
frames.receive()
frames.send({"metadata": {}})
frames.receive()
os._exit(3)
"""


def test_a_request_that_kills_its_worker_is_given_up(spec):
    processes = []

    def spawn(connection):
        fd = connection.fileno()
        processes.append(subprocess.Popen([sys.executable, "-c", POISONED, str(fd)], pass_fds=[fd]))
        return processes[-1].pid

    async def main():
        worker = await Worker.start(spec, spawn=spawn)
        with pytest.raises(WorkerError, match="ended 5 times while it was computed"):
            await worker.stats()
        await worker.close()

    asyncio.run(asyncio.wait_for(main(), seconds(100)))
    assert [each.wait(seconds(10)) for each in processes][:5] == [3] * 5
