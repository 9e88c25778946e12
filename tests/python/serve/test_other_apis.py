"""Anthropic's, Ollama's and OpenAI's responses API, tokens and adapters: against chat completions, and where
they are installed by their own clients."""

import json
import os
import signal
import urllib.request

import pytest
from serving_models import Process, write_adapter, write_llm
from time_limits import seconds

HI = [{"role": "user", "content": "hi"}]
GREEDY = {"temperature": 0, "max_tokens": 12}
TOOL = {"name": "weather", "description": "of a city", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"],
    "additionalProperties": False}}  # fmt: skip


@pytest.fixture(scope="module")
def expected(server):
    status, answer = server.post("/v1/chat/completions", {"model": "llm", "messages": HI, **GREEDY})
    assert status == 200
    return answer["choices"][0]["message"]["content"], answer["usage"]


def lines(server, path, body):
    """Those of a stream."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {server.token}"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=seconds(60)) as reply:
        return [line.decode().rstrip("\n") for line in reply if line.strip()]


def events(server, path, body):
    """Of server-sent ones, which have their names twice."""
    found = lines(server, path, {**body, "stream": True})
    names, data = found[::2], [json.loads(line.removeprefix("data: ")) for line in found[1::2]]
    assert names == [f"event: {each['type']}" for each in data]
    return data


def test_health_and_tokens(server):
    with urllib.request.urlopen(
        urllib.request.Request(server.url + "/health", headers={"Authorization": f"Bearer {server.token}"})
    ) as reply:
        assert reply.status == 200
    text = "é 🎈\n"
    status, answer = server.post("/tokenize", {"model": "llm", "prompt": text, "return_token_strs": True})
    assert status == 200 and answer["count"] == len(text.encode()) == len(answer["tokens"])
    assert answer["token_strs"][2] == " " and answer["max_model_len"] == 512
    back = {"model": "llm", "tokens": answer["tokens"]}
    assert server.post("/detokenize", back) == (200, {"prompt": text})
    status, answer = server.post("/tokenize", {"model": "llm", "messages": HI})
    assert server.post("/detokenize", {"model": "llm", "tokens": answer["tokens"]})[1] == {
        "prompt": "user:hi\nassistant:"
    }
    assert server.post("/detokenize", {"model": "llm", "tokens": [999]})[0] == 400
    assert server.post("/tokenize", {"model": "llm", "prompt": 3})[0] == 400


def test_messages(server, expected):
    text, usage = expected
    body = {"model": "llm", "messages": HI, **GREEDY}
    status, answer = server.post("/v1/messages", body)
    assert status == 200 and answer["type"] == "message" and answer["role"] == "assistant"
    assert answer["content"] == [{"type": "text", "text": text}]
    counts = answer["usage"]
    assert counts["output_tokens"] == usage["completion_tokens"]
    assert counts["input_tokens"] + counts["cache_read_input_tokens"] == usage["prompt_tokens"]
    data = events(server, "/v1/messages", body)
    assert [each["type"] for each in data][:2] == ["message_start", "content_block_start"]
    assert [each["type"] for each in data][-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(e["delta"]["text"] for e in data if e["type"] == "content_block_delta") == text
    assert data[-2]["delta"]["stop_reason"] == answer["stop_reason"]
    assert server.post("/v1/messages/count_tokens", {"model": "llm", "messages": HI})[1] == {
        "input_tokens": usage["prompt_tokens"]
    }
    cut = {**body, "stop_sequences": [text[3]]}
    answer = server.post("/v1/messages", cut)[1]
    assert answer["stop_reason"] == "stop_sequence" and answer["stop_sequence"] == text[3]
    status, answer = server.post("/v1/messages", {**body, "model": "nobody"})
    assert status == 404 and answer["type"] == "error" and answer["error"]["type"] == "not_found_error"
    talk = [
        *HI,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "warm"}]},
    ]
    assert server.post("/v1/messages", {**body, "messages": talk, "system": "Be"})[0] == 200
    assert server.post("/v1/messages", {**body, "beams": 1})[0] == 400


def test_responses(server, expected):
    text, usage = expected
    body = {"model": "llm", "input": "hi", "temperature": 0, "max_output_tokens": 12}
    status, answer = server.post("/v1/responses", body)
    assert status == 200 and answer["output"][0]["content"][0]["text"] == text
    assert answer["status"] == ("incomplete" if usage["completion_tokens"] == 12 else "completed")
    assert answer["usage"]["total_tokens"] == usage["total_tokens"]
    data = events(server, "/v1/responses", body)
    assert [each["sequence_number"] for each in data] == [*range(len(data))]
    assert "".join(e["delta"] for e in data if e["type"] == "response.output_text.delta") == text
    last = data[-1]["response"]
    assert last["status"] == answer["status"] and last["output"][0]["content"][0]["text"] == text
    again = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    assert (
        server.post("/v1/responses", {**body, "input": again})[1]["output"][0]["content"][0]["text"] == text
    )
    assert server.post("/v1/responses", {**body, "previous_response_id": "resp_1"})[0] == 400


def test_ollama(server, expected):
    text, usage = expected
    options = {"temperature": 0, "num_predict": 12, "num_ctx": 4096}
    body = {"model": "llm:latest", "messages": HI, "options": options}
    status, answer = server.post("/api/chat", {**body, "stream": False})
    assert status == 200 and answer["message"]["content"] == text and answer["done"] is True
    assert answer["eval_count"] == usage["completion_tokens"] and answer["done_reason"] in ("stop", "length")
    data = [json.loads(line) for line in lines(server, "/api/chat", body)]
    assert "".join(each["message"]["content"] for each in data) == text
    assert [each["done"] for each in data] == [False] * (len(data) - 1) + [True]
    assert data[-1]["prompt_eval_count"] == usage["prompt_tokens"]
    asked = {"model": "llm", "prompt": "hi", "options": options}
    data = [json.loads(line) for line in lines(server, "/api/generate", asked)]
    assert "".join(each["response"] for each in data) == text
    assert {each["name"] for each in server.get("/api/tags")[1]["models"]} == {"llm", "bert"}
    assert server.post("/api/show", {"model": "llm"})[1]["model_info"]["llm.context_length"] == 512
    status, answer = server.post("/api/chat", {**body, "model": "nobody"})
    assert status == 404 and "is not there" in answer["error"]
    assert server.get("/api/version")[1]["version"]
    texts = {"model": "bert", "input": ["hi", "you"]}
    rows = [each["embedding"] for each in server.post("/v1/embeddings", texts)[1]["data"]]
    embedded = server.post("/api/embed", texts)[1]
    assert embedded["embeddings"] == rows and embedded["prompt_eval_count"] == 5


def test_best_of(server):
    body = {"model": "llm", "prompt": "hi", "seed": 3, "max_tokens": 8, "ignore_eos": True}
    choices = server.post("/v1/completions", {**body, "n": 4, "logprobs": 0})[1]["choices"]
    ranked = sorted(choices, key=lambda c: -sum(c["logprobs"]["token_logprobs"]))
    status, answer = server.post("/v1/completions", {**body, "n": 2, "best_of": 4})
    assert status == 200 and [c["text"] for c in answer["choices"]] == [c["text"] for c in ranked[:2]]
    assert [c["index"] for c in answer["choices"]] == [0, 1] and answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 32
    assert server.post("/v1/completions", {**body, "n": 3, "best_of": 2})[0] == 400


def test_bytes_and_offsets_of_logprobs(server):
    """Over characters of several tokens, with the prompt before."""
    prompt = "é🎈a"
    body = {"model": "llm", "prompt": prompt, "temperature": 0, "max_tokens": 6, "echo": True, "logprobs": 1}
    (choice,) = server.post("/v1/completions", {**body, "ignore_eos": True})[1]["choices"]
    told = choice["logprobs"]
    # A token of a character has the offset at which that begins.
    assert told["text_offset"][:7] == [0, 0, 1, 1, 1, 1, 2] and told["text_offset"][7] == len(prompt)
    assert told["tokens"][:3] == ["bytes:\\xc3", "bytes:\\xa9", "bytes:\\xf0"]
    chat = {"model": "llm", "messages": HI, **GREEDY, "logprobs": True}
    (choice,) = server.post("/v1/chat/completions", chat)[1]["choices"]
    joined = bytes(byte for each in choice["logprobs"]["content"] for byte in each["bytes"])
    assert joined.decode(errors="replace") == choice["message"]["content"]


def test_adapters_by_name_and_at_run_time(tmp_path):
    folder = write_llm(tmp_path / "tiny")
    for i in (1, 2):
        write_adapter(tmp_path / f"a{i}", folder, i)
    flags = ["--adapters", f"one={tmp_path / 'a1'}", "--admin-token", "boss"]
    with Process(folder, *flags) as process:

        def text(model):
            body = {"model": model, "prompt": "Once", "ignore_eos": True, **GREEDY}
            status, answer = process.post("/v1/completions", body)
            return answer["choices"][0]["text"] if status == 200 else status

        base, one = text("tiny"), text("one")
        assert isinstance(one, str) and base != one
        load = {"lora_name": "two", "lora_path": str(tmp_path / "a2")}
        assert process.post("/v1/load_lora_adapter", load)[0] == 403  # not with an inference token
        process.token = "boss"
        assert process.post("/v1/load_lora_adapter", {**load, "lora_path": str(tmp_path)})[0] == 400
        status, answer = process.post("/v1/load_lora_adapter", load)
        assert status == 200 and "until the server ends" in answer["message"]
        assert process.post("/v1/load_lora_adapter", load)[0] == 400  # it is there
        process.token = "secret"
        two = text("two")
        assert isinstance(two, str) and len({base, one, two}) == 3
        rows = {row["id"]: row.get("parent") for row in process.get("/v1/models")[1]["data"]}
        assert rows == {"tiny": None, "one": "tiny", "two": "tiny"}
        for pid in process.worker_pids():  # a worker that is started again has it, too
            os.kill(pid, signal.SIGKILL)
        assert (text("two"), text("one")) == (two, one)
        process.token = "boss"
        assert process.post("/v1/unload_lora_adapter", {"lora_name": "two"})[0] == 200
        assert process.post("/v1/unload_lora_adapter", {"lora_name": "two"})[0] == 404
        assert text("two") == 404 and (text("one"), text("tiny")) == (one, base)
        # By the same name another one: nothing of the first is found again.
        again = {"lora_name": "two", "lora_path": str(tmp_path / "a1")}
        assert process.post("/v1/load_lora_adapter", again)[0] == 200
        assert text("two") == one


def test_wrong_folders_of_orders_are_refused_and_end_no_worker(tmp_path):
    """Of what is no adapter and no model: a long name, a file, files that are cut or of another form."""
    paths = ["x" * 300, "\x00", str(tmp_path / "none"), str(tmp_path / "file"), str(tmp_path / "file" / "a")]
    (tmp_path / "file").write_text("{}")
    adapter = write_adapter(tmp_path / "whole", write_llm(tmp_path / "llm"))
    whole, data = "adapter_model.safetensors", (adapter / "adapter_model.safetensors").read_bytes()
    for i, (config, weights) in enumerate([("{", data), ("[]", data), ("{}", data), (None, data[:99])]):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "adapter_config.json").write_text(config or (adapter / "adapter_config.json").read_text())
        (folder / "config.json").write_text(config or "{}")
        (folder / whole).write_bytes(weights)
        (folder / "model.safetensors").write_bytes(weights[:99])
        paths.append(str(folder))
    with Process(tmp_path / "llm", "--admin-token", "secret", "--access-log", "off") as server:
        pids = server.worker_pids()
        for path in paths:
            order = {"lora_name": "a", "lora_path": path}
            for route, body in (("load_lora_adapter", order), ("update_weights", {"path": path})):
                status, answer = server.post(f"/v1/{route}", body)
                assert status == 400, (route, path, answer)
        assert server.worker_pids() == pids
        assert server.post("/v1/unload_lora_adapter", {"lora_name": "a"})[0] == 404


def test_anthropics_client(server, expected):
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key=server.token, max_retries=0)
    asked = {"model": "llm", "messages": HI, "max_tokens": 12, "extra_body": {"temperature": 0}}
    answer = client.messages.create(**asked)
    assert answer.content[0].text == expected[0]
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == expected[0]
        assert stream.get_final_message().usage.output_tokens == expected[1]["completion_tokens"]
    tool = {"name": "weather", "description": "", "input_schema": TOOL["parameters"]}
    forced = {**asked, "max_tokens": 250, "tools": [tool], "tool_choice": {"type": "any"}}
    called = client.messages.create(**forced)
    if called.stop_reason == "tool_use":  # else it was cut off
        (block,) = called.content
        assert block.name == "weather" and block.input == {"city": "Oslo"}
        with client.messages.stream(**forced) as stream:
            (streamed,) = stream.get_final_message().content
        assert (streamed.name, streamed.input) == ("weather", {"city": "Oslo"})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**asked, "model": "nobody"})
    assert client.messages.count_tokens(model="llm", messages=HI).input_tokens == expected[1]["prompt_tokens"]


def test_ollamas_client(server, expected):
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(server.url, headers={"Authorization": f"Bearer {server.token}"})
    options = {"temperature": 0, "num_predict": 12}
    assert client.chat("llm", HI, options=options).message.content == expected[0]
    parts = client.chat("llm", HI, options=options, stream=True)
    assert "".join(each.message.content for each in parts) == expected[0]
    assert client.generate("llm", "hi", options=options).response == expected[0]
    assert {each.model for each in client.list().models} == {"llm", "bert"}
    assert len(client.embed("bert", ["hi", "you"]).embeddings) == 2
    with pytest.raises(ollama.ResponseError, match="is not there"):
        client.chat("nobody", HI)


def test_openais_client_of_responses(server, expected):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=server.token, max_retries=0)
    asked = {"model": "llm", "input": "hi", "temperature": 0, "max_output_tokens": 12}
    assert client.responses.create(**asked).output_text == expected[0]
    more = {"stop": [expected[0][3]]}  # the client wants a response that is complete
    whole = client.responses.create(**asked, extra_body=more)
    with client.responses.stream(**asked, extra_body=more) as stream:
        kinds = [each.type for each in stream]
        assert stream.get_final_response().output_text == whole.output_text == expected[0][:3]
    assert kinds[0] == "response.created" and "response.output_text.delta" in kinds
