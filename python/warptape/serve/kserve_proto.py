"""KServe v2's gRPC messages, described here and made by protobuf when they are first needed.

Numbers and names are those of the public grpc_service.proto; a pool of their own keeps them apart from a
client's in the same process.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

PACKAGE = "inference"
SERVICE = "GRPCInferenceService"

# By message its fields, "type name number"; [] repeated, {} a map from string, | one of "parameter_choice".
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready 1",
    "ModelReadyRequest": "string name 1, string version 2",
    "ModelReadyResponse": "bool ready 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name 1, string version 2, []string extensions 3",
    "ModelMetadataRequest": "string name 1, string version 2",
    "ModelMetadataResponse": "string name 1, []string versions 2, string platform 3, "
    "[].ModelMetadataResponse.TensorMetadata inputs 4, [].ModelMetadataResponse.TensorMetadata outputs 5",
    "ModelMetadataResponse.TensorMetadata": "string name 1, string datatype 2, []int64 shape 3",
    "InferParameter": "|bool bool_param 1, |int64 int64_param 2, |string string_param 3, "
    "|double double_param 4, |uint64 uint64_param 5",
    "InferTensorContents": "[]bool bool_contents 1, []int32 int_contents 2, []int64 int64_contents 3, "
    "[]uint32 uint_contents 4, []uint64 uint64_contents 5, []float fp32_contents 6, "
    "[]double fp64_contents 7, []bytes bytes_contents 8",
    "ModelInferRequest": "string model_name 1, string model_version 2, string id 3, "
    "{}.InferParameter parameters 4, [].ModelInferRequest.InferInputTensor inputs 5, "
    "[].ModelInferRequest.InferRequestedOutputTensor outputs 6, []bytes raw_input_contents 7",
    "ModelInferRequest.InferInputTensor": "string name 1, string datatype 2, []int64 shape 3, "
    "{}.InferParameter parameters 4, .InferTensorContents contents 5",
    "ModelInferRequest.InferRequestedOutputTensor": "string name 1, {}.InferParameter parameters 2",
    "ModelInferResponse": "string model_name 1, string model_version 2, string id 3, "
    "{}.InferParameter parameters 4, [].ModelInferResponse.InferOutputTensor outputs 5, "
    "[]bytes raw_output_contents 6",
    "ModelInferResponse.InferOutputTensor": "string name 1, string datatype 2, []int64 shape 3, "
    "{}.InferParameter parameters 4, .InferTensorContents contents 5",
    "ModelStatisticsRequest": "string name 1, string version 2",
    "StatisticDuration": "uint64 count 1, uint64 ns 2",
    "InferStatistics": ".StatisticDuration success 1, .StatisticDuration fail 2, .StatisticDuration queue 3, "
    ".StatisticDuration compute_input 4, .StatisticDuration compute_infer 5, "
    ".StatisticDuration compute_output 6",
    "InferBatchStatistics": "uint64 batch_size 1, .StatisticDuration compute_input 2, "
    ".StatisticDuration compute_infer 3, .StatisticDuration compute_output 4",
    "ModelStatistics": "string name 1, string version 2, uint64 last_inference 3, uint64 inference_count 4, "
    "uint64 execution_count 5, .InferStatistics inference_stats 6, [].InferBatchStatistics batch_stats 7",
    "ModelStatisticsResponse": "[].ModelStatistics model_stats 1",
    "ModelRepositoryParameter": "|bool bool_param 1, |int64 int64_param 2, |string string_param 3, "
    "|bytes bytes_param 4",
    "RepositoryIndexRequest": "string repository_name 1, bool ready 2",
    "RepositoryIndexResponse": "[].RepositoryIndexResponse.ModelIndex models 1",
    "RepositoryIndexResponse.ModelIndex": "string name 1, string version 2, string state 3, string reason 4",
    "RepositoryModelLoadRequest": "string repository_name 1, string model_name 2, "
    "{}.ModelRepositoryParameter parameters 3",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "string repository_name 1, string model_name 2, "
    "{}.ModelRepositoryParameter parameters 3",
    "RepositoryModelUnloadResponse": "",
}
METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
)
_ONEOF = {"InferParameter": "parameter_choice", "ModelRepositoryParameter": "parameter_choice"}


def _add_field(message: Any, kinds: Any, text: str, full: str) -> None:
    """A field of a line of _MESSAGES, with the entry type of a map."""
    kind, name, number = text.split()
    field = message.field.add(name=name, number=int(number))
    field.label = kinds.LABEL_REPEATED if kind.startswith(("[]", "{}")) else kinds.LABEL_OPTIONAL
    if kind.startswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name=_ONEOF[message.name])
        field.oneof_index = 0
    bare = kind.lstrip("[]{}|")
    if not kind.startswith("{}"):
        if bare.startswith("."):
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}{bare}"
        else:
            field.type = getattr(kinds, f"TYPE_{bare.upper()}")
        return
    entry = message.nested_type.add(name=name.title().replace("_", "") + "Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
    entry.field.add(
        name="value",
        number=2,
        label=kinds.LABEL_OPTIONAL,
        type=kinds.TYPE_MESSAGE,
        type_name=f".{PACKAGE}{bare}",
    )
    field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{full}.{entry.name}"


@functools.cache
def messages() -> Any:
    """The classes of the messages, by name; nested ones by their last name are attributes of these.

    Raises: ImportError without protobuf.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="warptape/serve/kserve.proto", package=PACKAGE, syntax="proto3"
    )
    built: dict[str, Any] = {}
    for full, lines in _MESSAGES.items():
        outer, _, last = full.rpartition(".")
        built[full] = (built[outer].nested_type if outer else file.message_type).add(name=last)
        for text in lines.split(", ") if lines else ():
            _add_field(built[full], descriptor_pb2.FieldDescriptorProto, text, full)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _MESSAGES
        if "." not in name
    }
    return SimpleNamespace(**classes)
