"""One direction of a recurrent layer. Legend: N rows of a packed batch, B sequences, I input, H hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..table import E, Op, Rng, S, Sample

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
TOL = {"float32": (1e-5, 1e-5), "float16": (5e-3, 5e-3), "bfloat16": (4e-2, 4e-2)}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def cell(mode: str, x: Any, p: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """h and c after a step; x and p are the projections of the input and of h."""
    if mode == "GRU":
        (xr, xz, xn), (pr, pz, pn) = np.split(x, 3), np.split(p, 3)
        z, n = sigmoid(xz + pz), np.tanh(xn + sigmoid(xr + pr) * pn)
        return (1 - z) * n + z * h, None
    if mode == "LSTM":
        i, f, g, o = np.split(x + p, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    return (np.tanh if mode == "RNN_TANH" else lambda z: np.maximum(z, 0))(x + p), None


def reference(mode: str) -> Callable[..., list[np.ndarray]]:
    """Every sequence for itself, by the definition of the cell."""

    def ref(
        x: Any,
        sizes: Any,
        hx: Any,
        cx: Any,
        w_ih: Any,
        w_hh: Any,
        b_ih: Any,
        b_hh: Any,
        w_hr: Any,
        reverse: bool,
    ) -> list[np.ndarray]:
        starts = np.concatenate([[0], np.cumsum(sizes)])
        out, h, c = np.zeros((len(x), hx.shape[1])), hx.copy(), None if cx is None else cx.copy()
        for b in range(len(hx)):
            steps = [t for t in range(len(sizes)) if sizes[t] > b]
            for t in reversed(steps) if reverse else steps:
                row = starts[t] + b
                projected = w_ih @ x[row] + (0 if b_ih is None else b_ih)
                recurrent = w_hh @ h[b] + (0 if b_hh is None else b_hh)
                new, state = cell(mode, projected, recurrent, h[b], None if c is None else c[b])
                h[b] = out[row] = new if w_hr is None else w_hr @ new
                if c is not None:
                    c[b] = state
        return [out, h] if c is None else [out, h, c]

    return ref


def call(mode: str) -> Callable[..., Any]:
    """PyTorch has the two directions together only: the one that is meant is taken from them."""

    def run(rt: Any, x: Any, sizes: Any, hx: Any, cx: Any, *weights: Any) -> Any:
        *weights, reverse = weights
        if hasattr(rt._C, "_private"):
            return rt._C._private.recurrent_layer(x, sizes, hx, cx, *weights, mode, reverse)
        hidden = [rt.stack([h, h]) for h in (hx, cx) if h is not None]
        function = getattr(rt, mode.lower())
        given = [w for w in weights if w is not None]
        hidden = hidden if mode == "LSTM" else hidden[0]
        biased = weights[2] is not None
        out, *states = function(x, rt.tensor(sizes), hidden, given * 2, biased, 1, 0.0, False, True)
        return [out.chunk(2, 1)[reverse], *(s[int(reverse)] for s in states)]

    return run


def layer(
    r: Rng, mode: str, sizes: list[int], features: int, hidden: int, bias: bool = True, **options: Any
) -> Sample:
    """`kinks`: a relu gets negative values, too; else it has a derivative everywhere."""
    gates, recurs = GATES[mode] * hidden, options.get("proj", hidden)
    relu, kinks = mode == "RNN_RELU", options.get("kinks", False)

    def draw(*shape: int) -> np.ndarray:
        return (r if kinks or not relu else r.positive)(*shape) / (hidden if relu else 1)

    state = [draw(sizes[0], recurs), draw(sizes[0], hidden) if mode == "LSTM" else None]
    weights = [draw(gates, features), draw(gates, recurs)]
    weights += [draw(gates), draw(gates)] if bias else [None, None]
    projection = draw(recurs, hidden) if "proj" in options else None
    reverse = options.get("reverse", False)
    return S(draw(sum(sizes), features), sizes, *state, *weights, projection, reverse, grad=not kinks)


def samples(mode: str) -> Callable[[Rng], list[Sample]]:
    def make(r: Rng) -> list[Sample]:
        cases = [
            layer(r, mode, [2, 2, 2], 3, 2),
            layer(r, mode, [2, 2], 2, 3, reverse=True),
            layer(r, mode, [3, 2, 1], 2, 2, bias=False),
            layer(r, mode, [3, 3, 1], 2, 2, reverse=True),
            layer(r, mode, [2], 1, 1),
            layer(r, mode, [0, 0], 2, 3),
            layer(r, mode, [1, 1, 1], 2, 19),
        ]
        if mode == "LSTM":
            cases.append(layer(r, mode, [2, 1], 2, 3, proj=2))
        if mode == "RNN_RELU":
            cases.append(layer(r, mode, [3, 2, 2], 2, 17, kinks=True))
        return cases

    return make


def errors(mode: str) -> tuple[Any, ...]:
    g, lstm = GATES[mode] * 2, mode == "LSTM"

    def one(kind: str, **wrong: Any) -> Any:
        given = {"x": np.ones((4, 3)), "sizes": [2, 2], "hx": np.ones((2, 2))}
        given |= {"cx": np.ones((2, 2)) if lstm else None, "w_ih": np.ones((g, 3)), "w_hh": np.ones((g, 2))}
        given |= {"b_ih": np.ones(g), "b_hh": np.ones(g), "w_hr": None, "reverse": False}
        return E(kind, *(given | wrong).values(), match="recurrent_layer", stricter=True)

    found = [
        one("ShapeError", sizes=[2, 3]),
        one("ShapeError", sizes=[1, 2]),
        one("ShapeError", sizes=[]),
        one("ShapeError", x=np.ones((4, 2))),
        one("ShapeError", x=np.ones(4)),
        one("ShapeError", hx=np.ones((3, 2))),
        one("ShapeError", w_hh=np.ones((g + 1, 2)) if g > 2 else np.ones((0, 2))),
        one("ShapeError", b_ih=np.ones(g + 1)),
        one("DtypeError", x=np.ones((4, 3), np.int64)),
        one("RuntimeError", cx=None if lstm else np.ones((2, 2))),
    ]
    return tuple(found)


ROWS = [
    Op(
        f"nn.{mode.partition('_')[0]}",
        samples(mode),
        reference(mode),
        call=call(mode),
        label=f"recurrent layer {mode}",
        tol=TOL,
        errors=errors(mode),
    )
    for mode in GATES
]
