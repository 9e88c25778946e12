"""What one client sends must not hold up, fill or fool the server; answers are what clients expect."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
from serving_models import Process, write_encoder, write_llm
from time_limits import seconds
from warptape.inference import LLM, SamplingParams
from warptape.models import Decoder
from warptape.serve import Server
from warptape.serve.errors import ApiError
from warptape.serve.limits import MOST_CHARACTERS
from warptape.serve.settings import Settings
from warptape.serve.sites import Sites

CONTEXT = 1024
EMOJI = "\U0001f600 ok"


def ask(url: str, path: str, body: Any, headers: Any = ()) -> tuple[int, Any]:
    """Status, and the answer's JSON, which has to be strict."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=seconds(120)) as reply:
            status, text = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    if text.startswith(b"data: "):
        lines = [line[6:] for line in text.split(b"\n\n") if line and line != b"data: [DONE]"]
        return status, [json.loads(line, parse_constant=_none) for line in lines]
    return status, json.loads(text, parse_constant=_none)


def ask_and_probe(url: str, path: str, body: Any) -> tuple[int, Any, float]:
    """The answer to a request, and the longest seconds that the server took meanwhile to say it lives."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(ask(url, path, body)))
    thread.start()
    worst = 0.0
    while thread.is_alive():
        start = time.monotonic()
        urllib.request.urlopen(url + "/livez", timeout=60).read()
        worst = max(worst, time.monotonic() - start)
        time.sleep(0.01)
    ((status, answer),) = got
    return status, answer, worst


def _none(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests")
    write_llm(folder / "m" / "1", max_position_embeddings=CONTEXT)
    write_llm(folder / "mean" / "1", max_position_embeddings=CONTEXT)
    (folder / "mean" / "config.json").write_text('{"parameters": {"pooling": "mean", "threads": 1}}')
    write_encoder(folder / "bert" / "1")
    return folder


@pytest.fixture(scope="module")
def server(repository):
    with Process(repository, token=None) as process:
        yield process


@pytest.fixture(scope="module")
def llm(repository):
    return LLM(repository / "m" / "1")


# ---- nobody waits for one request ----

MESSAGE = [{"role": "user", "content": "a"}]
LONG = "word " * 1_400_000
GRAMMAR = {"regex": "(" + "|".join(f"w{i}x{i * 7}" for i in range(20_000)) + ")*"}
LARGE: list[tuple[str, str, Any, int]] = [
    ("a text", "/v1/completions", {"model": "m", "prompt": LONG}, 400),
    ("a text that is cut", "/v1/completions",
     {"model": "m", "prompt": LONG, "truncate_prompt_tokens": 9}, 400),
    ("a conversation", "/v1/chat/completions",
     {"model": "m", "messages": [{"role": "user", "content": LONG}]}, 400),
    ("many texts", "/v1/completions", {"model": "m", "prompt": ["x" * 900] * 1024, "max_tokens": 1}, 200),
    ("tokens", "/v1/completions", b'{"model":"m","prompt":[' + b"5," * 400_000 + b"5]}", 400),
    ("more tokens", "/v1/completions", b'{"model":"m","prompt":[' + b"5," * 25_000_000 + b"5]}", 413),
    ("lists", "/v1/completions", b'{"model":"m","prompt":[' + b"[]," * 900_000 + b"[]]}", 413),
    ("messages", "/v1/chat/completions", {"model": "m", "messages": MESSAGE * 100_000}, 413),
    ("brackets in a text", "/v1/completions", {"model": "m", "prompt": '{["\\"[' * 100_000}, 400),
    ("texts to embed", "/v1/embeddings", {"model": "m", "input": [[5] * 300] * 200}, 200),
    ("texts for an encoder", "/v1/embeddings", {"model": "bert", "input": ["x" * 50] * 500}, 200),
    ("log-probabilities", "/v1/completions",
     {"model": "m", "prompt": [5] * 900, "max_tokens": 1, "echo": True, "logprobs": 20}, 200),
    ("a grammar", "/v1/completions", {"model": "m", "prompt": "a", "structured_outputs": GRAMMAR}, 200),
    ("KServe's text", "/v2/models/m/infer",
     {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [LONG]}]}, 400),
]  # fmt: skip


def test_one_large_request_stops_nobody(server) -> None:
    """Others see /livez at once, and a stream goes on."""
    host, port = server.url.removeprefix("http://").split(":")
    gaps, done = [0.0], threading.Event()

    def stream() -> None:
        while not done.is_set():
            connection = http.client.HTTPConnection(host, int(port), timeout=seconds(60))
            body = {"model": "m", "prompt": [5, 6], "max_tokens": 900, "ignore_eos": True, "stream": True,
                    "seed": 1, "return_token_ids": True}  # fmt: skip
            connection.request("POST", "/v1/completions", json.dumps(body))
            reply, last = connection.getresponse(), time.monotonic()
            while not done.is_set() and reply.readline():
                gaps[0], last = max(gaps[0], time.monotonic() - last), time.monotonic()
            connection.close()

    threading.Thread(target=stream, daemon=True).start()
    time.sleep(0.5)
    try:
        for name, path, body, expected in LARGE:
            gaps[0] = 0.0
            status, answer, worst = ask_and_probe(server.url, path, body)
            assert status == expected, (name, status, answer)
            assert worst < seconds(0.5) and gaps[0] < seconds(0.5), (name, worst, gaps[0])
    finally:
        done.set()


def test_what_is_kept_of_a_request_is_bounded(server) -> None:
    def refused(text: str, **more: Any) -> None:
        for path, what in (
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/chat/completions", {"messages": MESSAGE}),
        ):
            status, answer = ask(server.url, path, {"model": "m", **what, "max_tokens": 1, **more})
            assert status == 400 and text in answer["error"]["message"], answer

    refused("cache_salt must have 1 to 4096 characters", cache_salt="s" * (MOST_CHARACTERS + 1))
    refused("cache_salt must have 1 to 4096 characters", cache_salt="")
    refused("stop may have at most 64 entries", stop=["x" * i for i in range(1, 99)])
    refused("stop: a text may have at most 4096 characters", stop="x" * 5000)
    refused("bad_words may have at most 256 entries", bad_words=["a"] * 300)
    refused("bad_words may have at most 16384 characters", bad_words=["x" * 200] * 100)
    refused("stop_token_ids may have at most 1024 entries", stop_token_ids=[1] * 2000)
    refused(
        "choice may have at most 4096 texts", structured_outputs={"choice": [f"{i}" for i in range(9999)]}
    )
    refused("at most 524288 characters", structured_outputs={"regex": "a" * 600_000})
    many = {"model": "m", "prompt": ["a"] * 100, "n": 50, "max_tokens": 1}
    status, answer = ask(server.url, "/v1/completions", many)
    assert status == 400 and "n times the number of prompts" in answer["error"]["message"]
    tool = {"type": "function", "function": {"name": "f"}}
    status, answer = ask(
        server.url, "/v1/chat/completions", {"model": "m", "messages": MESSAGE, "tools": [tool] * 2000}
    )
    assert status == 400 and "tools may be at most 1024" in answer["error"]["message"]
    bomb = gzip.compress(b" " * 60_000_000)
    status, answer = ask(server.url, "/v2/models/m/infer", bomb, {"Content-Encoding": "gzip"})
    assert status == 413 and "at most 8388608 are taken" in answer["error"]


# ---- templates ----

BOMBS = [
    ("{{ '%400000000d' % 1 }}", "too large"),
    ("{{ 'x'|center(3000000000) }}", "too large"),
    ("{{ '{:>2000000000}'.format(1) }}", "too large"),
    ("{{ ('a'|center(99999))|replace(' ', 'b'|center(99999)) }}", "too large"),
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "took more than 1 s"),
    ("{{ raise_exception('not you') }}", "not you"),
]


def test_templates_of_clients(server, repository) -> None:
    chat = {"model": "m", "messages": MESSAGE, "max_tokens": 1, "seed": 1}
    for more in ({"chat_template": "x"}, {"chat_template_kwargs": {"chat_template": "x"}}):
        status, answer = ask(server.url, "/v1/chat/completions", {**chat, **more})
        assert status == 400 and "--trust-request-chat-template" in answer["error"]["message"]
    with Process(
        repository, "--trust-request-chat-template", "--template-seconds", "1", token=None
    ) as trusting:
        status, answer = ask(trusting.url, "/v1/chat/completions", {**chat, "chat_template": "0123456789"})
        assert status == 200 and answer["usage"]["prompt_tokens"] == 10
        for template, text in BOMBS:
            body = {**chat, "chat_template": template}
            status, answer, worst = ask_and_probe(trusting.url, "/v1/chat/completions", body)
            assert status == 400 and text in answer["error"]["message"], (template, answer)
            assert worst < seconds(0.5)
        assert ask(trusting.url, "/v1/chat/completions", chat)[0] == 200
    with pytest.raises(ValueError, match="trust_request_chat_template must be True or False"):
        Settings(trust_request_chat_template=1)


# ---- other sites ----


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({}, True),
        ({"host": "127.0.0.1:8000"}, True),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, True),
        ({"host": "[::1]:8000"}, True),
        ({"host": "evil.example"}, False),  # a name that resolves to this machine
        ({"host": "127.0.0.1.evil.example:8000"}, False),
        ({"host": "127.0.0.1:8000", "origin": "http://evil.example"}, False),
        ({"host": "127.0.0.1:8000", "origin": "null"}, False),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:9999"}, False),  # another server's page
        ({"host": "127.0.0.1:8000", "sec-fetch-site": "cross-site"}, False),
        ({"host": "127.0.0.1:8000", "sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8000"}, False),
        ({"host": "127.0.0.1:8000", "sec-fetch-site": "same-origin", "origin": "https://proxy"}, True),
    ],
)
def test_whose_requests_are_taken(headers: dict[str, str], taken: bool) -> None:
    given = {name.encode(): value.encode() for name, value in headers.items()}

    def check(method: str = "POST", with_tokens: bool = False, **settings: Any) -> bool:
        with contextlib.suppress(ApiError):
            Sites(Settings(**settings), with_tokens).check(given, method)
            return True
        return False

    assert check() == taken
    cross = "origin" in headers or "sec-fetch-site" in headers
    assert check("GET") == (taken or cross)  # reading: the browser keeps the answer from the page
    assert check(with_tokens=True) == (taken or not cross)  # a password that a browser has stored
    assert check(allowed_hosts="*", allowed_origins="*")
    assert check(
        allowed_hosts="evil.example, 127.0.0.1.evil.example", allowed_origins="http://evil.example"
    ) or (cross and headers.get("origin") != "http://evil.example")


def test_orders_of_other_sites() -> None:
    with Server({"double": wt.nn.Linear(3, 2)}, port=0, control="explicit") as server:
        path = "/v2/repository/models/double/unload"
        page = {"Origin": "http://evil.example", "Host": "evil.example"}
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            assert ask(server.url, path, b"", {"Content-Type": kind, **page})[0] == 403
            assert ask(server.url, path, b"", {"Content-Type": kind})[0] == 415
        for kind in ("load", "rollback"):
            order = f"/v2/repository/models/double/{kind}"
            assert ask(server.url, order, b"", {"Content-Type": "text/plain"})[0] == 415
        for method in ("GET", "PUT", "DELETE", "HEAD"):
            request = urllib.request.Request(server.url + path, method=method)
            with pytest.raises(urllib.error.HTTPError, match="405"):
                urllib.request.urlopen(request)
        assert server.models.names() == ["double"]
        assert ask(server.url, path, b"")[0] == 200 and server.models.names() == []


# ---- answers ----


def test_embeddings_are_the_states_of_the_model(server, llm) -> None:
    model = llm.llm_engine.runner.model
    texts = [[int(t) for t in np.random.default_rng(i).integers(0, 256, 1 + 97 * i)] for i in range(9)]
    for name, pool in (("m", lambda x: x[-1]), ("mean", lambda x: x.mean(0))):
        status, answer = ask(server.url, "/v1/embeddings", {"model": name, "input": texts})
        assert status == 200 and [each["index"] for each in answer["data"]] == [*range(9)]
        for tokens, each in zip(texts, answer["data"]):
            with wt.inference_mode():
                states = model.hidden(wt.tensor([tokens]))[0].float().numpy().astype(np.float64)
            expected = pool(states) / np.linalg.norm(pool(states))
            np.testing.assert_allclose(each["embedding"], expected, atol=1e-5)
        alone = ask(server.url, "/v1/embeddings", {"model": name, "input": [texts[5]]})[1]
        assert alone["data"][0]["embedding"] == answer["data"][5]["embedding"]  # to the bit
    status, answer = ask(server.url, "/v1/embeddings", {"model": "m", "input": [[1] * CONTEXT]})
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"


def test_log_probabilities_have_the_bytes_of_the_text(server) -> None:
    forced = {"model": "m", "max_tokens": 20, "seed": 1, "structured_outputs": {"choice": [EMOJI]}}
    for stream in (False, True):
        body = {**forced, "messages": MESSAGE, "logprobs": True, "top_logprobs": 3, "stream": stream}
        answer = ask(server.url, "/v1/chat/completions", body)[1]
        chunks = answer if stream else [answer]
        told = [each for c in chunks for each in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert b"".join(bytes(each["bytes"]) for each in told) == EMOJI.encode()
        assert told[0]["token"] == r"\xf0" and told[0]["bytes"] == [0xF0]
        assert all(len(each["top_logprobs"]) == 3 for each in told)
        for echo in (False, True):
            body = {**forced, "prompt": "é>", "logprobs": 5, "echo": echo, "stream": stream}
            answer = ask(server.url, "/v1/completions", body)[1]
            chunks = answer if stream else [answer]
            text = "".join(c["choices"][0]["text"] for c in chunks)
            assert text == ("é>" if echo else "") + EMOJI
            names, offsets, tops = (
                [x for c in chunks for x in (c["choices"][0]["logprobs"] or {name: []})[name]]
                for name in ("tokens", "text_offset", "top_logprobs")
            )
            for name in (">", "o", "k") if echo else ("o", "k"):
                assert offsets[names.index(name)] == text.index(name)
            assert offsets[names.index(r"bytes:\xf0")] == text.index(EMOJI[0]) and offsets == sorted(offsets)
            assert all(len(top) in (5, 6) for top in tops if top is not None)  # none fell together


def test_tool_calls_whole_and_as_streams(server) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]

    def said(text: str, stream: bool, **more: Any) -> tuple[Any, list[str], str]:
        body = {"model": "m", "messages": MESSAGE, "tools": tools, "max_tokens": 300, "seed": 1,
                "structured_outputs": {"choice": [text]}, "stream": stream, **more}  # fmt: skip
        answer = ask(server.url, "/v1/chat/completions", body)[1]
        if not stream:
            (choice,) = answer["choices"]
            calls = choice["message"].get("tool_calls", [])
            return (
                choice["message"]["content"],
                [c["function"]["name"] for c in calls],
                choice["finish_reason"],
            )
        choices = [chunk["choices"][0] for chunk in answer]
        content = "".join(c["delta"].get("content") or "" for c in choices)
        calls = [each for c in choices for each in c["delta"].get("tool_calls", [])]
        names = [each["function"]["name"] for each in calls if "id" in each]
        assert sorted({each["index"] for each in calls}) == [*range(len(names))]
        arguments = "".join(each["function"]["arguments"] for each in calls)
        assert arguments == '{"city": "Oslo"}' * len(names) and len(calls) >= len(names)
        return content or None, names, choices[-1]["finish_reason"]

    for stream in (False, True):
        assert said(call + call, stream) == (None, ["weather"] * 2, "tool_calls")
        assert said(call + call, stream, parallel_tool_calls=False) == (None, ["weather"], "tool_calls")
        assert said("\n\n" + call, stream) == (None, ["weather"], "tool_calls")
        mistral = '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]'
        assert said(mistral, stream) == (None, ["weather"], "tool_calls")
        other = '{"name": "Ann", "parameters": {"age": 3}}'
        assert said(other, stream) == (other, [], "stop")


def test_models_of_all_kinds(tmp_path: Path) -> None:
    """A GGUF file's own text, adapters, speculation, and logits that are no numbers."""
    from quantized_files import write_decoder

    broken = write_llm(tmp_path / "nan" / "1")
    model = Decoder.from_pretrained(broken)
    model.lm_head.weight.data.fill_(float("nan"))
    model.save_pretrained(broken)
    write_llm(tmp_path / "fast" / "1")
    config = {"speculative_config": {"num_speculative_tokens": 3}, "adapters": {"tuned": "adapter"}}
    (tmp_path / "fast" / "config.json").write_text(json.dumps({"parameters": config}))
    write_llm(tmp_path / "draft" / "1")
    config = {"speculative_config": {"num_speculative_tokens": 2, "model": "1"}}
    (tmp_path / "draft" / "config.json").write_text(json.dumps({"parameters": config}))
    (tmp_path / "file" / "1").mkdir(parents=True)
    letters = [*"</s>,", *(chr(97 + i) for i in range(26))]
    tokens = list(dict.fromkeys(["<eos>", *letters, "ab"]))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    small = Decoder(wt.models.DecoderConfig(vocab_size=len(tokens), max_position_embeddings=64, **sizes))
    ggml = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ["a b"], "eos_token_id": 0,
            "token_type": [3] + [1] * (len(tokens) - 1)}  # fmt: skip
    metadata = {f"tokenizer.ggml.{name}": value for name, value in ggml.items()}
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}"
    path = tmp_path / "file" / "1" / "model.gguf"
    write_decoder(path, small, **metadata)
    params = {"max_tokens": 8, "temperature": 0}
    expected = LLM(path).generate("abc", SamplingParams(**params))[0].outputs[0].text
    with Server(tmp_path, port=0) as server:
        assert server.models.names() == ["draft", "fast", "file", "nan"]
        same = ask(server.url, "/v1/completions", {"model": "fast", "prompt": "Once", "seed": 1})[1][
            "choices"
        ]
        assert (
            same
            == ask(server.url, "/v1/completions", {"model": "draft", "prompt": "Once", "seed": 1})[1][
                "choices"
            ]
        )
        status, answer = ask(server.url, "/v1/completions", {"model": "fast", "prompt": "x", "adapter": "no"})
        assert status == 400 and "no adapter" in answer["error"]["message"]
        answer = ask(server.url, "/v1/completions", {"model": "file", "prompt": "abc", **params})[1]
        assert answer["choices"][0]["text"] == expected
        chat = {"model": "file", "messages": [{"role": "user", "content": "abc"}], **params}
        answer = ask(server.url, "/v1/chat/completions", chat)[1]
        assert answer["choices"][0]["message"]["content"] == expected
        inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["abc"]}]
        answer = ask(server.url, "/v2/models/file/infer", {"inputs": inputs, "parameters": params})[1]
        assert next(o["data"] for o in answer["outputs"] if o["name"] == "text_output") == [expected]
        for more in ({}, {"logprobs": 1}, {"logprobs": 1, "stream": True}, {"echo": True, "logprobs": 1}):
            status, answer = ask(
                server.url, "/v1/completions", {"model": "nan", "prompt": [1, 2], "max_tokens": 3, **more}
            )
            last = answer[-1] if more.get("stream") else answer
            assert status == 200 and last["choices"][0]["finish_reason"] == "error"
            assert "no finite numbers" in last["choices"][0]["stop_reason"]
