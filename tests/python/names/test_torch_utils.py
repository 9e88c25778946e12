"""torch._utils, torch.__future__ and other small modules that libraries import."""

from __future__ import annotations

import warnings

import pytest
import warptape as torch
import warptape.__future__ as future
from warptape import _utils
from warptape.utils import _foreach_utils, _import_utils, deterministic
from warptape.utils._mode_utils import no_dispatch


def test_lists_of_tensors_as_one() -> None:
    tensors = [torch.arange(6.0).view(2, 3), torch.ones(()), torch.zeros(2)]
    flat = _utils._flatten_dense_tensors(tensors)
    assert flat.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 0.0, 0.0]
    parts = _utils._unflatten_dense_tensors(flat, tensors)
    assert [tuple(p.shape) for p in parts] == [(2, 3), (), (2,)]
    assert parts[0].data_ptr() == flat.data_ptr() and parts[0][1].tolist() == [3.0, 4.0, 5.0]
    mixed = [torch.ones(4), torch.ones(2, dtype=torch.int64), torch.ones(3), torch.ones(9)]
    chunks = list(_utils._take_tensors(mixed, 30))
    assert [[t.numel() for t in chunk] for chunk in chunks] == [[4, 3], [9], [2]]
    ordered = [chunk[0] for chunk in chunks]
    assert _utils._reorder_tensors_as([mixed[0], mixed[1]], [mixed[1], mixed[0]]) == (mixed[1], mixed[0])
    assert len(ordered) == 3


def test_sizes_and_devices() -> None:
    assert [_utils._element_size(t) for t in (torch.float16, torch.complex128, torch.bool)] == [2, 16, 1]
    with pytest.raises(RuntimeError, match=r"expected torch\.dtype"):
        _utils._element_size("float32")
    assert _utils._get_device_index("cuda:1") == 1 and _utils._get_device_index(3) == 3
    assert _utils._get_device_index(torch.device("cpu"), allow_cpu=True) == -1
    with pytest.raises(ValueError, match="Expected a non cpu device"):
        _utils._get_device_index("cpu")
    with pytest.raises(ValueError, match="specified index or an integer"):
        _utils._get_device_index("cuda")


class _Picky(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)


@pytest.mark.parametrize(("error", "raised"), [(KeyError("x"), KeyError), (ValueError("x"), ValueError)])
def test_an_error_is_raised_again(error: Exception, raised: type[Exception]) -> None:
    try:
        raise error
    except Exception:
        kept = _utils.ExceptionWrapper(where="in worker 3")
    with pytest.raises(raised, match=r"Caught \w+ in worker 3\.\nOriginal Traceback"):
        kept.reraise()


def test_an_error_that_takes_other_arguments() -> None:
    try:
        raise _Picky(1, 2)
    except _Picky:
        kept = _utils.ExceptionWrapper()
    with pytest.raises(RuntimeError, match="Caught _Picky in background"):
        kept.reraise()


def test_memory_that_nobody_wrote_is_filled() -> None:
    assert deterministic.fill_uninitialized_memory is True
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.ones(2)
        for made in (torch.empty(3), torch.empty_like(x), x.new_empty(2), torch.empty_strided((2,), (3,))):
            assert made.isnan().all()
        assert torch.empty(2, dtype=torch.int16).tolist() == [32767] * 2
        assert torch.empty(2, dtype=torch.uint8).tolist() == [255] * 2
        assert torch.empty(2, dtype=torch.int64).tolist() == [2**63 - 1] * 2
        assert torch.empty(2, dtype=torch.bool).all() and torch.empty(1, dtype=torch.complex64).isnan().all()
        deterministic.fill_uninitialized_memory = False
        torch.empty(1000).fill_(3.0)
        assert not torch.empty(1000).isnan().all()
        with pytest.raises(RuntimeError, match="expected a bool, but got int"):
            deterministic.fill_uninitialized_memory = 1
        torch._C._set_deterministic_fill_uninitialized_memory(False)
        assert not deterministic.fill_uninitialized_memory
        assert not torch._C._get_deterministic_fill_uninitialized_memory()
    finally:
        torch.use_deterministic_algorithms(False)
        deterministic.fill_uninitialized_memory = True


def test_conversions_may_make_new_parameters() -> None:
    layer = torch.nn.Linear(2, 2)
    weight = layer.weight
    layer.double()
    assert layer.weight is weight and not future.get_overwrite_module_params_on_conversion()
    future.set_overwrite_module_params_on_conversion(True)
    try:
        assert layer.float().weight is not weight
    finally:
        future.set_overwrite_module_params_on_conversion(False)
    assert torch.__future__ is future and future.get_swap_module_params_on_conversion() is False


def test_groups_of_lists() -> None:
    params = [torch.ones(1), torch.ones(2, dtype=torch.float64), torch.ones(3)]
    found = _foreach_utils._group_tensors_by_device_and_dtype([params, [None, None, params[0]]], True)
    cpu = torch.device("cpu")
    assert set(found) == {(cpu, torch.float32), (cpu, torch.float64)}
    lists, indices = found[cpu, torch.float32]
    assert indices == [0, 2] and lists[0][1] is params[2] and lists[1] == [None, params[0]]
    assert _foreach_utils._get_fused_kernels_supported_devices() == ["cuda", "cpu"]
    assert _import_utils._check_module_exists("json") and not _import_utils._check_module_exists("no.such")


def test_warnings_of_each_time() -> None:
    from warptape._missing import say_once

    torch.set_warn_always(True)
    try:
        assert torch.is_warn_always_enabled()
        for _ in range(2):
            with pytest.warns(UserWarning, match="said again"):
                say_once("said again")
    finally:
        torch.set_warn_always(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        say_once("said again")


def test_switches_within_a_context() -> None:
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    with cudnn.flags(enabled=None, benchmark=not before), no_dispatch():
        assert cudnn.benchmark is not before
    assert cudnn.benchmark is before


def test_grouped_products_by_their_older_name() -> None:
    a, b = torch.randn(4, 3).bfloat16(), torch.randn(2, 3, 5).bfloat16()
    offs = torch.tensor([1, 4], dtype=torch.int32)
    expected = torch.cat([a[:1] @ b[0], a[1:] @ b[1]])
    assert torch._grouped_mm(a, b, offs).allclose(expected)
    assert torch._grouped_mm(a, b, offs=offs, out_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_modules_of_devices_and_classes_of_storages() -> None:
    assert torch._utils._get_device_module("cuda") is torch.cuda
    with pytest.raises(RuntimeError, match="'abacus' does not have a corresponding module"):
        torch._utils._get_device_module("abacus")
    kind = type("FloatStorage", (), {})  # as torch.cuda's
    assert torch.serialization.normalize_storage_type(kind) is torch.FloatStorage
