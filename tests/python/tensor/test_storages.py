"""Storages: mapped files, parts that share memory, tensors made of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import warptape as torch
from warptape import _C


def test_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    np.arange(8, dtype=np.float32).tofile(path)
    storage = torch.UntypedStorage.from_file(str(path), False, 24)
    assert (storage.nbytes(), torch.asarray(storage, dtype=torch.float32).tolist()) == (
        24,
        [0, 1, 2, 3, 4, 5],
    )
    torch.asarray(storage, dtype=torch.float32)[0] = 9.0
    assert np.fromfile(path, np.float32)[0] == 0  # writes stay in memory
    assert torch.asarray(storage, dtype=torch.float32)[0] == 9
    assert torch.FloatStorage.from_file(path, False, 3).tolist() == [0, 1, 2]
    assert torch.UntypedStorage.from_file(path).nbytes() == 0
    with pytest.raises(RuntimeError, match="has 32 bytes, 33 are asked for"):
        torch.UntypedStorage.from_file(path, False, 33)
    torch.FloatStorage.from_file(path, True, 3)[0] = 5  # and here they go to the file
    assert np.fromfile(path, np.float32)[:2].tolist() == [5, 1]
    assert torch.from_file(str(path), size=2).tolist() == [5, 1]
    made = torch.from_file(str(tmp_path / "made"), True, 3, dtype=torch.int16)
    made[1] = 7
    assert np.fromfile(tmp_path / "made", np.int16).tolist() == [0, 7, 0]
    assert torch.from_file(str(tmp_path / "made"), True, 4, dtype=torch.int16).tolist() == [0, 7, 0, 0]
    with pytest.raises(FileNotFoundError):
        torch.UntypedStorage.from_file(tmp_path / "none", False, 8)


def test_a_longer_mapping_of_a_file_outlives_a_shorter_one() -> None:
    file = os.memfd_create("test")
    os.ftruncate(file, 4096)
    short = _C._map_shared(os.dup(file), 100, True)
    long = _C._map_shared(os.dup(file), 4000, True)
    assert short.data_ptr() != long.data_ptr()
    del short  # takes nothing but itself out of the list of mappings
    assert _C._map_shared(os.dup(file), 4000, True).data_ptr() == long.data_ptr()
    os.close(file)


def test_slices_share_memory() -> None:
    t = torch.arange(4.0)
    part = t.untyped_storage()[4:12]
    assert part.nbytes() == 8 and part.data_ptr() == t.data_ptr() + 4
    torch.asarray(part, dtype=torch.float32)[1] = 7.0
    assert t.tolist() == [0, 1, 7, 3]
    assert torch.arange(4.0).storage()[1:3].tolist() == [1, 2]
    assert len(t.untyped_storage()[3:3]) == len(t.untyped_storage()[5:2]) == 0
    kept = torch.arange(1000.0).untyped_storage()[400:408]  # the tensor itself is gone
    assert torch.asarray(kept, dtype=torch.float32).tolist() == [100, 101]
    with pytest.raises(RuntimeError, match="step 2"):
        t.untyped_storage()[::2]


def test_tensors_of_storages() -> None:
    storage = torch.tensor([1.0]).untyped_storage()
    assert torch.asarray(storage, dtype=torch.uint8).tolist() == [0, 0, 128, 63]
    assert torch.asarray(torch.arange(3.0).storage()).tolist() == [0, 1, 2]


@pytest.mark.parametrize("make", [torch.tensor, torch.asarray])
def test_pythons_types_are_dtypes(make) -> None:
    wanted = {int: torch.int64, float: torch.float64, bool: torch.bool, complex: torch.complex128}
    assert {kind: make([1], dtype=kind).dtype for kind in wanted} == wanted
    with pytest.raises(TypeError, match=r"must be torch\.dtype, not type"):
        make([1], dtype=str)


def test_dense_form_of_a_dense_tensor() -> None:
    t = torch.arange(3.0)
    assert t.to_dense() is t and t.to_dense(torch.float64).dtype == torch.float64


def test_typed_storages_of_values_and_their_conversions() -> None:
    storage = torch.IntStorage([-1, 0, 3])
    assert (storage.type(), storage.tolist(), storage.size()) == ("torch.IntStorage", [-1, 0, 3], 3)
    assert storage.byte().tolist() == [255, 0, 3] and storage.bool().type() == "torch.BoolStorage"
    assert storage.complex_double().dtype == torch.complex128
    assert torch.TypedStorage(4, dtype=torch.float64).nbytes() == 32
    wrapped = torch.FloatStorage(wrap_storage=torch.tensor([1.5, 2.5]).untyped_storage())
    assert wrapped.fill_(3).tolist() == [3, 3]
    assert wrapped.copy_(torch.LongStorage([4, 5])).tolist() == [4, 5]
    with pytest.raises(RuntimeError, match="size 2, got one of size 3"):
        wrapped.copy_(storage)
    with pytest.raises(RuntimeError, match="Too many positional arguments"):
        torch.FloatStorage(1, 2)
    with pytest.raises(RuntimeError, match="'dtype' cannot be specified"):
        torch.FloatStorage(1, dtype=torch.float32)
    with pytest.raises(TypeError, match="must be UntypedStorage, but got FloatStorage"):
        torch.FloatStorage(wrap_storage=wrapped)
    with pytest.raises(TypeError, match="Argument type not recognized"):
        torch.FloatStorage(torch.ones(2))


def test_storages_of_buffers() -> None:
    data = bytearray([1, 2, 3, 4])
    assert torch.ShortStorage.from_buffer(data, "big").tolist() == [258, 772]
    assert torch.IntStorage.from_buffer(data, "little").tolist() == [67305985]
    assert torch.ByteStorage.from_buffer(data, count=2, offset=1).tolist() == [2, 3]
    assert torch.BoolStorage.from_buffer(bytes([0, 7])).tolist() == [False, True]
    with pytest.raises(ValueError, match="4 bytes are no multiple of the 8"):
        torch.DoubleStorage.from_buffer(data)


def test_tensors_take_on_other_memory() -> None:
    source = torch.arange(6.0)
    t = torch.tensor([])
    version = t._version
    assert t.set_(source) is t and t.is_set_to(source) and t._version > version - 1
    t.set_(source.storage(), 1, (2, 2), (3, 1))
    assert t.tolist() == [[1, 2], [4, 5]] and not t.is_set_to(source)
    t[0, 0] = 9
    assert source[1] == 9 and t.storage()._cdata == source.untyped_storage()._cdata
    t.set_(source.untyped_storage(), 0, (2, 5))  # grows: nobody outside sees the memory
    assert source.untyped_storage().nbytes() == 40 and t[0].tolist() == [0, 9, 2, 3, 4]
    assert t.set_().shape == (0,)
    with pytest.raises(
        RuntimeError, match=r"Expected a Storage of type torch.float32, got one of torch.int64"
    ):
        t.set_(torch.arange(3).storage())
    with pytest.raises(RuntimeError, match="out of bounds for storage"):
        torch.ones(1).set_(torch.ones(1).untyped_storage(), 100, (1,))
    leaf = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="requires a gradient"):
        leaf.set_(source)
    assert leaf.tolist() == [1, 1]
    seen = torch.ones(2)
    seen.numpy()
    with pytest.raises(RuntimeError, match="not resizable"):
        torch.tensor([]).set_(seen.storage(), 0, (8,))


def test_checks_of_sizes() -> None:
    torch._check(True)
    torch._check_is_size(3, max=3)
    with pytest.raises(RuntimeError, match="three"):
        torch._check(False, lambda: "three")
    with pytest.raises(IndexError, match="Expected cond to be True"):
        torch._check_index(False)
    with pytest.raises(TypeError, match="cond must be a bool"):
        torch._check(torch.tensor(True))
    with pytest.raises(RuntimeError, match="Expected cond"):
        torch._check_tensor_all(torch.tensor([True, False]))
    with pytest.raises(TypeError, match="must have dtype"):
        torch._check_tensor_all(torch.ones(1))
    assert (torch.sym_max(1, 2.0), torch.sym_int(-1.5), torch.sym_ite(False, 1, 2)) == (2.0, -1, 2)
    assert isinstance(torch.sym_min(1, 2.0), float)


def test_resizing_storages() -> None:
    storage = torch.arange(4.0).storage()
    assert storage.resizable() and storage.resize_(6).size() == 6 and storage.tolist()[:4] == [0, 1, 2, 3]
    meta = torch.TypedStorage([1, 2], dtype=torch.int16, device="meta")
    assert meta.resize_(10).nbytes() == 20 and meta.data_ptr() == 0
    with pytest.raises(NotImplementedError, match="Not available"):
        meta[0]
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta storage"):
        meta.cpu()


def test_deterministic_resize_fills_what_is_new() -> None:
    t = torch.zeros(2, dtype=torch.int16)
    torch.use_deterministic_algorithms(True)
    try:
        t.resize_(4)
    finally:
        torch.use_deterministic_algorithms(False)
    assert t.tolist() == [0, 0, 32767, 32767]


def test_expanded_tensors_can_be_filled() -> None:
    base = torch.zeros(3, 1)
    assert base.expand(3, 4).fill_(2) is not None and base.flatten().tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        base.expand(3, 4).add_(1)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_storages_of_wide_unsigned_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 2], [3, 250]], dtype=dtype)
    storage = x.storage()
    assert list(storage) == [1, 2, 3, 250] and storage.dtype == dtype and len(storage) == 4
    assert storage.untyped().nbytes() == 4 * dtype.itemsize
    storage[1] = 7
    assert x[0][1].item() == 7


def test_the_classes_of_storages() -> None:
    assert {torch.FloatStorage, torch.UntypedStorage} <= torch._storage_classes
