"""Rules of ops that change shapes, choose or join."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .rules import Call, Labels, Rule, rule


def _moving(inputs: list[Labels], outputs: list[Labels], **more: Any) -> Rule:
    return Rule(inputs, outputs, linear=[set(range(len(inputs)))], moves=True, **more)


def _unsplit_dims(call: Call, *dims: int) -> Labels:
    """Labels of the first tensor's dims, but for some that must not be split."""
    n = len(call.shapes[0])
    return tuple(None if i in {d % n for d in dims} else i for i in range(n))


@rule("view_as alias alias_copy")
def same(call: Call) -> Rule | None:
    """As it is."""
    if len(call.shapes) > 1 and call.shapes[0] != call.shapes[1]:
        return None
    labels = tuple(range(len(call.shapes[0])))
    return _moving([labels] * len(call.shapes), [labels])


@rule("transpose swapaxes swapdims t")
def transpose(call: Call) -> Rule:
    """Two dims change places."""
    labels = list(range(len(call.shapes[0])))
    if call.name != "t":
        a, b = call.arg(1, "dim0", call.kwargs.get("axis0")), call.arg(2, "dim1", call.kwargs.get("axis1"))
        labels[a], labels[b] = labels[b], labels[a]
    else:
        labels.reverse()
    return _moving([tuple(range(len(labels)))], [tuple(labels)])


def _ints(call: Call, position: int, name: str) -> list[int]:
    """Sizes or dims that are given one by one, or as one sequence."""
    value = call.arg(position, name)
    if isinstance(value, int) and name not in call.kwargs:
        return [int(v) for v in call.args[position:]]
    return [int(v) for v in value]


@rule("permute")
def permute(call: Call) -> Rule:
    """Dims in another order."""
    n = len(call.shapes[0])
    return _moving([tuple(range(n))], [tuple(d % n for d in _ints(call, 1, "dims"))])


@rule("movedim moveaxis")
def movedim(call: Call) -> Rule:
    """Some dims go to other places."""
    n = len(call.shapes[0])

    def listed(position: int, name: str) -> list[int]:
        value = call.arg(position, name)
        return [d % n for d in ([value] if isinstance(value, int) else value)]

    source, target = listed(1, "source"), listed(2, "destination")
    rest = iter(d for d in range(n) if d not in source)
    order = tuple(source[target.index(d)] if d in target else next(rest) for d in range(n))
    return _moving([tuple(range(n))], [order])


@rule("unsqueeze")
def unsqueeze(call: Call) -> Rule:
    """A dim of size 1."""
    n = len(call.shapes[0])
    labels: list[Any] = list(range(n))
    labels.insert(call.arg(1, "dim") % (n + 1), None)
    return _moving([tuple(range(n))], [tuple(labels)])


@rule("squeeze")
def squeeze(call: Call) -> Rule:
    """Dims of size 1 go; all of them, none of which are split, where no dim is given."""
    shape = call.shapes[0]
    gone = {d for d in call.dims(1, "dim") if shape[d] == 1}
    labels = tuple(None if i in gone else i for i in range(len(shape)))
    out = tuple(i for i in range(len(shape)) if i not in gone)
    dims = sorted(gone)  # and not those that have size 1 on this rank alone
    return _moving([labels], [out], run=lambda x, *_, **__: x.squeeze(dims) if dims else x.view_as(x))


@rule("expand expand_as broadcast_to")
def expand(call: Call) -> Rule:
    """Dims of size 1 are stretched."""
    if call.name == "expand_as":
        sizes = list(call.shapes[1])
    else:
        sizes = _ints(call, 1, "size")
    shape = call.shapes[0]
    ahead = len(sizes) - len(shape)
    out: list[Any] = [None] * ahead + list(range(len(shape)))
    names: list[Any] = list(range(len(shape)))
    for i, n in enumerate(shape):
        if sizes[ahead + i] == -1:
            sizes[ahead + i] = n
        if n == 1 and sizes[ahead + i] != 1:
            out[ahead + i] = names[i] = None
    expanded = tuple(sizes)
    return Rule(
        [tuple(names)] + [(None,) * len(s) for s in call.shapes[1:]],
        [tuple(out)],
        linear=[{0}],
        moves=True,
        shapes=[expanded],
        localize=lambda args, kwargs, shapes: ((args[0], shapes[0]), {}),
        run=lambda x, size: x.expand(size),
    )


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dims of two shapes of as many elements that make up each other, dims of size 1 left out."""
    a = [i for i, n in enumerate(before) if n != 1]
    b = [i for i, n in enumerate(after) if n != 1]
    out, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        left, right = [a[i]], [b[j]]
        m, n = before[a[i]], after[b[j]]
        i, j = i + 1, j + 1
        while m != n:
            if m < n:
                m *= before[a[i]]
                left.append(a[i])
                i += 1
            else:
                n *= after[b[j]]
                right.append(b[j])
                j += 1
        out.append((left, right))
    return out


def reshaped(call: Call, after: Sequence[int]) -> Rule:
    """Of dims that are joined or cut only the first may be split, and only into parts that fit."""
    before = call.shapes[0]
    names: list[Any] = [None] * len(before)
    out: list[Any] = [None] * len(after)
    mesh = next(x.mesh for x in call.layouts if x is not None)
    for i, n in enumerate(before):
        if n == 1 and i < len(after) and after[i] == 1 and list(before[:i]) == list(after[:i]):
            names[i] = out[i] = i  # a dim of size 1 may be split, too
    if math.prod(before):
        for left, right in _groups(before, after):
            plain = len(left) == len(right) == 1
            shards = max(call.splits(0, left[0]), 1)
            every = mesh.size()
            fits = before[left[0]] % shards == 0 and after[right[0]] % shards == 0
            fits_all = before[left[0]] % every == 0 and after[right[0]] % every == 0
            if plain or (fits if shards > 1 else fits_all):
                names[left[0]] = out[right[0]] = left[0]
    elif list(before) == list(after):
        names = out = list(range(len(before)))
    return _moving(
        [tuple(names)],
        [tuple(out)],
        shapes=[tuple(after)],
        localize=lambda args, kwargs, shapes: ((args[0], shapes[0]), {}),
        run=lambda x, size: x.reshape(size),
    )


def _filled(sizes: Sequence[int], total: int) -> list[int]:
    """Sizes with the -1 worked out."""
    known = math.prod(n for n in sizes if n != -1)
    return [total // max(known, 1) if n == -1 else n for n in sizes]


@rule("view reshape")
def view(call: Call) -> Rule | None:
    """To sizes; None for another dtype."""
    if not isinstance(call.arg(1, "size", call.kwargs.get("shape")), int | list | tuple):
        return None
    name = "shape" if "shape" in call.kwargs else "size"
    return reshaped(call, _filled(_ints(call, 1, name), math.prod(call.shapes[0])))


@rule("flatten ravel")
def flatten(call: Call) -> Rule:
    """Some dims become one."""
    shape = call.shapes[0]
    n = len(shape)
    if n == 0:
        return reshaped(call, (1,))
    first = call.arg(1, "start_dim", 0) % n if call.name == "flatten" else 0
    last = call.arg(2, "end_dim", -1) % n if call.name == "flatten" else n - 1
    return reshaped(call, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


@rule("unflatten")
def unflatten(call: Call) -> Rule:
    """One dim becomes some."""
    shape, dim = call.shapes[0], call.arg(1, "dim") % len(call.shapes[0])
    sizes = _filled(call.arg(2, "sizes"), shape[dim])
    return reshaped(call, (*shape[:dim], *sizes, *shape[dim + 1 :]))


@rule("index_select", indexed=True)
@rule("narrow", "select", "unbind")
@rule("split", "chunk", "tensor_split", "split_with_sizes")
def along_dim(call: Call) -> Rule:
    """Works along a dim, which must not be split."""
    late = "split" in call.name or "chunk" in call.name  # sizes or a count come first
    dim = call.arg(2 if late else 1, "dim", 0) % len(call.shapes[0])
    labels = _unsplit_dims(call, dim)
    gone = call.name in ("select", "unbind")
    out = tuple(x for i, x in enumerate(labels) if not (gone and i == dim))
    more = [(None,) * len(s) for s in call.shapes[1:]]
    return Rule([labels, *more], [out], linear=[{0}], moves=True)


@rule("triu", "tril")
def triangle(call: Call) -> Rule:
    """The last two dims must not be split."""
    labels = _unsplit_dims(call, -1, -2)
    return _moving([labels], [labels])


@rule("view_as_complex", "view_as_real")
def complex_pairs(call: Call) -> Rule:
    """Pairs of the last dim, which must not be split, to complex numbers, and back."""
    if call.name == "view_as_real":
        labels: Labels = tuple(range(len(call.shapes[0])))
        return _moving([labels], [(*labels, None)])
    labels = _unsplit_dims(call, -1)
    return _moving([labels], [labels[:-1]])


@rule("diagonal")
def diagonal(call: Call) -> Rule:
    """Two dims, which must not be split, become the last one."""
    n = len(call.shapes[0])
    gone = {call.arg(2, "dim1", 0) % n, call.arg(3, "dim2", 1) % n}
    labels = _unsplit_dims(call, *gone)
    return _moving([labels], [(*(x for i, x in enumerate(labels) if i not in gone), None)])


@rule("repeat", "tile")
def repeat(call: Call) -> Rule:
    """Dims that are repeated must not be split."""
    n = len(call.shapes[0])
    times = _ints(call, 1, "repeats" if call.name == "repeat" else "dims")
    times = [1] * (n - len(times)) + times
    kept: Labels = tuple(i if times[len(times) - n + i] == 1 else None for i in range(n))
    return _moving([kept], [(*(None,) * (len(times) - n), *kept)])


@rule("flip", "roll")
def turned(call: Call) -> Rule | None:
    """Dims that are turned must not be split."""
    if call.name == "roll" and call.arg(2, "dims") in (None, (), []):
        return None
    labels = _unsplit_dims(call, *(_ints(call, 1, "dims") if call.name == "flip" else call.dims(2, "dims")))
    return _moving([labels], [labels])


@rule("cat concat concatenate")
def cat(call: Call) -> Rule:
    """Joined along a dim, which must not be split."""
    ndim = max(len(s) for s in call.shapes)
    dim = call.arg(1, "dim", call.kwargs.get("axis", 0)) % ndim
    labels = tuple(None if i == dim else i for i in range(ndim))
    return _moving([labels if len(s) == ndim else (None,) for s in call.shapes], [labels])


@rule("stack")
def stack(call: Call) -> Rule:
    """Joined along a new dim."""
    labels: list[Any] = list(range(len(call.shapes[0])))
    out = labels.copy()
    out.insert(call.arg(1, "dim", 0) % (len(labels) + 1), None)
    return _moving([tuple(labels)] * len(call.shapes), [tuple(out)])


@rule("gather", "take_along_dim", "scatter", "scatter_add", "scatter_reduce", indexed=True)
@rule("index_add", "index_copy", "index_fill", indexed=True)
def gather(call: Call) -> Rule | None:
    """By indices along a dim, which must not be split; others of one length everywhere go together."""
    n = len(call.shapes[0])
    at = 2 if call.name == "take_along_dim" else 1
    dim = call.arg(at, "dim")
    if dim is None:
        return None
    if call.name.startswith("index"):
        labels = _unsplit_dims(call, dim)
        own = [labels if len(s) == n else (None,) * len(s) for s in call.shapes[1:]]
        return Rule([labels, *own], [labels])
    alike = tuple(len({s[i] for s in call.shapes if len(s) == n}) == 1 for i in range(n))
    names = tuple(i if i != dim % n and alike[i] else None for i in range(n))
    return Rule([names if len(s) == n else (None,) * len(s) for s in call.shapes], [names])


@rule("unfold")
def unfold(call: Call) -> Rule:
    """Windows along a dim, which must not be split; of images (nn.functional.unfold) by the batch alone."""
    if isinstance(call.arg(1, "dimension"), int) and len(call.args) + len(call.kwargs) == 4:
        labels = _unsplit_dims(call, call.arg(1, "dimension"))
        return Rule([labels], [(*labels, None)], linear=[{0}], moves=True)
    n = len(call.shapes[0])
    batch = 0 if n == 4 else None
    return Rule([(batch, *(None,) * (n - 1))], [(batch, None, None)[4 - n :]], linear=[{0}])


@rule("__getitem__", indexed=True)
def getitem(call: Call) -> Rule | None:
    """By slices, numbers, None and one tensor of indices; dims that are left whole may be split."""
    items = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    shape = call.shapes[0]
    if any(i is True or i is False for i in items):
        return None
    taken = sum(1 for i in items if i is not None and i is not Ellipsis)
    full: list[Any] = []
    for item in items:
        if item is Ellipsis:
            full += [slice(None)] * (len(shape) - taken)
        else:
            full.append(item)
    if not any(i is Ellipsis for i in items):
        full += [slice(None)] * (len(shape) - taken)
    names: list[Any] = []
    out: list[Any] = []
    tensors = 0
    for item in full:
        dim = len(names)
        if item is None:
            out.append(None)
        elif isinstance(item, int):
            names.append(None)
        elif isinstance(item, slice):
            all_of_dim = item.indices(shape[dim]) == (0, shape[dim], 1)
            names.append(dim if all_of_dim else None)
            out.append(names[-1])
        else:
            tensors += 1
            if tensors > 1 or len(call.shapes) != 2 or getattr(item, "dtype", None) is None:
                return None
            if not item.dtype.is_floating_point and "bool" in str(item.dtype):
                return None
            names.append(None)
            out += [("index", i) for i in range(len(call.shapes[1]))]
    index = [tuple(("index", i) for i in range(len(s))) for s in call.shapes[1:]]
    return Rule([tuple(names), *index], [tuple(out)], linear=[{0}], moves=True)
