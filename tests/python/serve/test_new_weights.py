"""New weights for a model that serves, by an order of an admin."""

import contextlib
import json
import os
import signal
import urllib.request

from serving_models import Process, write_llm
from time_limits import seconds

GREEDY = {"temperature": 0, "max_tokens": 12}


def test_new_weights_at_run_time(tmp_path):
    folder, other = tmp_path / "repository", write_llm(tmp_path / "other", seed=1)
    first = write_llm(folder / "tiny" / "1")
    (folder / "tiny" / "config.json").write_text(json.dumps({"instance_group": [{"count": 2}]}))
    narrow = write_llm(tmp_path / "narrow", seed=1, hidden_size=32)
    with Process(folder, "--admin-token", "boss") as process:

        def update(status=200, **more):
            process.token = "boss"
            got, answer = process.post("/v1/update_weights", {"path": str(other), **more})
            assert got == status, answer
            return answer

        def both():
            """What two workers answer."""
            process.token = "secret"
            one, two = (completion(process, "tiny") for _ in range(2))
            assert one == two
            return one

        before = both()
        assert process.post("/v1/update_weights", {"path": str(other)})[0] == 403  # not with this token
        for wrong in ({"path": str(narrow)}, {"path": "/nothing"}, {"version": 0}, {"in_flight": "later"},
                      {"path": 3}, {"keep": True}, {"path": ""}):  # fmt: skip
            update(400, **wrong)
        update(404, model="none")
        assert both() == before and before[1] is None
        assert update(version=5) == {"model": "tiny", "weights_version": 5}
        text, versions = both()
        assert text != before[0] and versions == [5]
        update(400, version=5)
        stop(process)  # a worker that is started again has them, too
        assert both() == (text, [5])
        with running(process) as reply:
            assert ending(reply)["weights_versions"] == [5]
        update(path=str(first))
        assert both() == (before[0], [6])  # as they were
        for version, in_flight in enumerate(("finish", "continue", "abort"), 7):
            process.token = "secret"
            with running(process) as reply:
                update(path=str(other), in_flight=in_flight)
                assert both()[1] == [version]
                choice = ending(reply)
            assert choice["finish_reason"] == ("abort" if in_flight == "abort" else "length")
            drew = [version - 1, version] if in_flight == "continue" else [version - 1]
            assert choice["weights_versions"] == drew


@contextlib.contextmanager
def running(process):
    """The stream of a long request, from its first token on."""
    body = {"model": "tiny", "prompt": "Once", "stream": True, "ignore_eos": True, **GREEDY}
    request = urllib.request.Request(
        process.url + "/v1/completions",
        json.dumps({**body, "max_tokens": 480}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {process.token}"},
    )
    with urllib.request.urlopen(request, timeout=seconds(60)) as reply:
        assert reply.readline()
        yield reply


def completion(process, model):
    body = {"model": model, "prompt": "Once", "ignore_eos": True, **GREEDY}
    status, answer = process.post("/v1/completions", body)
    assert status == 200, answer
    (choice,) = answer["choices"]
    return choice["text"], choice.get("weights_versions")


def stop(process):
    """Kills the workers."""
    for pid in process.worker_pids():
        os.kill(pid, signal.SIGKILL)


def ending(reply):
    """The last choice of a stream."""
    data = [line for line in reply.read().decode().split("\n") if line.startswith("data: {")]
    (choice,) = json.loads(data[-1].removeprefix("data: "))["choices"]
    return choice
