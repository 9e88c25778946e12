"""What benchmarks/compile.py measures: each work as it is, and with torch.compile, in either library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from _cpu_rows import GPTSteps, Row, language_model, numbers
from _images import images, resnet

Work = Callable[[], Any]


def elementwise(n: int) -> Callable[[Any], Work]:
    """20 ops."""

    def build(lib: Any) -> Work:
        x, y = numbers(lib, n, seed=1), numbers(lib, n, seed=2)

        def work() -> Any:
            z = x
            for _ in range(5):
                z = (z * y + x).relu() - y
            return z

        return work

    return build


def norm_residual_gelu(rows: int, width: int) -> Callable[[Any], Work]:
    def build(lib: Any) -> Work:
        norm = lib.nn.LayerNorm(width)
        x, residual = numbers(lib, rows, width, seed=1), numbers(lib, rows, width, seed=2)

        def work() -> Any:
            with lib.no_grad():
                return lib.nn.functional.gelu(norm(x) + residual, approximate="tanh")

        return work

    return build


def gated(rows: int, width: int) -> Callable[[Any], Work]:
    """SwiGLU between two products, with dropout and a residual, forward and backward."""

    def build(lib: Any) -> Work:
        nn = lib.nn
        lib.manual_seed(0)
        up, down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        x = numbers(lib, rows, width)

        def work() -> None:
            for p in (*up.parameters(), *down.parameters()):
                p.grad = None  # before, not after: gradients that a call throws away need not be computed
            a, b = up(x).chunk(2, dim=-1)
            y = x + down(nn.functional.silu(a) * b) * 0.5
            (y * y).mean().backward()

        return work

    return build


def small_step(lib: Any) -> Work:
    nn = lib.nn
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))
    inputs, labels = numbers(lib, 16, 16), lib.from_numpy(np.arange(16) % 10)
    optimizer = lib.optim.SGD(model.parameters(), lr=1e-3)

    def work() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return work


def gpt(dtype: str) -> Callable[[Any, bool], Work]:
    def build(lib: Any, compiled: bool) -> Work:
        steps = GPTSteps(lib, dtype)
        if compiled:
            steps.model = lib.compile(steps.model)
        return steps

    return build


def gpt_step(dtype: str) -> Callable[[Any, bool], Work]:
    """The same with forward, backward and the optimizer's step in one compiled function."""

    def build(lib: Any, compiled: bool) -> Work:
        steps = GPTSteps(lib, dtype)
        if compiled:
            steps.training_step = lib.compile(steps.training_step)
            steps.training_step.region.adaptive = False  # a trial that runs eagerly has eager code's peak
        return steps

    return build


class Lengths:
    """Training steps of a small network on sequences of 100 lengths."""

    def __init__(self, lib: Any) -> None:
        nn = lib.nn
        lib.manual_seed(0)
        self.lib = lib
        self.embedding, self.head = nn.Embedding(64, 64), nn.Linear(64, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.tokens = [lib.from_numpy(np.arange(4 * n).reshape(4, n) % 64) for n in range(8, 108)]

    def __call__(self, number: int) -> Any:
        tokens = self.tokens[number]
        scores = self.head(self.layer(self.embedding(tokens)))
        loss = self.lib.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
        loss.backward()
        return loss


def compiled(build: Callable[[Any], Work]) -> Callable[[Any], Work]:
    return lambda lib: lib.compile(build(lib))


WORKS: dict[str, tuple[float, Callable[[Any], Work]]] = {  # with the target: time against the peer's
    **{f"chain[{n}]": (0.85, elementwise(n)) for n in (16384, 131072, 2**20, 2**23)},
    "norm_residual_gelu[512x512]": (0.7, norm_residual_gelu(512, 512)),
    "gated[512x256]": (0.85, gated(512, 256)),
    "small_step": (0.08, small_step),
    "resnet18[4x64x64]": (0.9, images(partial(resnet, depth=18), 4, 64, True, False)),
    "resnet18_inference[4x64x64]": (0.9, images(partial(resnet, depth=18), 4, 64, False, False)),
    "lstm[200]": (0.65, language_model("LSTM", 200, 33278)),
}
GPTS = {"gpt_f32": (0.72, gpt("float32")), "gpt_bf16": (0.5, gpt("bfloat16"))}
GPT_STEPS = {"gpt_step_f32": gpt_step("float32"), "gpt_step_bf16": gpt_step("bfloat16")}
PEAK_TARGET = 0.85  # the most memory in use, against eager's
TARGETS = {name: target for name, (target, _) in (*WORKS.items(), *GPTS.items())}

ROWS = [
    *(Row(name, name, build, threaded=True) for name, (_, build) in WORKS.items()),
    *(Row(f"{name} compiled", name, compiled(build), threaded=True) for name, (_, build) in WORKS.items()),
    *(
        Row(f"{name}{' compiled' * c}", name, lambda lib, b=build, c=c: b(lib, c), threaded=True, calls=1)
        for name, build in (*((name, build) for name, (_, build) in GPTS.items()), *GPT_STEPS.items())
        for c in (False, True)
    ),
]
