"""Control flow ops beside plain Python loops; with `-m parity` beside PyTorch."""

import importlib
import types

import pytest
import warptape as wt
from warptape.utils._pytree import tree_leaves, tree_map

OPS = wt._higher_order_ops


class Plain:
    """What each stands for."""

    @staticmethod
    def cond(pred, true_fn, false_fn, operands=()):
        return true_fn(*operands) if pred else false_fn(*operands)

    @staticmethod
    def while_loop(cond_fn, body_fn, carried):
        while cond_fn(*carried):
            carried = body_fn(*carried)
        return carried

    @staticmethod
    def scan(combine_fn, init, xs, dim=0, reverse=False):
        carry, results, n = init, [], tree_leaves(xs)[0].shape[dim]
        for i in reversed(range(n)) if reverse else range(n):
            carry, y = combine_fn(carry, tree_map(lambda x, i=i: x.select(dim, i), xs))
            results.append(y)
        results = results[::-1] if reverse else results
        return carry, tree_map(lambda *ys: wt.stack(ys, min(dim, ys[0].dim())), results[0], *results[1:])

    @staticmethod
    def associative_scan(combine_fn, xs, dim, reverse=False, combine_mode="generic"):
        first, last = (-1, 0) if reverse else (0, -1)
        at = lambda i: tree_map(lambda x: x.select(dim, i), xs)
        results = [at(first)]
        n = tree_leaves(xs)[0].shape[dim]
        for i in range(n - 2, -1, -1) if reverse else range(1, n):
            results.append(combine_fn(results[-1], at(i)))
        assert tree_leaves(at(last))
        return tree_map(lambda *ys: wt.stack(ys[::-1] if reverse else ys, dim), results[0], *results[1:])

    @staticmethod
    def map(f, xs, *args):
        n = tree_leaves(xs)[0].shape[0]
        results = [f(tree_map(lambda x, i=i: x[i], xs), *args) for i in range(n)]
        return tree_map(lambda *ys: wt.stack(ys), results[0], *results[1:])


def affine(a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


# Programs of (the package, its control flow, x [5, 3], w [3]).
PROGRAMS = {
    "cond, true": lambda t, h, x, w: h.cond(
        x.sum() > -99, lambda x, w: x.sin() * w, lambda x, w: x.cos() + w, (x, w)
    ),
    "cond, false": lambda t, h, x, w: h.cond(
        x.sum() > 99, lambda x, w: x.sin() * w, lambda x, w: x.cos() * w.exp(), (x, w)
    ),
    "cond, captured": lambda t, h, x, w: h.cond(
        x.sum() > 99, lambda x: x * 2, lambda x: (x.cos() * w).sin(), (x,)
    ),
    "cond, trees": lambda t, h, x, w: h.cond(
        w.sum() > -99,
        lambda d: {"a": d["x"][0] * d["w"], "b": (d["w"].exp(), 3)},
        lambda d: {"a": d["x"][0] + d["w"], "b": (d["w"].sin(), 4)},
        ({"x": [x], "w": w},),
    ),
    "cond, nested": lambda t, h, x, w: h.cond(
        x.sum() > 99,
        lambda x, w: h.cond(w.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,)),
        lambda x, w: h.cond(w.sum() > -99, lambda x: x.sin() * w, lambda x: x * 3, (x,)),
        (x, w),
    ),
    "while_loop": lambda t, h, x, w: h.while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, (x * w).sin()), (t.tensor(0), x)
    ),
    "while_loop, no step": lambda t, h, x, w: h.while_loop(
        lambda x: x.sum() > 99, lambda x: (x * w,), (x * 2,)
    ),
    "while_loop, int": lambda t, h, x, w: h.while_loop(
        lambda i, d: i < 3, lambda i, d: (i + 1, {"x": (d["x"] * w).sin()}), (0, {"x": x})
    ),
    "scan": lambda t, h, x, w: h.scan(lambda c, x: (c * x.sin() + x, (c * x).exp()), w, x),
    "scan, reverse": lambda t, h, x, w: h.scan(
        lambda c, x: (c * x, c.sin() * x), w, x.T, dim=1, reverse=True
    ),
    "scan, trees": lambda t, h, x, w: h.scan(
        lambda c, x: ({"c": c["c"] * x[0] + w}, [x[1] * c["c"].sum(), x[0] + c["c"]]),
        {"c": w * 2},
        (x, x[:, 0]),
        dim=0,
    ),
    "associative_scan": lambda t, h, x, w: h.associative_scan(
        lambda a, b: a * b, x * w, 0, combine_mode="generic"
    ),
    "associative_scan, one": lambda t, h, x, w: h.associative_scan(
        lambda a, b: a * b, x[:1] * w, 0, combine_mode="generic"
    ),
    "associative_scan, two": lambda t, h, x, w: h.associative_scan(
        lambda a, b: a * b, x[:2] * w, 0, combine_mode="generic"
    ),
    "associative_scan, reverse": lambda t, h, x, w: h.associative_scan(
        lambda a, b: a * b, x[:4].T, -1, True, combine_mode="generic"
    ),
    "associative_scan, trees": lambda t, h, x, w: h.associative_scan(
        affine, (x, x.sin() * w), 0, combine_mode="generic"
    ),
    "associative_scan, matrices": lambda t, h, x, w: h.associative_scan(
        lambda a, b: a @ b, x.unsqueeze(1) * x.unsqueeze(2), 0, combine_mode="generic"
    ),
    "map": lambda t, h, x, w: h.map(lambda x, w: (x * w).exp(), x, w),
    "map, trees": lambda t, h, x, w: h.map(
        lambda d, w, n: (d["x"] * w, [d["y"] * n]), {"x": x, "y": x[:, 0].sin()}, w, 2
    ),
}


# Where PyTorch's gradient is wrong or missing.
VALUES_ALONE = {
    "cond, trees": "raises where a branch returns an int",
    "while_loop, no step": "goes through the body once",
    "while_loop, int": "raises where an int is carried",
}


def leaves_of(t, requires_grad=True):
    """x and w of a package, equal in all."""
    x = [[0.1 * (3 * i + j) - 0.6 for j in range(3)] for i in range(5)]
    options = {"dtype": t.float64, "requires_grad": requires_grad}
    return t.tensor(x, **options), t.tensor([0.7, -0.4, 1.3], **options)


def derivatives(t, results, leaves, order):
    """The tensors of a result, then gradients of the sum of their squares, then of the sum of theirs."""
    found = [[x.detach().tolist() if isinstance(x, t.Tensor) else x for x in results]]
    for last in range(order - 1, -1, -1):
        loss = sum((x * x).sum() for x in results if isinstance(x, t.Tensor) and x.is_floating_point())
        results = t.autograd.grad(loss, leaves, create_graph=last > 0, allow_unused=True)
        results = [t.zeros_like(x) if g is None else g for x, g in zip(leaves, results)]
        found.append([g.tolist() for g in results])
    return found


def outcome(t, ops, name, order):
    leaves = leaves_of(t, order > 0)
    return derivatives(t, tree_leaves(PROGRAMS[name](t, ops, *leaves)), leaves, order)


def close(got, want):
    if isinstance(want, list):
        return len(got) == len(want) and all(close(a, b) for a, b in zip(got, want))
    return got == pytest.approx(want, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_two_derivatives(name):
    got, want = (outcome(wt, ops, name, 2) for ops in (OPS, Plain))
    assert close(got, want)
    assert any(any(row) if isinstance(row, list) else row for row in got[1])


@pytest.mark.parity
@pytest.mark.parametrize("name", PROGRAMS)
def test_beside_pytorch(name):
    torch = pytest.importorskip("torch")
    order, theirs = int(name not in VALUES_ALONE), torch._higher_order_ops
    assert close(outcome(wt, OPS, name, order), outcome(torch, theirs, name, order))
    ours, theirs = (
        tree_map(lambda x: None, PROGRAMS[name](t, ops, *leaves_of(t, False)))
        for t, ops in ((wt, OPS), (torch, theirs))
    )
    assert ours == theirs


# What is refused, and how: calls of (the package, its control flow, x [3], a true predicate).
REFUSED = {
    "pred of two": (RuntimeError, lambda t, h, x, p: h.cond(x > 0, t.sin, t.cos, (x,))),
    "pred": (RuntimeError, lambda t, h, x, p: h.cond("a", t.sin, t.cos, (x,))),
    "branch": (RuntimeError, lambda t, h, x, p: h.cond(p, 3, t.cos, (x,))),
    "operand": (RuntimeError, lambda t, h, x, p: h.cond(p, t.sin, t.cos, (1,))),
    "operands": (RuntimeError, lambda t, h, x, p: h.cond(p, t.sin, t.cos, x)),
    "dims": (RuntimeError, lambda t, h, x, p: h.cond(p, lambda x: x.sum(), lambda x: x + 1, (x,))),
    "dtypes": (RuntimeError, lambda t, h, x, p: h.cond(p, lambda x: x.double(), lambda x: x + 1, (x,))),
    "structure": (RuntimeError, lambda t, h, x, p: h.cond(p, lambda x: (x + 1,), lambda x: [x + 1], (x,))),
    "keys": (
        RuntimeError,
        lambda t, h, x, p: h.cond(p, lambda x: {"a": x + 1}, lambda x: {"b": x + 1}, (x,)),
    ),
    "number": (
        RuntimeError,
        lambda t, h, x, p: h.cond(p, lambda x: (x + 1, x + 2), lambda x: (x + 1,), (x,)),
    ),
    "int and tensor": (RuntimeError, lambda t, h, x, p: h.cond(p, lambda x: 3, lambda x: x + 1, (x,))),
    "float": (RuntimeError, lambda t, h, x, p: h.cond(p, lambda x: 3.0, lambda x: 4.0, (x,))),
    "none": (RuntimeError, lambda t, h, x, p: h.cond(p, lambda x: None, lambda x: None, (x,))),
    "operand returned": (RuntimeError, lambda t, h, x, p: h.cond(p, lambda x: x, lambda x: x + 1, (x,))),
    "operand viewed": (RuntimeError, lambda t, h, x, p: h.cond(p, lambda x: x + 1, lambda x: x[:], (x,))),
    "operand written": (RuntimeError, lambda t, h, x, p: h.cond(p, t.sin, lambda x: x.add_(1) + 1, (x,))),
    "one tensor twice": (RuntimeError, lambda t, h, x, p: h.cond(p, twice, lambda x: (x + 1, x + 2), (x,))),
    "other branch fails": (RuntimeError, lambda t, h, x, p: h.cond(p, t.sin, lambda x: x @ t.ones(5), (x,))),
    "while_loop: function": (RuntimeError, lambda t, h, x, p: h.while_loop(3, lambda x: (x + 1,), (x,))),
    "while_loop: float": (AssertionError, lambda t, h, x, p: h.while_loop(below, lambda x: (x + 1,), (1.0,))),
    "while_loop: tensor": (RuntimeError, lambda t, h, x, p: h.while_loop(below, lambda x: (x + 1,), x)),
    "while_loop: int": (
        RuntimeError,
        lambda t, h, x, p: h.while_loop(lambda x: 1, lambda x: (x + 1,), (x,)),
    ),
    "while_loop: dims": (
        RuntimeError,
        lambda t, h, x, p: h.while_loop(lambda x: x[:1] < 9, lambda x: (x + 1,), (x,)),
    ),
    "while_loop: dtype": (
        RuntimeError,
        lambda t, h, x, p: h.while_loop(below, lambda x: (x.double(),), (x,)),
    ),
    "while_loop: shape": (
        RuntimeError,
        lambda t, h, x, p: h.while_loop(below, lambda x: (t.cat([x, x]),), (x,)),
    ),
    "while_loop: number": (
        RuntimeError,
        lambda t, h, x, p: h.while_loop(below, lambda x: (x + 1, x + 2), (x,)),
    ),
    "while_loop: returned": (RuntimeError, lambda t, h, x, p: h.while_loop(below, lambda x: (x,), (x,))),
    "while_loop: written": (
        RuntimeError,
        lambda t, h, x, p: h.while_loop(below, lambda x: (x.add_(1) + 1,), (x,)),
    ),
    "scan: function": (RuntimeError, lambda t, h, x, p: h.scan(3, x, x)),
    "scan: init": (RuntimeError, lambda t, h, x, p: h.scan(summed, 0, x)),
    "scan: no init": (RuntimeError, lambda t, h, x, p: h.scan(summed, [], x)),
    "scan: reverse": (RuntimeError, lambda t, h, x, p: h.scan(summed, x[0], x, reverse=1)),
    "scan: dim": (IndexError, lambda t, h, x, p: h.scan(summed, x[0], x, dim=1)),
    "scan: empty": (RuntimeError, lambda t, h, x, p: h.scan(summed, x[0], x[:0])),
    "scan: shape": (RuntimeError, lambda t, h, x, p: h.scan(summed, x[:1], t.ones(2, 3))),
    "scan: dtype": (
        RuntimeError,
        lambda t, h, x, p: h.scan(lambda c, x: (c.double(), x + 1), t.ones(()), x),
    ),
    "scan: carry": (RuntimeError, lambda t, h, x, p: h.scan(lambda c, x: (c, x + 1), t.ones(()), x)),
    "scan: slice": (RuntimeError, lambda t, h, x, p: h.scan(lambda c, x: (c + x, x), t.ones(()), x)),
    "scan: three": (RuntimeError, lambda t, h, x, p: h.scan(lambda c, x: (c + x, c - x, x * 2), x[0] * 1, x)),
    "scan: none": (RuntimeError, lambda t, h, x, p: h.scan(lambda c, x: (c + x, None), t.ones(()), x)),
    "scan: written": (
        RuntimeError,
        lambda t, h, x, p: h.scan(lambda c, x: (c + x, x.add_(1) + 1), t.ones(()), x),
    ),
    "associative_scan: function": (
        ValueError,
        lambda t, h, x, p: h.associative_scan(3, x, 0, combine_mode="generic"),
    ),
    "associative_scan: device": (ValueError, lambda t, h, x, p: h.associative_scan(t.add, x, 0)),
    "associative_scan: mode": (
        ValueError,
        lambda t, h, x, p: h.associative_scan(t.add, x, 0, combine_mode="a"),
    ),
    "associative_scan: reverse": (
        RuntimeError,
        lambda t, h, x, p: h.associative_scan(t.add, x, 0, 1, combine_mode="generic"),
    ),
    "associative_scan: dim": (
        IndexError,
        lambda t, h, x, p: h.associative_scan(t.add, x, 1, combine_mode="generic"),
    ),
    "associative_scan: empty": (
        ValueError,
        lambda t, h, x, p: h.associative_scan(t.add, x[:0], 0, combine_mode="generic"),
    ),
    "associative_scan: number": (
        AssertionError,
        lambda t, h, x, p: h.associative_scan(lambda a, b: (a, b), x, 0, combine_mode="generic"),
    ),
    "map: function": (RuntimeError, lambda t, h, x, p: h.map(3, x)),
    "map: xs": (RuntimeError, lambda t, h, x, p: h.map(t.sin, [x, 3])),
    "map: no dim": (IndexError, lambda t, h, x, p: h.map(t.sin, x.sum())),
    "map: empty": (RuntimeError, lambda t, h, x, p: h.map(t.sin, x[:0])),
    "map: sizes": (RuntimeError, lambda t, h, x, p: h.map(lambda x: x[0] + 1, [x, x[:2]])),
    "map: int": (RuntimeError, lambda t, h, x, p: h.map(lambda x: 3, x)),
    "map: returned": (RuntimeError, lambda t, h, x, p: h.map(lambda x: x, x)),
    "map: written": (RuntimeError, lambda t, h, x, p: h.map(lambda x: x.add_(1) + 1, x)),
}


def twice(x):
    y = x + 1
    return y, y


def below(x):
    return x.sum() < 99


def summed(carry, x):
    return carry + x, carry * x


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    error, call = REFUSED[case]
    with pytest.raises(error):
        call(wt, OPS, wt.ones(3), wt.tensor(True))


@pytest.mark.parity
@pytest.mark.parametrize("case", REFUSED)
def test_pytorch_refuses_it_as_well(case):
    torch = pytest.importorskip("torch")
    error, call = REFUSED[case]
    with pytest.raises(error):
        call(torch, torch._higher_order_ops, torch.ones(3), torch.tensor(True))


def test_names():
    assert wt.cond is OPS.cond and wt.while_loop is OPS.while_loop
    for name in ("associative_scan", "cond", "map", "scan", "while_loop"):
        module = importlib.import_module(f"warptape._higher_order_ops.{name}")
        assert isinstance(module, types.ModuleType) and getattr(module, name) is getattr(OPS, name)


ENTRIES = {
    "cond": (
        "cond_op",
        lambda x: OPS.cond(x.sum() > 0, lambda d: d["x"] + 1, lambda d: d["x"] * 2, ({"x": x},)),
    ),
    "while_loop": ("while_loop_op", lambda x: OPS.while_loop(below, lambda d: (d * 2,), (x,))),
    "scan": ("scan_op", lambda x: OPS.scan(lambda c, d: (c + d["x"], c * 2), x[0], {"x": x}, dim=0)),
    "associative_scan": (
        "associative_scan_op",
        lambda x: OPS.associative_scan(affine, (x, x), 0, combine_mode="generic"),
    ),
    "map": ("map_impl", lambda x: OPS.map(lambda d, n: d["x"] * n, {"x": x}, 3)),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_one_entry_takes_flat_operands(name, monkeypatch):
    module = importlib.import_module(f"warptape._higher_order_ops.{name}")
    entry, call = ENTRIES[name]
    calls, original = [], getattr(module, entry)
    monkeypatch.setattr(module, entry, lambda *args: calls.append(args) or original(*args))
    call(wt.ones(3))
    (args,) = calls
    assert {type(x) for x in tree_leaves(args) if not callable(x)} <= {wt.Tensor, int}
    assert all(isinstance(x, (wt.Tensor, list, tuple)) or callable(x) for x in args)


def test_a_number_decides_without_a_check():
    x = wt.ones(2)
    assert wt.cond(True, lambda x: x, lambda x: 3, (x,)) is x
    assert wt.cond(0, lambda x: x, lambda x: 3, (x,)) == 3


def test_without_gradients_branches_may_write_and_return_operands():
    x = wt.zeros(2)
    with wt.no_grad():
        out = wt.cond(wt.tensor(True), lambda x: x.add_(1), lambda x: x.mul_(7), (x,))
    assert out is x and x.tolist() == [1, 1]


def test_the_other_branch_leaves_no_trace():
    norm, counter = wt.nn.BatchNorm1d(3), wt.zeros(2)
    linear = wt.nn.Linear(3, 3)

    def other(x):
        counter.add_(1)
        return wt.nn.functional.dropout(norm(linear(x)) + wt.rand(4, 3, device="cpu") + wt.zeros(3))

    wt.manual_seed(3)
    want = wt.rand(4)
    wt.manual_seed(3)
    x = wt.ones(4, 3, requires_grad=True)
    out = wt.cond(x.sum() > 0, lambda x: x * 2, other, (x,))
    assert wt.rand(4).tolist() == want.tolist()
    assert out.tolist() == [[2, 2, 2]] * 4
    assert counter.tolist() == [0, 0] and norm.num_batches_tracked.item() == 0
    assert wt.zeros(1).device.type == "cpu"
    with pytest.raises(RuntimeError, match="differ"):
        wt.cond(x.sum() > 0, lambda x: x.sum(), other, (x,))
    assert wt.zeros(1).device.type == "cpu"


def test_a_branch_that_depends_on_values_is_not_checked():
    x = wt.tensor([1.0, -1.0])
    out = wt.cond(x.sum() >= 0, lambda x: x * 2, lambda x: (x[x > 0], x.sum().item()), (x,))
    assert out.tolist() == [2, -2]


def test_captured_parameters_get_gradients():
    layer = wt.nn.Linear(3, 3).double()
    x, _ = leaves_of(wt)
    OPS.scan(lambda c, x: ((c + layer(x)).tanh(), c * 2), x[0], x)[0].sum().backward()
    got = layer.weight.grad.tolist()
    layer.zero_grad()
    carry = x[0]
    for row in x:
        carry = (carry + layer(row)).tanh()
    carry.sum().backward()
    assert close(got, layer.weight.grad.tolist())


def test_under_autocast():
    x = wt.ones(2, 2)
    with wt.autocast("cpu", dtype=wt.bfloat16):
        out = wt.cond(x.sum() > 0, lambda x: x @ x, lambda x: x.bfloat16(), (x,))
    assert out.dtype == wt.bfloat16


def test_within_vmap():
    x = wt.arange(6.0).reshape(2, 3)
    p = wt.tensor(True)
    assert wt.vmap(lambda x: wt.cond(p, lambda x: x + 1, lambda x: x * 2, (x,)))(x).tolist() == [
        [1, 2, 3],
        [4, 5, 6],
    ]
    with pytest.raises(RuntimeError, match="vmap"):
        wt.vmap(lambda x: wt.cond(x.sum() > 3, lambda x: x + 1, lambda x: x * 2, (x,)))(x)
    got = wt.vmap(lambda x: OPS.scan(lambda c, x: (c + x, c * x), wt.zeros(()), x)[1])(x)
    assert got.tolist() == [[0, 0, 2], [0, 12, 35]]


def test_meta_tensors():
    x = wt.ones(2, 3, device="meta")
    assert wt.cond(x.sum() > 0, lambda x: x.T + 1, lambda x: x.T.cos(), (x,)).shape == (3, 2)
    with pytest.raises(RuntimeError, match="branches differ"):
        wt.cond(x.sum() > 0, lambda x: x.sum(), lambda x: x + 1, (x,))
    i, y = wt.while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (wt.zeros((), dtype=wt.int64, device="meta"), x)
    )
    assert y.shape == x.shape and i.is_meta
    carry, rows = OPS.scan(lambda c, x: (c + x, c.sum()), x[0], x)
    assert carry.shape == (3,) and rows.shape == (2,)
