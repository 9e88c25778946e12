"""The steps of benchmarks/gpu_ladder.py, in order of risk: what is oldest and simplest first, kernels that
may hang (WGMMA, TMA) after all that others depend on. Shapes of attention: [batch, heads, tokens, size]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _gemm_rows import ladder_steps
from gpu_ladder import Check, Step

LOW = ("float32", "bfloat16", "float16")


class Draw:
    """Inputs by name of the library, the same in each process."""

    def __init__(self, wt: Any) -> None:
        self.wt, self.rng = wt, np.random.default_rng(0)

    def __call__(self, *shape: int) -> Any:
        return self.wt.tensor(self.rng.standard_normal(shape).astype(np.float32))

    def integers(self, high: int, *shape: int, dtype: str = "int64") -> Any:
        return self.wt.tensor(self.rng.integers(0, high, shape)).to(getattr(self.wt, dtype))


def with_gradients(wt: Any, f: Callable[..., Any], *inputs: Any) -> Any:
    """A call that gives f of the inputs, and the gradients of all that float for ones and twos."""

    def call(_: str, cast: Callable[[Any], Any]) -> Any:
        moved = [cast(x) for x in inputs]
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in moved]
        out = f(*leaves)
        up = (wt.arange(out.numel(), device=out.device) % 2 + 1).to(out.dtype).view(out.shape)
        return [out, *wt.autograd.grad(out, [x for x in leaves if x.requires_grad], up)]

    return call


def plain(f: Callable[..., Any], *inputs: Any) -> Any:
    return lambda _, cast: f(*[cast(x) for x in inputs])


# ---- memory and small kernels ---------------------------------------------------------------------------


def device(wt: Any) -> Iterator[Check]:
    x = Draw(wt)(1000, 257)
    for dtype in ("float32", "float64", "bfloat16"):
        yield Check(f"copies {dtype}", plain(lambda t: (t.clone(), t[3:, ::2].clone()), x), dtype, exact=True)

    def events(where: str, cast: Callable[[Any], Any]) -> Any:
        moved = cast(x)
        if where == "cuda":
            begin, end = (wt.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            moved = moved + 0
            end.record()
            end.synchronize()
            assert 0 <= begin.elapsed_time(end) < 1e4
        return moved

    yield Check("events", events, exact=True)


def elementwise(wt: Any) -> Iterator[Check]:
    draw = Draw(wt)
    a, b, row = draw(513, 1031), draw(513, 1031), draw(1031)
    for dtype in LOW:
        yield Check(
            f"add, mul {dtype}", plain(lambda x, y, r: (x + y, x * y - r, x.t() + 1), a, b, row), dtype
        )
        yield Check(f"gelu {dtype}", with_gradients(wt, lambda x: wt.nn.functional.gelu(x), a), dtype)
        yield Check(f"math {dtype}", plain(lambda x: (x.exp(), x.tanh(), x.abs().log(), x.sin()), a), dtype)
    yield Check(
        "float64", plain(lambda x, y: (x.exp() / (y.abs() + 1), x.erf(), x.lgamma()), a, b), "float64"
    )
    yield Check(
        "casts", plain(lambda x: (x.half().float(), x.bfloat16().float(), x.int()), a), exact=False, loose=200
    )


def reduce(wt: Any) -> Iterator[Check]:
    x = Draw(wt)(300, 4097)
    for dtype in LOW:
        yield Check(
            f"sums {dtype}",
            plain(lambda t: (t.sum(), t.sum(0), t.sum(1), t.amax(1), t.mean(0)), x),
            dtype,
            loose=4,
        )
        yield Check(f"var {dtype}", with_gradients(wt, lambda t: t.var(1), x), dtype)
    yield Check("argmax", plain(lambda t: (t.argmax(1), t.argmin(0), t.max(1).indices), x), exact=True)
    yield Check("scans", plain(lambda t: (t.cumsum(1), t[:, :50].cumprod(0)), x), loose=20)


def rows(wt: Any) -> Iterator[Check]:
    draw, F = Draw(wt), wt.nn.functional
    for n in (64, 1000, 4096, 20000):
        x, w, b = draw(67, n), draw(n), draw(n)
        for dtype in LOW:
            name = f"{n} {dtype}"
            yield Check(f"softmax {name}", with_gradients(wt, lambda t: wt.softmax(t, -1), x), dtype)
            yield Check(f"log_softmax {name}", with_gradients(wt, lambda t: wt.log_softmax(t, -1), x), dtype)
            yield Check(
                f"layer_norm {name}",
                with_gradients(wt, lambda t, g, h, n=n: F.layer_norm(t, (n,), g, h), x, w, b),
                dtype,
            )
            yield Check(
                f"rms_norm {name}", with_gradients(wt, lambda t, g, n=n: F.rms_norm(t, (n,), g), x, w), dtype
            )


def loss(wt: Any) -> Iterator[Check]:
    draw, F = Draw(wt), wt.nn.functional
    x, target = draw(130, 50304), draw.integers(50304, 130)
    for dtype in LOW:
        yield Check(
            f"cross_entropy {dtype}", with_gradients(wt, lambda t, y: F.cross_entropy(t, y), x, target), dtype
        )
    yield Check(
        "embedding",
        with_gradients(wt, lambda w, i: F.embedding(i, w), draw(1000, 96), draw.integers(1000, 40, 7)),
    )


def index(wt: Any) -> Iterator[Check]:
    draw = Draw(wt)
    x, i = draw(200, 65), draw.integers(200, 90, 65)
    yield Check("gather", with_gradients(wt, lambda t, j: t.gather(0, j), x, i))
    yield Check("scatter_add", plain(lambda t, j: t.scatter_add(0, j, t[:90]), x, i))
    yield Check("index", with_gradients(wt, lambda t, j: t[j[:, 0]], x, i))
    yield Check(
        "masks", plain(lambda t: (t[t > 0.5], t.masked_fill(t > 0, 2.0), (t > 0).nonzero()), x), exact=True
    )
    yield Check(
        "joins", plain(lambda t: (wt.cat([t, t], 1), t.tril(), t.roll(3, 0), t.flip(1)), x), exact=True
    )


def random(wt: Any) -> Iterator[Check]:
    x = wt.ones(1000, 77)

    def drop(_: str, cast: Callable[[Any], Any]) -> Any:
        wt.manual_seed(5)
        return wt.nn.functional.dropout(cast(x), 0.3)

    yield Check("dropout", drop)


def optimizer(wt: Any) -> Iterator[Check]:
    draw = Draw(wt)
    parts = [draw(*shape) for shape in ((3,), (130, 257), (1000, 33), (1,))]

    def steps(_: str, cast: Callable[[Any], Any]) -> Any:
        parameters = [wt.nn.Parameter(cast(p)) for p in parts]
        adam = wt.optim.AdamW(parameters, lr=1e-2, fused=True)
        for _ in range(3):
            for p in parameters:
                p.grad = p.detach() * 0.5
            wt.nn.utils.clip_grad_norm_(parameters, 1.0)
            adam.step()
        return parameters

    yield Check("fused AdamW, clipping", steps)


# ---- libraries ------------------------------------------------------------------------------------------


def cublaslt(wt: Any) -> Iterator[Check]:
    draw, F = Draw(wt), wt.nn.functional
    a, b, bias = draw(3, 130, 257), draw(3, 257, 96), draw(96)
    for dtype in LOW:
        yield Check(f"bmm {dtype}", with_gradients(wt, lambda x, y: x @ y, a, b), dtype, loose=2)
        yield Check(
            f"linear {dtype}",
            with_gradients(wt, lambda x, w, c: F.linear(x, w, c), draw(70, 264), draw(96, 264), bias),
            dtype,
            loose=2,
        )
        # Fused epilogues: bias, GELU and their gradients.
        yield Check(
            f"linear, GELU {dtype}",
            with_gradients(
                wt,
                lambda x, w, c: F.gelu(F.linear(x, w, c), approximate="tanh"),
                draw(64, 264),
                draw(96, 264),
                bias,
            ),
            dtype,
            loose=2,
        )
    yield Check("float64", with_gradients(wt, lambda x, y: x @ y, a, b), "float64")


def convolution(wt: Any, loose: float = 1.0) -> Iterator[Check]:
    draw, F = Draw(wt), wt.nn.functional
    cases: dict[str, dict[str, Any]] = {
        "3x3": {"padding": 1},
        "strided": {"stride": 2, "padding": 1},
        "dilated": {"dilation": 2},
        "grouped": {"groups": 4, "padding": 1},
        "depthwise": {"groups": 32, "padding": 1},
    }
    for name, options in cases.items():
        w = draw(32, 32 // options.get("groups", 1), 3, 3)
        for layout in ("rows", "channels last"):
            x = draw(2, 32, 17, 19)
            if layout == "channels last":
                x = x.to(memory_format=wt.channels_last)
            for dtype in LOW:
                yield Check(
                    f"{name}, {layout}, {dtype}",
                    with_gradients(wt, lambda t, k, o=options: F.conv2d(t, k, **o), x, w),
                    dtype,
                    loose=2 * loose,
                )


def convolution_tf32(wt: Any) -> Iterator[Check]:
    """By default cuDNN may round float32 to TF32, as in PyTorch: 10 bits of mantissa."""
    wt.backends.cudnn.allow_tf32 = True
    draw, F = Draw(wt), wt.nn.functional
    for layout in ("rows", "channels last"):
        x = draw(2, 64, 28, 28)
        if layout == "channels last":
            x = x.to(memory_format=wt.channels_last)
        yield Check(
            f"TF32, {layout}",
            with_gradients(wt, lambda t, k: F.conv2d(t, k, padding=1), x, draw(64, 64, 3, 3)),
            loose=100,
        )


def fft(wt: Any) -> Iterator[Check]:
    x = Draw(wt)(6, 210)
    yield Check("rfft", plain(lambda t: wt.view_as_real(wt.fft.rfft(t)), x))
    yield Check("there and back", plain(lambda t: wt.fft.irfft(wt.fft.rfft(t), n=210), x))


def solver(wt: Any) -> Iterator[Check]:
    draw = Draw(wt)
    x, b = draw(5, 40, 40), draw(5, 40, 3)
    spd = x @ x.mT + 40 * wt.eye(40)
    yield Check("solve", plain(lambda a, r: wt.linalg.solve(a, r), spd, b), loose=10)
    yield Check("cholesky", plain(lambda a: wt.linalg.cholesky(a), spd), loose=10)
    yield Check("qr", plain(lambda a: (lambda q, r: q @ r)(*wt.linalg.qr(a)), x), loose=10)
    yield Check("eigh", plain(lambda a: wt.linalg.eigvalsh(a), spd), loose=10)
    yield Check("svd", plain(lambda a: wt.linalg.svdvals(a), x), loose=10)
    # LAPACK on the host where cuSOLVER is 12.0.
    yield Check("ldl", plain(lambda a, r: wt.linalg.ldl_solve(*wt.linalg.ldl_factor(a), r), spd, b), loose=10)


def sort(wt: Any) -> Iterator[Check]:
    x = Draw(wt)(40, 5000)
    yield Check("sort", plain(lambda t: (*t.sort(1, stable=True), t.flatten().sort().values), x), exact=True)
    yield Check("topk", plain(lambda t: t.topk(33, 1).values, x), exact=True)
    yield Check("unique", plain(lambda t: (t * 4).round().unique(), x), exact=True)


# ---- own products ---------------------------------------------------------------------------------------


def gemm(*names: str) -> Callable[[Any], Iterator[Check]]:
    def build(wt: Any) -> Iterator[Check]:
        draw, steps = Draw(wt), ladder_steps()
        for name in names:
            step = steps[name]
            for m, n, k in ((256, 256, 128), (130, 384, 512), (1024, 768, 2048)):
                a, b = draw(m, k), draw(k, n)
                for dtype in step.dtypes:
                    low = str(dtype).rpartition(".")[2]

                    def call(
                        where: str, cast: Callable[[Any], Any], a: Any = a, b: Any = b, step: Any = step
                    ) -> Any:
                        return step(cast(a), cast(b)) if where == "cuda" else cast(a) @ cast(b)

                    yield Check(f"{name} {m}x{n}x{k} {low}", call, low)

    return build


def grouped(wt: Any) -> Iterator[Check]:
    draw, F = Draw(wt), wt.nn.functional
    x, w = draw(203, 136), draw(4, 136, 24)
    for ends in ((0, 70, 71, 203), (203, 203, 203, 203), (10, 20, 30, 203)):
        offs = wt.tensor(ends, dtype=wt.int32)
        for dtype in LOW:
            yield Check(
                f"grouped_mm {ends} {dtype}",
                with_gradients(wt, lambda t, u, o: F.grouped_mm(t, u, offs=o), x, w, offs),
                dtype,
                loose=2,
            )


def quantized(wt: Any) -> Iterator[Check]:
    ops, draw = wt._C._private, Draw(wt)
    for bits, group in ((8, 64), (4, 64)):
        w, x = draw(96, 256), draw(33, 256)

        def call(
            where: str,
            cast: Callable[[Any], Any],
            bits: int = bits,
            group: int = group,
            w: Any = w,
            x: Any = x,
        ) -> Any:
            parts = ops._quantize_linear_weight(w, bits, group, True)
            packed, scales, minima = [*[p.to(where) for p in parts if p is not None], None][:3]
            return ops._quant_linear(x.to(where), packed, scales, minima, 96, bits, group, None)

        yield Check(f"int{bits} linear", call, exact=True)
    parts = draw(5, 200), draw(130, 200), draw(130)

    def packed(where: str, cast: Callable[[Any], Any]) -> Any:
        x, w, c = map(cast, parts)
        if where == "cpu":
            return wt.nn.functional.linear(x, w, c)
        return ops._packed_linear(x, ops._pack_linear_weight(w), 130, c)

    yield Check("packed linear", packed)


# ---- attention ------------------------------------------------------------------------------------------


def attention(wt: Any) -> Iterator[Check]:
    draw, F = Draw(wt), wt.nn.functional
    shapes = {
        "d64": (2, 4, 4, 130, 130, 64),
        "d128": (1, 4, 4, 256, 256, 128),
        "long": (1, 2, 2, 1024, 1024, 128),
        "grouped heads": (1, 8, 2, 200, 300, 64),
        "odd sizes": (1, 2, 2, 77, 131, 40),
    }
    for name, (b, h, k, t, s, d) in shapes.items():
        parts = draw(b, h, t, d), draw(b, k, s, d), draw(b, k, s, d)
        for dtype in ("bfloat16", "float16"):
            for causal in (False, True):
                f = lambda q, x, v, c=causal: F.scaled_dot_product_attention(
                    q, x, v, is_causal=c, enable_gqa=True
                )
                yield Check(
                    f"{name}{', causal' * causal} {dtype}", with_gradients(wt, f, *parts), dtype, loose=2
                )


def attention_masks(wt: Any) -> Iterator[Check]:
    draw, F = Draw(wt), wt.nn.functional
    parts = draw(2, 4, 150, 64), draw(2, 4, 170, 64), draw(2, 4, 170, 64)
    seen, added = draw(2, 1, 150, 170) > -0.5, draw(1, 4, 150, 170)
    for dtype in ("bfloat16", "float16"):
        yield Check(
            f"bool mask {dtype}",
            with_gradients(
                wt, lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), *parts, seen
            ),
            dtype,
            loose=2,
        )

        def with_added(_: str, cast: Callable[[Any], Any]) -> Any:
            return F.scaled_dot_product_attention(*[cast(p) for p in parts], attn_mask=cast(added))

        def with_dropout(_: str, cast: Callable[[Any], Any]) -> Any:
            wt.manual_seed(3)
            return F.scaled_dot_product_attention(*[cast(p) for p in parts], dropout_p=0.2, is_causal=True)

        yield Check(f"added mask {dtype}", with_added, dtype, loose=2)
        yield Check(f"dropout {dtype}", with_dropout, dtype, loose=2)


def attention_varlen(wt: Any) -> Iterator[Check]:
    from warptape.nn.attention.varlen import varlen_attn

    draw = Draw(wt)
    cu, most = wt.tensor([0, 5, 70, 70, 260], dtype=wt.int32), 190
    parts = draw(260, 4, 64), draw(260, 4, 64), draw(260, 4, 64)
    for dtype in ("bfloat16", "float16"):
        for window in ((-1, -1), (-1, 0), (32, 0)):
            f = lambda q, k, v, c, w=window: varlen_attn(q, k, v, c, c, most, most, window_size=w)
            yield Check(
                f"sequences, window {window} {dtype}", with_gradients(wt, f, *parts, cu), dtype, loose=2
            )


def decoding(wt: Any) -> Iterator[Check]:
    draw, F = Draw(wt), wt.nn.functional
    for s in (1, 100, 513, 3000):
        for dtype in ("bfloat16", "float16"):
            f = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            yield Check(
                f"{s} keys {dtype}",
                plain(f, draw(2, 8, 1, 128), draw(2, 2, s, 128), draw(2, 2, s, 128)),
                dtype,
                loose=2,
            )


def paged(wt: Any) -> Iterator[Check]:
    ops, draw = wt._C._private, Draw(wt)
    page, heads, d = 32, 2, 64
    keys, values = draw(12, heads, d, page), draw(12, heads, page, d)
    order = wt.tensor(np.random.default_rng(1).permutation(12).reshape(3, 4).astype(np.int32))
    lengths, starts = wt.tensor([100, 1, 128], dtype=wt.int32), wt.tensor([0, 1, 2, 3], dtype=wt.int32)

    def of_pages(q: Any, keys: Any, values: Any) -> Any:
        """The formula, sequence by sequence, on its pages side by side."""
        rows = []
        for row, pages, n in zip(q, order.tolist(), lengths.tolist(), strict=True):
            k = wt.cat([keys[p] for p in pages], 2)[..., :n]
            v = wt.cat([values[p] for p in pages], 1)[:, :n]
            rows.append(((row.view(heads, -1, d) @ k / d**0.5).softmax(-1) @ v).view(-1, d))
        return wt.stack(rows)

    for dtype in ("float32", "bfloat16"):
        for group in (1, 4):
            q = draw(3, heads * group, d)

            def call(where: str, cast: Callable[[Any], Any], q: Any = q) -> Any:
                parts = [cast(x) for x in (q, keys, values)]
                if where == "cpu":
                    return of_pages(*parts)
                return ops._paged_attention(*parts, *[x.cuda() for x in (order, starts, lengths)])

            yield Check(f"{group} query heads a key head {dtype}", call, dtype, loose=2)


# ---- what stands on all of it ---------------------------------------------------------------------------


def chains(wt: Any) -> Iterator[Check]:
    x, y = Draw(wt)(513, 1031), Draw(wt)(513, 1031)

    def call(where: str, cast: Callable[[Any], Any]) -> Any:
        def f(a: Any, b: Any) -> Any:
            return ((a * b + a).relu() - b).exp().tanh() * a

        step = wt.compile(f) if where == "cuda" else f
        a, b = cast(x), cast(y)
        for _ in range(4):
            out = step(a, b)
            if where == "cuda":
                wt._C._wait_for_kernels(False)
        return out

    for dtype in LOW:
        yield Check(f"NVRTC chain {dtype}", call, dtype)


def small_net(wt: Any) -> Any:
    wt.manual_seed(1)
    nn = wt.nn
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))


def graphs(wt: Any) -> Iterator[Check]:
    x = Draw(wt)(32, 64)

    def call(where: str, cast: Callable[[Any], Any]) -> Any:
        net, given = small_net(wt).to(cast(x).dtype).to(where), cast(x)
        with wt.no_grad():
            out = net(given)  # makes the handles of the libraries, which a capture may not
            if where == "cuda":
                graph = wt.cuda.CUDAGraph()
                with wt.cuda.graph(graph):
                    out = net(given)
                graph.replay()
        return out

    yield Check("capture and replay", call)


def streams(wt: Any) -> Iterator[Check]:
    x = Draw(wt)(700, 700)

    def call(where: str, cast: Callable[[Any], Any]) -> Any:
        given = cast(x)
        if where == "cpu":
            return [given @ given + k for k in range(3)]
        found, side = [], [wt.cuda.Stream() for _ in range(3)]
        for _ in range(20):
            found = []
            for k, stream in enumerate(side):
                stream.wait_stream(wt.cuda.current_stream())
                with wt.cuda.stream(stream):
                    found.append(given @ given + k)
            for out, stream in zip(found, side, strict=True):
                wt.cuda.current_stream().wait_stream(stream)
                out.record_stream(wt.cuda.current_stream())
        return found

    yield Check("three streams", call, loose=2)


def training(wt: Any) -> Iterator[Check]:
    x, target = Draw(wt)(32, 64), Draw(wt).integers(10, 32)

    def call(where: str, cast: Callable[[Any], Any]) -> Any:
        net = small_net(wt).to(cast(x).dtype).to(where)
        adam, losses = wt.optim.AdamW(net.parameters(), lr=1e-2, fused=True), []
        for _ in range(10):
            adam.zero_grad()
            loss = wt.nn.functional.cross_entropy(net(cast(x)), cast(target))
            loss.backward()
            adam.step()
            losses.append(loss.detach())
        return wt.stack(losses)

    yield Check("ten steps", call, loose=20)


FLOAT32_GEMM = (
    "naive",
    "coalesced",
    "shared_tile",
    "register_tile",
    "vectorised",
    "async_copy",
    "warp_tiles",
)
HOPPER = (9, 0)
GEMM_LADDER = "GEMM_LADDER"  # names the library of examples/gemm_ladder
STEPS: dict[str, Step] = {
    "device": Step(device),
    "elementwise": Step(elementwise),
    "reduce": Step(reduce),
    "rows": Step(rows),
    "loss": Step(loss),
    "index": Step(index),
    "random": Step(random),
    "optimizer": Step(optimizer),
    "cublaslt": Step(cublaslt),
    "convolution": Step(convolution),
    "convolution_tf32": Step(convolution_tf32),
    "fft": Step(fft),
    "solver": Step(solver),
    "sort": Step(sort),
    "chains": Step(chains),
    "graphs": Step(graphs),
    "streams": Step(streams),
    "training": Step(training),
    "gemm_float32": Step(gemm(*FLOAT32_GEMM), needs=GEMM_LADDER),
    "gemm_wmma": Step(gemm("wmma"), needs=GEMM_LADDER),
    "gemm_mma": Step(gemm("mma"), needs=GEMM_LADDER),
    "attention_cudnn": Step(attention, {"WARPTAPE_ATTENTION": "cudnn"}),
    "attention_plain": Step(attention, {"WARPTAPE_ATTENTION": "plain"}),
    "attention_mma": Step(attention, {"WARPTAPE_ATTENTION": "mma"}),
    "decoding": Step(decoding),
    "paged": Step(paged),
    "grouped_mma": Step(grouped, {"WARPTAPE_GROUPED_MM": "mma"}),
    "quantized": Step(quantized),
    "gemm_wgmma": Step(gemm("wgmma"), capability=HOPPER, needs=GEMM_LADDER),
    "grouped_wgmma": Step(grouped, {"WARPTAPE_GROUPED_MM": "wgmma"}, HOPPER),
    "gemm_multicast": Step(gemm("multicast"), capability=HOPPER, needs=GEMM_LADDER),
    "attention_own": Step(attention, {"WARPTAPE_ATTENTION": "own"}, HOPPER),
    "masks_mma": Step(attention_masks, {"WARPTAPE_ATTENTION": "mma"}),
    "masks_own": Step(attention_masks, {"WARPTAPE_ATTENTION": "own"}, HOPPER),
    "varlen_mma": Step(attention_varlen, {"WARPTAPE_ATTENTION": "mma"}),
    "varlen_own": Step(attention_varlen, {"WARPTAPE_ATTENTION": "own"}, HOPPER),
}
