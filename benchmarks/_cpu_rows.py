"""What benchmarks/cpu.py measures: for a library `lib`, each row builds a callable that does the work.

The same source runs on both libraries; PyTorch gets its best switches (fused optimizers, fused attention).
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _images import images, resnet, small_net


@dataclass(frozen=True)
class Row:
    """One measurement: a call does `units` of what the table counts; `calls` make a round, if fixed. `moved`
    bytes have to be read and written, at least; products are of `dtype`."""

    name: str
    group: str
    build: Callable[[Any], Callable[[], Any]]
    units: int = 1
    threaded: bool = False
    calls: int | None = None
    moved: int = 0
    dtype: str = "float32"


@dataclass(frozen=True)
class Group:
    """A line of the table: rows under one target; its figure is the geometric mean of its rows' ratios."""

    name: str
    title: str
    target: float


GROUPS = [
    Group("add", "small `a + b`", 0.4),
    Group("add_grad", "small `a + b` with grad", 0.4),
    Group("chain", "20-op chain forward + backward, per op", 0.4),
    Group("function", "`autograd.Function.apply` on a graph 16,000 calls deep", 1.0),
    Group("linear", "`nn.Linear(8, 8)` on one row", 0.5),
    Group("composed", "functions composed of others, on 4 x 4 numbers", 0.5),
    Group("mlp_sgd", "small MLP training step, SGD", 0.4),
    Group("mlp_adamw", "small MLP training step, AdamW", 0.4),
    Group("import", "`import` against `import torch`", 0.15),
    Group("gpt_f32", "default step of examples/train_gpt.py, float32", 0.8),
    Group("gpt_bf16", "the same in bfloat16 autocast", 0.7),
    Group("lstm", "2-layer LSTM language model, training step", 0.7),
    Group("images_train", "ResNet-50 and a small convolutional net, training step", 1.0),
    Group("images_train_last", "the same, channels last", 1.0),
    Group("images_infer", "ResNet-50 and a small convolutional net, inference", 1.0),
    Group("images_infer_last", "the same, channels last", 1.0),
    Group("save", "`save` of a state dict of 500 MB", 1.0),
    Group("load", "`load` of it", 1.0),
    Group("elementwise_small", "elementwise below 1e5 elements", 0.8),
    Group("elementwise_large", "elementwise above 1e5 elements", 1.0),
    Group("reductions", "reductions, forward + backward", 0.7),
    Group("softmax", "softmax, forward + backward", 0.7),
    Group("norms", "norms, forward + backward", 0.7),
    Group("fourier", "Fourier transforms", 1.0),
    Group("rotary", "rotary embedding by complex numbers, forward + backward", 1.0),
    *(
        Group(f"{name}_{short}", f"{title}, {dtype}", target)
        for dtype, short in (("float32", "f32"), ("bfloat16", "bf16"))
        for name, title, target in (
            ("products", "matrix products, squares and those of a GPT", 1.0),
            ("conv", "convolutions of a ResNet, forward + backward", 1.0),
            ("attention", "causal attention, forward + backward", 0.7),
        )
    ),
]


def numbers(lib: Any, *shape: int, seed: int = 0, grad: bool = False) -> Any:
    """Normal float32 values that are the same in every library."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return lib.from_numpy(values).requires_grad_(grad)


# -------------------------------------------------------------------------------- small work


def small_add(grad: bool) -> Callable[[Any], Callable[[], Any]]:
    def build(lib: Any) -> Callable[[], Any]:
        a, b = numbers(lib, 4, 4, seed=1, grad=grad), numbers(lib, 4, 4, seed=2)
        return lambda: a + b

    return build


def chain(lib: Any) -> Callable[[], Any]:
    a, b = numbers(lib, 4, 4, seed=1, grad=True), numbers(lib, 4, 4, seed=2)
    ones = lib.ones(4, 4)

    def work() -> None:
        x = a
        for _ in range(5):
            x = ((x + b) * b - b).tanh()  # 4 ops
        x.backward(ones)
        a.grad = None

    return work


def deep_function(lib: Any) -> Callable[[], Any]:
    """One call more on a graph of 16,000; every 1,000 calls the graph is as deep again as at the start."""

    class Successor(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x + 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    base = numbers(lib, 4, grad=True)
    for _ in range(16_000):
        base = Successor.apply(base)

    def work() -> None:
        y = base
        for _ in range(1000):
            y = Successor.apply(y)

    return work


def linear(lib: Any) -> Callable[[], Any]:
    layer, row = lib.nn.Linear(8, 8), numbers(lib, 1, 8)
    return lambda: layer(row)


def mlp(optimizer: str) -> Callable[[Any], Callable[[], Any]]:
    def build(lib: Any) -> Callable[[], Any]:
        nn = lib.nn
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
        inputs, labels = numbers(lib, 16, 16), lib.arange(16) % 10
        loss_of = nn.CrossEntropyLoss()
        extra = {"momentum": 0.9} if optimizer == "SGD" else {}
        updates = getattr(lib.optim, optimizer)(model.parameters(), lr=1e-3, fused=True, **extra)

        def work() -> None:
            updates.zero_grad()
            loss_of(model(inputs), labels).backward()
            updates.step()

        return work

    return build


# ----------------------------------------------------------------------------------- the GPT


def stand_in_for_parallel(torch: Any) -> None:
    """What the example imports of warptape.parallel, which PyTorch lacks: one rank, no expert."""
    names = {
        "": {},
        ".context": {"positions": lambda length, device=None: torch.arange(length, device=device)},
        ".experts": {"MixtureOfExperts": None, "update_biases": lambda module: None},
    }
    for name, members in names.items():
        module = sys.modules[f"warptape.parallel{name}"] = types.ModuleType(f"warptape.parallel{name}")
        vars(module).update(members)


class GPTSteps:
    """Steps of examples/train_gpt.py at its defaults; weights and batches are equal in every library."""

    def __init__(self, lib: Any, dtype: str, ranks: int = 1) -> None:
        """`ranks` share a batch that is as many times as large."""
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
        if lib.__name__ == "torch":
            stand_in_for_parallel(lib)
        self.example = importlib.import_module("train_gpt")
        files = importlib.import_module("gpt_text").standard_library()
        self.lib, self.settings, self.step = lib, self.example.DEFAULTS, 0
        data = np.concatenate([np.fromfile(f, dtype=np.uint8) for f in files])
        self.text = self.example.Text(data, self.settings["block"], "cpu")
        lib.manual_seed(0)
        self.model = self.example.GPT(*(self.settings[name] for name in self.example.SHAPE))
        random = np.random.default_rng(0)
        with lib.no_grad():
            for parameter in self.model.parameters():
                if parameter.dim() > 1:
                    values = 0.05 * random.standard_normal(tuple(parameter.shape), dtype=np.float32)
                    parameter.copy_(lib.from_numpy(values))
        self.optimizer = self.example.make_optimizer(self.model, self.settings["lr"])
        self.generator = lib.Generator().manual_seed(0)
        self.batch = self.settings["batch"] * ranks
        self.cast = self.example.autocast("cpu", dtype)
        self.training_step = self.example.training_step

    def __call__(self) -> None:
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.example.learning_rate(self.step, self.settings["lr"])
        batch = self.text.batch(self.batch, self.generator)
        self.training_step(self.model, self.optimizer, batch, self.cast).item()

    def result(self) -> dict[str, float]:
        loss = self.example.validate(self.model, self.text, self.settings["batch"], self.cast)
        return {"step": self.step, "validation_loss": loss}


def gpt(dtype: str) -> Callable[[Any], Callable[[], Any]]:
    return lambda lib: GPTSteps(lib, dtype)


# ---------------------------------------------------------------------------- the LSTM


def language_model(mode: str, hidden: int, words: int) -> Callable[[Any], Callable[[], Any]]:
    """A step of pytorch/examples' word_language_model: 20 sequences, 35 steps, 2 layers, dropout, clipping
    and plain descent. 200 units and WikiText-2's 33,278 words are its defaults; 650 and Penn Treebank's
    10,000 are the "medium" model of Zaremba et al. 2014 (arXiv 1409.2329, section 4.1)."""

    def build(lib: Any) -> Callable[[], Any]:
        nn = lib.nn
        rnn = getattr(nn, mode)(hidden, hidden, 2, dropout=0.2)
        model = nn.ModuleList([nn.Embedding(words, hidden), rnn, nn.Linear(hidden, words), nn.Dropout(0.2)])
        embed, rnn, decode, drop = model
        drawn = np.random.default_rng(0).integers(words, size=(2, 35, 20))
        inputs, labels = lib.from_numpy(drawn[0]), lib.from_numpy(drawn[1]).reshape(-1)
        zeros = lib.zeros(2, 20, hidden)
        state = [(zeros, zeros.clone()) if mode == "LSTM" else zeros]

        def work() -> None:
            model.zero_grad()
            output, after = rnn(drop(embed(inputs)), state[0])
            state[0] = tuple(s.detach() for s in after) if mode == "LSTM" else after.detach()
            scores = nn.functional.log_softmax(decode(drop(output)).view(-1, words), dim=1)
            nn.functional.nll_loss(scores, labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            with lib.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=-0.1)

        return work

    return build


# --------------------------------------------------------------------- kernels by themselves


class Files:
    """A state dict of 125 matrices, saved to or loaded from a file that lies in memory where the system has
    such a place: a disk's speed is the same for all."""

    def __init__(self, lib: Any, saves: bool) -> None:
        place = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.lib, self.saves, self.folder = lib, saves, tempfile.TemporaryDirectory(dir=place)
        self.state = {f"layers.{i}.weight": numbers(lib, 1000, 1000, seed=i) for i in range(125)}
        self.path = os.path.join(self.folder.name, "state.pt")
        lib.save(self.state, self.path)

    def __call__(self) -> Any:
        return self.lib.save(self.state, self.path) if self.saves else self.lib.load(self.path)


def files(saves: bool) -> Callable[[Any], Callable[[], Any]]:
    return lambda lib: Files(lib, saves)


def elementwise(op: Callable[..., Any], *shape: int) -> Callable[[Any], Callable[[], Any]]:
    def build(lib: Any) -> Callable[[], Any]:
        a, b = numbers(lib, *shape, seed=1), numbers(lib, *shape, seed=2)
        return lambda: op(lib, a, b)

    return build


ELEMENTWISE = {
    "add": lambda lib, a, b: a + b,
    "mul_scalar": lambda lib, a, b: a * 1.5,
    "where": lambda lib, a, b: lib.where(a > b, a, b),
    "exp": lambda lib, a, b: a.exp(),
    "tanh": lambda lib, a, b: a.tanh(),
    "sigmoid": lambda lib, a, b: a.sigmoid(),
    "gelu": lambda lib, a, b: lib.nn.functional.gelu(a, approximate="tanh"),
    "relu": lambda lib, a, b: a.relu(),
    "add_": lambda lib, a, b: a.add_(b, alpha=1e-3),
}


STREAMS = {"add": 3, "where": 3, "add_": 3}  # tensors that are read or written; of the others 2


def forward_backward(op: Callable[..., Any], *shape: int) -> Callable[[Any], Callable[[], Any]]:
    """The op and its backward from a gradient that is not all ones."""

    def build(lib: Any) -> Callable[[], Any]:
        x = numbers(lib, *shape, seed=1, grad=True)
        call = op(lib, x)
        gradient = numbers(lib, *call().shape, seed=2)

        def work() -> None:
            call().backward(gradient)
            x.grad = None

        return work

    return build


def norm(make: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A norm module applied to x, its parameters' gradients dropped so that they do not add up."""

    def op(lib: Any, x: Any) -> Callable[[], Any]:
        module = make(lib, x)

        def call() -> Any:
            module.zero_grad()
            return module(x)

        return call

    return op


# Functions that the runtime composes of other ops.
COMPOSED = {
    "isclose": lambda lib, a, b: lib.isclose(a, b),
    "allclose": lambda lib, a, b: lib.allclose(a, b),
    "atleast_3d": lambda lib, a, b: lib.atleast_3d(a),
    "hstack": lambda lib, a, b: lib.hstack([a, b]),
    "dstack": lambda lib, a, b: lib.dstack([a, b]),
    "tensor_split": lambda lib, a, b: lib.tensor_split(a, 3),
    "block_diag": lambda lib, a, b: lib.block_diag(a, b),
    "kron": lambda lib, a, b: lib.kron(a, b),
    "tensordot": lambda lib, a, b: lib.tensordot(a, b, 1),
    "einsum": lambda lib, a, b: lib.einsum("ij,jk->ik", a, b),
    "rot90": lambda lib, a, b: lib.rot90(a),
    "fliplr": lambda lib, a, b: lib.fliplr(a),
    "diff": lambda lib, a, b: lib.diff(a),
    "trapezoid": lambda lib, a, b: lib.trapezoid(a),
    "nanmean": lambda lib, a, b: lib.nanmean(a, 1),
    "cov": lambda lib, a, b: lib.cov(a),
    "quantile": lambda lib, a, b: lib.quantile(a, 0.3, 1),
    "take_along_dim": lambda lib, a, b: lib.take_along_dim(a, b.argsort(1), 1),
    "vander": lambda lib, a, b: lib.vander(a[0]),
    "float_power": lambda lib, a, b: lib.float_power(a, 2),
    "cosine_similarity": lambda lib, a, b: lib.nn.functional.cosine_similarity(a, b),
    "pairwise_distance": lambda lib, a, b: lib.nn.functional.pairwise_distance(a, b),
    "normalize": lambda lib, a, b: lib.nn.functional.normalize(a),
    "margin_ranking_loss": lambda lib, a, b: lib.nn.functional.margin_ranking_loss(a, b, b),
    "triplet_margin_loss": lambda lib, a, b: lib.nn.functional.triplet_margin_loss(a, b, a),
    "gaussian_nll_loss": lambda lib, a, b: lib.nn.functional.gaussian_nll_loss(a, b, b.abs()),
    "soft_margin_loss": lambda lib, a, b: lib.nn.functional.soft_margin_loss(a, b),
    "one_hot": lambda lib, a, b: lib.nn.functional.one_hot(b.argmax(1), 4),
}


REDUCTIONS = {
    "sum": lambda lib, x: lambda: x.sum(),
    "sum_rows": lambda lib, x: lambda: x.sum(dim=-1),
    "sum_columns": lambda lib, x: lambda: x.sum(dim=0),
    "mean_rows": lambda lib, x: lambda: x.mean(dim=-1),
    "max_rows": lambda lib, x: lambda: x.max(dim=-1).values,
    "var_rows": lambda lib, x: lambda: x.var(dim=-1),
}
SOFTMAX = {
    "softmax": lambda lib, x: lambda: x.softmax(dim=-1),
    "log_softmax": lambda lib, x: lambda: x.log_softmax(dim=-1),
    "logsumexp": lambda lib, x: lambda: x.logsumexp(dim=-1),
}
NORMS = {
    "layer_norm": (
        norm(lambda lib, x: lib.nn.LayerNorm(x.shape[-1])),
        ((32, 192), (2048, 192), (1024, 1024)),
    ),
    "rms_norm": (norm(lambda lib, x: lib.nn.RMSNorm(x.shape[-1])), ((32, 192), (2048, 192), (1024, 1024))),
    "batch_norm": (norm(lambda lib, x: lib.nn.BatchNorm2d(x.shape[1])), ((8, 16, 8, 8), (32, 64, 16, 16))),
    "group_norm": (norm(lambda lib, x: lib.nn.GroupNorm(8, x.shape[1])), ((8, 16, 8, 8), (32, 64, 16, 16))),
}


def transform(name: str, *shape: int) -> Callable[[Any], Callable[[], Any]]:
    def build(lib: Any) -> Callable[[], Any]:
        x, function = numbers(lib, *shape), getattr(lib.fft, name)
        if name != "rfft":
            x = lib.complex(x, numbers(lib, *shape, seed=1))
        return lambda: function(x)

    return build


def spectrogram(lib: Any) -> Callable[[], Any]:
    """Whisper's, of one second."""
    x, window = numbers(lib, 16000), lib.hann_window(400)
    return lambda: lib.stft(x, 400, 160, window=window, return_complex=True)


def rotary(lib: Any, x: Any) -> Callable[[], Any]:
    angles = lib.outer(lib.arange(x.shape[1]).float(), 10000.0 ** (-lib.arange(0, 1, 2 / x.shape[-1])))
    turns = lib.polar(lib.ones_like(angles), angles).unsqueeze(1)
    return lambda: lib.view_as_real(lib.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)


# Rows, depth, columns; of a GPT: the two layers of its MLP, and the gradient of one's weight.
PRODUCTS = ((128, 128, 128), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048))
LAYERS = ((8, 4096, 4096), (2048, 384, 1536), (2048, 1536, 384))
# Channels, outputs, size, kernel, stride.
CONVOLUTIONS = ((64, 64, 56, 3, 1), (256, 256, 14, 3, 1), (64, 256, 56, 1, 1), (64, 128, 56, 3, 2))
# Batch, heads, length, size of a head.
ATTENTION = ((8, 12, 128, 64), (4, 12, 512, 64), (1, 12, 2048, 64))


def product(dtype: str, m: int, k: int, n: int, layer: bool) -> Callable[[Any], Callable[[], Any]]:
    """a b, or where `layer` what a linear layer computes of rows: a b^T."""

    def build(lib: Any) -> Callable[[], Any]:
        kind = getattr(lib, dtype)
        a, b = numbers(lib, m, k).to(kind), numbers(lib, *((n, k) if layer else (k, n)), seed=1).to(kind)
        return (lambda: lib.nn.functional.linear(a, b)) if layer else (lambda: a @ b)

    return build


def with_gradients(dtype: str, call: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[..., Any]:
    """call(lib, *tensors of these shapes) and its backward, the gradients dropped again."""

    def build(lib: Any) -> Callable[[], Any]:
        kind = getattr(lib, dtype)
        leaves = [numbers(lib, *shape, seed=i).to(kind).requires_grad_() for i, shape in enumerate(shapes)]
        gradient = numbers(lib, *call(lib, *leaves).shape, seed=9).to(kind)

        def work() -> None:
            call(lib, *leaves).backward(gradient)
            for leaf in leaves:
                leaf.grad = None

        return work

    return build


def product_rows(dtype: str, short: str) -> list[Row]:
    rows = []
    for sizes in (*PRODUCTS, *LAYERS):
        work = product(dtype, *sizes, layer=sizes in LAYERS)
        name = f"product_{short}[{label(sizes)}]"
        rows.append(Row(name, f"products_{short}", work, threaded=True, dtype=dtype))
    for channels, outputs, size, kernel, stride in CONVOLUTIONS:
        work = with_gradients(
            dtype,
            lambda lib, x, w, stride=stride, kernel=kernel: lib.nn.functional.conv2d(
                x, w, stride=stride, padding=kernel // 2
            ),
            (8, channels, size, size),
            (outputs, channels, kernel, kernel),
        )
        name = f"conv_{short}[{label((channels, outputs, size, kernel, stride))}]"
        rows.append(Row(name, f"conv_{short}", work, threaded=True, calls=1, dtype=dtype))
    for shape in ATTENTION:
        work = with_gradients(
            dtype,
            lambda lib, *qkv: lib.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True),
            *[shape] * 3,
        )
        rows.append(
            Row(
                f"attention_{short}[{label(shape)}]",
                f"attention_{short}",
                work,
                threaded=True,
                calls=1,
                dtype=dtype,
            )
        )
    return rows


FOURIER = {
    "fft": ((8,), (100, 1000), (64, 4096), (2**20,)),
    "fft2": ((8, 256, 256),),
    "rfft": ((64, 4096),),
    "irfft": ((64, 2049),),
}


def label(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def image_rows() -> list[Row]:
    rows = []
    for group, train, last in (
        ("images_train", True, False),
        ("images_train_last", True, True),
        ("images_infer", False, False),
        ("images_infer_last", False, True),
    ):
        for name, net, batch, size in (
            ("resnet50", partial(resnet, depth=50), 4, 224),
            ("small", small_net, 16, 64),
        ):
            work = images(net, batch, size, train, last)
            rows.append(Row(f"{group}[{name}]", group, work, threaded=True, calls=1))
    return rows


def kernel_rows() -> list[Row]:
    rows = []
    for group, shapes in (
        ("elementwise_small", ((1000,), (30, 1000))),
        ("elementwise_large", ((1000, 1000), (4000, 1000))),
    ):
        for op, function in ELEMENTWISE.items():
            for shape in shapes:
                rows.append(
                    Row(
                        f"{op}[{label(shape)}]",
                        group,
                        elementwise(function, *shape),
                        threaded=True,
                        moved=4 * math.prod(shape) * STREAMS.get(op, 2) * (group == "elementwise_large"),
                    )
                )
    for group, ops in (("reductions", REDUCTIONS), ("softmax", SOFTMAX)):
        for op, function in ops.items():
            for shape in ((32, 256), (512, 512), (2048, 1024)):
                rows.append(
                    Row(f"{op}[{label(shape)}]", group, forward_backward(function, *shape), threaded=True)
                )
    for op, (function, shapes) in NORMS.items():
        for shape in shapes:
            rows.append(
                Row(f"{op}[{label(shape)}]", "norms", forward_backward(function, *shape), threaded=True)
            )
    return rows


ROWS = [
    Row("add", "add", small_add(grad=False)),
    Row("add_grad", "add_grad", small_add(grad=True)),
    Row("chain", "chain", chain, units=20),
    Row("function", "function", deep_function, units=1000, calls=1),
    Row("linear", "linear", linear),
    *(Row(name, "composed", elementwise(function, 4, 4)) for name, function in COMPOSED.items()),
    Row("mlp_sgd", "mlp_sgd", mlp("SGD")),
    Row("mlp_adamw", "mlp_adamw", mlp("AdamW")),
    Row("gpt_f32", "gpt_f32", gpt("float32"), threaded=True, calls=3),
    Row("gpt_bf16", "gpt_bf16", gpt("bfloat16"), threaded=True, calls=3, dtype="bfloat16"),
    Row("lstm[200]", "lstm", language_model("LSTM", 200, 33278), threaded=True, calls=2),
    Row("lstm[650]", "lstm", language_model("LSTM", 650, 10000), threaded=True, calls=2),
    *image_rows(),
    Row("save", "save", files(saves=True), threaded=True, calls=1),
    Row("load", "load", files(saves=False), threaded=True, calls=1),
    *kernel_rows(),
    *(
        Row(f"{name}[{label(shape)}]", "fourier", transform(name, *shape), threaded=True)
        for name, shapes in FOURIER.items()
        for shape in shapes
    ),
    Row("stft[16000]", "fourier", spectrogram, threaded=True),
    Row("rotary[4x128x8x64]", "rotary", forward_backward(rotary, 4, 128, 8, 64), threaded=True),
    *product_rows("float32", "f32"),
    *product_rows("bfloat16", "bf16"),
]
