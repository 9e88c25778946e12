"""The front: who may ask, limits, slow and leaving clients, draining, the log, the command line."""

import json
import os
import re
import signal
import socket
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import warptape as wt
from serving_models import Process, get, write_llm
from time_limits import seconds
from warptape.inference import LLM, SamplingParams
from warptape.serve import Server
from warptape.serve.__main__ import is_model, main
from warptape.serve.repository import ModelFolder

BODY = {"model": "llm", "prompt": "Once", "seed": 5, "ignore_eos": True}


def post(server, path, body, headers=(), timeout=60):
    """(status, headers, body)"""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Authorization": f"Bearer {server.token}", **dict(headers)}
    request = urllib.request.Request(server.url + path, data, given)
    try:
        with urllib.request.urlopen(request, timeout=seconds(timeout)) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def raw(server, data, wait=10):
    """What the server says to these bytes until it closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=seconds(wait)) as connection:
        connection.sendall(data)
        out = b""
        while True:
            try:
                more = connection.recv(65536)
            except ConnectionResetError:
                return out
            if not more:
                return out
            out += more


def stats(server):
    """Of the model's engine, over HTTP."""
    text = get(server.url + "/metrics", server.token)[1].decode()
    return {
        line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines() if 'model="llm"' in line
    }


@pytest.fixture(scope="module")
def strict(repository):
    """A server with small limits."""
    flags = {
        "max-body-bytes": 20_000,
        "header-seconds": 0.5,
        "body-seconds": 0.5,
        "key-concurrency": 3,
        "max-tokens": 400,
        "max-prompt-tokens": 100,
        "deadline-seconds": seconds(20),
    }
    with Process(repository, *(f"--{name}={value}" for name, value in flags.items())) as process:
        yield process


@pytest.mark.parametrize("path", ["/v1/models", "/v2/health/ready", "/readyz", "/v2", "/metrics", "/nowhere"])
def test_every_route_but_liveness_needs_the_token(server, path):
    for token in (None, "wrong", "secre", "secrett"):
        assert get(server.url + path, token)[0] == 401
    assert get(server.url + path, server.token)[0] == (404 if path == "/nowhere" else 200)
    for live in ("/livez", "/v2/health/live"):
        assert get(server.url + live)[0] == 200


def test_refusals_have_the_form_of_their_protocol(server):
    status, headers, body = post(server, "/v1/completions", b"{not json")
    assert status == 400 and json.loads(body)["error"]["type"] == "invalid_request_error"
    assert headers["x-request-id"]
    status, headers, body = post(server, "/v1/nothing", {})
    assert status == 404 and "error" in json.loads(body)
    assert get(server.url + "/v1/completions", server.token)[0] == 405
    status, _, body = post(server, "/v1/completions", BODY, {"Authorization": "Basic x"})
    assert status == 401 and json.loads(body)["error"]["code"] == "invalid_api_key"
    status, _, body = post(server, "/v2/models/nobody/infer", {"inputs": []})
    assert status == 404 and isinstance(json.loads(body)["error"], str)
    for path in ("/v2/models/..%2f..%2fetc/infer", "/v1/models/../../etc/passwd", "/%2e%2e/%2e%2e/x"):
        assert get(server.url + path, server.token)[0] in (404, 405)


def test_limits(strict):
    status, _, body = post(strict, "/v1/completions", {**BODY, "prompt": "x" * 30_000})
    assert status == 413 and "20000 bytes" in json.loads(body)["error"]["message"]
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {strict.token}\r\n"
    chunk = b"4e20\r\n" + b"x" * 20_000 + b"\r\n"
    answer = raw(strict, head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3)
    assert answer.startswith(b"HTTP/1.1 413")
    assert raw(strict, head.encode() + b"X: " + b"y" * 70_000 + b"\r\n").startswith(b"HTTP/1.1 431")
    assert raw(strict, b"BLAH\r\n\r\n").startswith(b"HTTP/1.1 400")
    status, _, body = post(strict, "/v1/completions", {**BODY, "max_tokens": 401})
    assert status == 400 and "at most 400" in json.loads(body)["error"]["message"]
    status, _, body = post(strict, "/v1/completions", {**BODY, "prompt": "x" * 101})
    assert status == 400 and json.loads(body)["error"]["code"] == "context_length_exceeded"
    status, _, _ = post(strict, "/v1/completions", BODY, {"X-Request-Timeout": "-1"})
    assert status == 400
    status, _, body = post(
        strict, "/v1/completions", {**BODY, "max_tokens": 300}, {"X-Request-Timeout": "0.001"}
    )
    assert status == 504 and json.loads(body)["error"]["code"] == "deadline_exceeded"


def test_slow_and_half_open_clients_are_cut_off(strict):
    start = time.monotonic()
    assert raw(strict, b"").startswith(b"HTTP/1.1 408")  # nothing comes
    assert raw(strict, b"GET /livez HTTP/1.1\r\nHost:").startswith(b"HTTP/1.1 408")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {strict.token}\r\n"
    assert raw(strict, head.encode() + b"Content-Length: 10\r\n\r\n{").startswith(b"HTTP/1.1 408")
    assert time.monotonic() - start < seconds(6)
    assert get(strict.url + "/livez")[0] == 200


def test_one_token_has_its_share(strict):
    answers = []

    def ask():
        answers.append(post(strict, "/v1/completions", {**BODY, "max_tokens": 390}))

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    statuses = sorted(status for status, _, _ in answers)
    assert set(statuses) <= {200, 429} and statuses.count(200) >= 3 and 429 in statuses
    refused = next(a for a in answers if a[0] == 429)
    assert int(refused[1]["retry-after"]) >= 1
    assert json.loads(refused[2])["error"]["type"] == "rate_limit_error"


def test_the_rate_of_a_token():
    from warptape.serve.app import Gate
    from warptape.serve.errors import ApiError
    from warptape.serve.settings import Settings

    gate = Gate(Settings(key_rate=5.0, max_requests=20))
    states = [gate.enter("a") for _ in range(5)]
    with pytest.raises(ApiError, match="5 requests a second") as caught:
        gate.enter("a")
    assert 0 < caught.value.retry_after <= 0.2
    gate.enter("b")  # another token's are its own
    time.sleep(0.25)
    gate.enter("a")
    for each in states:
        gate.leave(each)
    assert gate.running == 2


def wait_until(what, limit=10):
    end = time.monotonic() + seconds(limit)
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_clients_that_leave_free_their_pages(server):
    for stream in (True, False):
        data = json.dumps({**BODY, "max_tokens": 500, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n"
        host, port = server.url.removeprefix("http://").split(":")
        connections = []
        for _ in range(10):
            connections.append(socket.create_connection((host, int(port))))
            connections[-1].sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        if stream:
            assert b"200 OK" in connections[0].recv(100)
        else:
            time.sleep(0.05)
        for each in connections:
            each.close()
        wait_until(lambda: stats(server).get("warptape_engine_running", 1) == 0)
        assert stats(server)["warptape_page_use_ratio"] == 0


def test_a_killed_worker_changes_no_stream(server, repository):
    llm = LLM(repository / "llm" / "1")
    params = SamplingParams(max_tokens=300, seed=5, ignore_eos=True)
    expected = llm.generate("Once", params)[0].outputs[0].text
    killed = []

    def kill():
        for pid in server.worker_pids():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    request = urllib.request.Request(
        server.url + "/v1/completions",
        json.dumps({**BODY, "max_tokens": 300, "stream": True}).encode(),
        {"Authorization": f"Bearer {server.token}"},
    )
    text = ""
    with urllib.request.urlopen(request, timeout=seconds(60)) as reply:
        for number, line in enumerate(line for line in reply if line.startswith(b"data: {")):
            text += json.loads(line[6:])["choices"][0]["text"]
            if number in (5, 80):
                kill()
    assert text == expected and len(killed) >= 2


def test_sigterm_loses_nothing(repository, tmp_path):
    log = tmp_path / "access.jsonl"
    with Process(repository, "--access-log", log, "--drain-delay", 0.3) as process:
        body = {**BODY, "max_tokens": 400}
        answers, begun = [], threading.Event()

        def ask():
            begun.set()
            answers.append(post(process, "/v1/completions", body))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for each in threads:
            each.start()
        begun.wait()
        time.sleep(0.2)
        process.process.send_signal(signal.SIGTERM)
        ready = 200
        while ready == 200:  # not ready, and still answering
            ready = get(process.url + "/readyz", process.token)[0]
        assert ready == 503 and get(process.url + "/livez")[0] == 200
        for each in threads:
            each.join()
        assert process.process.wait(seconds(60)) == 0
        assert {status for status, _, _ in answers} == {200}
        assert len({json.loads(text)["choices"][0]["text"] for _, _, text in answers}) == 1
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        mine = [line for line in lines if line["path"] == "/v1/completions"]
        assert len(mine) == 8
        line = mine[0]
        assert line["status"] == 200 and line["model"] == "llm" and line["version"] == 1
        assert line["prompt_tokens"] == 4 and line["completion_tokens"] == 400 and line["ms"] > 0
        assert process.token not in log.read_text()


def test_nothing_outlives_the_front(repository):
    def alive(pid):
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"

    with Process(repository) as process:
        tree = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children").read_text().split()
        pids = [*process.worker_pids(), *map(int, tree)]
        assert len(pids) >= 3 and all(map(alive, pids))
        os.kill(process.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(alive, pids)))


def test_a_second_signal_ends_at_once(repository):
    with Process(repository, "--drain-delay", 600) as process:
        process.process.send_signal(signal.SIGTERM)
        wait_until(lambda: get(process.url + "/readyz", process.token)[0] == 503)
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(seconds(20)) == 130


def test_a_template_has_two_seconds(tmp_path):
    folder = write_llm(tmp_path / "slow" / "1")
    forever = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    large = "{{ 'x' * 99999999 }}"
    for template, text in (
        (forever, "took more than 0.3 s"),
        (large, "too large"),
        ("{{ [].x.y }}", "refuses"),
    ):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        with Server(tmp_path, port=0, template_seconds=0.3) as server:
            server.token = None
            chat = {"model": "slow", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
            status, _, body = post(server, "/v1/chat/completions", chat)
            assert status == 400 and text in json.loads(body)["error"]["message"]
            assert post(server, "/v1/completions", {**BODY, "model": "slow", "max_tokens": 2})[0] == 200


class Double(wt.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = wt.nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x)


def test_modules_of_this_process():
    module = Double()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = module(wt.tensor(x)).detach().numpy()
    config = {
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1, 2]}],
    }
    with Server({"double": module}, port=0, token="t", configs={"double": config}) as server:
        server.token = "t"
        tensor = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": x.reshape(-1).tolist()}
        for _ in range(2):
            status, _, body = post(server, "/v2/models/double/infer", {"inputs": [tensor]})
            assert status == 200, body
            (out,) = json.loads(body)["outputs"]
            np.testing.assert_allclose(np.reshape(out["data"], (2, 2)), expected, rtol=1e-6)
            (version,) = server.models.loaded()
            os.kill(version.worker.pid, signal.SIGKILL)  # forked again from the template
        pid = server._templates[0].pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["/nowhere"], "is no folder"),
        (["{}", "--host", "0.0.0.0"], "give a token"),
        (["{}", "--port", "99999"], r"must be in \[0, 65535\]"),
        (["{}", "--max-requests", "0"], "at least 1"),
        (["{}", "--token", "a b"], "without spaces"),
        (["{}", "--token-file", "/nowhere"], "No such file"),
        (["{}", "--token-file", "/dev/null"], "has no token"),
        (["{}", "--host", "nowhere.invalid", "--token", "x"], "nowhere.invalid port 8000"),
    ],
)
def test_wrong_arguments_get_one_line(arguments, text, tmp_path, capsys):
    assert main([each.format(tmp_path) for each in arguments]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("warptape serve: ")
    assert re.search(text, error)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "m.gguf", "1/config.json"])
def test_a_models_folder_is_one_model(file, tmp_path):
    model = tmp_path / "tiny"
    (model / file).parent.mkdir(parents=True)
    (model / file).write_text("{}")
    assert is_model(str(model)) and not is_model(str(tmp_path))
    repository = ModelFolder(model)
    assert repository.names() == ["tiny"] and repository.versions("tiny") == [1]
    found = repository.version_folder("tiny", 1) / Path(file).name
    assert found.read_text() == "{}"
    assert not (model / "state.json").exists()


def test_a_gguf_file_is_one_model(tmp_path):
    (tmp_path / "tiny-q4.gguf").write_bytes(b"GGUF")
    assert is_model(str(tmp_path / "tiny-q4.gguf"))
    repository = ModelFolder(tmp_path / "tiny-q4.gguf")
    kind, path = repository.find(repository.config("tiny-q4"), 1)
    assert (kind, path.read_bytes()) == ("llm", b"GGUF")


def test_a_folder_whose_name_can_be_no_models_is_refused(tmp_path, capsys):
    (tmp_path / "a model").mkdir()
    (tmp_path / "a model" / "config.json").write_text("{}")
    assert main([str(tmp_path / "a model"), "--port", "0"]) == 1
    assert "'a model' is no model's name" in capsys.readouterr().err


def test_a_port_in_use(server, tmp_path, capsys):
    port = server.url.rpartition(":")[2]
    assert main([str(tmp_path), "--port", port]) == 1
    assert "in use" in capsys.readouterr().err
