"""What benchmarks/peers.py measures: one network in each runtime, with the same weights and the same input.

warptape writes each network as an ONNX file, which ONNX Runtime and OpenVINO read; PyTorch builds it by the
same lines and takes the same numbers. All weights are random: speed does not depend on their values.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _images import resnet

FOLDER = Path(os.environ.get("WARPTAPE_PEERS_FOLDER", "."))  # of the ONNX files


@dataclass(frozen=True)
class Network:
    """One network, and the sizes of its input."""

    name: str
    title: str
    build: Callable[[Any], Any]
    sizes: tuple[int, ...]
    gflop: float  # of its products and convolutions, in one call

    def file(self) -> Path:
        return FOLDER / f"{self.name}.onnx"

    def numbers(self) -> np.ndarray:
        return np.random.default_rng(0).standard_normal(self.sizes, dtype=np.float32)


def encoder(lib: Any, width: int, heads: int, inner: int, layers: int) -> Any:
    nn = lib.nn
    layer = nn.TransformerEncoderLayer(width, heads, inner, 0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def encoder_gflop(rows: int, length: int, width: int, inner: int, layers: int) -> float:
    return 2e-9 * layers * rows * (4 * width * width + 2 * width * inner + 2 * length * width)


NETWORKS = [
    Network(
        "bert_base_1x128",
        "BERT-base-shaped encoder, 1 x 128",
        partial(encoder, width=768, heads=12, inner=3072, layers=12),
        (1, 128, 768),
        encoder_gflop(128, 128, 768, 3072, 12),
    ),
    Network(
        "minilm_8x128",
        "MiniLM-shaped encoder, 8 x 128",
        partial(encoder, width=384, heads=12, inner=1536, layers=6),
        (8, 128, 384),
        encoder_gflop(1024, 128, 384, 1536, 6),
    ),
    Network(
        "resnet50_1x224",
        "ResNet-50, one image of 224 x 224",
        partial(resnet, depth=50),
        (1, 3, 224, 224),
        8.18,
    ),
]


def filled(network: Network, lib: Any) -> Any:
    """The network in evaluation, with numbers that depend on its parameters' order alone."""
    lib.manual_seed(0)
    model = network.build(lib).eval()
    random = np.random.default_rng(1)
    with lib.no_grad():
        for _, t in sorted(model.state_dict().items()):
            if not t.is_floating_point():
                continue
            scale = 1 / np.sqrt(t.numel() / t.shape[0]) if t.ndim > 1 else 0.1
            values = random.standard_normal(tuple(t.shape), dtype=np.float32) * np.float32(scale)
            t.copy_(lib.from_numpy(np.abs(values) + np.float32(0.5) if t.ndim == 1 else values))
    return model


class Work:
    """A call is one inference; result() is what it gave."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run

    def __call__(self) -> Any:
        return self.run()

    def result(self) -> list[float]:
        return [float(v) for v in np.asarray(self.run(), dtype=np.float64).ravel()[:1000]]


def in_framework(network: Network, lib: Any) -> Work:
    model, x = filled(network, lib), lib.from_numpy(network.numbers())
    if lib.__name__ == "warptape":
        with lib.no_grad():
            lib.onnx.export(model, (x,), str(network.file()), input_names=["x"], output_names=["y"])
        made = lib.jit.optimize_for_inference(lib.jit.trace(model, (x,)))
    else:
        made = model

    def run() -> Any:
        with lib.inference_mode():
            return made(x)

    return Work(run)


def in_onnxruntime(network: Network, runtime: Any) -> Work:
    options = runtime.module.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = runtime.threads, 1
    session = runtime.module.InferenceSession(
        str(network.file()), options, providers=["CPUExecutionProvider"]
    )
    x = network.numbers()
    return Work(lambda: session.run(None, {"x": x})[0])


def in_openvino(network: Network, runtime: Any) -> Work:
    core = runtime.module.Core()
    settings = {
        "INFERENCE_NUM_THREADS": runtime.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = core.compile_model(str(network.file()), "CPU", settings)
    request, x = compiled.create_infer_request(), network.numbers()

    def run() -> Any:
        return request.infer({0: x})[0]

    return Work(run)


RUNTIMES = {"onnxruntime": in_onnxruntime, "openvino": in_openvino}


@dataclass(frozen=True)
class Row:
    """A network, as benchmarks/_harness.py takes it."""

    name: str
    network: Network
    units: int = 1
    threaded: bool = True
    calls: int | None = None

    def build(self, lib: Any) -> Work:
        name = getattr(lib, "name", None)
        return RUNTIMES[name](self.network, lib) if name else in_framework(self.network, lib)


ROWS = [Row(network.name, network) for network in NETWORKS]
