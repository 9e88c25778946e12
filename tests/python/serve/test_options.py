"""The options of a model: one table gives config.json's keys, flags, and the page; models of the hub."""

import argparse
import dataclasses
import hashlib
import http.server
import importlib.util
import inspect
import json
import threading
from pathlib import Path

import pytest
from serving_models import Process, write_llm
from warptape.inference import LLM, EngineArgs
from warptape.serve.__main__ import add_options, main
from warptape.serve.config import ConfigError, config_of
from warptape.serve.options import OPTIONS, WorkerOptions, given
from warptape.serve.settings import Settings

TOOL = Path(__file__).resolve().parents[3] / "tools/option_page.py"
# Of each kind a value that is not the default, as JSON and as a flag has it.
VALUES = {
    "bool": (None, None),
    "int": (3, "3"),
    "float": (1.5, "1.5"),
    "str": ("x", "x"),
    "object": ({"a": "/b"}, "a=/b"),
    "list": ([1, 2], "1,2"),
}


def parsed(*flags):
    parser = argparse.ArgumentParser()
    add_options(parser)
    return given(parser.parse_args([*flags, "m"]))


def test_every_option_of_the_engine_is_one_of_the_server():
    """An option that config.json or the command line cannot reach fails here."""
    engine = {each.name for each in dataclasses.fields(EngineArgs)}
    parameters = inspect.signature(LLM.__init__).parameters.values()
    engine |= {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    own = {each.name for each in dataclasses.fields(WorkerOptions)}
    assert engine | own == {*OPTIONS} and not engine & own
    assert not {*OPTIONS} & {each.name for each in dataclasses.fields(Settings)}
    for option in OPTIONS.values():
        assert option.help, f"{option.name}: its class says nothing of it"
        value, text = VALUES[option.kind]
        flags = [option.flag, text]
        if option.kind == "bool":
            value = not option.default
            flags = [option.flag if value else option.flag.replace("--", "--no-", 1)]
        made = config_of({"parameters": {option.name: value}}, "config.json", "m").parameters
        assert made == {option.name: value}
        from_flags = parsed(*flags)
        assert [*from_flags] == [option.name]
        assert from_flags[option.name] == value or Path(from_flags[option.name]).name == value
        wrong = {"object": [], "list": {}, "str": 1}.get(option.kind, "wrong")
        with pytest.raises(ConfigError, match=option.name):
            config_of({"parameters": {option.name: wrong}}, "config.json", "m")


def test_texts_of_triton_are_their_values():
    data = {"parameters": {"max_num_seqs": {"string_value": "4"}, "invariant": {"string_value": "false"}}}
    assert config_of(data, "c", "m").parameters == {"max_num_seqs": 4, "invariant": False}
    flags = ["--speculative-config", "method=ngram,num_speculative_tokens=3"]
    assert parsed(*flags) == {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}


@pytest.mark.skipif(not TOOL.exists(), reason="needs the source tree")
def test_the_page_is_of_today():
    spec = importlib.util.spec_from_file_location("option_page", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.page() == tool.PAGE.read_text(), "run tools/option_page.py"


def test_flags_of_a_model_reach_its_engine(tmp_path):
    folder = write_llm(tmp_path / "tiny")
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}<think>")
    flags = ["--max-model-len", 64, "--quantization", "int8", "--draft-model", folder]
    with Process(folder, *flags, "--chat-template", tmp_path / "t.jinja", "--name", "me/tiny") as process:
        chat = {"model": "me/tiny", "messages": [{"role": "user", "content": "hello"}], "seed": 1}
        status, answer = process.post("/v1/chat/completions", chat)
        assert status == 200 and answer["usage"]["prompt_tokens"] == len("hello<think>")
        # The template has begun the reasoning, which never ends here.
        body = {"model": "me/tiny", "prompt": "hello<think>", "temperature": 0, "max_tokens": 12}
        whole = process.post("/v1/completions", body)[1]["choices"][0]["text"].strip()
        asked = {"model": "me/tiny", "messages": chat["messages"], "max_tokens": 12}
        message = process.post("/v1/chat/completions", {**asked, "temperature": 0})[1]["choices"][0][
            "message"
        ]
        assert (message["reasoning_content"], message["content"]) == (whole, "")
        message = process.post("/v1/chat/completions", {**asked, "include_reasoning": False})[1]["choices"][0]
        assert "reasoning_content" not in message["message"]
        answer = process.post("/v1/messages", {**asked, "temperature": 0})[1]
        assert answer["content"] == [{"type": "thinking", "thinking": whole, "signature": ""}]
        status, answer = process.post("/v1/chat/completions", {**chat, "max_tokens": 100})
        assert status == 400 and "64 tokens" in answer["error"]["message"]
        assert process.get("/v1/models/me/tiny")[0] == 200
        assert process.get("/v2/models/me/tiny/ready")[0] == 200
        assert process.get("/v2/models/me/tiny/versions/1")[1]["name"] == "me/tiny"


def broken_config(folder):
    (folder / "config.json").write_text("{")


def unknown_architecture(folder):
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, "model_type": "nothing"}))


@pytest.mark.parametrize("harm", [broken_config, unknown_architecture])
def test_a_model_that_cannot_be_loaded_ends_the_command(harm, tmp_path, capsys):
    folder = write_llm(tmp_path / "tiny")
    harm(folder)
    assert main([str(folder), "--port", "0"]) == 1
    said = capsys.readouterr().err
    assert str(folder) in said and "warptape_serve_" not in said, said


def test_options_of_a_model_beside_a_repository_are_refused(tmp_path, capsys):
    assert main([str(tmp_path), "--dtype", "float32"]) == 1
    assert "--dtype is for a single model" in capsys.readouterr().err


class Hub(http.server.BaseHTTPRequestHandler):
    """What huggingface_hub asks of the hub, for one repository."""

    folder: Path
    asked: list[str]

    def do_GET(self, body=True):
        self.asked.append(self.path)
        sha = "0" * 40
        kind, data, more = "application/json", b"{}", {"X-Repo-Commit": sha}
        if self.path.startswith("/api/models/me/tiny/revision/") or self.path.startswith(
            "/api/models/me/tiny?"
        ):
            files = [{"rfilename": each.name} for each in sorted(self.folder.iterdir())]
            data = json.dumps({"id": "me/tiny", "sha": sha, "siblings": files}).encode()
        elif self.path.startswith("/api/models/me/tiny/tree/"):
            rows = [
                {"type": "file", "path": each.name, "size": each.stat().st_size, "oid": "1" * 40}
                for each in sorted(self.folder.iterdir())
            ]
            data = json.dumps(rows).encode()
        elif self.path.startswith("/me/tiny/resolve/"):
            data = (self.folder / self.path.rpartition("/")[2]).read_bytes()
            more["ETag"] = f'"{hashlib.sha256(data).hexdigest()}"'
        else:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def do_HEAD(self):
        self.do_GET(False)

    def log_message(self, *_):
        pass


def test_a_model_of_the_hub(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    folder = write_llm(tmp_path / "files")
    (folder / "weights.bin").write_bytes(b"not asked for")
    handler = type("Handler", (Hub,), {"folder": folder, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_address[1]}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        with Process("me/tiny", "--max-model-len", 64) as process:
            body = {"model": "me/tiny", "prompt": "Once", "max_tokens": 3}
            assert process.post("/v1/completions", body)[0] == 200
        assert not any("weights.bin" in path for path in handler.asked)
        asked = len(handler.asked)
        with Process(
            "me/tiny@main", "--max-model-len", 64
        ) as process:  # what the cache has is not asked again
            assert process.get("/v1/models/me/tiny")[0] == 200
        assert not any("/resolve/" in path and "safetensors" in path for path in handler.asked[asked:])
        hub.shutdown()
