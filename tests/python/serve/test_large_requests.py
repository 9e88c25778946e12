"""What one client sends, however much it is, does not stop the streams of others."""

import contextlib
import http.client
import json
import statistics
import threading
import time

import pytest
from serving_models import Process, write_repository
from time_limits import seconds

STREAMS, PHASE = 4, 1.0  # clients, and seconds that their gaps are measured
MOST = 12  # times the gap of undisturbed streams, with what a step and a busy machine take beside
LEAST_GAP = 0.02  # seconds, below which a gap is none


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    repository = write_repository(tmp_path_factory.mktemp("large"))
    with Process(repository, "--max-json-bytes", 32 << 20, token=None) as process:
        yield process


class Streams:
    """Clients that read tokens; the times between these."""

    def __init__(self, url):
        self.url, self.gaps, self.ended = url, [], threading.Event()
        self.threads = [threading.Thread(target=self.read, daemon=True) for _ in range(STREAMS)]

    def read(self):
        host, port = self.url.removeprefix("http://").split(":")
        body = {"model": "llm", "prompt": [5, 6], "max_tokens": 500, "ignore_eos": True, "stream": True,
                "seed": 1, "return_token_ids": True}  # fmt: skip
        while not self.ended.is_set():
            connection = http.client.HTTPConnection(host, int(port), timeout=seconds(60))
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", "/v1/completions", json.dumps(body))
                reply, last = connection.getresponse(), time.monotonic()
                while not self.ended.is_set() and reply.readline():
                    now = time.monotonic()
                    self.gaps.append(now - last)
                    last = now
            connection.close()

    def measured(self):
        """The gap that one of fifty is longer than."""
        self.gaps = []
        time.sleep(PHASE)
        gaps = self.gaps
        assert len(gaps) > 20, "the streams stand still"
        return max(statistics.quantiles(gaps, n=50)[-1], LEAST_GAP)

    def __enter__(self):
        for each in self.threads:
            each.start()
        return self

    def __exit__(self, *error):
        self.ended.set()
        for each in self.threads:
            each.join(seconds(10))


TEXT = "word " * 3_000_000  # 15 MB
LARGE = {
    "a text of 15 MB": ("/v1/completions", {"model": "llm", "prompt": TEXT}),
    "a conversation of 15 MB": (
        "/v1/chat/completions",
        {"model": "llm", "messages": [{"role": "user", "content": TEXT}]},
    ),
    "tokens of 15 MB": ("/tokenize", {"model": "llm", "prompt": TEXT}),
    "10,000 texts to embed": ("/v1/embeddings", {"model": "bert", "input": ["some text"] * 10_000}),
    "10,000 texts for a decoder": ("/v1/embeddings", {"model": "llm", "input": [[5, 6, 7]] * 10_000}),
}


def test_streams_go_on_beside_large_requests(large):
    host, port = large.url.removeprefix("http://").split(":")
    with Streams(large.url) as streams:
        time.sleep(0.5)
        usual = streams.measured()
        for name, (path, body) in LARGE.items():
            data = json.dumps(body).encode()
            connection = http.client.HTTPConnection(host, int(port), timeout=seconds(60))
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            beside = streams.measured()
            connection.close()  # who has seen enough leaves
            assert beside < MOST * usual, (name, usual, beside)
            assert large.get("/livez")[0] == 200
        large.post("/v1/embeddings", {"model": "bert", "input": "still there"})


def test_all_of_many_embeddings_come(large):
    texts = [f"text {i % 7}" for i in range(300)]
    status, answer = large.post("/v1/embeddings", {"model": "bert", "input": texts})
    assert status == 200
    vectors = [each["embedding"] for each in answer["data"]]
    assert all(vectors[i] == vectors[i % 7] for i in range(300))
    assert [each["index"] for each in answer["data"]] == [*range(300)]
    too_many = {"model": "bert", "input": [[1]] * 16_385}
    assert large.post("/v1/embeddings", too_many)[0] == 400
