"""The Python object of a tensor: identity through C++, subclasses, copies, iteration, operators, memory."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import warptape as wt


class Mine(wt.Tensor):
    pass


# ---- identity --------------------------------------------------------------------------------------------


def test_identity_through_cpp() -> None:
    p = wt.ones(2, requires_grad=True)
    p.note = "kept"
    y = (p * 2).sum()
    leaf = y.grad_fn.next_functions[0][0].next_functions[0][0]
    assert leaf.variable is p
    y.backward()
    g = p.grad
    assert p.grad is g
    v = p.detach()[0]
    assert v._base is p or v._base.data_ptr() == p.data_ptr()
    (w,) = wt.autograd.grad((p * 3).sum(), p)
    assert w is not g


def test_object_with_state_survives_while_cpp_holds_it() -> None:
    p = wt.ones(2).as_subclass(Mine)
    p.requires_grad_()
    p.note = [1, 2]
    number = id(p)
    y = (p * 2).sum()
    del p
    gc.collect()
    back = y.grad_fn.next_functions[0][0].next_functions[0][0].variable
    assert type(back) is Mine and back.note == [1, 2] and id(back) == number
    back.requires_grad_(False)


def test_parameter_survives() -> None:
    p = wt.nn.Parameter(wt.ones(2))
    y = (p * 2).sum()
    del p
    gc.collect()
    back = y.grad_fn.next_functions[0][0].next_functions[0][0].variable
    assert type(back) is wt.nn.Parameter
    y.backward()
    assert back.grad.tolist() == [2.0, 2.0]


def test_weak_references_live_as_long_as_the_tensor() -> None:
    p = wt.ones(2, requires_grad=True)
    r = weakref.ref(p)
    y = (p * 2).sum()
    del p
    gc.collect()
    assert r() is not None
    del y
    gc.collect()
    assert r() is None


def test_grad_keeps_attributes() -> None:
    p = wt.ones(2, requires_grad=True)
    p.grad = wt.ones(2)
    p.grad.mark = 5
    gc.collect()
    assert p.grad.mark == 5


# ---- copies ----------------------------------------------------------------------------------------------


def test_pickle() -> None:
    for dtype in (wt.float32, wt.bfloat16, wt.int64, wt.bool):
        x = wt.tensor([[0, 1], [2, 3]]).to(dtype).t()
        y = pickle.loads(pickle.dumps(x))
        assert y.dtype == dtype and y.tolist() == x.tolist()
    p = pickle.loads(pickle.dumps(wt.nn.Parameter(wt.ones(2))))
    assert type(p) is wt.nn.Parameter and p.requires_grad
    z = pickle.loads(pickle.dumps(wt.zeros(0, 3)))
    assert tuple(z.shape) == (0, 3)


def test_deepcopy() -> None:
    x = wt.ones(2, requires_grad=True)
    x.grad = wt.full((2,), 3.0)
    x.me = x
    y = copy.deepcopy(x)
    assert y is not x and y.me is y and y.grad.tolist() == [3.0, 3.0] and y.requires_grad
    with wt.no_grad():
        y.add_(1)
    assert x.tolist() == [1.0, 1.0]
    pair = copy.deepcopy([x, x])
    assert pair[0] is pair[1]
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)
    assert copy.copy(x).tolist() == x.tolist()


def test_shallow_copy_shares_the_storage() -> None:
    base = wt.arange(6.0).view(2, 3).t()[1:]
    base.note = [1]
    mine = wt.ones(2).as_subclass(Mine).requires_grad_()
    mine.grad = wt.ones(2)
    for t in (base, mine, wt.nn.Parameter(wt.ones(2)), mine * 2, wt.empty(2, device="meta")):
        made = copy.copy(t)
        assert made is not t and type(made) is type(t) and made.is_leaf and made.grad is None
        assert made.data_ptr() == t.data_ptr() and made.stride() == t.stride()
        assert made.requires_grad == t.requires_grad and made.__dict__ == t.__dict__
    assert copy.copy(base).note is base.note


def test_deepcopy_keeps_what_shares_a_storage_shared() -> None:
    whole = wt.arange(6.0)
    part, storage = whole[2:4], whole.untyped_storage()
    a, b, c = copy.deepcopy([whole, part, storage])
    a[2] = 50
    assert b.tolist() == [50, 3] and b.storage_offset() == 2 and whole[2] == 2
    assert c.data_ptr() == a.data_ptr() != whole.data_ptr()


def test_storages_are_copied_and_pickled() -> None:
    for storage in (wt.arange(3.0).storage(), wt.FloatStorage(2), wt.arange(3).untyped_storage()):
        for made in (copy.copy(storage), copy.deepcopy(storage), pickle.loads(pickle.dumps(storage))):
            assert type(made) is type(storage) and made.tolist() == storage.tolist()
            assert made.data_ptr() != storage.data_ptr()
    typed = wt.TypedStorage(2, dtype=wt.int16)
    assert typed.clone().dtype == wt.int16 and copy.copy(typed).size() == 2


def test_grad_under_its_private_name() -> None:
    p = wt.nn.Parameter(wt.ones(2))
    p._grad = wt.full((2,), 3.0)
    assert p._grad is p.grad and p.grad.tolist() == [3, 3]
    p.grad = None
    assert p._grad is None
    with pytest.raises(wt.ShapeError):
        p._grad = wt.ones(3)


def test_subclass_is_kept_where_pytorch_keeps_it() -> None:
    m = wt.ones(2).as_subclass(Mine)
    assert type(m) is Mine and type(copy.deepcopy(m)) is Mine and type(pickle.loads(pickle.dumps(m))) is Mine
    m.add_(1)
    assert type(m) is Mine and m.tolist() == [2.0, 2.0]
    m += 1
    assert type(m) is Mine


# ---- protocols -------------------------------------------------------------------------------------------


def test_iteration_and_length() -> None:
    x = wt.arange(6).reshape(3, 2)
    assert len(x) == 3 and [r.tolist() for r in x] == [[0, 1], [2, 3], [4, 5]]
    a, _, c = x
    assert a.tolist() == [0, 1] and c._base is not None
    assert 5 in x and 7 not in x
    with pytest.raises(TypeError, match="0-d"):
        iter(wt.tensor(1))
    with pytest.raises(TypeError, match="0-d"):
        len(wt.tensor(1))


def test_conversions() -> None:
    assert (int(wt.tensor(3.7)), float(wt.tensor(2)), bool(wt.tensor([0.0]))) == (3, 2.0, False)
    assert [10, 20, 30][wt.tensor(1)] == 20 and f"{wt.tensor(1.5):.2f}" == "1.50"
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(wt.ones(2))
    with pytest.raises(RuntimeError):
        float(wt.ones(2))
    with pytest.raises(TypeError):
        [1, 2][wt.tensor(1.0)]


@pytest.mark.parametrize("op", ["+", "-", "*", "/", "//", "%", "**", "<", "<=", "==", "!=", ">", ">="])
@pytest.mark.parametrize("kinds", [("float32", "number"), ("int64", "number"), ("float32", "int64")])
def test_operators_both_ways(op: str, kinds: tuple[str, str]) -> None:
    a = np.array([1, 2, 5], kinds[0])
    b: Any = 3 if kinds[1] == "number" else np.array([2, 3, 4], kinds[1])
    x, y = wt.from_numpy(a), b if isinstance(b, int) else wt.from_numpy(b)
    for left, right, p, q in ((x, y, a, b), (y, x, b, a)):
        found = eval(f"left {op} right", {"left": left, "right": right})
        expected = eval(f"left {op} right", {"left": p, "right": q})
        assert np.allclose(found.numpy(), expected, rtol=1e-6)


def test_bit_operators() -> None:
    x = wt.tensor([1, 6])
    assert ((x & 3).tolist(), (2 | x).tolist(), (x ^ x).tolist()) == ([1, 2], [3, 6], [0, 0])
    assert ((x << 1).tolist(), (x >> 1).tolist(), (~x).tolist()) == ([2, 12], [0, 3], [-2, -7])
    assert (~wt.tensor([True, False])).tolist() == [False, True]


def test_in_place_shifts() -> None:
    t = kept = wt.tensor([1, 8])
    t <<= 2
    t >>= wt.tensor([1, 2])
    assert t is kept and t.tolist() == [2, 8]


def test_in_place_operators_keep_the_object() -> None:
    x = wt.tensor([1.0, 2.0])
    before = x
    x += 1
    x *= 2
    x -= wt.tensor([1.0, 0.0])
    x /= 2
    assert x is before and x.tolist() == [1.5, 3.0]
    y = wt.tensor([1])
    with pytest.raises(RuntimeError, match="can't be cast"):
        y += 0.5


def test_foreign_operands() -> None:
    class Other:
        def __radd__(self, other: Any) -> str:
            return "mine"

    assert wt.ones(1) + Other() == "mine"
    with pytest.raises(TypeError):
        wt.ones(1) + "a"
    with pytest.raises(TypeError):
        _ = wt.ones(1) < "a"
    assert (wt.ones(1) == "a") is False and (wt.ones(1) != "a") is True
    assert (wt.ones(1) == None) is False  # noqa: E711


# ---- NumPy and DLPack ------------------------------------------------------------------------------------


def test_numpy_is_zero_copy_both_ways() -> None:
    a = np.arange(6.0).reshape(2, 3)[:, ::2]
    x = wt.from_numpy(a)
    x[0, 0] = 100.0
    assert a[0, 0] == 100.0 and x.stride() == (3, 2)
    b = x.t().numpy()
    b[1, 1] = -1.0
    assert x[1, 1].item() == -1.0
    del a
    gc.collect()
    assert x[0, 0].item() == 100.0
    y = wt.ones(3)
    z = y.numpy()
    del y
    gc.collect()
    assert z.tolist() == [1.0, 1.0, 1.0]
    assert np.asarray(wt.ones(2)).tolist() == [1.0, 1.0] and np.add(wt.ones(2), 1).tolist() == [2.0, 2.0]


def test_numpy_refusals() -> None:
    with pytest.raises(RuntimeError, match="detach"):
        wt.ones(1, requires_grad=True).numpy()
    with pytest.raises(TypeError, match="BFloat16"):
        wt.ones(1, dtype=wt.bfloat16).numpy()
    with pytest.raises(ValueError, match="negative"):
        wt.from_numpy(np.arange(3)[::-1])
    with pytest.raises(TypeError):
        wt.from_numpy([1, 2])
    with pytest.raises(TypeError):
        wt.from_numpy(np.array([1j], np.clongdouble))


def test_dlpack() -> None:
    a = np.arange(4.0)
    x = wt.from_dlpack(a)
    x[0] = 9.0
    assert a[0] == 9.0
    y = wt.ones(2, 3).t()
    b = np.from_dlpack(y)
    assert b.shape == (3, 2)
    y[0, 0] = 5.0
    assert b[0, 0] == 5.0
    again = wt.from_dlpack(y)
    assert again.data_ptr() == y.data_ptr() and again.stride() == y.stride()


# ---- views and memory ------------------------------------------------------------------------------------


def test_views_alias_and_share_a_version() -> None:
    x = wt.zeros(2, 3)
    views = [x.t(), x[1], x.view(6), x.unsqueeze(0), x.expand(4, 2, 3), x.narrow(1, 0, 2), x.detach(), x.data]
    x[1, 0] = 7.0
    for v in views:
        assert 7.0 in v
    assert x._version == 1 and views[0]._version == 1
    assert x.t()._base is x and x[0][1:]._base is x


def test_allocator_statistics() -> None:
    wt._C._empty_cache()
    wt._C._reset_peak_memory()
    before = wt._C._memory_stats()
    x = wt.empty(1 << 20)
    during = wt._C._memory_stats()
    assert during["allocated_bytes"] - before["allocated_bytes"] >= 4 << 20
    del x
    after = wt._C._memory_stats()
    assert after["allocated_bytes"] == before["allocated_bytes"]
    assert after["peak_allocated_bytes"] >= during["allocated_bytes"]
    assert after["reserved_bytes"] >= after["allocated_bytes"]
    wt.empty(1 << 20)
    assert wt._C._memory_stats()["cache_hits"] > after["cache_hits"]
    wt._C._empty_cache()
    assert wt._C._memory_stats()["reserved_bytes"] < after["reserved_bytes"]


def test_out_of_memory_then_the_next_step_works() -> None:
    w = wt.ones(4, requires_grad=True)
    for _ in range(2):
        with pytest.raises(wt.OutOfMemoryError, match="cannot allocate 4503599627370496 bytes"):
            wt.empty(1 << 50)
        with pytest.raises(wt.OutOfMemoryError):
            w.expand(1 << 46, 4).contiguous()
        (w * 2).sum().backward()
    assert w.grad.tolist() == [4.0] * 4
    assert issubclass(wt.OutOfMemoryError, RuntimeError)


def test_resize_and_set_data() -> None:
    x = wt.ones(4, requires_grad=True)
    x.data = wt.zeros(2, 2)
    assert tuple(x.shape) == (2, 2) and x.requires_grad
