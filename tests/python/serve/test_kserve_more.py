"""KServe for language models and modules, tokens over gRPC, statistics, metrics and the status page."""

import json
import re
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import warptape as wt
from kserve_server import Running, add_version
from serving_models import get, write_llm
from time_limits import seconds
from warptape.serve import Server, admin

http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")
from tritonclient.utils import InferenceServerException  # noqa: E402

TOKEN = {"authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    write_llm(repository / "llm" / "1")
    rollout = {"steps": [50, 100], "hold_seconds": 600}
    add_version(
        repository, "scale", 1, 2.0, {"max_batch_size": 8, "dynamic_batching": {}, "rollout": rollout}
    )
    with Running(repository, token="secret", control="explicit", load=["*"]) as r:
        r.repository = repository
        yield r


def both(running):
    return (http, running.port), (grpc, running.grpc_port)


def test_language_models_answer_infer(running):
    """Over HTTP and gRPC, text and tokens, the same answer, which is OpenAI's for the same request too."""
    texts, ids = [], []
    for module, port in both(running):
        client = module.InferenceServerClient(f"127.0.0.1:{port}")
        text = module.InferInput("text_input", [1], "BYTES")
        text.set_data_from_numpy(np.array([b"Hello"], object))
        tokens = module.InferInput("input_ids", [5], "INT32")
        for given in (text, tokens):
            if given is tokens:
                prompt = running.call(_encoded(running, "Hello"))
                tokens = module.InferInput("input_ids", [len(prompt)], "INT64")
                tokens.set_data_from_numpy(np.array(prompt, np.int64))
                given = tokens
            parameters = {"max_tokens": 8, "seed": 3, "temperature": 1.0, "ignore_eos": True}
            answer = client.infer("llm", [given], parameters=parameters, headers=dict(TOKEN))
            texts.append(answer.as_numpy("text_output")[0])
            ids.append(answer.as_numpy("output_ids").tolist())
            assert answer.as_numpy("finish_reason").tolist() == [b"length"]
        with pytest.raises(InferenceServerException, match="max_tokens"):
            client.infer("llm", [text], parameters={"max_tokens": -1}, headers=dict(TOKEN))
        with pytest.raises(InferenceServerException, match="tempature"):
            client.infer("llm", [text], parameters={"tempature": 1}, headers=dict(TOKEN))
        metadata = client.get_model_metadata("llm", headers=dict(TOKEN))
        assert "text_input" in str(metadata)
        client.close()
    assert len(set(texts)) == 1 and all(i == ids[0] for i in ids) and len(ids[0]) == 8
    body = {
        "model": "llm",
        "prompt": "Hello",
        "max_tokens": 8,
        "seed": 3,
        "temperature": 1.0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"{running.server.url}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", **TOKEN},
    )
    with urllib.request.urlopen(request) as reply:
        assert json.load(reply)["choices"][0]["text"].encode() == texts[0]


async def _encoded(running, text):
    tokenizer = await running.server._texts.of(running.models.peek("llm").spec)
    return tokenizer.encode(text)


def test_grpc_wants_a_token_but_for_liveness(running):
    client = grpc.InferenceServerClient(f"127.0.0.1:{running.grpc_port}")
    assert client.is_server_live()
    for headers in (None, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
        for ask in (client.is_server_ready, client.get_model_repository_index):
            with pytest.raises(InferenceServerException) as raised:
                ask(headers=headers)
            assert raised.value.status() == "StatusCode.UNAUTHENTICATED"
    assert client.is_server_ready(headers=dict(TOKEN))
    client.close()


def test_modules_of_the_process_answer():
    wt.manual_seed(0)
    module = wt.nn.Linear(3, 2)
    tensors = {
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
    }
    config = {"linear": {"max_batch_size": 4, "dynamic_batching": {}, **tensors}}
    x = np.random.default_rng(0).random((2, 3), np.float32)
    with Server({"linear": module}, port=0, configs=config) as server:
        client = http.InferenceServerClient(f"127.0.0.1:{server.port}")
        given = http.InferInput("x", [2, 3], "FP32")
        given.set_data_from_numpy(x)
        got = client.infer("linear", [given]).as_numpy("y")
        client.close()
    assert np.allclose(got, module(wt.from_numpy(x)).detach().numpy(), atol=1e-6)


def test_metrics_and_the_status_page(running):
    url = running.server.url
    for path in ("/metrics", "/status", "/status.json"):
        assert get(url + path)[0] == 401
    client = http.InferenceServerClient(f"127.0.0.1:{running.port}")
    given = http.InferInput("x", [3, 8], "FP32")
    given.set_data_from_numpy(np.ones((3, 8), np.float32))
    for _ in range(3):
        client.infer("scale", [given], headers=dict(TOKEN))
    client.close()
    status, text = get(url + "/metrics", "secret")
    assert status == 200

    def value(name, labels='model="scale",version="1"'):
        return float(re.search(rf"^warptape_{name}{{{labels}}} (\S+)$", text.decode(), re.MULTILINE)[1])

    assert value("requests_total") == 3 and value("batch_size_sum") >= 9
    assert value("request_seconds_count") == 3 and value("ready") == 1 and value("traffic_percent") == 100
    assert value("engine_num_pages", 'model="llm",version="1"') > 0
    assert 0 <= value("page_use_ratio", 'model="llm",version="1"') <= 1
    status, page = get(url + "/status", "secret")
    assert status == 200 and b"http://" not in page.replace(
        b"http://www.w3.org/2000/svg", b""
    )  # nothing fetched
    assert b"https://" not in page
    rows = {m["name"]: m for m in json.loads(get(url + "/status.json", "secret")[1])["models"]}
    (version,) = rows["scale"]["versions"]
    assert version["role"] == "current" and version["counts"]["inference_stats"]["success"]["count"] == 3
    assert version["worker"]["rss"] > 1 << 20
    basic = urllib.request.Request(url + "/status", headers={"authorization": "Basic OnNlY3JldA=="})
    with urllib.request.urlopen(basic) as reply:  # a browser's way: no name, the token as password
        assert reply.status == 200


def test_orders_by_the_command_line(running, capsys):
    url = ["--url", running.server.url, "--token", "secret"]
    add_version(running.repository, "scale", 2, 3.0)
    assert admin.main(["load", "scale", *url]) == 0
    assert "scale: version 2 is loaded" in capsys.readouterr().out
    assert admin.main(["rollback", "scale", *url]) == 0
    assert "scale: version 1 serves" in capsys.readouterr().out
    admin.main(["index", *url])
    assert "scale 2 UNAVAILABLE rolled back by request" in capsys.readouterr().out
    with pytest.raises(admin.OrderError, match="409: there is no previous version"):
        admin.main(["rollback", "scale", *url])
    with pytest.raises(admin.OrderError, match="401"):
        admin.main(["index", *url[:2]])


def test_language_models_answer_their_samples_before_they_serve(running):
    """A version with the same weights is taken; one with others is refused, and the error names the file."""
    client = http.InferenceServerClient(f"127.0.0.1:{running.port}")
    tokens = http.InferInput("input_ids", [3], "INT64")
    tokens.set_data_from_numpy(np.array([1, 2, 3], np.int64), binary_data=False)
    parameters = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    answer = client.infer("llm", [tokens], parameters=parameters, headers=dict(TOKEN))
    ids = {
        "name": "output_ids",
        "datatype": "INT64",
        "shape": [6],
        "data": answer.as_numpy("output_ids").tolist(),
    }
    given = {"name": "input_ids", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]}
    samples = {"samples": [{"inputs": [given], "parameters": parameters, "outputs": [ids]}]}
    for version, seed in ((2, 0), (3, 1)):
        folder = write_llm(running.repository / "llm" / str(version), seed=seed)
        (folder / "samples.json").write_text(json.dumps(samples))
    assert running.server.load("llm", 2) == 2
    running.server.rollback("llm")
    with pytest.raises(
        InferenceServerException, match=r"llm/3/samples.json: sample 0, output output_ids: other"
    ):
        client.load_model("llm", headers=dict(TOKEN))
    client.close()


FULL = """
import threading, time
import numpy as np
import tritonclient.grpc as grpc
import warptape as wt
from warptape.serve import Server

class Slow(wt.nn.Module):
    def forward(self, x):
        time.sleep(1.0)
        return x

answers = []
def ask():
    x = grpc.InferInput("x", [1], "FP32")
    x.set_data_from_numpy(np.ones(1, np.float32))
    try:
        client.infer("slow", [x], headers={"authorization": "Bearer secret"})
        answers.append("ok")
    except grpc.InferenceServerException as error:
        answers.append(error.status())

with Server({"slow": Slow()}, port=0, grpc_port=0, token="secret", max_requests=2) as server:
    client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(len(answers), sorted(set(answers)))
"""


def test_a_full_queue_over_grpc():
    """In a process of its own, as modules answer from forks of the process that has them."""
    done = subprocess.run(
        [sys.executable, "-c", FULL], capture_output=True, text=True, timeout=seconds(60), check=False
    )
    assert done.stdout.strip() == "8 ['StatusCode.RESOURCE_EXHAUSTED', 'ok']", done.stderr
