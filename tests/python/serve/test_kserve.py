"""KServe v2 by the clients that people use: tritonclient over HTTP and gRPC, and curl."""

import json
import subprocess

import kserve_server
import numpy as np
import pytest
from warptape.serve import kserve_proto
from warptape.serve.kserve_codec import from_bf16, to_bf16

pytest.importorskip("grpc")
http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")

KSERVE = {
    "fp32": np.float32,
    "fp64": np.float64,
    "fp16": np.float16,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "bool": np.bool_,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    batching = {"max_batch_size": 16, "dynamic_batching": {"priority_levels": 2}}
    kserve_server.add_version(repository, "scale", 1, 2.0, batching)
    kserve_server.add_echo(repository)
    with kserve_server.Running(repository) as r:
        yield r


@pytest.fixture
def clients(running):
    made = [
        (http, http.InferenceServerClient(f"127.0.0.1:{running.port}")),
        (grpc, grpc.InferenceServerClient(f"127.0.0.1:{running.grpc_port}")),
    ]
    yield made
    for _, client in made:
        client.close()


def as_json(value):
    return value if isinstance(value, dict) else json.loads(_text(value))


def _text(message):
    from google.protobuf.json_format import MessageToJson

    return MessageToJson(message, preserving_proto_field_name=True)


def test_health_and_metadata(clients):
    for _, client in clients:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("scale") and client.is_model_ready("scale", "1")
        assert as_json(client.get_server_metadata())["name"] == "warptape"
        metadata = as_json(client.get_model_metadata("scale"))
        assert metadata["platform"] == "warptape_program" and metadata["versions"] == ["1"]
        (x,) = metadata["inputs"]
        assert (x["name"], x["datatype"], [int(n) for n in x["shape"]]) == ("x", "FP32", [-1, 8])


def test_infer_names_the_version_and_the_id(clients):
    x = np.random.default_rng(0).random((3, 8), np.float32)
    for module, client in clients:
        tensor = module.InferInput("x", [3, 8], "FP32")
        tensor.set_data_from_numpy(x)
        wanted = [module.InferRequestedOutput("y")]
        result = client.infer("scale", [tensor], outputs=wanted, request_id="r7", priority=1, timeout=10**7)
        assert np.array_equal(result.as_numpy("y"), 2 * x)
        told = as_json(result.get_response())
        assert (told["model_name"], told["model_version"], told["id"]) == ("scale", "1", "r7")


def test_every_datatype_comes_back_as_it_went(clients):
    draw = np.random.default_rng(1)
    values = {n: (draw.random((2, 3)) * 100).astype(t) for n, t in KSERVE.items()}
    values["bool"] = np.array([[True, False, True], [False] * 3])
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    values["bf16"] = draw.standard_normal((2, 3)).astype(bfloat16)
    for module, client in clients:
        for binary in (True, False) if module is http else (True,):
            inputs, wanted = [], []
            for name, value in values.items():
                tensor = module.InferInput(name, [2, 3], name.upper())
                if module is grpc:
                    tensor.set_data_from_numpy(value)
                else:  # tritonclient writes FP16 and BF16 as binary only
                    tensor.set_data_from_numpy(value, binary_data=binary or name in ("fp16", "bf16"))
                inputs.append(tensor)
                more = {} if module is grpc else {"binary_data": binary}
                wanted.append(module.InferRequestedOutput(f"{name}_out", **more))
            result = client.infer("echo", inputs, outputs=wanted)
            for name, value in values.items():
                if not binary and name in ("fp16", "bf16"):
                    listed = next(o for o in result.get_response()["outputs"] if o["name"] == f"{name}_out")
                    assert np.array_equal(np.array(listed["data"]).reshape(2, 3), value.astype(np.float64))
                    continue
                got = result.as_numpy(f"{name}_out")
                assert got.dtype == value.dtype and np.array_equal(got, value), (name, binary)


def test_compressed_bodies(running):
    client = http.InferenceServerClient(f"127.0.0.1:{running.port}")
    tensor = http.InferInput("x", [1, 8], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 8), np.float32))
    for how in ("gzip", "deflate"):
        result = client.infer("scale", [tensor], request_compression_algorithm=how)
        assert result.as_numpy("y").tolist() == [[2.0] * 8]


def test_statistics_and_index(clients):
    for _, client in clients:
        (stats,) = as_json(client.get_inference_statistics("scale", "1"))["model_stats"]
        assert int(stats["inference_stats"]["success"]["count"]) > 0
        assert int(stats["batch_stats"][0]["compute_infer"]["ns"]) > 0
        index = client.get_model_repository_index()
        rows = index if isinstance(index, list) else as_json(index)["models"]
        assert {(r["name"], r["version"], r["state"]) for r in rows} >= {("scale", "1", "READY")}


def test_errors_are_typed(clients):
    def tensor(module, name="x", shape=(1, 8), dtype=np.float32, datatype="FP32"):
        made = module.InferInput(name, list(shape), datatype)
        made.set_data_from_numpy(np.ones(shape, dtype))
        return made

    cases = [
        ("none", lambda m: [tensor(m)], "404", "StatusCode.NOT_FOUND", "not there"),
        ("scale", lambda m: [tensor(m, "z")], "400", "StatusCode.INVALID_ARGUMENT", "expected inputs"),
        (
            "scale",
            lambda m: [tensor(m, shape=(1, 9))],
            "400",
            "StatusCode.INVALID_ARGUMENT",
            "must have shape",
        ),
        (
            "scale",
            lambda m: [tensor(m, shape=(17, 8))],
            "400",
            "StatusCode.INVALID_ARGUMENT",
            "from 1 to 16",
        ),
        (
            "scale",
            lambda m: [tensor(m, dtype=np.int32, datatype="INT32")],
            "400",
            "StatusCode.INVALID_ARGUMENT",
            "must be FP32",
        ),
    ]
    from tritonclient.utils import InferenceServerException

    for module, client in clients:
        for name, inputs, status, code, words in cases:
            with pytest.raises(InferenceServerException, match=words) as raised:
                client.infer(name, inputs(module))
            assert raised.value.status() == (status if module is http else code)
        with pytest.raises(InferenceServerException, match="no output 'q'"):
            client.infer("scale", [tensor(module)], outputs=[module.InferRequestedOutput("q")])
        with pytest.raises(InferenceServerException, match="not in the repository"):
            client.load_model("..")


def curl(running, path, body=None):
    command = ["curl", "-s", "-w", "\n%{http_code}", f"http://127.0.0.1:{running.port}{path}"]
    out = subprocess.run(
        [*command, *(["-d", body] if body else [])], capture_output=True, text=True, check=True
    )
    text, _, status = out.stdout.rpartition("\n")
    return int(status), json.loads(text)


@pytest.mark.parametrize(
    "body,message",
    [
        ("{", "the body is no JSON"),
        ("[" * 50_000, "the body is no JSON"),
        ("[]", "the body must be an object"),
        ('{"inputs": {}}', "inputs must be a list"),
        ('{"inputs": [1]}', r"inputs[0] must be an object"),
        ('{"inputs": [{"name": "x"}]}', "datatype must be one of"),
        ('{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}]}', "shape must have sizes"),
        ('{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1e3]}]}', "shape must have sizes"),
        ('{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": ["a"]}]}', "takes numbers"),
        ('{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [1.5]}]}', "takes integers"),
        ('{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [300]}]}', "none of INT8"),
        ('{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1], "data": [-1]}]}', "none of UINT8"),
        (
            '{"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [1' + "0" * 30 + "]}]}",
            "none of",
        ),
        (
            '{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["\\ud800"]}]}',
            "none of BYTES",
        ),
        ('{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [[1], 2]}]}', "mixes lists"),
        (
            '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], '
            '"parameters": {"binary_data_size": 4}}]}',
            "binary_data_size must be an integer from 0 to 0",
        ),
        (
            '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1], '
            '"parameters": {"shared_memory_region": "a"}}]}',
            "shared memory is not supported",
        ),
    ],
)
def test_wrong_bodies_are_told_what_is_wrong(running, body, message):
    from warptape.serve.kserve_codec import parse_infer
    from warptape.serve.workers import RequestError

    with pytest.raises(RequestError) as raised:
        parse_infer(body.encode(), None)
    assert message in str(raised.value)
    if len(body) < 1000:
        status, answer = curl(running, "/v2/models/scale/infer", body)
        assert status == 400 and message in answer["error"] and answer["type"] == "invalid_request_error"


def test_curl(running):
    body = {
        "inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [[1, 2, 3, 4, 5, 6, 7, 8]]}]
    }
    status, answer = curl(running, "/v2/models/scale/versions/1/infer", json.dumps(body))
    assert status == 200 and answer["outputs"][0]["data"] == [2.0 * n for n in range(1, 9)]
    assert curl(running, "/v2/models/scale/versions/9")[0] == 404
    assert curl(running, "/v2/models/scale/versions/x")[0] == 404
    assert curl(running, "/v2/models/scale/config")[1]["max_batch_size"] == 16
    assert curl(running, "/v2/health/live") == (200, {"live": True})


def test_messages_are_those_of_the_public_description():
    """Field by field: names, numbers, types, labels, beside the messages that tritonclient was built with."""
    from tritonclient.grpc import service_pb2

    def fields(descriptor):
        return {
            f.name: (f.number, f.type, f.is_repeated, f.message_type.name if f.message_type else None)
            for f in descriptor.fields
        }

    compared = 0
    for full in kserve_proto._MESSAGES:
        outer, _, inner = full.partition(".")
        ours, theirs = getattr(kserve_proto.messages(), outer), getattr(service_pb2, outer)
        if inner:
            ours, theirs = getattr(ours, inner), getattr(theirs, inner)
        expected = fields(theirs.DESCRIPTOR)
        for name, field in fields(ours.DESCRIPTOR).items():
            assert expected[name] == field, (full, name)
            compared += 1
    assert compared > 80


def test_bf16_rounds_to_the_nearest():
    values = np.array([1.0, 1.00390625, 1.01171875, -0.0, np.inf, np.nan, 3.4e38], np.float32)
    got = from_bf16(to_bf16(values))
    assert got[:5].tolist() == [1.0, 1.0, 1.015625, -0.0, np.inf] and np.isnan(got[5]) and np.isinf(got[6])
