"""The work that benchmarks/gpu.py times, one source for warptape and PyTorch, and the worker that times it.

Run as `python _gpu_rows.py LIBRARY ROWS SCALE LOSS_STEPS`, it prints one JSON object a row. Times are of CUDA
events around a call, medians over rounds; inputs are random, and larger than the L2 cache.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from _gemm_rows import gemm_ladder

Step = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One line. `build(lib, scale)` gives {variant: (call, work)}; `work` is what a call must do, in `unit`:
    bytes that it must move, operations, or tokens."""

    name: str
    title: str
    unit: str  # "bytes", "flops", "tokens" or "calls"
    build: Callable[[Any, float], dict[str, tuple[Step, float]]]
    group: str


def sized(n: int, scale: float, multiple: int = 1) -> int:
    return max(multiple, int(n * scale) // multiple * multiple)


def random(lib: Any, *shape: int, dtype: str = "bfloat16", grad: bool = False) -> Any:
    """Random numbers on the GPU."""
    return lib.randn(*shape, device="cuda").to(getattr(lib, dtype)).requires_grad_(grad)


# ---- moving memory ----


def elementwise(lib: Any, scale: float) -> dict[str, tuple[Step, float]]:
    n = sized(1 << 28, scale)
    x, y, z = random(lib, n), random(lib, n), random(lib, n, dtype="float32")
    return {
        "copy": (lambda: x.clone(), 4.0 * n),
        "add": (lambda: x + y, 6.0 * n),
        "gelu": (lambda: lib.nn.functional.gelu(x, approximate="tanh"), 4.0 * n),
        "scale f32": (lambda: z * 0.5, 8.0 * n),
    }


def compiled(lib: Any, scale: float) -> dict[str, tuple[Step, float]]:
    """Work as it is and with torch.compile: a chain of 20 elementwise ops, bias + GELU + residual in bf16,
    and a small training step, which is bound by launches. Kernels are compiled before the clock starts."""
    n, rows = sized(1 << 26, scale), sized(16384, scale, 8)
    x, y = random(lib, n, dtype="float32"), random(lib, n, dtype="float32")
    h, residual, bias = random(lib, rows, 4096), random(lib, rows, 4096), random(lib, 4096)
    train = small_mlp(lib, scale)["training step"][0]

    def chain() -> Any:
        z = x
        for _ in range(5):
            z = (z * y + x).relu() - y
        return z

    def bias_gelu() -> Any:
        return lib.nn.functional.gelu(h + bias, approximate="tanh") + residual

    found: dict[str, tuple[Step, float]] = {}
    for name, step in (("chain", chain), ("bias + GELU", bias_gelu), ("training step", train)):
        found[f"{name} eager"] = (step, 1.0)
        modes = ("default", "reduce-overhead") if name == "training step" else ("default",)
        for mode in modes:
            fast = lib.compile(step, mode=mode)
            for _ in range(6):
                fast()
                if lib.__name__ == "warptape":
                    lib._C._wait_for_kernels(False)
            found[f"{name} compiled{'' if mode == 'default' else ', ' + mode}"] = (fast, 1.0)
    return found


def with_backward(
    lib: Any, f: Callable[[Any], Any], x: Any, n: float, forward: float, backward: float
) -> Any:
    """{forward, backward} of y = f(x): bytes per element of x of each."""
    y = f(x)
    g = lib.randn_like(y)
    leaves = [x]
    return {
        "forward": (lambda: f(x.detach()), forward * n),
        "backward": (lambda: lib.autograd.grad(y, leaves, g, retain_graph=True), backward * n),
    }


def norm(name: str) -> Callable[[Any, float], Any]:
    def build(lib: Any, scale: float) -> Any:
        rows, n = sized(16384, scale, 8), 4096
        x = random(lib, rows, n, grad=True)
        w = random(lib, n, grad=True)
        b = random(lib, n, grad=True)
        F = lib.nn.functional
        f = (
            (lambda t: F.layer_norm(t, (n,), w, b))
            if name == "layer_norm"
            else (lambda t: F.rms_norm(t, (n,), w))
        )
        return with_backward(lib, f, x, rows * n, 4.0, 6.0)

    return build


def softmax(lib: Any, scale: float) -> Any:
    rows, n = sized(16384, scale, 8), 4096
    x = random(lib, rows, n, grad=True)
    return with_backward(lib, lambda t: lib.softmax(t, -1), x, rows * n, 4.0, 6.0)


def cross_entropy(lib: Any, scale: float) -> Any:
    rows, n = sized(16384, scale, 8), 50304
    x = random(lib, rows, n, grad=True)
    target = lib.randint(0, n, (rows,), device="cuda")
    loss = lib.nn.functional.cross_entropy(x, target)
    return {
        "forward": (lambda: lib.nn.functional.cross_entropy(x.detach(), target), 2.0 * rows * n),
        "backward": (lambda: lib.autograd.grad(loss, [x], retain_graph=True), 4.0 * rows * n),
    }


def adamw(lib: Any, scale: float) -> Any:
    count = sized(124_000_000, scale)
    parameters = [random(lib, max(1, count // 100), dtype="float32", grad=True) for _ in range(100)]
    for p in parameters:
        p.grad = lib.randn_like(p)
    optimizer = lib.optim.AdamW(parameters, lr=1e-4, fused=True)
    return {"step": (optimizer.step, 28.0 * sum(p.numel() for p in parameters))}


# ---- multiplying ----


def gemm(lib: Any, scale: float) -> Any:
    n = sized(8192, scale, 128)
    a, b = random(lib, n, n), random(lib, n, n)
    return {"bf16": (lambda: a @ b, 2.0 * n**3)}


def attention(lib: Any, scale: float) -> Any:
    heads, t, d = 16, sized(16384, scale, 128), 128
    q, k, v = (random(lib, 1, heads, t, d, grad=True) for _ in range(3))
    F = lib.nn.functional
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    g = lib.randn_like(y)
    flops = 2.0 * heads * t * t * d  # half of 4 T^2 d: causal
    forward = [x.detach() for x in (q, k, v)]
    return {
        "forward": (lambda: F.scaled_dot_product_attention(*forward, is_causal=True), flops),
        "backward": (lambda: lib.autograd.grad(y, [q, k, v], g, retain_graph=True), 2.5 * flops),
    }


# ---- many small launches ----


def small_mlp(lib: Any, scale: float) -> Any:
    nn = lib.nn
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(
        "cuda"
    )
    optimizer = lib.optim.AdamW(model.parameters(), fused=True)
    x, target = lib.randn(32, 64, device="cuda"), lib.randint(0, 10, (32,), device="cuda")

    def train() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()

    one = lib.randn(1, 64, device="cuda")

    def forward() -> None:
        with lib.no_grad():
            model(one)

    return {"training step": (train, 1.0), "forward of one row": (forward, 1.0)}


# ---- GPT-2 ----


def make_gpt2(lib: Any, layers: int, heads: int, width: int, block: int, vocabulary: int) -> Any:
    """GPT-2 with tied embeddings; weights drawn by NumPy, so that both libraries start equal."""
    nn, F = lib.nn, lib.nn.functional

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = (
                s.view(b, t, heads, c // heads).transpose(1, 2) for s in self.qkv(self.norm1(x)).split(c, 2)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
            self.layers = nn.ModuleList([Layer() for _ in range(layers)])
            self.norm = nn.LayerNorm(width)

        def forward(self, tokens: Any, targets: Any) -> Any:
            x = self.tokens(tokens) + self.positions(lib.arange(tokens.shape[1], device=tokens.device))
            for layer in self.layers:
                x = layer(x)
            logits = F.linear(self.norm(x), self.tokens.weight)
            return F.cross_entropy(logits.view(-1, vocabulary), targets.view(-1))

    model = GPT2()
    draw = np.random.default_rng(0)
    with lib.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                values = draw.standard_normal(tuple(p.shape), dtype=np.float32) * 0.02
                p.copy_(lib.from_numpy(values))
            elif name.endswith("bias"):
                p.zero_()
    return model.to("cuda")


class Gpt2Step:
    """A training step of GPT-2 in bfloat16 autocast with fused AdamW; `graph` captures it once."""

    def __init__(
        self, lib: Any, shape: tuple[int, ...], batch: int, graph: bool = False, compiled: bool = False
    ):
        self.lib, self.block, self.vocabulary, self.batch = lib, shape[3], shape[4], batch
        self.model = make_gpt2(lib, *shape)
        self.forward = lib.compile(self.model) if compiled else self.model
        self.optimizer = lib.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True, capturable=graph
        )
        self.text = learnable_text(self.vocabulary, 1 << 20)
        self.draw = np.random.default_rng(1)
        self.tokens = lib.zeros(batch, self.block, dtype=lib.int64, device="cuda")
        self.targets = lib.zeros(batch, self.block, dtype=lib.int64, device="cuda")
        self.loss: Any = None
        self.graph = self.capture() if graph else None

    def next_batch(self) -> None:
        starts = self.draw.integers(0, len(self.text) - self.block - 1, self.batch)
        rows = np.stack([self.text[s : s + self.block + 1] for s in starts])
        self.tokens.copy_(self.lib.from_numpy(rows[:, :-1].copy()))
        self.targets.copy_(self.lib.from_numpy(rows[:, 1:].copy()))

    def work(self) -> None:
        with self.lib.autocast("cuda", dtype=self.lib.bfloat16):
            loss = self.forward(self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = loss.detach()

    def capture(self) -> Any:
        """Three steps on a side stream, as PyTorch's documentation asks for, then the capture; the model
        starts over from where it was, for the losses to be comparable."""
        lib = self.lib
        before = {k: v.clone() for k, v in self.model.state_dict().items()}
        side = lib.cuda.Stream()
        side.wait_stream(lib.cuda.current_stream())
        with lib.cuda.stream(side):
            self.next_batch()
            for _ in range(3):
                self.work()
        lib.cuda.current_stream().wait_stream(side)
        graph = lib.cuda.CUDAGraph()
        with lib.cuda.graph(graph):
            self.work()
        with lib.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(before[name])
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        self.draw = np.random.default_rng(1)
        return graph

    def __call__(self) -> None:
        if self.graph is None:
            self.work()
        else:
            self.graph.replay()


def learnable_text(vocabulary: int, length: int) -> np.ndarray:
    """Tokens that are partly predictable from the one before, int64."""
    draw = np.random.default_rng(2)
    successor = draw.integers(0, vocabulary, vocabulary)
    noise, text = draw.integers(0, min(vocabulary, 1000), length), np.empty(length, np.int64)
    follow = draw.random(length) < 0.75
    token = 0
    for i in range(length):
        token = int(successor[token]) if follow[i] else int(noise[i])
        text[i] = token
    return text


GPT2_124M = (12, 12, 768, 1024, 50304)


def gpt2_shape(scale: float) -> tuple[tuple[int, ...], int]:
    return (GPT2_124M, 32) if scale >= 1 else ((2, 2, 32, 16, 64), 2)


def gpt2(lib: Any, scale: float) -> Any:
    shape, batch = gpt2_shape(scale)
    found: dict[str, tuple[Step, float]] = {}
    tokens = float(batch * shape[3])
    ways: dict[str, dict[str, bool]] = {"eager": {}, "captured": {"graph": True}}
    if lib.__name__ == "torch" and scale >= 1:
        ways["compiled"] = {"compiled": True}
    for name, options in ways.items():
        step = Gpt2Step(lib, shape, batch, **options)
        step.next_batch()
        found[name] = (step, tokens)
    return found


def losses(lib: Any, scale: float, steps: int) -> list[float]:
    """Of the captured training, step by step, on the same text from the same weights."""
    shape, batch = gpt2_shape(scale)
    step = Gpt2Step(lib, shape, batch, graph=True)
    found = []
    for _ in range(steps):
        step.next_batch()
        step()
        found.append(step.loss.item())
    return found


ROWS = [
    Row("elementwise", "elementwise, 2^28 values", "bytes", elementwise, "memory"),
    Row("layer_norm", "layer norm [16384, 4096] bf16", "bytes", norm("layer_norm"), "memory"),
    Row("rms_norm", "RMS norm [16384, 4096] bf16", "bytes", norm("rms_norm"), "memory"),
    Row("softmax", "softmax [16384, 4096] bf16", "bytes", softmax, "memory"),
    Row("cross_entropy", "cross-entropy [16384, 50304] bf16", "bytes", cross_entropy, "memory"),
    Row("adamw", "fused AdamW, 124 M in 100 tensors", "bytes", adamw, "memory"),
    Row("gemm", "matrix product 8192, bf16", "flops", gemm, "math"),
    Row("gemm_ladder", "steps of the GEMM ladder and cuBLASLt", "flops", gemm_ladder, "math"),
    Row("attention", "attention d128 causal 16k, bf16", "flops", attention, "math"),
    Row("small_mlp", "small MLP", "calls", small_mlp, "launch"),
    Row("compiled", "torch.compile against eager", "calls", compiled, "launch"),
    Row("gpt2", "GPT-2 124M step, T 1024, batch 32, bf16", "tokens", gpt2, "model"),
]


# ---- the worker ----


FILLED = 2**30  # bytes, written before a call: some 0.3 ms on an H200


def seconds(lib: Any, call: Step, budget: float, wall: bool, filled: int = FILLED) -> list[float]:
    """Times of single calls after warm-up, by events; of launch-bound work by the clock, many at once. On an
    idle GPU the time between two events is in part the host's for launching; so the GPU is kept busy by a
    fill of `filled` bytes while the events and the call are queued."""
    busy = lib.empty(filled, dtype=lib.uint8, device="cuda")
    for _ in range(3):
        call()
    lib.cuda.synchronize()
    start = time.perf_counter()
    call()
    lib.cuda.synchronize()
    once = time.perf_counter() - start
    calls = max(1, min(200, int(0.02 / max(once, 1e-6)))) if wall else 1
    found = []
    for _ in range(max(3, min(50, int(budget / max(once * calls, 1e-6))))):
        if wall:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            lib.cuda.synchronize()
            found.append((time.perf_counter() - start) / calls)
        else:
            begin, end = (lib.cuda.Event(enable_timing=True) for _ in range(2))
            busy.zero_()
            begin.record()
            call()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
    return found


def measure(lib: Any, row: Row, scale: float) -> Iterator[dict[str, Any]]:
    """One result for each variant of the row."""
    try:
        for variant, (call, work) in row.build(lib, scale).items():
            filled = max(1, int(FILLED * scale))
            times = seconds(lib, call, 0.5 if scale >= 1 else 0.05, row.unit == "calls", filled)
            yield {"row": row.name, "variant": variant, "work": work, "seconds": statistics.median(times)}
    except Exception as error:  # the parent reports it beside the row
        yield {"row": row.name, "variant": "", "error": f"{type(error).__name__}: {str(error)[:300]}"}


def main(library: str, names: str, scale: float, loss_steps: int) -> None:
    from _harness import load_library

    answers, sys.stdout = sys.stdout, sys.stderr
    lib = load_library(library)
    lib.manual_seed(0)
    for row in ROWS:
        if row.name in names.split(","):
            for result in measure(lib, row, scale):
                print(json.dumps(result), file=answers, flush=True)
            lib.cuda.empty_cache()
    if loss_steps:
        result = {"row": "losses", "variant": "", "losses": losses(lib, scale, loss_steps)}
        if not all(math.isfinite(x) for x in result["losses"]):
            result["error"] = "a loss is not finite"
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
