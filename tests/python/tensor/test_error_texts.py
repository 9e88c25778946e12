"""Words in errors that PyTorch's own tests look for, and so programs may."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt

F = wt.nn.functional


def pivots(first: int) -> Any:
    lu, found = wt.linalg.lu_factor(wt.eye(2))
    found[0] = first
    return wt.linalg.lu_solve(lu, found, wt.ones(2, 1)) if first < 1 else wt.lu_unpack(lu, found)


CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: wt.amax(wt.empty(2, 0), 1), IndexError, "Expected reduction dim"),
    (lambda: wt.view_as_complex(wt.tensor(0.0)), RuntimeError, "Input tensor must have one or more dim"),
    (lambda: pivots(0), RuntimeError, r"greater or equal to 1.*between 1 and LU.size\(-2\)"),
    (lambda: pivots(3), RuntimeError, r"smaller or equal to LU.size\(-2\)"),
    (lambda: wt.empty_strided((8, 8), (2**61, 1)), RuntimeError, "Storage size calculation overflowed"),
    (lambda: wt.empty(0, 4, 2**61), RuntimeError, "Stride calculation overflowed"),
    (lambda: wt.empty(8, 8, 2**29, 2**29), RuntimeError, "Storage size calculation overflowed"),
    (lambda: wt.linalg.vector_norm(wt.empty(0), float("inf")), RuntimeError, "linalg.vector_norm cannot"),
    (lambda: F.pad(wt.empty(3, 0, 10), (2, 2), "replicate"), RuntimeError, "Expected 2D or 3D"),
    (lambda: F.pad(wt.ones(1, 1, 2), (2, 1), "reflect"), RuntimeError, "less than the corresponding input"),
    (
        lambda: wt.nn.GRUCell(10, 20)(wt.ones(3, 10), wt.ones(3, 21)),
        RuntimeError,
        "hidden0 has inconsistent hidden_size: got 21, expected 20",
    ),
    (
        lambda: wt.nn.GRUCell(10, 20)(wt.ones(3, 10), wt.ones(5, 20)),
        RuntimeError,
        "Input batch size 3 doesn't match hidden0 batch size 5",
    ),
    (
        lambda: F.nll_loss(wt.ones(10, 3), wt.zeros(10, 2, dtype=wt.int64)),
        RuntimeError,
        "1D target tensor expected",
    ),
    (
        lambda: F.cross_entropy(wt.ones(4, 3), wt.zeros(4, 3, dtype=wt.int64)),
        RuntimeError,
        "Expected floating point type for target with class probabilities",
    ),
    (
        lambda: wt.ones(5) + wt.ones(2, 4),
        RuntimeError,
        r"size of tensor a \(5\) must match the size of tensor b \(4\) at non-singleton dimension 1",
    ),
    (
        lambda: wt.ones(2, 4) + wt.ones(5),
        RuntimeError,
        r"size of tensor a \(4\) must match the size of tensor b \(5\) at non-singleton dimension 1",
    ),
    (lambda: wt.ones(2).crow_indices(), RuntimeError, "crow_indices expected sparse row compressed tensor"),
    (lambda: wt.ones(2).indices(), RuntimeError, "indices expected sparse coordinate tensor layout"),
    (
        lambda: wt.sparse_csr_tensor([1, 1], [0], [1.0], (1, 2)),
        RuntimeError,
        r"`crow_indices\[\.\.\., 0\] == 0` is not satisfied",
    ),
    (
        lambda: wt.sparse_csc_tensor([0, 1], [5], [1.0], (2, 1)),
        RuntimeError,
        "`0 <= row_indices < nrows` is not satisfied",
    ),
    (
        lambda: wt.ones(2, dtype=wt.int32).addcdiv_(wt.ones(2, dtype=wt.int32), wt.ones(2, dtype=wt.int32)),
        RuntimeError,
        "^Integer division.+is no longer supported.+addcdiv_$",
    ),
    (
        lambda: F.conv2d(wt.zeros(1, 1, 1, 6, dtype=wt.int64), wt.zeros(1, 1, 1, 3, dtype=wt.float64)),
        RuntimeError,
        "(?=.*Double)(?=.*Long)",
    ),
    (
        lambda: wt.logcumsumexp(wt.ones(2, dtype=wt.float64), 0, out=wt.ones(2)),
        RuntimeError,
        "expected scalar_type Double but found Float",
    ),
    (lambda: wt.LongTensor((6, 0), 1, 1, 0), TypeError, "received an invalid combination of arguments"),
    (
        lambda: F.multi_margin_loss(wt.ones(5, 4), wt.zeros(3, dtype=wt.int64)),
        RuntimeError,
        r"target tensor should be 1-D with size equal to.*Expected target size \[5\].*but got \[3\]",
    ),
    (lambda: wt._C.TensorBase(), RuntimeError, "cannot be instantiated"),
    (lambda: type("Direct", (wt._C.TensorBase,), {}), RuntimeError, "Cannot subclass"),
    (lambda: wt.ones(2, dtype=wt.int32).clamp_max_(2.5), RuntimeError, "^clamp_max_: result type float32"),
]


@pytest.mark.parametrize("call, error, words", CASES, ids=[words[:30] for *_, words in CASES])
def test_words(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_methods_of_sparse_tensors_by_the_class() -> None:
    x = wt.eye(2).to_sparse_csr()
    assert wt.Tensor.crow_indices(x).tolist() == [0, 1, 2]
    assert wt.Tensor.values(x).tolist() == [1.0, 1.0]
    assert not wt.Tensor.is_coalesced(wt.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (1,)))


def test_negations_are_done_at_once() -> None:
    x = wt.tensor([1.0, -2.0], requires_grad=True)
    y = wt._neg_view(x)
    assert y.tolist() == [-1.0, 2.0] and not y.is_neg()
    assert wt.autograd.grad(y.sum(), x)[0].tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    "op, dtype, value",
    [
        ("sum", wt.int32, 0),
        ("masked.prod", wt.float32, 1),
        ("amax", wt.float32, float("-inf")),
        ("argmin", wt.uint8, 255),
        ("amax", wt.int8, -128),
        ("norm", wt.float64, 0),
        ("mean", wt.float32, None),
    ],
)
def test_values_that_change_no_reduction(op: str, dtype: wt.dtype, value: float | None) -> None:
    found = wt.masked._reduction_identity(op, wt.ones(1, dtype=dtype))
    if value is None:
        assert found is None
    else:
        assert found.dtype == dtype and found.item() == value


def test_no_such_value() -> None:
    with pytest.raises(NotImplementedError, match=r"identity of amax on torch\.bool"):
        wt.masked._reduction_identity("amax", wt.ones(1, dtype=wt.bool))


def test_elements_in_one_place() -> None:
    overlaps = wt._debug_has_internal_overlap
    assert overlaps(wt.ones(3, 3).t()) == 0
    assert overlaps(wt.ones(1, 3).expand(4, 3)) == 1
    assert overlaps(wt.ones(10).as_strided((2, 1, 5), (1, 0, 2))) == 0
    assert overlaps(wt.ones(2, 1, 10)[::2].as_strided((2, 1, 5), (10, 0, 2))) == 2


def test_storages_of_other_devices_are_not_shared() -> None:
    storage = wt.TypedStorage([1, 2], device="meta", dtype=wt.int32)
    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        with pytest.raises(RuntimeError, match="only available on CPU"):
            getattr(storage, name)()
    with pytest.raises(NotImplementedError, match="share_memory_"):
        wt.ones(2).untyped_storage()._share_fd_cpu_()


def test_older_types() -> None:
    assert wt.FloatTensor in wt._tensor_classes and not any(t.is_sparse for t in wt._tensor_classes)


@pytest.fixture
def determinism() -> Any:
    yield
    wt.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("determinism")
def test_debug_modes_of_determinism() -> None:
    for number, name in enumerate(("default", "warn", "error")):
        for mode in (number, name):
            wt.set_deterministic_debug_mode(mode)
            assert wt.get_deterministic_debug_mode() == number
            assert wt.are_deterministic_algorithms_enabled() is (number > 0)
            assert wt.is_deterministic_algorithms_warn_only_enabled() is (number == 1)
    with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
        wt.set_deterministic_debug_mode("loud")
    with pytest.raises(TypeError, match=r"argument 'mode' \(position 1\) must be bool, not int"):
        wt.use_deterministic_algorithms(1)


def test_order_of_dims() -> None:
    x = wt.empty(2, 3, 5, 7)
    assert x.dim_order() == (0, 1, 2, 3) and x.transpose(1, 2).dim_order() == (0, 2, 1, 3)
    assert x.to(memory_format=wt.channels_last).dim_order() == (0, 2, 3, 1)
    y = wt.empty(1, 2, 3, 4)
    with pytest.raises(RuntimeError, match="does not have unique dim order"):
        y.dim_order(ambiguity_check=True)
    assert y.dim_order(ambiguity_check=[wt.contiguous_format, wt.channels_last]) == (0, 1, 2, 3)
    with pytest.raises(TypeError, match="must be a bool or a list of memory formats"):
        y.dim_order(ambiguity_check="ILLEGAL")


def test_storages_are_written_to_files(tmp_path: Any) -> None:
    with open(tmp_path / "x", "wb") as file:
        wt.tensor([1, 2], dtype=wt.int16).untyped_storage()._write_file(file, True, True, 2)
    assert (tmp_path / "x").read_bytes() == b"\2" + bytes(7) + b"\1\0\2\0"
    with pytest.raises(NotImplementedError, match="Cannot copy out"):
        wt.empty(2, device="meta").untyped_storage()._write_file(None, True, True, 4)


def test_sizes_by_name() -> None:
    assert wt.ones(1).new(size=(3, 4)).shape == (3, 4)


def test_a_number_as_a_sparse_tensor() -> None:
    x = wt.tensor(3.0).to_sparse()
    assert x.shape == () and x.to_dense().item() == 3.0


def test_there_are_no_tensors_of_onednn() -> None:
    assert not wt.backends.mkldnn.is_available()
    with wt.backends.mkldnn.flags(enabled=False):
        assert (wt.ones(2, 2) @ wt.ones(2, 2)).sum() == 8


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i: x.index_copy_(0, i, x[:3]),
        lambda x, i: i.index_copy_(0, i, i.clone()),
        lambda x, i: x.put_(i, x[:3]),
        lambda x, i: i.put_(i.clone(), i),
        lambda x, i: x.scatter_(0, i, x),
        lambda x, i: i.scatter_(0, i, i.clone()),
        lambda x, i: x[:1].expand(6).index_copy_(0, i, wt.ones(3)),
        lambda x, i: x[:1].expand(6).put_(i, wt.ones(3)),
        lambda x, i: x[:1].expand(6).scatter_(0, i, wt.ones(3)),
    ],
)
def test_writes_over_what_is_read(write: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(RuntimeError, match="unsupported operation"):
        write(wt.arange(6.0), wt.tensor([2, 1, 0]))


def test_weak_references_that_were_read_again() -> None:
    x = wt.ones(1)
    again = weakref.ref(x)()
    assert again is x
    assert x._fix_weakref() is None and x.untyped_storage()._fix_weakref() is None


def test_new_tensors_of_a_storage() -> None:
    x = wt.ones(4)
    shared = wt.tensor([]).new(x.storage())
    assert shared.data_ptr() == x.data_ptr() and shared.shape == (4,)
    with pytest.raises(RuntimeError, match=r"Expected a Storage of type torch\.float32"):
        wt.tensor([]).new(wt.ones(2, dtype=wt.int32).storage())
