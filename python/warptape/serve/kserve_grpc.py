"""KServe v2 over gRPC, on the event loop of the front."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .frames import dtype_name
from .kserve import MOST_BODY, infer, metadata_of, server_metadata, status_of, version_of_load
from .kserve_codec import (
    MOST_TENSORS,
    Arrays,
    InferRequest,
    array_of_list,
    check_datatype,
    check_shape,
    raw_array,
    raw_of_array,
)
from .kserve_proto import METHODS, PACKAGE, SERVICE, messages
from .models import Models
from .texts import LONG_BODY
from .tokens import Tokens
from .workers import RequestError

if TYPE_CHECKING:
    from .metrics import Metrics

# By datatype, where a tensor lies that does not come as raw bytes; FP16 and BF16 have no such place.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# By HTTP status.
CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def _parameters(given: Any) -> dict[str, Any]:
    parameters = {}
    for key, value in given.items():
        which = value.WhichOneof("parameter_choice")
        if which is not None:
            parameters[key] = getattr(value, which)
    return parameters


def _contents(tensor: Any, datatype: str, shape: tuple[int, ...], where: str) -> np.ndarray:
    if datatype not in _CONTENTS:
        raise RequestError(f"{where}: {datatype} must come as raw_input_contents")
    fields = tensor.contents.ListFields()
    place = _CONTENTS[datatype]
    for field, _ in fields:
        if field.name != place:
            raise RequestError(f"{where}: {datatype} must come in {place}, got {field.name}")
    values = list(getattr(tensor.contents, place))
    if datatype != "BYTES":
        return array_of_list(datatype, shape, values, where)
    if math.prod(shape) != len(values):
        raise RequestError(f"{where}: shape {list(shape)} needs {math.prod(shape)} values, got {len(values)}")
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def request_of(message: Any) -> InferRequest:
    """What a ModelInferRequest asks for. Raises: RequestError.

    Args:
        message: of protobuf.
    """
    if len(message.inputs) > MOST_TENSORS or len(message.outputs) > MOST_TENSORS:
        raise RequestError(f"at most {MOST_TENSORS} inputs and outputs")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(
            f"raw_input_contents must have one entry for each of {len(message.inputs)} inputs, got {len(raw)}"
        )
    inputs: Arrays = {}
    for i, tensor in enumerate(message.inputs):
        where = f"inputs[{i}] ({tensor.name:.100})"
        if not tensor.name or tensor.name in inputs:
            raise RequestError(f"{where} must have a name of its own")
        for key in tensor.parameters:
            if key.startswith("shared_memory"):
                raise RequestError(f"{where}: shared memory is not supported; send the data")
        datatype, shape = check_datatype(tensor.datatype, where), check_shape(list(tensor.shape), where)
        if raw:
            if tensor.HasField("contents") and tensor.contents.ListFields():
                raise RequestError(f"{where} has contents and raw_input_contents; send one of them")
            inputs[tensor.name] = raw_array(datatype, shape, raw[i], where)
        else:
            inputs[tensor.name] = _contents(tensor, datatype, shape, where)
    names = [o.name for o in message.outputs]
    if len(set(names)) != len(names) or "" in names:
        raise RequestError("outputs must have names of their own")
    for output in message.outputs:
        for key in output.parameters:
            if key == "classification" or key.startswith("shared_memory"):
                raise RequestError(f"outputs: {key:.60} is not supported; ask for the tensor")
    return InferRequest(inputs, tuple(names) or None, message.id, _parameters(message.parameters))


def response_of(request: InferRequest, model: str, version: int, outputs: Arrays) -> Any:
    """The ModelInferResponse with raw contents.

    Args:
        request: what was asked.
        model, version: which answered.
        outputs: arrays by name.
    """
    response = messages().ModelInferResponse(model_name=model, model_version=str(version), id=request.id)
    for name, array in outputs.items():
        response.outputs.add(name=name, datatype=dtype_name(array), shape=array.shape)
        response.raw_output_contents.append(bytes(raw_of_array(array)))
    return response


def _statistics(rows: list[dict[str, Any]]) -> Any:
    from google.protobuf.json_format import ParseDict

    return ParseDict({"model_stats": rows}, messages().ModelStatisticsResponse())


class _Service:
    """The methods: a request's message and its deadline to the answer's."""

    def __init__(self, models: Models, metrics: Metrics) -> None:
        self.models, self.metrics, self.m = models, metrics, messages()

    async def ServerLive(self, message: Any, left: float | None) -> Any:
        return self.m.ServerLiveResponse(live=True)

    async def ServerReady(self, message: Any, left: float | None) -> Any:
        return self.m.ServerReadyResponse(ready=self.models.ready())

    async def ModelReady(self, message: Any, left: float | None) -> Any:
        self.models.peek(message.name, message.version)
        return self.m.ModelReadyResponse(ready=self.models.ready(message.name, message.version))

    async def ServerMetadata(self, message: Any, left: float | None) -> Any:
        return self.m.ServerMetadataResponse(**server_metadata())

    async def ModelMetadata(self, message: Any, left: float | None) -> Any:
        return self.m.ModelMetadataResponse(
            **metadata_of(self.models, self.models.peek(message.name, message.version))
        )

    async def ModelStatistics(self, message: Any, left: float | None) -> Any:
        if message.name:
            self.models.peek(message.name, message.version)
        return _statistics(self.metrics.statistics(message.name, message.version))

    async def RepositoryIndex(self, message: Any, left: float | None) -> Any:
        response = self.m.RepositoryIndexResponse()
        for row in self.models.index():
            if row["state"] == "READY" or not message.ready:
                response.models.add(**row)
        return response

    async def RepositoryModelLoad(self, message: Any, left: float | None) -> Any:
        await version_of_load(self.models, message.model_name, _parameters(message.parameters))
        return self.m.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, message: Any, left: float | None) -> Any:
        await self.models.unload(message.model_name)
        return self.m.RepositoryModelUnloadResponse()

    async def ModelInfer(self, message: Any, left: float | None) -> Any:
        request = await _apart(message.ByteSize(), request_of, message)
        deadline = None if left is None else time.monotonic() + left
        version, outputs = await infer(
            self.models, self.metrics, message.model_name, message.model_version, request, deadline
        )
        return response_of(request, version.name, version.number, outputs)


async def _apart(size: int, work: Callable[..., Any], *given: Any) -> Any:
    """What a function makes of a message, a large one in a thread."""
    return work(*given) if size < LONG_BODY else await asyncio.to_thread(work, *given)


ORDERS = ("RepositoryModelLoad", "RepositoryModelUnload")


def _handler(grpc: Any, name: str, service: _Service, tokens: Tokens, admit: Any) -> Any:
    request_class = getattr(messages(), name + "Request")
    method: Callable[[Any, float | None], Awaitable[Any]] = getattr(service, name)
    is_open = name == "ServerLive"

    async def handle(data: bytes, context: Any) -> bytes:
        if not is_open:
            metadata = {k: v for k, v in context.invocation_metadata() or () if k == "authorization"}
            given = metadata.get("authorization", "")
            header = given if isinstance(given, bytes) else str(given).encode("utf-8", "replace")
            if tokens.key(header) is None:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is needed")
            if name in ORDERS and not tokens.may_order(header):
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "an order needs the token of an admin")
        try:
            # Here and not by grpc, which would call a message that is none an internal error.
            message = await _apart(len(data), request_class.FromString, data)
        except Exception as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no {name}Request: {error}")
        try:
            left = context.time_remaining()
            if admit is None or name != "ModelInfer":
                answer = await method(message, left)
            else:
                async with admit(context):
                    answer = await method(message, left)
            return await _apart(answer.ByteSize(), answer.SerializeToString)
        except Exception as error:
            status, kind = status_of(error)
            code = getattr(grpc.StatusCode, CODES.get(status, "INTERNAL"))
            if status == 429:
                context.set_trailing_metadata((("retry-after", "1"),))
            await context.abort(code, f"{kind}: {error}"[:4000])
        raise AssertionError("abort raises")

    return grpc.unary_unary_rpc_method_handler(handle)


def _credentials(grpc: Any, certificate: str, key: str) -> Any:
    with open(certificate, "rb") as chain, open(key, "rb") as private:
        return grpc.ssl_server_credentials([(private.read(), chain.read())])


async def start_grpc(
    models: Models,
    host: str,
    port: int,
    tokens: Tokens,
    *,
    metrics: Metrics,
    most_body: int = MOST_BODY,
    tls: tuple[str, str] | None = None,
    admit: Any = None,
) -> tuple[Any, int]:
    """Starts the service; returns the server, whose `stop(grace)` ends it, and its port.

    Args:
        port: 0: any that is free.
        tokens: what every method but ServerLive needs, where there are any.
        metrics: a Metrics.
        most_body: bytes of a request.
        tls: files of a certificate and of its key.
        admit: given the call's context, an async context manager around ModelInfer that may refuse it.

    Raises: ImportError without grpcio; OSError where the port is taken.
    """
    import grpc

    service = _Service(models, metrics)
    options = [
        ("grpc.max_receive_message_length", most_body),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", 1 << 14),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 1024),
    ]
    server = grpc.aio.server(options=options)
    handlers = {name: _handler(grpc, name, service, tokens, admit) for name in METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.{SERVICE}", handlers),))
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = (
            server.add_insecure_port(at)
            if tls is None
            else server.add_secure_port(at, _credentials(grpc, *tls))
        )
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {at}: {error}") from error
    if not bound:
        raise OSError(f"gRPC cannot listen on {at}: the port is taken")
    await server.start()
    return server, bound
