"""Random programs of views, in-place writes and reads, which run in any runtime with PyTorch's names."""

from __future__ import annotations

import math
import random
from typing import Any

Step = tuple[Any, ...]
SHAPES = ((4,), (2, 3), (1, 3), (3, 1), (2, 2, 2), (1,), (3, 3))


def view(t: Any, name: str, *args: Any) -> Any:
    """A view of `t` by name; `pick` is one of several."""
    if name == "pick":
        return getattr(t, args[0])(*args[1:-1])[args[-1]]
    return t[args[0]] if name == "index" else getattr(t, name)(*args)


def run(
    rt: Any, steps: list[Step], values: list[float], shape: tuple[int, ...], grad: bool
) -> tuple[Any, Any]:
    """(loss, leaf) of the program, in float64."""
    leaf = rt.tensor(values, dtype=rt.float64).reshape(shape).requires_grad_(grad)
    tensors, loss = [leaf * 1, leaf.sin()], leaf.sum() * 0
    for kind, which, name, *args in steps:
        t = tensors[which]
        if kind == "view":
            tensors.append(view(t, name, *args))
        elif kind == "write" and name == "set":
            t[args[0]] = args[1]
        elif kind == "write":
            getattr(t, name)(*(tensors[a[0]] if isinstance(a, tuple) else a for a in args))
        else:
            weight = rt.arange(1, t.numel() + 1, dtype=rt.float64).reshape(tuple(t.shape))
            loss = loss + ((t * t if name == "square" else t) * weight).sum()
    return loss, leaf


def overlaps(t: Any) -> bool:
    """Whether elements share memory."""
    places = [0]
    for size, stride in zip(t.shape, t.stride(), strict=True):
        places = [place + i * stride for place in places for i in range(size)]
    return len(set(places)) < len(places)


def views_of(draw: random.Random, t: Any) -> list[tuple[Any, ...]]:
    """Calls that make views of `t`."""
    shape, ndim, numel = tuple(t.shape), t.dim(), t.numel()
    found: list[tuple[Any, ...]] = [
        ("expand", draw.randint(1, 3), *(n if n != 1 else draw.randint(1, 3) for n in shape)),
        ("unsqueeze", draw.randint(0, ndim)),
        ("reshape", *((numel,) if draw.random() < 0.5 or numel % 2 else (2, numel // 2))),
        ("squeeze",),
    ]
    if ndim:
        dim = draw.randrange(ndim)
        size = draw.randint(1, shape[dim])
        found += [
            ("select", dim, draw.randrange(shape[dim])),
            ("transpose", dim, draw.randrange(ndim)),
            ("narrow", dim, draw.randint(0, shape[dim] - size), size),
            ("unfold", dim, size, draw.randint(1, 2)),
            ("index", (Ellipsis, slice(None, None, 2))),
            ("pick", "split", size, dim, 0),
            ("pick", "unbind", dim, -1),
        ]
        if t.storage_offset() == 0 and numel > 3 and t.is_contiguous():
            found.append(("as_strided", (2, 2), (1, draw.randint(0, 1)), draw.randint(0, 1)))
    if ndim > 1:
        found.append(("diagonal", draw.randint(-1, 1), 0, ndim - 1))
    return found


def program(rt: Any, seed: int, length: int = 8) -> tuple[list[Step], list[float], tuple[int, ...]]:
    """(steps, values of the leaf, its shape), by what the tensors look like in `rt`."""
    draw = random.Random(seed)
    shape = draw.choice(SHAPES)
    values = [round(0.3 + 0.37 * i % 1.1, 3) for i in range(math.prod(shape))]
    leaf = rt.tensor(values, dtype=rt.float64).reshape(shape)
    tensors, steps = [leaf * 1, leaf.sin()], []
    for _ in range(length):
        which = draw.randrange(len(tensors))
        t = tensors[which]
        kind = draw.choice(("view", "view", "write", "read"))
        if kind == "view":
            call = draw.choice(views_of(draw, t))
            if not t.numel() or not (made := view(t, *call)).numel():
                continue
            tensors.append(made)
            steps.append(("view", which, *call))
        elif kind == "read":
            steps.append(("read", which, draw.choice(("sum", "square"))))
        elif not overlaps(t):
            other = [
                i
                for i, o in enumerate(tensors)
                if o.shape == t.shape and o.untyped_storage().data_ptr() != t.untyped_storage().data_ptr()
            ]
            choices: list[tuple[Any, ...]] = [("mul_", 1.5), ("sin_",), ("zero_",), ("add_", 0.25)]
            choices += [("mul_", (i,)) for i in other] + [("copy_", (i,)) for i in other]
            choices += [("set", 0, 0.5)] * (t.dim() > 0)
            steps.append(("write", which, *draw.choice(choices)))
    steps += [("read", draw.randrange(len(tensors)), "square") for _ in range(2)]
    return steps, values, shape
