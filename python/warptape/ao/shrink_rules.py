"""What each op does to labels of channels (Note [Labels], shrink_labels.py), and to what is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from warptape import core as wt
from warptape.core.op_facts import OpTable
from warptape.nn import functional

from .shrink_labels import Heads, Sink, Value

Rule = Callable[["Arguments"], "list[Value] | None"]
RULES: OpTable[Rule] = OpTable()


class Arguments:
    """The arguments of a call, by name, and the sizes of its results.

    Args:
        walk: of the graph.
        op: its name.
        named: values by name.
        out_sizes: of each result.
    """

    def __init__(self, walk: Any, op: str, named: dict[str, Any], out_sizes: list[Any]) -> None:
        self.walk, self.op, self.named, self.out_sizes = walk, op, named, out_sizes
        self.labels, self.result = walk.labels, walk.result

    def __getitem__(self, name: str) -> Any:
        return self.named.get(name)

    def first(self) -> Any:
        """The first argument."""
        return next(iter(self.named.values()))

    def tensors(self) -> list[Any]:
        """All tensors among the arguments."""
        out: list[Any] = []
        for x in self.named.values():
            out += [y for y in (x if isinstance(x, list) else [x]) if hasattr(y, "dims")]
        return out

    def made(self, dims: list[Any], known: Any = None, dim: int = 1, which: int = 0) -> Any:
        """A result.

        Args:
            dims: labels of each dim.
            known: what is known of its values.
            dim: along which.
            which: number of the result.
        """
        sizes = self.out_sizes[which]
        return Value(sizes, dims, known, dim % len(sizes) if sizes else 0)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enters a function for ops of these names, or of these facts (core/op_facts.py).

    Args:
        *names: of ops, or facts.
    """

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def _array(value: Any) -> np.ndarray:
    return value.tensor.detach().to("cpu", wt.float64).numpy()


@rule("role=pointwise", "where", "prelu")
def _pointwise(a: Arguments) -> Any:
    """Operands are broadcast: dims of one size are united, a dim of 1 beside another keeps its size."""
    out, tensors = a.out_sizes[0], a.tensors()
    if a.op == "prelu":  # its weight lies along dim 1
        weight = a["weight"]
        if weight.sizes[0] > 1 and len(out) > 1:
            a.labels.unite(a.first().dims[1], weight.dims[0])
        tensors = tensors[:1]
    dims: list[Any] = [None] * len(out)
    for d in range(len(out)):
        each = [t.dims[d - len(out)] for t in tensors if len(out) - d <= len(t.sizes)]
        sizes = [t.sizes[d - len(out)] for t in tensors if len(out) - d <= len(t.sizes)]
        full = [x for x, n in zip(each, sizes) if n == out[d]]
        for x, n in zip(each, sizes):
            if n != out[d]:
                a.labels.fix(x)
        for x in full[1:]:
            a.labels.unite(full[0], x)
        dims[d] = full[0] if full else None
    known, dim = _known_pointwise(a, tensors)
    return [a.made(dims, known, dim, i) for i in range(len(a.out_sizes))]


@rule("aliasing=dropout", "aliasing=layout", "copies", "to")
def _same(a: Arguments) -> Any:
    """In evaluation, the operand."""
    x = a.first()
    return [a.made(list(x.dims), x.known, x.dim)]


def _known_pointwise(a: Arguments, tensors: list[Any]) -> tuple[Any, int]:
    """What a pointwise op makes of what is known of its operands, which is found by calling it."""
    from_end = {t.dim - len(t.sizes) for t in tensors if t.known is not None}
    if len(from_end) != 1:
        return None, 1
    dim = from_end.pop()
    n = a.out_sizes[0][dim]
    zero, unknown = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    vectors: dict[int, Any] = {}
    for t in tensors:
        known = t.known if t.known is not None and t.dim - len(t.sizes) == dim else np.full(1, math.nan)
        if t.known is not None and len(known) != n:
            return None, 1
        vectors[id(t)] = wt.from_numpy(known.copy())
        zero |= known == 0
        unknown |= np.isnan(known)
    op = a.op.rstrip("_")
    if op in ("mul", "multiply"):
        unknown &= ~zero
    function = getattr(wt, op, None) or getattr(functional, op, None)
    if function is None or op in ("where", "prelu"):
        return None, 1
    (_, first), *rest = [(k, vectors.get(id(x), x)) for k, x in a.named.items() if k != "inplace"]
    try:
        result = function(first, **dict(rest)).double().nan_to_num(0.0).numpy()
    except (TypeError, RuntimeError, ValueError, NotImplementedError):
        return None, 1
    result = np.where(unknown, math.nan, result)
    return np.broadcast_to(result, (n,)).copy(), dim + len(a.out_sizes[0])


def _reached(weight: Any, known: np.ndarray, dim: int) -> np.ndarray:
    """[outputs]: whether an output of a weight [O, I, ..] depends on an input that is not known to be 0."""
    w = np.abs(_array(weight)).reshape(*weight.sizes[:2], -1).sum(-1)
    w = w if dim == 1 else w.T
    return (w * (known != 0)[None, :] != 0).any(1)


def _bias_where(a: Arguments, reached: np.ndarray) -> np.ndarray:
    bias = np.zeros(len(reached))
    if a["bias"] is not None:
        if a["bias"].tensor is None:
            return np.full(len(reached), math.nan)
        bias = _array(a["bias"])
    return np.where(reached, math.nan, bias)


def _sink(a: Arguments, x: Any, along: int, inputs: int, exact: bool) -> None:
    """The channels of x along a dim meet the dim `inputs` of the weight."""
    weight, bias, labels = a["weight"], a["bias"], x.dims[along]
    if labels is None:
        return
    known = x.known_along(along)
    silent = np.abs(_array(weight)).sum(tuple(d for d in range(len(weight.sizes)) if d != inputs)) == 0
    can_shift = exact and bias is not None and bias.name and weight.name
    shifts = None
    if can_shift:
        w = _array(weight).reshape(*weight.sizes[:2], -1).sum(-1)  # [O, I]
        shifts = np.where(np.isnan(known), 0.0, known)[:, None] * w.T
        shifts[np.isnan(known)] = math.nan
    a.result.sinks.append(
        Sink(labels, silent | (known == 0), shifts, weight.name, bias.name if bias is not None else None)
    )


@rule("linear")
def _linear(a: Arguments) -> Any:
    x, weight, bias = a.first(), a["weight"], a["bias"]
    if weight.tensor is None or len(weight.sizes) != 2 or not weight.name:
        return None
    a.labels.unite(x.dims[-1], weight.dims[1])
    if bias is not None:
        a.labels.unite(weight.dims[0], bias.dims[0])
    _sink(a, x, -1, 1, exact=True)
    a.result.outs.append((weight.name, 0))
    known = _bias_where(a, _reached(weight, x.known_along(-1), 1))
    return [a.made([*x.dims[:-1], weight.dims[0]], known, -1)]


@rule("role=convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv(a: Arguments) -> Any:
    x, weight, bias, groups = a.first(), a["weight"], a["bias"], a["groups"] or 1
    spatial = int(a.op[-2])
    turned = "transpose" in a.op
    if weight.tensor is None or not weight.name or len(x.sizes) != spatial + 2:
        return None
    a.labels.fix(*weight.dims[2:])
    outs = weight.dims[1 if turned else 0]
    padding = a["padding"]
    exact = not turned and padding in (0, [0], [0] * spatial, "valid", None)
    if groups == 1:
        a.labels.unite(x.dims[1], weight.dims[0 if turned else 1])
        _sink(a, x, 1, 0 if turned else 1, exact)
        reached = _reached(weight, x.known_along(1), 0 if turned else 1)
    else:
        if turned:  # [I, O / groups, ..]: groups stay
            return None
        a.labels.fix(weight.dims[1])
        outs, reached = _grouped(a, x, weight, groups)
    if bias is not None:
        a.labels.unite(outs, bias.dims[0])
    a.result.outs.append((weight.name, 1 if turned else 0))
    known = _bias_where(a, reached)
    return [a.made([x.dims[0], outs] + [None] * spatial, known, 1)]


def _grouped(a: Arguments, x: Any, weight: Any, groups: int) -> tuple[Any, np.ndarray]:
    """Inputs and outputs of a group go together. Returns the outputs' labels, and which vary."""
    outs, each = weight.dims[0], weight.sizes[1]
    if x.dims[1] is None:
        a.labels.fix(outs)
    else:
        a.labels.unite(a.labels.join(x.dims[1].reshape(groups, -1)), a.labels.join(outs.reshape(groups, -1)))
    known = x.known_along(1).reshape(groups, each)  # [groups, I / groups]
    w = np.abs(_array(weight)).reshape(groups, -1, each, math.prod(weight.sizes[2:])).sum(-1)
    return outs, (w * (known != 0)[:, None, :] != 0).any(-1).reshape(-1)


@rule("batch_norm")
def _batch_norm(a: Arguments) -> Any:
    x = a.first()
    if a["training"] or a["running_mean"] is None or len(x.sizes) < 2:
        return None
    parts = [a[n] for n in ("running_mean", "running_var", "weight", "bias")]
    for p in parts:
        if p is not None:
            a.labels.unite(x.dims[1], p.dims[0])
    mean, var, w, b = (None if p is None else _array(p) for p in parts)
    known = (x.known_along(1) - mean) / np.sqrt(var + a["eps"])
    if w is not None:
        known = np.where(w == 0, 0.0, known * w)
    return [a.made(list(x.dims), known + (0 if b is None else b), 1)]


@rule("layer_norm", "rms_norm", "softmax", "log_softmax", "_softmax")
def _normalised(a: Arguments) -> Any:
    """Dims over which there are sums keep their sizes."""
    x = a.first()
    count = len(a["normalized_shape"] or [0])
    if "norm" in a.op:
        a.labels.fix(*x.dims[-count:])
        for p in (a["weight"], a["bias"]):
            if p is not None:
                a.labels.fix(*p.dims)
    else:
        if a["dim"] is None:
            return None
        a.labels.fix(x.dims[a["dim"]])
    return [a.made(list(x.dims))]


@rule("group_norm")
def _group_norm(a: Arguments) -> Any:
    x = a.first()
    if x.dims[1] is not None:
        a.labels.join(x.dims[1].reshape(a["num_groups"], -1))
    for p in (a["weight"], a["bias"]):
        if p is not None:
            a.labels.unite(x.dims[1], p.dims[0])
    return [a.made(list(x.dims))]


@rule("instance_norm")
def _instance_norm(a: Arguments) -> Any:
    x = a.first()
    for name in ("weight", "bias", "running_mean", "running_var"):
        if a[name] is not None:
            a.labels.unite(x.dims[1], a[name].dims[0])
    return [a.made(list(x.dims))]


@rule("embedding")
def _embedding(a: Arguments) -> Any:
    weight = a["weight"]
    if not weight.name:
        return None
    a.labels.fix(weight.dims[0])
    a.result.outs.append((weight.name, 1))
    known = None
    if weight.tensor is not None:
        known = np.where(np.abs(_array(weight)).sum(0) == 0, 0.0, math.nan)
    return [a.made([None] * (len(a.out_sizes[0]) - 1) + [weight.dims[1]], known, -1)]


@rule(
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "interpolate",
    "upsample_nearest2d", "upsample_bilinear2d", "upsample", "pad", "zero_pad2d", "lp_pool2d",
)  # fmt: skip
def _pool(a: Arguments) -> Any:
    """Channels stay by themselves. Of what is known zeros are, elsewhere padding may come in."""
    x, out = a.first(), a.out_sizes[0]
    if len(x.sizes) != len(out) or len(out) < 3 or x.sizes[:2] != tuple(out[:2]):
        return None
    if a.op == "pad" and a["value"] not in (None, 0, 0.0):
        return None
    safe = "max" in a.op or "adaptive" in a.op
    known = x.known_along(1)
    known = known if safe else np.where(known == 0, 0.0, math.nan)
    dims = x.dims[:2] + [None] * (len(out) - 2)
    a.labels.fix(*x.dims[2:])
    return [a.made(dims, known, 1, i) for i in range(len(a.out_sizes))]


@rule("mean", "sum", "amax", "amin", "norm")
def _reduce(a: Arguments) -> Any:
    x, dim = a.first(), a["dim"]
    if dim is None:
        return None
    gone = {d % len(x.sizes) for d in (dim if isinstance(dim, list) else [dim])}
    a.labels.fix(*(x.dims[d] for d in gone))
    keep = bool(a["keepdim"])
    left = [d for d in range(len(x.sizes)) if keep or d not in gone]
    known, along = None, 0
    if a.op in ("mean", "amax", "amin") and x.known is not None and x.dim not in gone:
        known, along = x.known, left.index(x.dim)
    return [a.made([None if d in gone else x.dims[d] for d in left], known, along)]


def _arranged(a: Arguments, order: list[int]) -> Any:
    """Result dim d is the operand's dim order[d], -1 for none."""
    x = a.first()
    dims = [None if d < 0 else x.dims[d] for d in order]
    if x.known is not None and x.dim in order:
        return [a.made(dims, x.known, order.index(x.dim))]
    return [a.made(dims)]


@rule("transpose", "t", "mT")
def _transpose(a: Arguments) -> Any:
    order = list(range(len(a.first().sizes)))
    i, j = (a["dim0"], a["dim1"]) if a["dim0"] is not None else (-2, -1)
    if len(order) > 1:
        order[i], order[j] = order[j], order[i]
    return _arranged(a, order)


@rule("permute")
def _permute(a: Arguments) -> Any:
    return _arranged(a, [d % len(a.first().sizes) for d in a["dims"]])


@rule("unsqueeze", "squeeze")
def _squeeze(a: Arguments) -> Any:
    n, wanted = len(a.first().sizes), a["dim"]
    order = list(range(n))
    if a.op.startswith("unsqueeze"):
        order.insert(wanted % (n + 1), -1)
        return _arranged(a, order)
    gone = order if wanted is None else [d % n for d in (wanted if isinstance(wanted, list) else [wanted])]
    return _arranged(a, [d for d in order if not (d in gone and a.first().sizes[d] == 1)])


@rule("expand")
def _expand(a: Arguments) -> Any:
    x, out = a.first(), a.out_sizes[0]
    n = len(x.sizes)
    same = [d - len(out) + n for d in range(len(out))]
    a.labels.fix(*(dim for dim, size in zip(x.dims, x.sizes) if size == 1))
    return _arranged(a, [d if d >= 0 and x.sizes[d] == out[d + len(out) - n] else -1 for d in same])


@rule("view", "reshape", "flatten", "unflatten")
def _view(a: Arguments) -> Any:
    """Dims are matched by their products: one that is cut keeps whole parts, those that are joined repeat."""
    x, out = a.first(), a.out_sizes[0]
    dims: list[Any] = [None] * len(out)
    known, along = None, 0
    i = j = 0
    while i < len(x.sizes) and j < len(out):
        first_i, first_j = i, j
        p, q = x.sizes[i], out[j]
        i, j = i + 1, j + 1
        while p != q:
            if p < q and i < len(x.sizes):
                p, i = p * x.sizes[i], i + 1
            elif q < p and j < len(out):
                q, j = q * out[j], j + 1
            else:
                return None
        grouped, kept = _regroup(a, x, range(first_i, i), [out[k] for k in range(first_j, j)])
        dims[first_j:j] = grouped
        if kept is not None:
            known, along = kept[0], first_j + kept[1]
    a.labels.fix(*x.dims[i:])  # of size 1
    return [a.made(dims, known, along)]


def _regroup(a: Arguments, x: Any, ins: range, outs: list[int]) -> tuple[list[Any], Any]:
    """The labels of the dims `outs` into which the dims `ins` go, and what is known along which of them."""
    big = [d for d in ins if x.sizes[d] > 1]
    labelled = [d for d in big if x.dims[d] is not None]
    a.labels.fix(*(x.dims[d] for d in ins if d not in big), *(x.dims[d] for d in labelled[1:]))
    flat_dim = labelled[0] if labelled else (big[0] if big else ins[0])
    inner = math.prod(x.sizes[d] for d in big if d > flat_dim)
    outer = math.prod(x.sizes[d] for d in big if d < flat_dim)

    def joined(values: np.ndarray) -> np.ndarray:
        return np.tile(np.repeat(values, inner), outer)

    labels = joined(x.dims[flat_dim]) if labelled else None
    known = joined(x.known) if x.known is not None and x.dim == flat_dim else None
    wide = [k for k, n in enumerate(outs) if n > 1]
    dims: list[Any] = [None] * len(outs)
    if not wide:
        a.labels.fix(labels)
        return dims, None
    # Queries, keys and values in one: [3, heads, head_dim] is cut into heads.
    at = wide[1] if len(wide) > 2 and outs[wide[0]] <= 3 else wide[0]
    before, n = math.prod(outs[:at]), outs[at]
    if labels is not None:
        dims[at] = a.labels.join(np.moveaxis(labels.reshape(before, n, -1), 1, 0).reshape(n, -1))
    if known is None:
        return dims, None
    rows = np.moveaxis(known.reshape(before, n, -1), 1, 0).reshape(n, -1)
    same = (rows == rows[:, :1]).all(1)
    return dims, (np.where(same, rows[:, 0], math.nan), at)


@rule("cat", "concat", "concatenate")
def _cat(a: Arguments) -> Any:
    tensors = a["tensors"]
    dim = a["dim"] % len(a.out_sizes[0])
    dims = list(tensors[0].dims)
    for t in tensors[1:]:
        for d in range(len(dims)):
            if d != dim:
                a.labels.unite(dims[d], t.dims[d])
    parts = [np.zeros(t.sizes[dim], dtype=np.int64) if t.dims[dim] is None else t.dims[dim] for t in tensors]
    dims[dim] = np.concatenate(parts)
    return [a.made(dims, np.concatenate([t.known_along(dim) for t in tensors]), dim)]


@rule("split", "chunk", "unbind")
@rule("_slice", "slice", "select")
def _cut(a: Arguments) -> Any:
    x = a.first()
    dim = (a["dim"] or 0) % len(x.sizes)
    if a.op in ("unbind", "select"):
        a.labels.fix(x.dims[dim])
        dims = x.dims[:dim] + x.dims[dim + 1 :]
        known = x.known if x.known is not None and x.dim != dim else None
        along = x.dim - (x.dim > dim)
        return [a.made(list(dims), known, along, i) for i in range(len(a.out_sizes))]
    n, count = x.sizes[dim], len(a.out_sizes)
    start = a["start"] or 0
    if a.op == "chunk":
        lengths = [min(-(-n // a["chunks"]), n)] * count
    elif a.op == "split":
        wanted = a["split_size_or_sections"]
        lengths = wanted if isinstance(wanted, list) else [wanted] * count
    elif a.op == "_slice":
        lengths = [a["length"]]
    elif a.op == "slice":
        indices = range(*slice(a["start"], a["end"], a["step"]).indices(n))
        start, lengths = indices.start, [len(indices)]
    else:
        return None
    at, step, picked = start, a["step"] or 1, []
    for which, sizes in enumerate(a.out_sizes):
        part = slice(at, at + (lengths[which] - 1) * step + 1, step)
        dims = list(x.dims)
        if dims[dim] is not None:
            dims[dim] = dims[dim][part]
        known = x.known[part] if x.known is not None and x.dim == dim else x.known
        picked.append(None if sizes is None else a.made(dims, known, x.dim, which))
        at += lengths[which]
    return picked


@rule("scaled_dot_product_attention")
def _attention(a: Arguments) -> Any:
    q, k, v = a["query"], a["key"], a["value"]
    a.labels.fix(q.dims[-1], k.dims[-1], q.dims[-2], k.dims[-2], v.dims[-2])
    if len(q.sizes) < 3:
        return [a.made([None] * len(q.sizes))]
    mask = a["attn_mask"]
    at = len(q.sizes) - 3
    if mask is not None:
        a.labels.fix(*mask.dims)
        if len(mask.sizes) > 2 and mask.sizes[-3] > 1:
            a.labels.fix(q.dims[at])
    a.labels.fix(*(d for t in (q, k, v) for d in t.dims[:at]))
    a.labels.unite(k.dims[at], v.dims[at])
    heads, each = q.dims[at], q.sizes[at] // k.sizes[at]
    if heads is None or v.dims[at] is None:
        a.labels.fix(heads, v.dims[at])
        return [a.made([None] * (len(q.sizes) - 1) + [v.dims[-1]])]
    a.labels.unite(a.labels.join(heads.reshape(-1, each)), v.dims[at])
    a.result.heads.append(Heads(heads, v.dims[at]))
    known = v.known_along(at)
    known = np.repeat(np.where(known == 0, 0.0, math.nan), each)
    if v.known is not None and v.dim == len(v.sizes) - 1:
        return [a.made([None] * at + [heads, None, v.dims[-1]], v.known, -1)]
    return [a.made([None] * at + [heads, None, v.dims[-1]], known, at)]


@rule("role=product")
def _matmul(a: Arguments) -> Any:
    x, y = list(a.named.values())[:2]
    if len(x.sizes) != len(y.sizes) or len(x.sizes) < 3 or x.sizes[:-2] != y.sizes[:-2]:
        return None
    a.labels.fix(x.dims[-1], y.dims[-2])
    for p, q in zip(x.dims[:-2], y.dims[:-2]):
        a.labels.unite(p, q)
        if p is not None and q is not None:
            a.result.heads.append(Heads(p, q))
    for t in (x, y):
        if t.known is not None and t.dim < len(t.sizes) - 2:
            known = np.where(t.known == 0, 0.0, math.nan)
            if not np.isnan(known).all():
                return [a.made([*x.dims[:-1], y.dims[-1]], known, t.dim)]
    return [a.made([*x.dims[:-1], y.dims[-1]])]


@rule("multi_head_attention")
def _multi_head(a: Arguments) -> Any:
    """nn.MultiheadAttention: a head's rows of in_proj and its columns of out_proj go together."""
    weight, out = a["in_proj_weight"], a["out_proj_weight"]
    odd = a["bias_k"] is not None or a["add_zero_attn"] or a["use_separate_proj_weight"]
    if odd or weight is None or not weight.name.endswith("in_proj_weight") or not out.name:
        return None
    for name in ("query", "key", "value", "attn_mask", "key_padding_mask"):
        if a[name] is not None:
            a.labels.fix(*a[name].dims)
    n, bias = a["num_heads"], a["in_proj_bias"]
    a.labels.fix(
        weight.dims[1], out.dims[0], None if a["out_proj_bias"] is None else a["out_proj_bias"].dims[0]
    )
    rows = weight.dims[0].reshape(3, n, -1)  # [3, H, D]
    heads = a.labels.join(np.moveaxis(rows, 1, 0).reshape(n, -1))
    a.labels.unite(heads, a.labels.join(out.dims[1].reshape(n, -1)))
    if bias is not None:
        a.labels.unite(weight.dims[0], bias.dims[0])
    columns = np.abs(_array(out)).reshape(out.sizes[0], n, -1).sum((0, 2)) == 0
    values = np.abs(_array(weight)).reshape(3, n, -1)[2].sum(-1)
    if bias is not None:
        values = values + np.abs(_array(bias)).reshape(3, n, -1)[2].sum(-1)
    a.result.sinks.append(Sink(heads, columns | (values == 0), None, out.name, None))
    a.result.heads.append(Heads(heads, heads, packed=weight.name.removesuffix("in_proj_weight").rstrip(".")))
    a.result.outs.append((weight.name, 0))
    mask = a["attn_mask"]
    if mask is not None and len(mask.sizes) == 3:
        a.labels.fix(heads)
    return [a.made([None] * len(s), None, 0, i) if s else None for i, s in enumerate(a.out_sizes)]
